"""Grammars of the containers of weights: zip archives, PyTorch's older format, safetensors, indices of shards.

Each draws a file that is mostly right, and tells lies about sizes, offsets and names.
"""

from __future__ import annotations

import json
import pickle
import struct
import zlib
from random import Random
from typing import Any, NamedTuple

from .pickles import NUMBERS, Pickles

FORMATS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "BOOL": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "C64": 8,
    "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F4": 1, "F99": 1,
}  # fmt: skip


class _Entry(NamedTuple):
    name: bytes
    data: bytes
    method: int = 0


def zip_file(draw: Random) -> bytes:
    """An archive of `torch.save`, with sizes, names, offsets and checksums that may be wrong."""
    drawn = Pickles(draw)
    entries = [_Entry(b"archive/data.pkl", drawn.one())]
    entries += [_Entry(f"archive/data/{key}".encode(), _filled(draw, n)) for key, n in drawn.storages.items()]
    if draw.random() < 0.3:
        entries.append(_Entry(b"archive/byteorder", draw.choice((b"little", b"little", b"big", b"", b"middle"))))
    if draw.random() < 0.1:
        entries.append(draw.choice(entries)._replace(data=_filled(draw, draw.choice((0, 8, 300)))))
    if draw.random() < 0.05:
        entries = [entry._replace(method=8) for entry in entries]
    if draw.random() < 0.05:
        entries.append(_Entry(draw.choice((b"../x", b"/etc/x", b"archive/constants.pkl", b"\xff\0", b"")), b"x"))
    return _zipped(draw, entries, lie=draw.random() < 0.4)


def _filled(draw: Random, size: int) -> bytes:
    size = size if draw.random() < 0.95 else draw.choice((0, 1, size + 1, max(size - 1, 0), 2 * size))
    return draw.randbytes(max(min(size, 2**16), 0))


def _zipped(draw: Random, entries: list[_Entry], lie: bool) -> bytes:
    out, table = bytearray(), bytearray()
    for entry in entries:
        packed = zlib.compress(entry.data)[2:-4] if entry.method else entry.data
        at, crc = len(out), zlib.crc32(entry.data)
        sizes = [len(packed), len(entry.data)]
        told = [_told(draw, n) if lie else n for n in (*sizes, *sizes, at, crc)]
        name = draw.choice((entry.name, entry.name[:-1])) if lie and draw.random() < 0.05 else entry.name
        flags = draw.choice((0, 1, 8, 0x800)) if lie and draw.random() < 0.1 else 0
        out += struct.pack("<4s5H3I2H", b"PK\3\4", 20, flags, entry.method, 0, 33, crc, *told[:2], len(name), 0)
        out += name + packed
        extra = b""
        if lie and draw.random() < 0.1:  # sizes of 64 bits
            extra = struct.pack("<2H2Q", 1, 16, *(draw.choice(NUMBERS) % 2**64 for _ in range(2)))
            told[2] = told[3] = 2**32 - 1
        table += struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, flags, entry.method, 0, 33, told[5], told[2], told[3],
                             len(entry.name), len(extra), 0, 0, 0, 0, told[4])  # fmt: skip
        table += entry.name + extra
    count, place = len(entries), len(out)
    if lie and draw.random() < 0.2:
        count, place = count + draw.choice((-1, 1)), _told(draw, place)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count % 2**16, count % 2**16, len(table), place, 0)
    return bytes(out + table + end)


def _told(draw: Random, right: int) -> int:
    if draw.random() < 0.85:
        return right
    return draw.choice((0, 1, right + 1, max(right - 1, 0), 2 * right, 2**16, 2**18, 2**31, 2**32 - 1)) % 2**32


def legacy_file(draw: Random) -> bytes:
    """A file of PyTorch before 1.6."""
    drawn = Pickles(draw, legacy=True)
    magic = 0x1950A86A20F9469CFC6C if draw.random() < 0.97 else draw.choice(NUMBERS)
    head = [pickle.dumps(each, 2) for each in (magic, 1001, {"little_endian": True})]
    body = drawn.one()
    keys: list[Any] = list(drawn.storages)
    if draw.random() < 0.1:
        keys = draw.choice((keys * 2, keys[1:], [*keys, "9"], [0], [[]], {"0": 1}, "0"))
    data = b""
    for key in keys:
        size = drawn.storages.get(key, 8) if isinstance(key, str) else 8
        count = size // draw.choice((1, 4)) if draw.random() < 0.9 else draw.choice(NUMBERS) % 2**64
        data += struct.pack("<Q", count) + _filled(draw, size)
    if draw.random() < 0.1:
        head[draw.randrange(3)] = Pickles(draw).one()
    return b"".join([*head, body, pickle.dumps(keys, 2), data])


def safetensors_file(draw: Random) -> bytes:
    """A safetensors file, with shapes, offsets and dtypes that may be wrong."""
    header: list[tuple[str, Any]] = []
    at = 0
    for index in range(draw.randrange(4)):
        kind = draw.choice(tuple(FORMATS))
        shape = draw.choice(([2, 3], [0], [], [7], [1, 1, 4], [1] * 65, [0, 2**63 - 1], [2**32, 2**32]))
        size = FORMATS[kind]
        for n in shape:
            size *= n
        size = size if size < 2**12 else 0
        offsets = [at, at + size]
        if draw.random() < 0.1:
            offsets[draw.randrange(2)] = draw.choice((*NUMBERS, -1, 0.5, "0", None, True, at + 1))
        if draw.random() < 0.1:
            shape = [draw.choice((*NUMBERS, "2", None, 2.0, [2]))]
        entry: Any = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        if draw.random() < 0.05:
            entry = draw.choice(([], None, "x", {}, {**entry, "dtype": 3}, {**entry, "shape": 3}, {**entry, "x": {}}))
        header.append((draw.choice(("w", "b", f"t{index}", "__metadata__", "")), entry))
        at += size
    if draw.random() < 0.4:
        header.append(("__metadata__", draw.choice(({"ampkit": _description(draw)}, {"a": 1}, [], "x", {"a": "b"}))))
    parts = (f"{json.dumps(name)}:{json.dumps(value)}" for name, value in header)
    head = ("{" + ",".join(parts) + "}").encode()
    if draw.random() < 0.1:
        head = draw.choice(
            (head + b" " * 9, head[:-1], b"[" * 5000, head.replace(b"2", b"9" * 5000, 1), b"\xff" + head)
        )
    length = len(head) if draw.random() < 0.95 else draw.choice(NUMBERS) % 2**64
    return length.to_bytes(8, "little") + head + _filled(draw, at)


def _description(draw: Random) -> str:
    def one(depth: int) -> Any:
        kind = draw.randrange(7 if depth else 3)
        if kind < 2:
            return {"tensor": draw.choice(("w", "b", "t1", "none"))}
        if kind == 2:
            return draw.choice(
                (1, 0.5, "a", None, [], {"list": 3}, {"dict": [[[], 1]]}, {"x": []}, {}, {"a": 1, "b": 2})
            )
        if kind == 3:
            return {"dict": [[draw.choice(("a", 1, None, 0.5)), one(depth - 1)] for _ in range(draw.randrange(3))]}
        return {draw.choice(("list", "tuple")): [one(depth - 1) for _ in range(draw.randrange(3))]}

    if draw.random() < 0.05:
        return draw.choice(('{"list":[' * 3000 + "]}" * 3000, "[", "9" * 5000, "NaN"))
    return json.dumps(one(3))


FILES = ("a.safetensors", "b.bin", "none.bin", "../outside.safetensors", "/etc/hostname", "..", ".", "", "a\0", "sub/a")


def index_file(draw: Random) -> bytes:
    """An index of shards: of files that are there, are missing, lie elsewhere or are no names."""
    names = {draw.choice(("w", "b", "x")): draw.choice((*FILES, *FILES[:2] * 5, 3, None, ["a"])) for _ in range(3)}
    index: Any = {"metadata": {"total_size": draw.choice(NUMBERS)}, "weight_map": names}
    if draw.random() < 0.1:
        index = draw.choice(([], {}, None, {"weight_map": []}, {"weight_map": {"w": "model.safetensors.index.json"}}))
    text = json.dumps(index).encode()
    return (
        text
        if draw.random() < 0.95
        else draw.choice((text[:-1], b"[" * 9000, b"\xff", b"", text.replace(b"w", b"\xed\xa0\x80")))
    )


GRAMMARS = {"zip": zip_file, "legacy": legacy_file, "safetensors": safetensors_file, "index": index_file}
