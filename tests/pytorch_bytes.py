"""The bytes of files of `torch.save`, written opcode by opcode."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile

import numpy as np


def zip_of(*opcodes, folder="archive", **records):
    """A file of torch.save: a pickle of these opcodes, and records by name, `data_0` for `data/0`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", b"\x80\x02" + b"".join(opcodes) + b".")
        for name, data in records.items():
            archive.writestr(f"{folder}/{name.replace('_', '/')}", data)
    return out.getvalue()


def text(word):
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def numbers(*values):
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(kind="FloatStorage", key="0", elements=6, place="cpu"):
    return b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text(place) + number(elements) + b"tQ"


def rebuilt(held, offset=0, size=(2, 3), stride=(3, 1)):
    name = b"ctorch._utils\n_rebuild_tensor_v2\n"
    return name + b"(" + held + number(offset) + numbers(*size) + numbers(*stride) + b"\x89NtR"


SIX = np.arange(6, dtype="<f4").tobytes()


TENSOR = rebuilt(storage())
DATA = struct.pack("<q", 6) + SIX


def legacy(obj=TENSOR, keys=("0",), data=DATA):
    first = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
    return first + b"\x80\x02" + obj.replace(b"tQ", b"NtQ") + b"." + pickle.dumps(list(keys), 2) + data
