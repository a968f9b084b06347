"""Shapes of the operands of products: their checks, each naming the operand that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError

__all__: list[str] = []


def need_axes(where: str, name: str, array: Any, axes: str) -> None:
    shape = np.shape(array)
    if len(shape) != axes.count(",") + 1:
        raise ShapeError(where, f"{name} {axes}", f"{name} {list(shape)}")


def need_factor(where: str, name: str, array: Any, other: str, like: Any, axes: str, like_axes: str) -> None:
    """`like_axes` of `like`, and `axes` of `array`, where {i} stands for the length of axis i of `like`."""
    need_axes(where, other, like, like_axes)
    shape, wanted = np.shape(array), axes.format(*like.shape)
    parts = wanted.strip("[]").split(", ")
    if len(shape) != len(parts) or any(p.isdigit() and int(p) != n for p, n in zip(parts, shape, strict=True)):
        raise ShapeError(where, f"{name} {wanted} for {other} {list(like.shape)}", f"{name} {list(shape)}")


def need_addend(where: str, input: Any, shape: tuple[int, ...]) -> None:
    got = np.shape(input)
    if len(got) > len(shape) or any(n not in (1, m) for n, m in zip(got[::-1], shape[::-1], strict=False)):
        raise ShapeError(where, f"input that broadcasts to {list(shape)}", f"input {list(got)}")
