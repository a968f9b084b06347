"""Weights by a formula, for which tests/golden/pretrained.json has the logits of other libraries."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "pretrained.json"


def golden() -> dict[str, dict[str, Any]]:
    """By case: config (of config.json, or {}), tensors (the shape of each by its name in a file), given, logits."""
    return json.loads(GOLDEN.read_text())


def values(name: str, shape: Any) -> np.ndarray:
    """The tensor `name` of `shape`: 0.3 times a sine; the weights and variances of norms are around 1."""
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    wave = 0.3 * np.sin(0.7 * np.arange(math.prod(shape)) + zlib.crc32(name.encode()) % 1000)
    around = 1.0 if name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")) else 0.0
    return (around + wave).reshape(shape).astype(np.float32)


def inputs(given: dict[str, Any]) -> np.ndarray:
    """Images or tokens: given is {"images": size} or {"tokens": vocabulary, "length": of a sequence}."""
    if "images" in given:
        return values("images", (2, 3, given["images"], given["images"]))
    return (np.arange(2 * given["length"]) * 5 % given["tokens"]).reshape(2, given["length"])
