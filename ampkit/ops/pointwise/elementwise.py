"""`unary`: an op of one tensor from an elementwise function and its derivative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast

from ..named import named


def unary(
    module: str,
    name: str,
    function: Callable[[Array], Array],
    vjp: Callable[[Array, Array], Array],
    doc: str,
    cast: Cast = Cast.KEEP,
    *,
    saves: str = "input",
    integers: str = "float",
) -> Op:
    """The op `name` of `module` that computes function(input) and the gradient vjp(dy, input).

    saves="out": the gradient is vjp(dy, function(input)). A NumPy function stands for the op on traced arrays.
    """

    @op(cast=cast, integers=integers, numpy=function if isinstance(function, np.ufunc) else None)
    @named(name, doc, module)
    def made(input: Array):
        out = function(input)
        return out, Saved(**{saves: input if saves == "input" else out})

    @made.backward
    @named(f"{name}_backward", "", module)
    def backward(dy, saved, needs):
        return vjp(dy, getattr(saved, saves))

    return made
