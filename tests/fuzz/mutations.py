"""Mutations of files: flip bits, remove, insert and move bytes, replace numbers by extreme ones."""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Callable
from random import Random

EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
TOKENS = (
    *(b"0", b"-1", b"1e999", b"NaN", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616"),
    *(b"1" + b"0" * 30, b"9" * 5000, b"0x" + b"f" * 5000, b'"zzz"', b"[]", b"null", b""),
)
NESTS = (b"[", b"{", b'{"a":', b" ", b"a.", b"\0", b"(", b'{"list":[')


def mutate(data: bytes, draw: Random) -> bytes:
    """`data` after one to three mutations."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = draw.choice(_MUTATIONS)(data, draw)
    return data


def mutate_packed(data: bytes, draw: Random) -> bytes:
    """Mutate a gzip file, or its content before compression: a valid checksum lets the reader reach the content."""
    return mutate(data, draw) if draw.random() < 0.4 else gzip.compress(mutate(gzip.decompress(data), draw), 1)


def mutate_png(data: bytes, draw: Random) -> bytes:
    """Mutate a PNG file, mostly with corrected chunk checksums."""
    found = mutate(data, draw)
    return found if draw.random() < 0.3 else _fix_checksums(found)


def _flip(data: bytes, draw: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(min(len(data), draw.choice((1, 1, 2, 8)))):
        changed[_place(data, draw)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(data: bytes, draw: Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _remove(data: bytes, draw: Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + data[at + draw.choice((1, 2, 8, 64)) :]


def _insert(data: bytes, draw: Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + draw.randbytes(draw.choice((1, 4, 64))) + data[at:]


def _nest(data: bytes, draw: Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + draw.choice(NESTS) * draw.choice((3, 200, 20_000)) + data[at:]


def _move(data: bytes, draw: Random) -> bytes:
    a, b = sorted((_place(data, draw), _place(data, draw)))
    return data[b:] + data[a:b] + data[:a] if draw.random() < 0.5 else data[:b] + data[a:]


def _number(data: bytes, draw: Random) -> bytes:
    at, size = _place(data, draw), draw.choice((1, 2, 4, 8))
    value = draw.choice(EXTREMES) % 256**size
    return data[:at] + struct.pack(draw.choice("<>") + "0BH0I000Q"[size], value) + data[at + size :]


def _token(data: bytes, draw: Random) -> bytes:
    """Replace a number written in digits, in the first kilobytes, by another token."""
    found = [match.span() for match in re.finditer(rb"\d+", data[:4096])]
    if not found:
        return _number(data, draw)
    start, end = draw.choice(found)
    return data[:start] + draw.choice(TOKENS) + data[end:]


_MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_flip, _flip, _cut, _remove, _insert, _nest, _move, _number, _number, _token, _token),
)


def _place(data: bytes, draw: Random) -> int:
    """A random position, often near the start or end, where lengths are stored."""
    span = min(len(data), draw.choice((16, 128, 128, len(data))))
    at = draw.randrange(span) if span else 0
    return at if draw.random() < 0.75 else max(0, len(data) - 1 - at)


def _fix_checksums(data: bytes) -> bytes:
    found, at = bytearray(data), 8
    while at + 12 <= len(found):
        end = at + 8 + int.from_bytes(found[at : at + 4], "big")
        if end + 4 > len(found):
            break
        found[end : end + 4] = zlib.crc32(found[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(found)
