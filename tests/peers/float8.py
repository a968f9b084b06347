"""PyTorch's casts to the 8-bit formats, as digests of their codes, for `tests/golden/float8.json`.

float16, bfloat16: of all 65,536 values. float32: of 10^7 with random bits.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

NAMES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def bits(dtype: str) -> np.ndarray:
    """The inputs, as unsigned integers."""
    if dtype == "float32":
        return np.random.PCG64(0).random_raw(5_000_000).astype("<u8").view("<u4")
    return np.arange(1 << 16, dtype=np.uint16)


def digest(codes: np.ndarray) -> str:
    """SHA-256 of the codes."""
    return hashlib.sha256(codes.tobytes()).hexdigest()


def main() -> None:
    import torch

    signed = {"float32": np.int32, "float16": np.int16, "bfloat16": np.int16}
    found = {}
    for name in NAMES:
        for dtype, integer in signed.items():
            values = torch.from_numpy(bits(dtype).view(integer)).view(getattr(torch, dtype))
            codes = values.to(getattr(torch, name)).view(torch.uint8).numpy()
            found[f"{name} of {dtype}"] = digest(codes)
    print(json.dumps({"torch": torch.__version__, "sha256": found}, indent=1))


if __name__ == "__main__":
    main()
