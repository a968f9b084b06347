"""Random calls of the public API as source text."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import operator
import pickle
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ampkit
from ampkit import autograd, cuda, debug, distributions, func, linalg, models, nn, ops, optim, special, testing, utils
from ampkit.testing.cases import Draw

from . import objects, values
from .values import HOSTILE, PLAUSIBLE, tensor_text, valid

SPACE: dict[str, Any] = {
    "ampkit": ampkit, "linalg": linalg, "nn": nn, "ops": ops, "optim": optim, "special": special, "utils": utils,
    "np": np, "inf": ampkit.inf, "nan": ampkit.nan, "t": values.t, "parameter": values.parameter,
    "optimizer": values.optimizer, "stepped": values.stepped, "drained": values.drained,
    "autograd": autograd, "cpu": ampkit.cpu, "cuda": cuda, "debug": debug, "distributions": distributions,
    "func": func, "models": models,
    "testing": testing, "copy": copy, "io": io, "operator": operator, "pickle": pickle, "saved": values.saved,
    "subclass": values.subclass, "used": objects.used, "within": objects.within, "stepped_by": objects.stepped_by,
    "default": values.default, "damaged": lambda state, n: objects.damaged(state, n, _hostile), "Fraction": Fraction,
    "Decimal": Decimal,
}  # fmt: skip
# These write files, start threads, run their argument, or make models of hundreds of layers.
SKIPPED = {
    "cuda.set_device", "cuda.device", "cuda.FloatTensor", "cuda.is_available",  # the others ask for a GPU as these do
    "ampkit.save", "ampkit.load", "ampkit.set_num_threads", "ampkit.op", "ampkit.compile", "ampkit.profile",
    "ampkit.Primitive", "ampkit.recompute", "Tensor.register_hook", "Tensor.copy_in", "Tensor.rebind",
    "Tensor.write_", "Tensor.accumulate", "nn.RNNCellBase", "optim.Optimizer", "optim.Elementwise",
    "utils.data.Dataset", "utils.data.IterableDataset", "utils.data.Sampler",
}  # fmt: skip
_TOP = (
    "arange", "tensor", "manual_seed", "set_rng_state", "get_rng_state", "Generator", "GradScaler", "Policy", "finfo",
    "iinfo", "grad", "set_grad_enabled", "inference_mode", "set_default_device", "set_float32_matmul_precision",
    "get_autocast_dtype", "is_autocast_enabled", "from_dlpack", "device", "Size", "autocast", "no_grad", "enable_grad",
    "use_deterministic_algorithms", "set_default_tensor_type", "initial_seed", "FloatTensor", "LongTensor",
)  # fmt: skip
_MODULES = (
    "autograd", "autograd.functional", "autograd.graph", "cpu", "distributions", "func",
    "optim.swa_utils", "utils",
)  # fmt: skip
_OTHERS = (
    "models.mlp", "models.cnn", "models.lenet5",
    "models.from_hugging_face_gpt2", "debug.plan", "debug.explain", "debug.detect_nonfinite", "debug.Ranges",
    "testing.gradcheck", "autograd.set_detect_anomaly", "autograd.detect_anomaly",
    "ampkit.save", "ampkit.load", "ampkit.amp.custom_fwd", "ampkit.amp.custom_bwd",
    "ampkit.amp.is_autocast_available",
)  # fmt: skip
_OPERATORS = tuple(
    f"__{name}__"
    for name in (
        "add mul sub truediv pow matmul mod floordiv and or xor eq ne lt le gt ge getitem radd rsub rmul rtruediv "
        "rpow rmatmul rmod rfloordiv rand ror rxor rlshift rrshift lshift rshift iadd isub imul itruediv ipow "
        "ifloordiv imod iand ior ixor ilshift irshift contains"
    ).split()
)


def _of(place: str, holder: Any) -> Iterator[str]:
    for name in dir(holder):
        item = getattr(holder, name)
        ours = str(getattr(item, "__module__", "")).startswith("ampkit") and not (
            isinstance(item, type) and issubclass(item, Exception)
        )
        if not name.startswith("_") and callable(item) and ours and f"{place}.{name}" not in SKIPPED:
            yield f"{place}.{name}"


def _public(place: str, holder: Any) -> Iterator[str]:
    # The public names of a module without __all__: those that its own package defines.
    for path in _of(place, holder):
        item = getattr(holder, path.rpartition(".")[2])
        module = str(getattr(item, "__module__", ""))
        if (
            inspect.isfunction(item)
            and module != holder.__name__
            and not module.startswith(holder.__name__.rpartition(".")[0])
        ):
            continue
        if inspect.isclass(item) or inspect.isfunction(item) or type(item).__name__ == "Op":
            yield path


@cache
def targets() -> tuple[str, ...]:
    """The paths of everything that is called."""
    found = [f"ops.{name}" for name in ops.__all__]
    found += [f"linalg.{name}" for name in linalg.__all__] + [f"special.{name}" for name in special.__all__]
    found += [f"nn.{n}" for n, c in vars(nn).items() if inspect.isclass(c) and issubclass(c, nn.Module)]
    found += ["nn.Parameter"]
    found += [p for p in _of("nn.init", nn.init) if p.endswith("_")] + ["nn.init.calculate_gain"]
    found += _public("nn.utils", nn.utils)
    found += [f"optim.{n}" for n, c in vars(optim).items() if inspect.isclass(c) and issubclass(c, optim.Optimizer)]
    found += ["optim.clip_grad_norm_", "optim.clip_grad_value_"]
    schedulers = optim.lr_scheduler
    classes = {n: c for n, c in vars(schedulers).items() if inspect.isclass(c) and n != "LRScheduler"}
    found += [f"optim.lr_scheduler.{n}" for n, c in classes.items() if issubclass(c, schedulers.LRScheduler)]
    found += ["optim.lr_scheduler.ReduceLROnPlateau", "optim.swa_utils.SWALR", "optim.swa_utils.AveragedModel"]
    found += _public("utils.data", utils.data)
    found += [f"ampkit.{name}" for name in _TOP if hasattr(ampkit, name)]
    for place in _MODULES:
        module = found_at(place)
        found += [f"{place}.{name}" for name in module.__all__ if callable(getattr(module, name))]
    found += [*_OTHERS, *objects.targets()]
    found += [*_of("Tensor", ampkit.Tensor)] + [f"Tensor.{name}" for name in _OPERATORS]
    return tuple(sorted({path for path in found if path not in SKIPPED}))


@cache
def _cases() -> dict[str, list[testing.Case]]:
    found: dict[str, list[testing.Case]] = {}
    for path in sorted(Path(__file__).parents[1].joinpath("cases").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"cases_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for case in module.CASES:
            found.setdefault(case.name, []).append(case)
    return found


def _text(item: Any, rng: Random) -> str:
    # The source text of a case's argument.
    if isinstance(item, Draw):
        if item.kind == "integers":
            return (
                f"t({', '.join(map(str, item.shape))}{', ' if item.shape else ''}dtype='int64', fill={int(item.low)})"
            )
        return tensor_text(rng, item.shape, "bool" if item.kind == "booleans" else None)
    if isinstance(item, (list, tuple)):
        inside = ", ".join(_text(i, rng) for i in item)
        return f"[{inside}]" if isinstance(item, list) else f"({inside}{',' * (len(item) == 1)})"
    if isinstance(item, (np.dtype, ampkit.dtype)):
        return f"ampkit.{item.name}"
    return repr(item)


@cache
def _parameters(path: str) -> tuple[inspect.Parameter, ...]:
    item = found_at(path)
    try:
        parameters = tuple(inspect.signature(item).parameters.values())
    except (TypeError, ValueError):
        return ()
    holder, _, name = path.partition(".")
    kind = (
        ampkit.Tensor if holder == "Tensor" else objects.SUBJECTS[holder].kind if holder in objects.SUBJECTS else None
    )
    is_method = kind is not None and not isinstance(inspect.getattr_static(kind, name), staticmethod)
    return parameters[1:] if is_method else parameters


def found_at(path: str) -> Any:
    """The object at a path."""
    first, *parts = path.removeprefix("ampkit.").split(".")
    item: Any = objects.SUBJECTS[first].kind if first in objects.SUBJECTS else getattr(ampkit, first)
    for part in parts:
        item = getattr(item, part)
    return item


_SMALL = {"d_model", "nhead", "dim_feedforward"}  # parameters whose defaults make large modules


def _drawn(rng: Random, path: str, shape: Any) -> tuple[list[str], dict[str, str]]:
    # Arguments that fit the signature; most optional ones are omitted.
    args: list[str] = []
    named: dict[str, str] = {}
    for p in _parameters(path):
        if p.kind is p.VAR_KEYWORD or (p.annotation == "CompatArg" and rng.random() < 0.97):
            continue
        required = p.default is p.empty or "required" in repr(p.default)
        if not required and p.name not in _SMALL and rng.random() < 0.6:
            continue
        value = valid(rng, p.name, p.annotation, p.default, shape)
        if p.kind is p.VAR_POSITIONAL:
            if not named:
                args += [value] if rng.random() < 0.7 else [value, "1"]
        elif p.kind is p.KEYWORD_ONLY or named or not required:
            named[p.name] = value
        else:
            args.append(value)
    return args, named


def _from_case(rng: Random, name: str) -> tuple[list[str], dict[str, str]]:
    case = rng.choice(_cases()[name])
    return [_text(i, rng) for i in case.inputs], {k: _text(v, rng) for k, v in case.params.items()}


def _make_hostile(rng: Random, path: str, args: list[str], named: dict[str, str]) -> None:
    # Replace one or two arguments by hostile values.
    words = rng.random() < 0.05
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in _parameters(path) if p.kind in kinds and (words or p.annotation != "CompatArg")]
    for _ in range(rng.choice((1, 1, 2))):
        places: list[Any] = [*range(len(args)), *named, *names[len(args) :]]
        if not places:
            return
        place, value = rng.choice(places), rng.choice(HOSTILE)
        if isinstance(place, int):
            args[place] = value
        else:
            named[place] = value


_INPUTS = ((r"1d", (2, 4, 6)), (r"2d", (2, 4, 6, 6)), (r"3d", (1, 4, 4, 4, 4)))


def _inputs(rng: Random, path: str) -> list[str]:
    # The inputs of a call of a module of this name.
    name = path.rpartition(".")[2]
    shape: Any = next((s for key, s in _INPUTS if key in name), rng.choice(((2, 4), (3, 2, 4), (2, 4, 6, 6), (4,))))
    if "Embedding" in name and "Loss" not in name:
        return ["t(3, 2, dtype='int64')"]
    count = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
                for p in list(inspect.signature(found_at(path).forward).parameters.values())[1:])  # fmt: skip
    found = [tensor_text(rng, shape) for _ in range(max(count, 1))]
    if "Loss" in name and count >= 2 and rng.random() < 0.5:
        found[-1] = f"t({shape[0]}, dtype='int64')"
    if rng.random() < 0.25:
        found[rng.randrange(len(found))] = rng.choice(HOSTILE)
    return found


def _hostile(rng: Random) -> Any:
    return eval(rng.choice(HOSTILE), dict(SPACE))


def generate(rng: Random, path: str, hostile: float = 0.7) -> str:
    """The source text of a random call of `path`. hostile: the fraction of calls with a wrong argument."""
    if path.partition(".")[0] in objects.SUBJECTS:
        return objects.sequence(rng, path, lambda path: _arguments(rng, path, hostile), lambda text: _filled(rng, text))
    call = _call(rng, path, hostile)
    return f"within({rng.choice(_CONTEXTS)}, lambda: {call})" if rng.random() < 0.1 else call


_CONTEXTS = (
    "ampkit.autocast(dtype=ampkit.float16)", "ampkit.autocast(dtype=ampkit.bfloat16)", "ampkit.no_grad()",
    "ampkit.inference_mode()", "default('float16')", "default('bfloat16')", "default('float64')",
    "autograd.detect_anomaly()", "autograd.graph.save_on_cpu()", "autograd.graph.allow_mutation_on_saved_tensors()",
)  # fmt: skip


def _filled(rng: Random, text: str) -> str:
    # A source with its places, such as {v} and {optimizer}, filled.
    return re.sub(r"\{(\w+)\}", lambda place: _piece(rng, place[1]), text)


_KINDS = {"optimizer": optim.Optimizer, "scheduler": optim.lr_scheduler.LRScheduler}


def _piece(rng: Random, place: str) -> str:
    if place == "v":
        return rng.choice(HOSTILE) if rng.random() < 0.6 else rng.choice(PLAUSIBLE)
    if place == "n":
        return str(rng.randrange(1000))
    if place not in _KINDS:
        return repr(rng.choice(objects.NAMES[place]))
    path = rng.choice(_makers(place))
    return f"{path}({_arguments(rng, path, 0.0)})"


@cache
def _makers(place: str) -> tuple[str, ...]:
    # The paths of the classes of optimizers, or of schedulers.
    paths = [path for path in targets() if path.startswith("optim.") and inspect.isclass(found_at(path))]
    return tuple([path for path in paths if issubclass(found_at(path), _KINDS[place])])


def _arguments(rng: Random, path: str, hostile: float) -> str:
    # The source text of the arguments of a call.
    name, shape = path.rpartition(".")[2], rng.choice(values.SHAPES)
    if name in _cases() and rng.random() < 0.6 and path.partition(".")[0] in ("ops", "linalg", "special"):
        args, named = _from_case(rng, name)
    else:
        args, named = _drawn(rng, path, shape)
    if rng.random() < hostile:
        _make_hostile(rng, path, args, named)
    return ", ".join([*args, *(f"{k}={v}" for k, v in named.items())])


def _call(rng: Random, path: str, hostile: float) -> str:
    name = path.rpartition(".")[2]
    row = _arguments(rng, path, hostile)
    if path.startswith("Tensor."):
        item, shape = tensor_text(rng, rng.choice(values.SHAPES)), rng.choice(values.SHAPES)
        if name in _OPERATORS or not _parameters(path):
            return f"{item}.{name}({rng.choice((*HOSTILE, tensor_text(rng, shape))) if name in _OPERATORS else ''})"
        return f"{item}.{name}({row})"
    call = f"{path}({row})"
    item = found_at(path)
    if inspect.isclass(item) and issubclass(item, nn.Module) and "swa" not in path:
        return f"{call}({', '.join(_inputs(rng, path))})"
    if path.startswith(("optim.lr_scheduler", "optim.swa_utils.SWALR")) or (
        inspect.isclass(item) and issubclass(item, optim.Optimizer)
    ):
        return f"stepped({call})"
    return f"drained({call})" if path.startswith("utils.data") and inspect.isclass(item) else call
