"""Runs cases of ops by the CPU's kernels, whatever their size, and compares values and gradients with the references'.

    python -m tests.fuzz.kernels [--trials 20000] [--seed N] [--only gelu] [--trial N] [--exact-memory]

A trial is a case of `tests/cases` in float32, bfloat16 or float16, with other lengths of its axes, 0 and 1 among them,
inputs of odd strides, and infinities, NaN, zeros or subnormal numbers among their values. A finding is a difference
beyond the tolerance table, an infinity or NaN in another place, or an error that the reference does not raise. With
--exact-memory each array ends where its memory ends, for AddressSanitizer to see what goes beyond (see .ci/sanitize).
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from importlib import util
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from ampkit import Tensor, manual_seed
from ampkit.backends.cpu import caching_allocator
from ampkit.base.dtypes import DType, bfloat16, float16, float32, is_float
from ampkit.core.dispatch import Primitive, reference_only
from ampkit.core.op import ops as registry
from ampkit.kernels.cpu.pointwise import LAUNCHER, elementwise
from ampkit.ops.linalg import decompositions, solvers
from ampkit.testing import GRADIENT_TOLERANCE, TOLERANCE, Case, Draw, assert_close, booleans, integers, normal
from ampkit.testing.closeness import values_of
from ampkit.testing.differences import floats_of, gradients_of

from .layouts import LAYOUTS, laid_out
from .primitives import PRIMITIVES

PACKAGES = "ampkit.backends.cpu", "ampkit.kernels.cpu"
DTYPES = (float32, bfloat16, float16)
LENGTHS = (0, 1, 1, 2, 3, 5, 7, 9, 17, 33, 65)
LIMIT = 1 << 16  # elements of an input
# Of kernels' modules: fewer elements are left to NumPy, or to another algorithm.
THRESHOLDS = ("MIN_ELEMENTS", "MIN_FUSED", "MIN_MACS", "MIN_SCORES", "_LARGE", "_MIN_FILLED")
THRESHOLDS += ("_MIN_MACS", "_MIN_TILES", "_MIN_MACS_OF_BATCH", "_MIN_TILES_OF_BATCH")
CANCELLING = {"corrcoef", "cosine_similarity"}  # gradients of next to nothing, between large terms
BY_LAPACK = {*decompositions.__all__, *solvers.__all__}  # and nothing else: some loop forever over NaN and infinities
# What a reference multiplies by the zeros of padding and masks, kernels leave out, or the other way round; and 16-bit
# products take subnormal numbers as zeros on some CPUs. So NaN and infinities spread less, or further.
FINITE_ONLY = re.compile(
    "conv|linear|adaptive_avg|attention|batch_norm|instance_norm|group_norm|matmul|mm$|bmm|outer|addr|einsum|rnn|lstm|gru|"
    "cross_entropy|matrix_norm|linalg_norm|mv$|dot$|inner|kron"
)
ROUNDED_BETWEEN = re.compile("linear_gelu|rnn|lstm|gru|add_layer_norm|attention")  # in 16 bits
# To nothing, for a few equal numbers.
CANCELS = re.compile(
    "batch_norm|group_norm|instance_norm|layer_norm_of_sum|add_layer_norm|linear_gelu|attention|grid_sample"
)
MORE = (  # of sizes and dtypes for which there are other kernels
    Case("conv2d", normal(2, 17, 6, 9), normal(35, 17, 3, 3), normal(35), padding=1),
    Case("conv2d", normal(1, 33, 5, 8), normal(32, 33, 3, 3), None, padding=(2, 1)),
    Case("linear", normal(9, 35), normal(33, 35), normal(33)),
    Case("embedding", integers(0, 7, 4, 5), normal(7, 33)),
    Case("index_select", normal(2, 4, 33), 1, integers(0, 4, 6)),
    Case("adaptive_max_pool2d", normal(2, 3, 32, 18), (2, 1)),
    Case("eq", normal(3, 4), normal(4)),
    Case("gt", normal(8), 0.5),
    Case("bitwise_and", booleans(3, 4), booleans(4)),
    Case("bitwise_xor", booleans(8), booleans(8)),
)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -6e-8, 6e-5)


def _modules() -> list[Any]:
    return [module for name, module in sys.modules.items() if name.startswith("ampkit.")]


def primitives() -> set[Primitive]:
    """All primitives that have kernels for the CPU, which are loaded."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not found.name.endswith("setup_commands"):
                importlib.import_module(found.name)
    found = {each for module in _modules() for each in vars(module).values() if type(each) is Primitive}
    found.update(each for op in registry.values() for each in (op.forward, op.backward_primitive) if each)
    return {each for each in found if each.kernels_of("cpu")}


@contextmanager
def kernels_of_any_size() -> Iterator[None]:
    """Within the block kernels take arrays that are too small to be worth a call: empty ones behind the first, too."""
    with ExitStack() as stack:
        for primitive in primitives():
            for limited in (*primitive.kernels_of("cpu"), primitive):
                stack.enter_context(patch.object(limited, "min_elements", 1))
        for module in _modules():
            for name in THRESHOLDS:
                if module.__name__.startswith(PACKAGES) and hasattr(module, name):
                    stack.enter_context(patch.object(module, name, 0))
        stack.callback(object.__setattr__, LAUNCHER, "min_elements", LAUNCHER.min_elements)
        object.__setattr__(LAUNCHER, "min_elements", 1)  # of a frozen dataclass
        stack.enter_context(patch.dict(LAUNCHER.min_float32, dict.fromkeys(LAUNCHER.min_float32, 0)))  # type: ignore[arg-type]  # a dict
        yield


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Within the block new arrays hold NaN, of integers -1, so that what a kernel leaves unwritten is a finding."""

    def empty(shape: Sequence[int], dtype: DType) -> Any:
        made = allocate(shape, dtype)
        made.reshape(-1).view(np.uint8).fill(0xFF)
        return made

    allocate = caching_allocator.empty
    with ExitStack() as stack:
        for module in _modules():
            if getattr(module, "empty", None) is allocate:
                stack.enter_context(patch.object(module, "empty", empty))
        stack.enter_context(patch.object(elementwise, "MIN_BYTES", 0))  # smaller arrays are NumPy's
        yield


@contextmanager
def exact_memory() -> Iterator[None]:
    """Within the block results of kernels have memory of their own, of their size: neither pooled nor aligned."""
    with ExitStack() as stack:
        for name in ("MIN_BYTES", "_ALIGNED"):
            stack.enter_context(patch.object(caching_allocator, name, np.inf))
        for module in _modules():
            if getattr(module, "zeros", None) is caching_allocator.zeros:
                stack.enter_context(patch.object(module, "zeros", np.zeros))
        yield


# trials


@cache
def cases(only: str = "") -> tuple[Case, ...]:
    """The cases of tests/cases whose op is `only`, or all, and some of sizes for which there are other algorithms."""
    found: list[Case] = []
    for path in sorted(Path(__file__).parents[1].joinpath("cases").glob("*.py")):
        spec = util.spec_from_file_location(f"cases_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += module.CASES
    found += MORE
    return tuple([case for case in found if only in ("", case.name) and case.name not in BY_LAPACK | CANCELLING])


@cache
def _shuffled(seed: int, only: str) -> tuple[Case, ...]:
    found = cases(only)
    return tuple(Random(seed).sample(found, len(found)))


def trial(seed: int, number: int, only: str = "") -> Trial | PrimitiveTrial:
    """Trial `number` of a seed: one in sixteen of a kernel that belongs to no op."""
    if only in PRIMITIVES or (not only and number % 16 == 15):
        return PrimitiveTrial(seed, number if only else number // 16, only)
    return Trial(seed, number if only else number - number // 16, only)


# Rows of equal elements, which layouts make, are rounded to 0 or nearly: an infinite weight makes NaN of 0 alone.
NORM = re.compile("layer_norm|rms_norm")


class Trial:
    """A case, the arrays of its inputs, and what was done to them; each case comes once in as many trials as there are.

    layouts: how the inputs of half of the trials lie, and the gradients of some.
    """

    def __init__(self, seed: int, number: int, only: str = "", layouts: Sequence[str] = LAYOUTS):
        self.layouts = layouts
        self.random = Random(f"{seed} {number}")
        self.dtype = self.random.choice(DTYPES)
        known = _shuffled(seed, only)
        self.original = known[number % len(known)]
        self.draw(_resized(self.original, self.random))

    def draw(self, case: Case) -> None:
        """Draw the inputs of `case`, and which of them require grad."""
        self.case = case
        special = self.random.random() < 0.4 and not FINITE_ONLY.search(case.name)
        odd = self.random.random() < 0.5
        self.arrays = []
        with np.errstate(all="ignore"):
            for drawn in case.arrays():
                array = drawn.astype(self.dtype) if is_float(drawn.dtype) else drawn
                scales = bool(self.arrays) and odd and NORM.search(case.name)
                if special and is_float(array.dtype) and array.size and not scales:
                    for _ in range(self.random.choice((1, 2, 5))):
                        array.flat[self.random.randrange(array.size)] = self.random.choice(SPECIAL)
                self.arrays.append(laid_out(array, self.random.choice(self.layouts), self.random) if odd else array)
        floats = [i for i, array in enumerate(self.arrays) if is_float(array.dtype)]
        fewest = self.random.choice((1, len(floats)))  # all of them in half of the trials, and more
        count = self.random.randint(min(fewest, len(floats)), len(floats))
        self.differentiable = {*self.random.sample(floats, count)}

    def run(self) -> list[tuple[str, np.ndarray[Any, Any] | None]]:
        """The outputs, and the gradients of some inputs."""
        manual_seed(0)
        tensors = [Tensor(array, i in self.differentiable) for i, array in enumerate(self.arrays)]
        outs = self.case(*tensors)
        floats = floats_of(outs)
        seeds = [_seed(out, Random(str(out.shape)), self.layouts) for out in floats]
        found = [("value", values_of(out)) for out in outs]
        gradients = gradients_of(floats, tensors, seeds)
        return found + [("gradient", None if g is None else values_of(g)) for g in gradients]

    def by_reference(self) -> list[tuple[str, np.ndarray[Any, Any] | None]] | None:
        """What the references make of it; of the case as it was where it has no meaning for other lengths."""
        with reference_only():
            for _ in range(2):
                try:
                    return self.run()
                except Exception:
                    self.draw(self.original)
        return None

    def finding(self) -> str:
        """How the kernels differ from the references, in one line; "" if they do not."""
        wanted = self.by_reference()
        try:
            return "" if wanted is None else self.difference(self.run(), wanted)
        except Exception as error:
            return f"{self}: {type(error).__name__}: {_in_one_line(error)}"

    def difference(self, found: Any, wanted: Any) -> str:
        """How these outputs and gradients differ, in one line; "" if they do not."""
        try:
            for (what, got), (_, want) in zip(found, wanted, strict=True):
                assert (got is None) == (want is None), "a gradient is missing"
                if got is not None and want is not None:
                    assert_close(got, want, self.tolerance(what, got), what)
        except AssertionError as error:
            return f"{self}: AssertionError: {_in_one_line(error)}"
        return ""

    def __str__(self) -> str:
        shapes = ", ".join(f"{a.shape} by {tuple(s // a.itemsize for s in a.strides)}" for a in self.arrays)
        return f"{self.case!r} in {self.dtype.name}, inputs {shapes}"

    def tolerance(self, what: str, got: Any) -> tuple[float, float] | None:
        """Twice that of the table, as both are rounded; None for what is no floating-point number."""
        # Where equal numbers cancel, what gradients times weights (up to 10) round off is multiplied by rstd (300).
        equal = "layer_norm" in self.case.name and 0 in self.arrays[0].strides
        times = 400 if equal or CANCELS.search(self.case.name) else 2
        gradient = what == "gradient" or ROUNDED_BETWEEN.search(self.case.name)
        table = GRADIENT_TOLERANCE if gradient else TOLERANCE
        return (times * table[self.dtype][0], times * table[self.dtype][1]) if got.dtype in table else None


def _in_one_line(error: Exception) -> str:
    return str(error).replace("\n", " ")


class PrimitiveTrial(Trial):
    """A call of a kernel that belongs to no op."""

    def __init__(self, seed: int, number: int, only: str = ""):
        known = [only] if only in PRIMITIVES else Random(seed).sample(list(PRIMITIVES), len(PRIMITIVES))
        self.name, random = known[number % len(known)], Random(f"{seed} {number}")
        self.program = PRIMITIVES[self.name](random)

    def draw(self, case: Any) -> None:
        """The arguments are those of the program, which every primitive takes."""

    def run(self) -> list[tuple[str, np.ndarray[Any, Any] | None]]:
        """What the call wrote."""
        return [("value", found) for found in self.program()]

    def tolerance(self, what: str, got: Any) -> tuple[float, float] | None:
        """Of three steps of an optimizer."""
        rtol, atol = GRADIENT_TOLERANCE.get(got.dtype, (0.0, 0.0))
        return (4 * rtol, 4 * atol) if got.dtype in GRADIENT_TOLERANCE else None

    def __str__(self) -> str:
        return self.name


def _resized(case: Case, random: Random) -> Case:
    # The case with the axes of one length given another, in all of its inputs.
    draws: list[Draw] = []
    replaced([*case.inputs, *case.params.values()], lambda draw: draws.append(draw) or draw)
    lengths = sorted({n for draw in draws for n in draw.shape})
    new = {n: random.choice(LENGTHS) for n in lengths if random.random() < 0.4}

    def resized(draw: Draw) -> Draw:
        shape = tuple([new.get(n, n) for n in draw.shape])
        return replace(draw, shape=shape) if np.prod(shape) <= LIMIT else draw

    params = dict(zip(case.params, replaced(list(case.params.values()), resized), strict=True))
    return Case(case.name, *replaced(list(case.inputs), resized), **params)


def replaced(item: Any, by: Any) -> Any:
    """`item`, a Draw or a nest of lists and tuples, with each Draw in it replaced by `by(draw)`."""
    if isinstance(item, Draw):
        return by(item)
    return type(item)([replaced(each, by) for each in item]) if type(item) in (list, tuple) else item


def _seed(out: Tensor, random: Random, layouts: Sequence[str]) -> Tensor:
    # A gradient of an output: dense, one number as behind `.sum()`, or in any layout.
    values = np.random.default_rng(random.randrange(1 << 32)).normal(size=out.shape).astype(out.dtype)
    kind = random.random()
    layout = "one number" if kind < 0.3 else random.choice(layouts) if kind < 0.6 else "C"
    return Tensor(laid_out(values, layout, random))


def main() -> int:
    """Run the trials, print the findings; return 1 if there are any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="the name of an op, or of a primitive as in primitives.py")
    parser.add_argument("--trial", type=int, help="only this one")
    parser.add_argument("--exact-memory", action="store_true", help="no pool of memory, no gaps between arrays")
    options = parser.parse_args()
    if options.only not in PRIMITIVES and not cases(options.only):
        parser.error(f"--only: needs the name of an op that has a case, or of a primitive, got {options.only!r}")
    start, count = time.monotonic(), 0
    chosen = range(options.trials) if options.trial is None else [options.trial]
    memory = exact_memory() if options.exact_memory else nullcontext()
    with kernels_of_any_size(), poisoned_memory(), memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in chosen:
            finding = trial(options.seed, number, options.only).finding()
            count += bool(finding)
            if finding:
                print(f"--trial {number}: {finding}", flush=True)
    print(f"{len(chosen)} trials in {time.monotonic() - start:.0f} s, {count} findings")
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main())
