"""Compare one op on every sample of its OpInfo: values, gradients, second derivatives, and invalid inputs."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo

import ampkit
from ampkit.base.errors import AmpkitError

from . import names, transforms
from .comparison import Difference, Leaf, Tally, faults
from .translate import OutOfScope, copied, described, in_float64, leaves, tensors, to_ampkit

KINDS = ("values", "grad", "gradgrad", "errors")
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "bool")


class Settings(NamedTuple):
    """What to compare: kinds, dtypes, the maximal number of samples per op, dtype and variant, and the seed."""

    kinds: tuple[str, ...] = KINDS
    dtypes: tuple[str, ...] = DTYPES
    samples: int | None = None
    seed: int = 0
    extended: bool = False


class Place(NamedTuple):
    """Identifies a comparison: the first fields of a Difference."""

    name: str
    variant: str
    dtype: str
    sample: int
    kind: str


def seed_all(seed: int) -> None:
    """Seed all random number generators that samples are drawn from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def compare(info: Any, settings: Settings) -> dict[str, Tally]:
    """The tallies of one OpInfo, by kind."""
    tallies = {kind: Tally() for kind in settings.kinds}
    for kind, tally in tallies.items():
        if kind == "errors":
            _errors(info, settings, tally)
            continue
        for dtype in _dtypes(info, kind, settings):
            _samples(info, kind, dtype, settings, tally)
    for tally in tallies.values():
        if tally.agree or tally.differences:
            tally.names.add(info.name)
    return tallies


def _dtypes(info: Any, kind: str, settings: Settings) -> list[str]:
    if kind in transforms.KINDS:
        return transforms.dtypes(info, kind, settings.dtypes)
    if kind == "values":
        able = info.supported_dtypes("cpu")
    elif info.name in names.RANDOM or not info.supports_autograd:
        able = set()
    else:
        able = info.supported_backward_dtypes("cpu") if kind == "grad" or info.supports_gradgrad else set()
    wanted = [dtype for dtype in settings.dtypes if getattr(torch, dtype) in able]
    return wanted if kind != "gradgrad" else [dtype for dtype in wanted if dtype == "float64"]


def _samples(info: Any, kind: str, dtype: str, settings: Settings, tally: Tally) -> None:
    ways = names.variants(info)[: None if kind == "values" else 1]
    run = _values if kind == "values" else _transformed if kind in transforms.KINDS else _gradients
    for number, sample in enumerate(_drawn(info, kind, dtype, settings, tally)):
        for variant in ways:
            place = Place(info.name, _title(info, variant), dtype, number, kind)
            one(place, sample, tally, lambda v=variant, s=sample: run(info, v, s, kind))


def _title(info: Any, variant: names.Variant) -> str:
    title = "" if variant.title == "function" else variant.title
    return " ".join(part for part in (info.variant_test_name, title) if part)


def _drawn(info: Any, kind: str, dtype: str, settings: Settings, tally: Tally) -> list[Any]:
    seed_all(settings.seed)
    draw = info.reference_inputs if settings.extended and kind == "values" else info.sample_inputs
    try:
        return list(islice(draw("cpu", getattr(torch, dtype), requires_grad=kind != "values"), settings.samples))
    except Exception as error:
        tally.out_of_scope[f"PyTorch cannot draw its samples: {type(error).__name__}"] += 1
        return []


def one(place: Place, sample: Any, tally: Tally, run: Callable[[], list[tuple[str, str]]]) -> None:
    """Run one comparison and add it to the tally."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = run()
    except OutOfScope as rule:
        tally.out_of_scope[str(rule)] += 1
        return
    except Exception as error:  # in the comparison itself: reported as a difference, so that the run continues
        found = [("not compared", f"{type(error).__name__}: {_first_line(error)}")]
    if not found:
        tally.agree += 1
    call = described((sample.input, *sample.args)) + (f" {described(sample.kwargs)}" if sample.kwargs else "")
    tally.differences += [Difference(*place, fault, detail, call) for fault, detail in found]


def call_ampkit(call: Callable[[], Any]) -> Any:
    """Call ampkit. Raises Refused(fault, detail) if it raises."""
    try:
        return call()
    except AmpkitError as error:
        raise Refused("refused", _first_line(error)) from None
    except Exception as error:
        raise Refused("raw error", f"{type(error).__name__}: {_first_line(error)}") from None


class Refused(Exception):  # noqa: N818
    """ampkit raised an error where PyTorch returns a result."""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160]


def call_pytorch(call: Callable[[], Any]) -> Any:
    """Call PyTorch. Raises OutOfScope if it raises."""
    try:
        return call()
    except Exception as error:
        raise OutOfScope(f"PyTorch raises {type(error).__name__}") from None


def _arguments(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (sample.input, *sample.args), sample.kwargs


def _without_grad(op: Callable[..., Any], given: Any) -> Any:
    with torch.no_grad():
        return op(*given[0], **given[1])


def _values(info: Any, variant: names.Variant, sample: Any, kind: str) -> list[tuple[str, str]]:
    if variant.inplace and sample.broadcasts_input:
        raise OutOfScope("in-place samples that broadcast their input")
    if not isinstance(sample.input, torch.Tensor) and (variant.title != "function" or info.name.startswith("__")):
        raise OutOfScope("methods and operators of numbers")
    if isinstance(info, BinaryUfuncInfo) and not tensors((sample.input, sample.args)):
        raise OutOfScope("two numbers")
    theirs = copied(_arguments(sample))
    seen: dict[int, Any] = {}
    args, kwargs = to_ampkit(theirs, seen)
    try:
        needed = _without_grad(variant.theirs, theirs)
    except Exception as error:
        if variant.inplace:  # the tensor cannot hold the result
            return must_raise(lambda: variant.ours(*args, **kwargs), error)
        raise OutOfScope(f"PyTorch raises {type(error).__name__}") from None
    before = leaves(needed)
    wide = lazily(lambda: leaves(_without_grad(variant.theirs, in_float64(copied(_arguments(sample))))))
    written = [t for t in tensors(theirs) if t._version]
    try:
        got = call_ampkit(lambda: variant.ours(*args, **kwargs))
    except Refused as refused:
        return [refused.args]
    numbers = not _random(info, sample)
    found = faults(leaves(got), before, wide, numbers)
    if variant.inplace and got is not args[0]:
        found.append(("structure", "returned another tensor, needed the one written to"))
    for tensor in written if not found else []:
        if seen[id(tensor)] is not got:
            changed = faults(leaves(seen[id(tensor)]), leaves(tensor), lambda: None, numbers)
            found += [(fault, f"argument written in place: {detail}") for fault, detail in changed]
    return found


def _random(info: Any, sample: Any) -> bool:
    return info.name in names.RANDOM or sample.kwargs.get("dropout_p", 0) > 0


def _gradients(info: Any, variant: names.Variant, sample: Any, kind: str) -> list[tuple[str, str]]:
    theirs = copied(_arguments(sample))
    ours, second = to_ampkit(theirs), kind == "gradgrad"

    def wrapped(op: Callable[..., Any], given: Any) -> Any:
        return sample.output_process_fn_grad(info.gradcheck_wrapper(op, *given[0], **given[1]))

    def pytorchs(given: Any) -> Any:
        return derivatives(TORCH, lambda: wrapped(variant.theirs, given), tensors(given), second)

    def ampkits() -> Any:
        return derivatives(AMPKIT, lambda: wrapped(variant.ours, ours), tensors(ours, ampkit.Tensor), second)

    needed = call_pytorch(lambda: leaves(pytorchs(theirs)))
    wide = lazily(lambda: leaves(pytorchs(in_float64(copied(_arguments(sample))))))
    try:
        answer = call_ampkit(ampkits)
    except Refused as refused:
        return [refused.args]
    return faults(leaves(answer), needed, wide, not _random(info, sample))


def _transformed(info: Any, variant: names.Variant, sample: Any, kind: str) -> list[tuple[str, str]]:
    libraries = transforms.libraries(AMPKIT, TORCH)
    return transforms.compare(kind, variant, sample, *libraries, call_ampkit, lazily)


def lazily(call: Callable[[], list[Leaf]]) -> Callable[[], list[Leaf] | None]:
    """Cache `call`, made on first use; None if PyTorch raises in float64."""

    @cache
    def answer() -> list[Leaf] | None:
        try:
            return call()
        except Exception:
            return None

    return answer


class Library(NamedTuple):
    """The functions of a library that derivatives need."""

    tensor: type
    grad: Callable[..., Any]
    weights: Callable[[Any, int], Any]  # a tensor like the first, the same in both libraries
    zeros: Callable[[Any], Any]


def _numbers(shape: tuple[int, ...], number: int) -> np.ndarray:
    # Multiples of 1/16, exact in every dtype.
    return np.round(np.random.RandomState(number).uniform(0.25, 1.0, shape) * 16) / 16


TORCH = Library(
    torch.Tensor,
    torch.autograd.grad,
    lambda like, n: torch.tensor(_numbers(tuple(like.shape), n), dtype=like.dtype),
    torch.zeros_like,
)
AMPKIT = Library(
    ampkit.Tensor,
    ampkit.grad,
    lambda like, n: ampkit.tensor(_numbers(tuple(like.shape), n), dtype=like.dtype),
    ampkit.zeros_like,
)


def derivatives(library: Library, call: Callable[[], Any], inputs: list[Any], second: bool) -> list[Any]:
    """Gradients of a weighted sum of all results for all inputs that require grad, zero where independent.

    second: gradients of a weighted sum of those gradients instead.
    """
    inputs = [one for one in inputs if one.requires_grad]
    first = _weighted(library, tensors(call(), library.tensor), inputs, 0, second)
    return _weighted(library, first, inputs, 100, False) if second else first


def _weighted(library: Library, results: list[Any], inputs: list[Any], start: int, again: bool) -> list[Any]:
    # Weights depend on the result's position only, so both libraries use the same even if one skips a result.
    pairs = [(one, library.weights(one, start + i)) for i, one in enumerate(results) if one.requires_grad]
    if not pairs:
        return [library.zeros(one) for one in inputs]
    outputs, weights = ([pair[i] for pair in pairs] for i in range(2))
    found = library.grad(outputs, inputs, weights, create_graph=again, allow_unused=True)
    return [library.zeros(one) if gradient is None else gradient for one, gradient in zip(inputs, found, strict=True)]


def _errors(info: Any, settings: Settings, tally: Tally) -> None:
    if info.error_inputs_func is None:
        return
    seed_all(settings.seed)
    function = names.variants(info)[0].ours
    for number, error in enumerate(info.error_inputs("cpu")):
        sample = error.sample_input
        place = Place(info.name, info.variant_test_name, "", number, "errors")
        one(place, sample, tally, lambda s=sample: _error(function, info.get_op(), s))


def _error(ours: Callable[..., Any], theirs: Callable[..., Any], sample: Any) -> list[tuple[str, str]]:
    given = copied(_arguments(sample))
    args, kwargs = to_ampkit(given)
    try:
        theirs(*given[0], **given[1])
    except Exception as error:
        return must_raise(lambda: ours(*args, **kwargs), error)
    raise OutOfScope("inputs for which PyTorch only warns, or raises no error")


def must_raise(call: Callable[[], Any], theirs: Exception) -> list[tuple[str, str]]:
    """Return a fault unless the call raises an AmpkitError, or Python's TypeError about its arguments."""
    needed = f"needed an error: {_first_line(theirs)}"
    try:
        call()
    except AmpkitError:
        return []
    except TypeError as error:
        return [] if "argument" in str(error) else [("raw error", f"TypeError: {_first_line(error)}, {needed}")]
    except Exception as error:
        return [("raw error", f"{type(error).__name__}: {_first_line(error)}, {needed}")]
    return [("missing error", needed)]
