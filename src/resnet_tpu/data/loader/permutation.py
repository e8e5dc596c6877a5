"""The permutation of Grain's `index_shuffle`, for thousands of indexes at once.

It enciphers the index as a number of 16 or more bits, repeatedly, until the result is a record's number.
Source: the cipher Simon, eprint.iacr.org/2013/404, on two halves of 8 or more bits; keys as C++'s `std::seed_seq` makes
them. One difference: for 4**k + 1 records, k >= 8, Grain's never yields the last and yields another twice.
"""

import functools

import numpy as np

_BLOCK = 1 << 14  # indexes computed at once
_ROUNDS = 4  # of the cipher, as Grain itself chooses
_FEWEST_BITS = 16  # at least so many are enciphered, or the order would not look random
_WORD = (1 << 32) - 1


def record_at(index: int, *, num_records: int, seed: int) -> int:
    """The number at `index` in the permutation of 0 ... num_records - 1 that `seed`, below 2**32, determines."""
    block, i = divmod(index, _BLOCK)
    return int(_records(block * _BLOCK, num_records, seed)[i])


@functools.lru_cache(maxsize=64)
def _records(first: int, num_records: int, seed: int) -> np.ndarray:
    """The numbers at `first` and the indexes after it, at most _BLOCK of them, as uint32 or uint64."""
    if num_records == 1:
        return np.zeros(1, np.uint32)
    bits = max(_FEWEST_BITS, (num_records - 1).bit_length() + 1 & ~1)
    keys, dtype = _keys(seed), np.uint32 if bits <= 32 else np.uint64
    indexes = np.arange(first, min(first + _BLOCK, num_records), dtype=dtype)
    if bits == _FEWEST_BITS:
        return _walk_by_table(indexes, num_records, _encipher(np.arange(1 << bits, dtype=dtype), keys, bits))
    found = _encipher(indexes, keys, bits)
    while (outside := np.flatnonzero(found >= num_records)).size:  # four times at most, on average
        found[outside] = _encipher(found[outside], keys, bits)
    return found


def _walk_by_table(indexes: np.ndarray, num_records: int, enciphered: np.ndarray) -> np.ndarray:
    """Repeats the enciphering by table: with few records, 1000 for example, reaching one takes 66 steps on average."""
    # The table leads from each number 1, 2, 4 ... steps towards a record; numbers of records map to themselves.
    numbers = np.arange(len(enciphered), dtype=enciphered.dtype)
    onwards = np.where(numbers < num_records, numbers, enciphered)
    found = enciphered[indexes]
    while (found >= num_records).any():
        found = onwards[found]
        onwards = onwards[onwards]
    return found


def _encipher(numbers: np.ndarray, keys: list[int], bits: int) -> np.ndarray:
    half, ones = bits // 2, (1 << bits // 2) - 1

    def rotate_left(x: np.ndarray, by: int) -> np.ndarray:
        return (x << by | x >> (half - by)) & ones

    def mix(x: np.ndarray) -> np.ndarray:
        return rotate_left(x, 1) & rotate_left(x, 8) ^ rotate_left(x, 2)

    left, right = numbers >> half, numbers & ones
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ mix(right) ^ (first & ones)
        right = right ^ mix(left) ^ (second & ones)
    return left << half | right


def _keys(seed: int) -> list[int]:
    """What `std::seed_seq{seed}` generates for the four rounds (C++20, rand.util.seedseq)."""
    x, n = [0x8B8B8B8B] * _ROUNDS, _ROUNDS
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
