"""Checks for operations, the library's and users' own: cases, finite differences, one tolerance table.

from ampkit.testing import Case, check, normal

check(Case("softplus", normal(3, 4), beta=2.0))
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import backends
from .core import dtypes
from .core.dtypes import DType, bfloat16, float16, float32, float64
from .core.errors import ArgumentError, DTypeError
from .core.op import ops as registry
from .core.policy import Cast, autocast
from .core.recording import no_grad
from .core.tape import grad
from .core.tensor import Tensor

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

# Per dtype: how far a result may lie from its float64 reference, relative to the value and to the largest value. Twice
# the unit roundoff (2^-11, 2^-8) for the one rounding of a 16-bit result; room for sums in float32 and float64.
TOLERANCE: dict[DType, tuple[float, float]] = {
    float64: (1e-12, 1e-12),
    float32: (1e-5, 2e-6),
    float16: (1e-3, 1e-4),
    bfloat16: (8e-3, 1e-3),
}
# A gradient may be computed from an output that was rounded to 16 bits: the error is relative to the largest gradient.
GRADIENT_TOLERANCE: dict[DType, tuple[float, float]] = {
    float64: (1e-11, 1e-11),
    float32: (1e-4, 1e-5),
    float16: (4e-3, 4e-3),
    bfloat16: (3e-2, 3e-2),
}


@dataclass(frozen=True)
class Draw:
    """An input to be drawn: `normal`, `uniform`, `integers` and `booleans` make one."""

    kind: str
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0

    def make(self, generator: np.random.Generator) -> Array:
        """Values in float64, int64 or bool."""
        if self.kind == "integers":
            return np.asarray(generator.integers(int(self.low), int(self.high), self.shape), np.int64)
        if self.kind == "booleans":
            return np.asarray(generator.integers(0, 2, self.shape), np.bool_)
        drawn = (
            generator.normal(size=self.shape)
            if self.kind == "normal"
            else generator.uniform(self.low, self.high, self.shape)
        )
        return np.asarray(drawn, np.float64)

    def __repr__(self) -> str:
        return "x".join(map(str, self.shape)) or "scalar"


def normal(*shape: int) -> Draw:
    """Standard normal values, floating-point."""
    return Draw("normal", shape)


def uniform(low: float, high: float, *shape: int) -> Draw:
    """Values from [low, high), floating-point."""
    return Draw("uniform", shape, low, high)


def integers(low: int, high: int, *shape: int) -> Draw:
    """int64 values from [low, high)."""
    return Draw("integers", shape, low, high)


def booleans(*shape: int) -> Draw:
    """True and False, evenly."""
    return Draw("booleans", shape)


class Case:
    """One situation of one op: `Case("clamp", normal(3, 4), min=-0.5)`.

    inputs, params: what the op is called with; draws in them, or in lists among them, become tensors. smooth: whether
    second derivatives exist and are checked. The name is that of a function of `ampkit.ops`, or else of an op.
    """

    def __init__(self, name: str, /, *inputs: Any, smooth: bool = True, **params: Any):
        self.name, self.inputs, self.params, self.smooth = name, inputs, params, smooth

    @property
    def function(self) -> Function:
        """What the case calls. Raises ArgumentError if there is no such operation."""
        from . import ops

        found = getattr(ops, self.name, None) or registry.get(self.name)
        if found is None:
            raise ArgumentError("Case", "the name of an operation", repr(self.name))
        return found  # type: ignore[no-any-return]

    def arrays(self) -> list[Array]:
        """The drawn inputs in the order they appear: the same values every time."""
        generator = np.random.default_rng(zlib.crc32(repr(self).encode()))
        return [draw.make(generator) for draw in _draws([*self.inputs, *self.params.values()])]

    def tensors(self, dtype: Any = float64, arrays: list[Array] | None = None) -> list[Tensor]:
        """The drawn inputs as tensors of the default device, floats in `dtype` with requires_grad.

        On a CPU their arrays refuse writes.
        """
        made = [a.astype(dtype) if a.dtype == float64 else a.copy() for a in arrays or self.arrays()]
        for array in made:
            array.flags.writeable = False
        return [_placed(a, dtypes.is_float(a.dtype)) for a in made]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run the operation with `tensors` for the draws; its outputs as a list."""
        left = iter(tensors)
        inputs = [_fill(item, left) for item in self.inputs]
        params = {name: _fill(value, left) for name, value in self.params.items()}
        out = self.function(*inputs, **params)
        return [out] if isinstance(out, Tensor) else list(out)

    def __repr__(self) -> str:
        more = [f"{name}={value!r}" for name, value in self.params.items()]
        return f"{self.name}({', '.join([*map(repr, self.inputs), *more])})"


def _placed(array: Array, requires_grad: bool = False) -> Tensor:
    return Tensor(backends.get().asarray(array), requires_grad)


def _draws(items: Any) -> list[Draw]:
    found = []
    for item in items:
        if isinstance(item, Draw):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found.extend(_draws(item))
    return found


def _fill(item: Any, left: Iterator[Tensor]) -> Any:
    if isinstance(item, Draw):
        return next(left)
    return type(item)([_fill(i, left) for i in item]) if isinstance(item, (list, tuple)) else item


# comparing


def assert_close(got: Any, want: Any, tolerance: tuple[float, float] | None = None, what: str = "value") -> None:
    """Raise AssertionError unless `got` is `want` within its dtype's tolerance; integers and shapes exactly."""
    got, want = _array(got), _array(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    if got.dtype not in TOLERANCE:
        assert np.array_equal(got, want), f"{what}: {got}, expected {want}"
        return
    relative, absolute = tolerance or TOLERANCE[got.dtype]
    wide, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    room = relative * np.abs(want) + absolute * np.max(np.abs(want[finite]), initial=0.1)
    with np.errstate(invalid="ignore"):
        off = np.where(finite, ~(np.abs(wide - want) <= room), ~((wide == want) | (np.isnan(wide) & np.isnan(want))))
    assert not off.any(), (
        f"{what}: {wide[off][:4]}, expected {want[off][:4]} ({got.dtype.name}, {off.sum()} of {off.size})"
    )


def _array(value: Any) -> Array:
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)


# gradients

STEP = 1e-5  # of central differences in float64: truncation ~ step^2, rounding ~ 2^-53 / step, both near 1e-11


def gradcheck(func: Function, inputs: Tensor | Sequence[Tensor], tolerance: float = 1e-6) -> bool:
    """Check the gradients of `func(*inputs)` against central differences along random directions, in float64.

    Returns True, or raises AssertionError naming the first input whose gradient is off, DTypeError for inputs that
    require grad in another dtype.
    """
    inputs = _points("gradcheck", inputs)
    generator = np.random.default_rng(0)
    outs = _floats(func(*inputs))
    seeds = [_placed(_fixed(generator.normal(size=o.shape))) for o in outs]
    _compare(_gradients(outs, inputs, seeds), lambda *x: _dot(_floats(func(*x)), seeds), inputs, generator, tolerance)
    return True


def gradgradcheck(func: Function, inputs: Tensor | Sequence[Tensor], tolerance: float = 1e-5) -> bool:
    """Check the gradients of the gradients of `func` against central differences of its gradients; see gradcheck."""
    inputs = _points("gradgradcheck", inputs)
    generator = np.random.default_rng(1)
    outs = _floats(func(*inputs))
    seeds = [_placed(_fixed(generator.normal(size=o.shape)), requires_grad=True) for o in outs]
    points = [x for x in inputs if x.requires_grad]
    first = _gradients(outs, inputs, seeds, create_graph=True)
    for taped, plain in zip(first, _gradients(outs, inputs, seeds, retain_graph=True), strict=True):
        if plain is not None:
            assert taped is not None, "the recorded gradient is missing"
            assert_close(taped, plain, GRADIENT_TOLERANCE[float64], "the recorded gradient")
    weights = [_placed(_fixed(generator.normal(size=x.shape))) for x in points]
    pairs = [(g, w) for g, w in zip(first, weights, strict=True) if g is not None and g.requires_grad]
    variables = [*points, *seeds]
    if not pairs:
        second: list[Tensor | None] = [None] * len(variables)
    else:
        second = list(grad([g for g, _ in pairs], variables, [w for _, w in pairs], allow_unused=True))

    def projected(*moved: Tensor) -> float:
        left = iter(moved[: len(points)])
        fresh = [next(left) if x.requires_grad else x for x in inputs]
        found = _gradients(_floats(func(*fresh)), fresh, list(moved[len(points) :]))
        return sum(float((g.array * w.array).sum()) for g, w in zip(found, weights, strict=True) if g is not None)

    _compare(second, projected, variables, generator, tolerance)
    return True


def _points(where: str, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    found = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for item in found:
        if item.requires_grad and item.dtype != float64:
            cure = "differences need its precision: x.detach().double().requires_grad_()"
            raise DTypeError(where, "float64 inputs", item.dtype.name, cure)
    return found


def _compare(found: list[Tensor | None], f: Function, inputs: list[Tensor], generator: Any, tolerance: float) -> None:
    slopes = iter(found)
    for position, item in enumerate(inputs):
        if not item.requires_grad:
            continue
        slope, direction = next(slopes), generator.normal(size=item.shape)
        sides = [_moved(inputs, position, sign * STEP * direction) for sign in (1, -1)]
        want = (f(*sides[0]) - f(*sides[1])) / (2 * STEP)
        terms = np.zeros(()) if slope is None else _array(slope) * direction
        room = tolerance * (1 + np.abs(terms).sum() + abs(want))
        assert abs(terms.sum() - want) <= room, f"input {position}: slope {terms.sum()}, by differences {want}"


def _moved(inputs: list[Tensor], position: int, step: Array) -> list[Tensor]:
    return [_placed(np.asarray(_array(x) + step), True) if i == position else x for i, x in enumerate(inputs)]


def _fixed(array: Any) -> Array:
    made = np.asarray(array, np.float64)
    made.flags.writeable = False
    return made


def _floats(outs: Any) -> list[Tensor]:
    outs = [outs] if isinstance(outs, Tensor) else list(outs)
    return [o for o in outs if o.requires_grad]


def _dot(outs: list[Tensor], seeds: list[Tensor]) -> float:
    finite = [np.where(np.isfinite(o), o, 0) for o in map(_array, outs)]
    return sum(float((o * _array(s)).sum()) for o, s in zip(finite, seeds, strict=True))


def _gradients(outs: list[Tensor], inputs: list[Tensor], seeds: list[Tensor], **options: Any) -> list[Tensor | None]:
    points = [x for x in inputs if x.requires_grad]
    if not outs or not points:
        return [None] * len(points)
    return list(grad(outs, points, seeds, allow_unused=True, **options))


# the checks of a case


def check_gradients(case: Case) -> None:
    """First derivatives in float64 against differences; second ones, and the recorded against the plain, if smooth."""
    gradcheck(case, case.tensors())
    if case.smooth:
        gradgradcheck(case, case.tensors())


def check_precision(case: Case, dtype: DType) -> None:
    """Values and gradients in `dtype` against those in float64 from the same, rounded, inputs."""
    low = case.tensors(dtype)
    high = case.tensors(arrays=[_array(t).astype(np.float64) if t.requires_grad else _array(t) for t in low])
    outs, wants = case(*low), case(*high)
    for got, want in zip(outs, wants, strict=True):
        assert_close(got, want)
    seeds = [np.random.default_rng(2).normal(size=w.shape).astype(dtype) for w in _floats(wants)]
    found = _gradients(
        _floats(outs), low, [_placed(s.astype(o.dtype)) for s, o in zip(seeds, _floats(outs), strict=True)]
    )
    truth = _gradients(_floats(wants), high, [_placed(s.astype(np.float64)) for s in seeds])
    for slope, want in zip(found, truth, strict=True):
        assert (slope is None) == (want is None), "a gradient is missing"
        if slope is not None:
            assert slope.dtype == dtype, f"a gradient in {slope.dtype}, expected {dtype}"
            assert_close(slope, want, GRADIENT_TOLERANCE[dtype], "gradient")


def check_strides(case: Case) -> None:
    """The same values from inputs whose elements do not lie next to each other."""
    tensors = case.tensors()
    apart = [Tensor(_spread(_array(t)), t.requires_grad) for t in tensors]
    for got, want in zip(case(*apart), case(*tensors), strict=True):
        assert_close(got, want)


def _spread(array: Array) -> Any:
    there = backends.get()
    if not array.ndim:
        return there.asarray(array)
    wide = there.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    view = wide[..., ::-2]
    view[...] = there.asarray(array)
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def check_dtypes(case: Case) -> None:
    """The output's dtype follows the op's category, inside and outside of autocast."""
    op = registry.get(case.name)
    explicit = "dtype" in case.params or any(isinstance(item, np.dtype) for item in case.inputs)
    if op is None or explicit:
        return
    for dtype in (float32, float16, bfloat16):
        tensors = case.tensors(dtype)
        if not any(t.requires_grad for t in tensors):
            continue
        with no_grad():
            out = case(*tensors)[0]
            assert out.dtype == dtype or not dtypes.is_float(out.dtype), f"{out.dtype} out of {dtype}"
            if not dtypes.is_float(out.dtype) or op.cast is Cast.BANNED:
                continue
            with autocast(dtype=float16):
                inside = case(*tensors)[0].dtype
        wanted = {Cast.LOW: float16, Cast.FP32: float32}.get(op.cast, dtype)
        assert inside == wanted, f"{inside} out of {dtype} in autocast, expected {wanted}"


def check(case: Case) -> None:
    """Every check of one case; raises AssertionError."""
    check_gradients(case)
    for dtype in (float32, float16, bfloat16):
        check_precision(case, dtype)
    check_strides(case)
    check_dtypes(case)
