"""The inverse Hessian of L-BFGS, approximated from the last steps and the changes of the gradient along them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends import Array, Backend
from ampkit.base.dtypes import DType, float64
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from ..argument_checks import is_number, need_integer, to_python
from ..flat.memory import chunks, read_scalar
from ..state import need_array
from .line_search import Point

MIN_CURVATURE = 1e-10  # pairs with a smaller y^T s are left out, as in PyTorch


class InverseHessian:
    """The last pairs of a step s and the change y of the gradient along it, oldest first, and the search direction.

    direction, t: the last direction, and the step length along it. iterations, evaluations: counted over all calls.
    history_size: how many pairs are stored. scale: of the identity that the approximation begins with.
    """

    def __init__(self, history_size: int):
        self.history_size, self.iterations, self.evaluations, self.t, self.scale = history_size, 0, 0, 0.0, 1.0
        self.steps: list[Array] = []  # s
        self.changes: list[Array] = []  # y
        self.inverse_products: list[float] = []  # 1 / y^T s
        self.direction: Array = None
        self.gradient: Array = None  # where the last direction was computed
        self.loss: float | None = None

    @classmethod
    def load(cls, state: dict[str, Any], history_size: int, backend: Backend, dtype: DType) -> InverseHessian:
        """From a state, `state()` or PyTorch's; vectors in dtype."""

        def flat(tensor: Any) -> Array:
            return backend.asarray(getattr(tensor, "array", tensor), dtype)

        loaded = cls(history_size)
        if not state.get("n_iter"):
            loaded.evaluations = state.get("func_evals", 0)
            return loaded
        loaded.iterations, loaded.evaluations = int(to_python(state["n_iter"])), int(to_python(state["func_evals"]))
        loaded.t, loaded.scale, loaded.loss = (float(to_python(state[key])) for key in ("t", "H_diag", "prev_loss"))
        loaded.direction, loaded.gradient = flat(state["d"]), flat(state["prev_flat_grad"])
        loaded.steps, loaded.changes = ([flat(each) for each in state[key]] for key in ("old_stps", "old_dirs"))
        loaded.inverse_products = [float(to_python(each)) for each in state["ro"]]
        return loaded

    def state(self) -> dict[str, Any]:
        """Under PyTorch's keys; numbers as Python's."""
        counts = {"func_evals": self.evaluations, "n_iter": self.iterations}
        if not self.iterations:
            return counts
        lists = {"old_dirs": [Tensor(y) for y in self.changes], "old_stps": [Tensor(s) for s in self.steps]}
        last = {"d": Tensor(self.direction), "t": self.t, **lists, "ro": list(self.inverse_products)}
        return {**counts, **last, "H_diag": self.scale, "prev_flat_grad": Tensor(self.gradient), "prev_loss": self.loss}

    def next_direction(self, point: Point, lr: float) -> float:
        """Add the pair of the last step, which led to `point`, and compute the direction; returns the trial length."""
        self.iterations += 1
        if self.iterations == 1:
            self.direction = -point.gradient
        else:
            self._add_pair(self.direction * self.t, point.gradient - self.gradient)
            self.direction = self._two_loop_recursion(point.gradient)
        self.gradient, self.loss, self.t = point.gradient, point.loss, lr
        if self.iterations == 1:
            self.t = min(1.0, 1.0 / float(read_scalar(np.abs(point.gradient).sum()))) * lr
        return self.t

    def _add_pair(self, step: Array, change: Array) -> None:
        product = dot(change, step)
        if product <= MIN_CURVATURE:
            return
        self.changes.append(change)
        self.steps.append(step)
        self.inverse_products.append(1.0 / product)
        for history in (self.changes, self.steps, self.inverse_products):
            del history[: -self.history_size]
        self.scale = product / dot(change, change)

    def _two_loop_recursion(self, gradient: Array) -> Array:
        """-H g; Nocedal and Wright's algorithm 7.4."""
        q, alphas = -gradient, []
        pairs = list(zip(self.steps, self.changes, self.inverse_products, strict=True))
        for s, y, rho in reversed(pairs):
            alphas.append(dot(s, q) * rho)
            q = q - y * alphas[-1]
        r = q * self.scale
        for (s, y, rho), alpha in zip(pairs, reversed(alphas), strict=True):
            r = r + s * (alpha - dot(y, r) * rho)
        return r


def dot(one: Array, other: Array) -> float:
    """The dot product of two vectors in float64; waits for the device."""
    total = 0.0
    for chunk in chunks(one.size):
        total += float(read_scalar(np.dot(one[chunk].astype(float64), other[chunk].astype(float64))))
    return total


_COUNTS, _NUMBERS = ("func_evals", "n_iter"), ("t", "H_diag", "prev_loss")
_VECTORS, _LISTS = ("d", "prev_flat_grad"), ("old_dirs", "old_stps", "ro")
_MORE = ("al", "master")  # PyTorch's scratch; float32 master weights of a 16-bit parameter


def need_history(where: str, state: dict[str, Any], size: int) -> None:
    """Raise ArgumentError unless `state` is from before the first step, or complete with vectors of `size` elements."""
    unknown = [key for key in state if key not in (*_COUNTS, *_NUMBERS, *_VECTORS, *_LISTS, *_MORE)]
    if unknown:
        raise ArgumentError(where, "a state of LBFGS", f"one with {', '.join(map(str, unknown))}")
    counts = {key: to_python(state[key]) for key in _COUNTS if key in state}
    for key in counts:
        need_integer(where, counts, key, 0)
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
        if not is_number(to_python(value)):
            raise ArgumentError(where, f"{key} as a number", repr(value))
