"""Grain's `index_shuffle` for all records of a set of up to `MOST` at once.

It enciphers the index as a number below 2**16, again and again until the result is a record: 66 times on average where
there are 1000 records. One by one, that takes as long as cutting a decoded image out.
Source: the cipher Simon, eprint.iacr.org/2013/404, on two halves of 8 bits; keys as C++'s `std::seed_seq` makes them.
"""

import functools

import numpy as np

MOST = 1 << 16
ROUNDS = 4  # of the cipher, as Grain itself chooses
_WORD = (1 << 32) - 1


@functools.lru_cache(maxsize=64)
def permutation(num_records: int, seed: int) -> np.ndarray:
    """`index_shuffle(i, num_records - 1, seed, ROUNDS)` for every i, uint16 [num_records]; seed below 2**32."""
    if num_records == 1:
        return np.zeros(1, np.uint16)
    once = _encipher(np.arange(MOST), _keys(seed)).astype(np.uint16)
    # From every number towards a record, 1, 2, 4 ... steps at a time; records stay where they are.
    onwards = np.where(np.arange(MOST) < num_records, np.arange(MOST), once)
    found = once[:num_records]
    while (found >= num_records).any():
        found = onwards[found]
        onwards = onwards[onwards]
    return found.astype(np.uint16)


def _encipher(numbers: np.ndarray, keys: list[int]) -> np.ndarray:
    left, right = numbers >> 8, numbers & 255
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ _MIXED[right] ^ (first & 255)
        right = right ^ _MIXED[left] ^ (second & 255)
    return left << 8 | right


def _turn_left(x: np.ndarray, bits: int) -> np.ndarray:
    return (x << bits | x >> (8 - bits)) & 255


_BYTES = np.arange(256)
_MIXED = _turn_left(_BYTES, 1) & _turn_left(_BYTES, 8) ^ _turn_left(_BYTES, 2)


def _keys(seed: int) -> list[int]:
    """What `std::seed_seq{seed}` generates for the four rounds (C++20, rand.util.seedseq)."""
    x, n = [0x8B8B8B8B] * ROUNDS, ROUNDS
    for k in range(n):
        mixed = _spread(x[k] ^ x[(k + 1) % n] ^ x[k - 1]) * 1664525 & _WORD
        salted = mixed + (1 if k == 0 else k + seed if k == 1 else k) & _WORD
        x[(k + 1) % n] = x[(k + 1) % n] + mixed & _WORD
        x[(k + 2) % n] = x[(k + 2) % n] + salted & _WORD
        x[k] = salted
    for k in range(n):
        mixed = _spread(x[k] + x[(k + 1) % n] + x[k - 1] & _WORD) * 1566083941 & _WORD
        salted = mixed - k & _WORD
        x[(k + 1) % n] ^= mixed
        x[(k + 2) % n] ^= salted
        x[k] = salted
    return x


def _spread(x: int) -> int:
    return x ^ x >> 27
