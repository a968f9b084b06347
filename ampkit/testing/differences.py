"""Check gradients against central finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autograd.forward_ad import dual_level, make_dual, unpack_dual
from ..base.dtypes import float64
from ..base.errors import DTypeError
from ..core.arguments import holds_items, shown
from ..core.autograd.tape import grad
from ..core.tensor import Tensor
from ..ops.argument_checks import checked
from .cases import placed
from .closeness import GRADIENT_TOLERANCE, Array, assert_close, values_of

# Of central differences in float64: truncation error ~ step^2, rounding error ~ 2^-53 / step, both near 1e-11.
STEP = 1e-5


@checked
def gradcheck(
    func: Callable[..., Any], inputs: Tensor | Sequence[Any], tolerance: float = 1e-6, nondet_tol: float = 0.0
) -> bool:
    """Check the gradients of `func(*inputs)` against central differences along random directions, in float64.

    inputs: a tensor, or a sequence; those that are no tensors are passed as they are, and a tensor may come twice.
    Leaves are moved in place: func may also read them itself, as a module does its parameters. tolerance: relative to 1
    plus the sums of absolute terms. nondet_tol: how far the gradients of a second backward may be from those of the
    first. Returns True. Raises AssertionError naming the first input whose gradient is wrong, for a backward that gives
    other gradients the second time, and for outputs whose shapes or dtypes depend on the values; DTypeError for inputs
    that require grad and are not float64.
    """
    inputs = _points("gradcheck", inputs)
    generator = np.random.default_rng(0)
    outs = _checked_outputs(func(*inputs))
    seeds = [placed(_read_only(generator.normal(size=o.shape))) for o in outs]
    found = gradients_of(outs, inputs, seeds)
    _need_same(found, gradients_of(outs, inputs, seeds), nondet_tol)
    _compare(found, lambda *x: _dot(_checked_outputs(func(*x)), seeds, outs), inputs, generator, tolerance)
    return True


@checked
def check_tangents(func: Callable[..., Any], inputs: Tensor | Sequence[Any], tolerance: float = 1e-6) -> bool:
    """Check the forward-mode derivatives of `func` against central differences; see gradcheck.

    A Function's own `jvp` is what is checked, and not its backward. Raises AssertionError naming the first input whose
    tangents are wrong.
    """
    inputs = _points("check_tangents", inputs)
    generator = np.random.default_rng(2)
    outs = _checked_outputs(func(*inputs))
    seeds = [placed(_read_only(generator.normal(size=o.shape))) for o in outs]
    for position, item in enumerate(inputs):
        if not wants_grad(item):
            continue
        direction = generator.normal(size=item.shape)
        with dual_level():
            dual = make_dual(item.detach(), placed(direction))
            moved = _checked_outputs(func(*[dual if i == position else x for i, x in enumerate(inputs)]))
            pairs = [(unpack_dual(out).tangent, seed) for out, seed in zip(moved, seeds, strict=True)]
        terms = [values_of(t) * values_of(s) for t, s in pairs if t is not None]
        f = lambda *x: _dot(_checked_outputs(func(*x)), seeds, outs)  # noqa: E731
        _compare_one(f, inputs, position, direction, terms, tolerance)
    return True


def _checked_outputs(outs: Any) -> list[Tensor]:
    # Where no output requires grad, the gradients have to be zero.
    given = _several(outs)
    return floats_of(given) or [o for o in given if isinstance(o, Tensor) and o.is_floating_point()]


def _need_same(found: list[Tensor | None], again: list[Tensor | None], within: float) -> None:
    for one, other in zip(found, again, strict=True):
        if one is not None and other is not None:
            same = np.allclose(values_of(one), values_of(other), 0, within, equal_nan=True)
            assert same, "a backward that is not deterministic: it gives other gradients the second time"


@checked
def gradgradcheck(
    func: Callable[..., Any], inputs: Tensor | Sequence[Any], tolerance: float = 1e-5, nondet_tol: float = 0.0
) -> bool:
    """Check the second derivatives of `func` against central differences of its gradients; see gradcheck.

    Gradients recorded with create_graph=True are also compared with plain ones.
    """
    inputs = _points("gradgradcheck", inputs)
    generator = np.random.default_rng(1)
    outs = floats_of(func(*inputs))
    seeds = [placed(_read_only(generator.normal(size=o.shape)), requires_grad=True) for o in outs]
    points = [x for x in inputs if wants_grad(x)]
    first = gradients_of(outs, inputs, seeds, create_graph=True)
    _need_same(first, gradients_of(outs, inputs, seeds, create_graph=True), nondet_tol)
    for traced, plain in zip(first, gradients_of(outs, inputs, seeds), strict=True):
        if plain is not None:
            assert traced is not None, "the recorded gradient is missing"
            relative, absolute = GRADIENT_TOLERANCE[float64]
            assert_close(traced, plain, (max(relative, nondet_tol), absolute), "the recorded gradient")
    weights = [placed(_read_only(generator.normal(size=x.shape))) for x in points]
    pairs = [(g, w) for g, w in zip(first, weights, strict=True) if g is not None and g.requires_grad]
    variables = [*points, *seeds]
    if not pairs:
        second: list[Tensor | None] = [None] * len(variables)
    else:
        second = list(grad([g for g, _ in pairs], variables, [w for _, w in pairs], allow_unused=True))

    def projected(*moved: Tensor) -> float:
        left = iter(moved[: len(points)])
        fresh = [next(left) if wants_grad(x) else x for x in inputs]
        found = gradients_of(floats_of(func(*fresh)), fresh, list(moved[len(points) :]))
        pairs = [(g, w) for g, w in zip(found, weights, strict=True) if g is not None]
        return sum(float((values_of(g) * values_of(w)).sum()) for g, w in pairs)

    _compare(second, projected, variables, generator, tolerance)
    return True


def _points(where: str, inputs: Tensor | Sequence[Any]) -> list[Tensor]:
    if isinstance(inputs, np.ndarray):
        raise DTypeError(where, "a Tensor or a sequence of inputs", "an array", "give tensors: ampkit.tensor(...)")
    found = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for item in found:
        if wants_grad(item) and item.array.dtype != float64:
            cure = "differences need its precision: x.detach().double().requires_grad_()"
            raise DTypeError(where, "float64 inputs", item.dtype.name, cure)
    return found


def wants_grad(item: Any) -> bool:
    """Whether `item` is a tensor that requires grad."""
    return isinstance(item, Tensor) and item.requires_grad


def _compare(
    found: list[Tensor | None], f: Callable[..., Any], inputs: list[Tensor], generator: Any, tolerance: float
) -> None:
    gradients = iter(found)
    for position, item in enumerate(inputs):
        if not wants_grad(item):
            continue
        gradient, direction = next(gradients), generator.normal(size=item.shape)
        terms = [] if gradient is None else [values_of(gradient) * direction]
        _compare_one(f, inputs, position, direction, terms, tolerance)


def _compare_one(
    f: Callable[..., Any], inputs: list[Tensor], position: int, direction: Array, terms: list[Array], tolerance: float
) -> None:
    # terms: what the derivative in this direction is the sum of.
    ahead, behind = (_value_at(f, inputs, position, sign * STEP * direction) for sign in (1, -1))
    want = (ahead - behind) / (2 * STEP)
    found = sum((float(each.sum()) for each in terms), 0.0)
    allowed = tolerance * (1 + sum(float(np.abs(each).sum()) for each in terms) + abs(want))
    assert abs(found - want) <= allowed, f"input {position}: derivative {found}, by differences {want}"


def _value_at(f: Callable[..., Any], inputs: list[Tensor], position: int, step: Array) -> float:
    # f where one input is moved: a leaf itself, since f may read it as a variable of its own, as a module's parameter.
    item = inputs[position]
    before = np.array(values_of(item))
    writeable = isinstance(item.array, np.generic) or getattr(item.array.flags, "writeable", True)
    if not (item.is_leaf and writeable):
        moved = placed(np.asarray(before + step), True)
        return float(f(*[moved if i == position else x for i, x in enumerate(inputs)]))
    item._write(before + step)
    try:
        return float(f(*inputs))
    finally:
        item._write(before)


def _read_only(array: Any) -> Array:
    made = np.asarray(array, np.float64)
    made.flags.writeable = False
    return made


def floats_of(outs: Any) -> list[Tensor]:
    """The outputs, of one tensor or a sequence, that require grad."""
    return [o for o in _several(outs) if wants_grad(o)]


def _several(outs: Any) -> list[Any]:
    if isinstance(outs, Tensor):
        return [outs]
    if not holds_items(outs):
        raise DTypeError("gradcheck", "a function that returns Tensors", f"one that returns {shown(outs)}")
    return list(outs)


def _dot(outs: list[Tensor], seeds: list[Tensor], like: list[Tensor]) -> float:
    for what in ("shape", "dtype"):
        moved, first = ([getattr(x.array, what) for x in items] for items in (outs, like))
        assert moved == first, f"outputs of {what}s {moved} where an input is moved, of {first} where not"
    finite = [np.where(np.isfinite(o), o, 0) for o in map(values_of, outs)]
    return sum(float((o * values_of(s)).sum()) for o, s in zip(finite, seeds, strict=True))


def gradients_of(outs: list[Tensor], inputs: list[Tensor], seeds: list[Tensor], **options: Any) -> list[Tensor | None]:
    """The gradients of the inputs that require grad; None for those that no output depends on."""
    points = [x for x in inputs if wants_grad(x)]
    if not points or not any(o.requires_grad for o in outs):
        return [None] * len(points)
    # The graph is retained: what `outs` have in common with other calls may have been recorded before them.
    return list(grad(outs, points, seeds, allow_unused=True, **{"retain_graph": True, **options}))
