"""TensorFlow's fast hash of a string, by which the original's pruning fork draws random labels: FarmHash Fingerprint64.

Source: farmhash's `farmhashna::Hash64`, whose values are the same on every machine and never change. Arithmetic is
modulo 2^64.
"""

_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_MASK = (1 << 64) - 1
_BLOCK = 64

_Pair = tuple[int, int]


def fingerprint(text: bytes) -> int:
    """The hash of `text`, from 0 to 2^64 - 1."""
    length = len(text)
    if length <= 16:
        return _up_to_16(text)
    if length <= 32:
        return _up_to_32(text)
    return _up_to_64(text) if length <= _BLOCK else _hash_long(text)


def _up_to_16(text: bytes) -> int:
    length = len(text)
    multiplier = _K2 + length * 2
    if length >= 8:
        a, b = _word(text, 0) + _K2, _word(text, length - 8)
        c, d = _rotate(b, 37) * multiplier + a, (_rotate(a, 25) + b) * multiplier
        return _mix(c, d, multiplier)
    if length >= 4:
        return _mix(length + (_word(text, 0, 4) << 3), _word(text, length - 4, 4), multiplier)
    if length:
        first, middle, last = text[0], text[length >> 1], text[-1]
        value = (first + (middle << 8)) * _K2 ^ (length + (last << 2)) * _K0
        return _shifted(value) * _K2 & _MASK
    return _K2


def _up_to_32(text: bytes) -> int:
    length = len(text)
    multiplier = _K2 + length * 2
    a, b = _word(text, 0) * _K1, _word(text, 8)
    c, d = _word(text, length - 8) * multiplier, _word(text, length - 16) * _K2
    return _mix(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, multiplier)


def _up_to_64(text: bytes) -> int:
    length = len(text)
    multiplier = _K2 + length * 2
    a, b = _word(text, 0) * _K2, _word(text, 8)
    c, d = _word(text, length - 8) * multiplier, _word(text, length - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d
    z = _mix(y, a + _rotate(b + _K2, 18) + c, multiplier)
    e, f = _word(text, 16) * multiplier, _word(text, 24)
    g, h = (y + _word(text, length - 32)) * multiplier, (z + _word(text, length - 24)) * multiplier
    return _mix(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, multiplier)


def _hash_long(text: bytes) -> int:
    """Hashes block by block; the last 64 bytes, which may overlap the block before, are weighted differently."""
    x, y = 81, 81 * _K1 + 113
    z = _shifted(y * _K2 + 113) * _K2
    v, w = (0, 0), (0, 0)
    x = x * _K2 + _word(text, 0)
    rest = (len(text) - 1) % _BLOCK
    for start in range(0, len(text) - 1 - rest, _BLOCK):
        v, w, x, y, z = _with_block(text, start, v, w, x, y, z, factor=_K1, weight=1)
    factor = _K1 + ((z & 0xFF) << 1)
    low = w[0] + rest
    v = (v[0] + low, v[1])
    w = (low + v[0], w[1])
    v, w, x, y, z = _with_block(text, len(text) - _BLOCK, v, w, x, y, z, factor=factor, weight=9)
    return _mix(_mix(v[0], w[0], factor) + _shifted(y) * _K0 + z, _mix(v[1], w[1], factor) + x, factor)


def _with_block(
    text: bytes, at: int, v: _Pair, w: _Pair, x: int, y: int, z: int, *, factor: int, weight: int
) -> tuple[_Pair, _Pair, int, int, int]:
    """The state (v, w, x, y, z) of the hash after the block of `text` that begins at `at`."""
    x = _rotate(x + y + v[0] + _word(text, at + 8), 37) * factor
    y = _rotate(y + v[1] + _word(text, at + 48), 42) * factor
    x ^= w[1] * weight
    y = (y + v[0] * weight + _word(text, at + 40)) & _MASK
    z = _rotate(z + w[0], 33) * factor
    v = _weak(text, at, v[1] * factor, x + w[0])
    w = _weak(text, at + 32, z + w[1], y + _word(text, at + 16))
    return v, w, z & _MASK, y, x & _MASK  # x and z change places


def _weak(text: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """A quick hash of 32 bytes into two words."""
    first, second, third, fourth = (_word(text, at + 8 * number) for number in range(4))
    a = (a + first) & _MASK
    b = _rotate(b + a + fourth, 21)
    c = a
    a = a + second + third
    b = b + _rotate(a, 44)
    return (a + fourth) & _MASK, (b + c) & _MASK


def _word(text: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(text[at : at + size], "little")


def _rotate(value: int, shift: int) -> int:
    value &= _MASK
    return value >> shift | value << 64 - shift & _MASK


def _shifted(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _mix(u: int, v: int, multiplier: int) -> int:
    """Mixes two words into one."""
    u, v = u & _MASK, v & _MASK
    a = _shifted((u ^ v) * multiplier)
    return _shifted((v ^ a) * multiplier) * multiplier & _MASK
