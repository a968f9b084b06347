"""Curvature: the inverse Hessian of L-BFGS, as the last moves and what they did to the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends import Array, Backend
from ampkit.base import dtypes
from ampkit.base.dtypes import DType
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from ..flat.memory import chunks, look
from ..options import is_number, need_whole, plain
from ..state import need_array
from .line_search import Point

LEAST = 1e-10  # the product of a move and its change of gradient below which it says nothing, PyTorch's


class Curvature:
    """Pairs of a move s and the change y of the gradient, the newest last, and the direction that they give.

    direction, t: the last direction and how far it was gone along. turns, evaluations: counts of all steps. most: how
    many pairs are kept. scale: the diagonal that the inverse Hessian begins with.
    """

    def __init__(self, most: int):
        self.most, self.turns, self.evaluations, self.t, self.scale = most, 0, 0, 0.0, 1.0
        self.moves: list[Array] = []
        self.changes: list[Array] = []
        self.inverses: list[float] = []  # 1 / (y s)
        self.direction: Array = None
        self.gradient: Array = None  # where the last direction was taken
        self.loss: float | None = None

    @classmethod
    def of(cls, state: dict[str, Any], most: int, home: Backend, dtype: DType) -> Curvature:
        """From a state, `state()` or PyTorch's; vectors in dtype."""
        made, flat = cls(most), lambda tensor: home.asarray(getattr(tensor, "array", tensor), dtype)
        if not state.get("n_iter"):
            made.evaluations = state.get("func_evals", 0)
            return made
        made.turns, made.evaluations = int(plain(state["n_iter"])), int(plain(state["func_evals"]))
        made.t, made.scale, made.loss = (float(plain(state[key])) for key in ("t", "H_diag", "prev_loss"))
        made.direction, made.gradient = flat(state["d"]), flat(state["prev_flat_grad"])
        made.moves, made.changes = ([flat(each) for each in state[key]] for key in ("old_stps", "old_dirs"))
        made.inverses = [float(plain(each)) for each in state["ro"]]
        return made

    def state(self) -> dict[str, Any]:
        """In PyTorch's words; numbers as Python's."""
        counts = {"func_evals": self.evaluations, "n_iter": self.turns}
        if not self.turns:
            return counts
        lists = {"old_dirs": [Tensor(y) for y in self.changes], "old_stps": [Tensor(s) for s in self.moves]}
        here = {"d": Tensor(self.direction), "t": self.t, **lists, "ro": list(self.inverses), "H_diag": self.scale}
        return {**counts, **here, "prev_flat_grad": Tensor(self.gradient), "prev_loss": self.loss}

    def turn(self, now: Point, lr: float) -> float:
        """Take in the gradient where it stands, and make the next direction; returns the first length to try."""
        self.turns += 1
        if self.turns == 1:
            self.direction = -now.gradient
        else:
            self._learn(now.gradient - self.gradient, self.direction * self.t)
            self.direction = self._newton(now.gradient)
        self.gradient, self.loss = now.gradient, now.loss
        self.t = min(1.0, 1.0 / float(look(np.abs(now.gradient).sum()))) * lr if self.turns == 1 else lr
        return self.t

    def _learn(self, change: Array, move: Array) -> None:
        product = dot(change, move)
        if product <= LEAST:
            return
        self.changes.append(change)
        self.moves.append(move)
        self.inverses.append(1.0 / product)
        for kept in (self.changes, self.moves, self.inverses):
            del kept[: -self.most]
        self.scale = product / dot(change, change)

    def _newton(self, gradient: Array) -> Array:
        """-H g by the two-loop recursion, Nocedal and Wright's algorithm 7.4."""
        found, shares = -gradient, []
        pairs = list(zip(self.moves, self.changes, self.inverses, strict=True))
        for move, change, inverse in reversed(pairs):
            shares.append(dot(move, found) * inverse)
            found = found - change * shares[-1]
        found = found * self.scale
        for (move, change, inverse), share in zip(pairs, reversed(shares), strict=True):
            found = found + move * (share - dot(change, found) * inverse)
        return found


def dot(one: Array, other: Array) -> float:
    """The product of two vectors, in float64; waits for the device."""
    total = 0.0
    for part in chunks(one.size):
        total += float(look(np.dot(one[part].astype(dtypes.float64), other[part].astype(dtypes.float64))))
    return total


_COUNTS, _NUMBERS = ("func_evals", "n_iter"), ("t", "H_diag", "prev_loss")
_VECTORS, _LISTS = ("d", "prev_flat_grad"), ("old_dirs", "old_stps", "ro")
_MORE = ("al", "master")  # what PyTorch keeps to work in; float32 values of a 16-bit parameter


def need_history(where: str, state: dict[str, Any], size: int) -> None:
    """Raise ArgumentError unless `state` is that of no step, or a whole one whose vectors have `size` elements."""
    strange = [key for key in state if key not in (*_COUNTS, *_NUMBERS, *_VECTORS, *_LISTS, *_MORE)]
    if strange:
        raise ArgumentError(where, "a state of LBFGS", f"one with {', '.join(map(str, strange))}")
    counts = {key: plain(state[key]) for key in _COUNTS if key in state}
    for key in counts:
        need_whole(where, counts, key, 0)
    if counts.get("n_iter"):
        _need_whole_history(where, state, size)


def _need_whole_history(where: str, state: dict[str, Any], size: int) -> None:
    missing = [key for key in (*_COUNTS, *_LISTS, *_VECTORS, *_NUMBERS) if state.get(key) is None]
    if missing:
        raise ArgumentError(where, "the whole state", f"one without {', '.join(missing)}")
    lengths = [len(state[key]) if isinstance(state[key], (list, tuple)) else None for key in _LISTS]
    if None in lengths or len(set(lengths)) > 1:
        raise ArgumentError(where, "as many old_dirs as old_stps and ro, in lists", str(lengths))
    vectors = [*((key, state[key]) for key in _VECTORS), *(("each", v) for key in _LISTS[:2] for v in state[key])]
    for key, found in vectors:
        shape = need_array(where, key, found).shape
        if shape != (size,):
            raise ArgumentError(where, f"vectors of {size} elements", f"{key} {list(shape)}")
    for key, value in [*((key, state[key]) for key in _NUMBERS), *(("ro", each) for each in state["ro"])]:
        if not is_number(plain(value)):
            raise ArgumentError(where, f"{key} as a number", repr(value))
