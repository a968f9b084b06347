"""CPU kernel of einsum: equations of two operands that are one matrix product."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cpu.onednn.gemm import gemm, is_profitable
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg.einsum import einsum_, parse_equation


def _spells_product(parts: list[str], out: str, operands: Any) -> bool:
    # Each index once in an operand, in two of three places, and of one length.
    if len(operands) != 2 or any(len(set(part)) != len(part) for part in parts):
        return False
    first, second = parts
    lengths = dict(zip(first + second, (*operands[0].shape, *operands[1].shape), strict=True))
    same = all(lengths[letter] == n for letter, n in zip(first, operands[0].shape, strict=True))
    return same and set(first) ^ set(second) <= set(out)


def _contracted(a: HostArray, first: str, b: HostArray, second: str, out: str, dtype: DType) -> HostArray | None:
    """The einsum of two operands as [batch, rows, summed] times [batch, summed, columns]; None as `product`."""
    batch = [letter for letter in out if letter in first and letter in second]
    rows = [letter for letter in out if letter in first and letter not in second]
    columns = [letter for letter in out if letter in second and letter not in first]
    summed = [letter for letter in first if letter in second and letter not in out]
    lengths = dict(zip(first + second, (*a.shape, *b.shape), strict=True))
    sizes = [prod(lengths[letter] for letter in letters) for letters in (batch, rows, summed, columns)]
    lead = sizes[:1] if batch else []
    left = a.transpose([first.index(letter) for letter in batch + rows + summed]).reshape(*lead, *sizes[1:3])
    right = b.transpose([second.index(letter) for letter in batch + summed + columns]).reshape(*lead, *sizes[2:])
    found = gemm(left, right, dtype) if is_profitable(left, right) else None
    if found is None:
        return None
    made = batch + rows + columns
    return found.reshape([lengths[letter] for letter in made]).transpose([made.index(letter) for letter in out])


@einsum_.on("cpu", when=lambda operands, equation: len(operands) == 2)
def einsum_cpu(operands: list[HostArray], equation: str, *, dtype: DType) -> Any:
    parts, out = parse_equation(equation, operands)
    if not _spells_product(parts, out, operands):
        return NotImplemented
    found = _contracted(operands[0], parts[0], operands[1], parts[1], out, dtype)
    return NotImplemented if found is None else (found, Saved(operands=tuple(operands)))


@einsum_.on_backward("cpu", when=lambda dy, saved, needs, equation: len(saved.operands) == 2)
def einsum_backward_cpu(dy: HostArray, saved: Saved, needs: Any, equation: str) -> Any:
    (a, b), (parts, out) = saved.operands, parse_equation(equation, saved.operands)
    if not _spells_product(parts, out, (a, b)):
        return NotImplemented
    da = _contracted(dy, out, b, parts[1], parts[0], needs[0]) if needs[0] else None
    db = _contracted(a, parts[0], dy, out, parts[1], needs[1]) if needs[1] else None
    missing = any(found is None and need for found, need in zip((da, db), needs, strict=True))
    return NotImplemented if missing else (da, db)
