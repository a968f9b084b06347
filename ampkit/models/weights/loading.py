"""load_weights: the weights of torchvision, Hugging Face and others in a model of ampkit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ... import nn
from ...base.errors import ArgumentError, DTypeError, StateError, some_of
from ...base.files import foreign
from ...core.dlpack import is_foreign, to_tensor
from ...core.tensor import Tensor
from ...nn.state_dict import Keys, mismatch, named
from . import source
from .layout import SAME, Converted, Layout, State, fits, fits_any, matching, unwrapped
from .source import PathOrName
from .tables import LAYOUTS, STRANGERS

Weights = PathOrName | Mapping[str, Any]
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class LoadedWeights(NamedTuple):
    """What `load_weights` did.

    source: the file, or "a dict". layout: whose names it has. loaded: the names of the model that have the file's
    values. new: those that keep the values of the constructor, a head that the file has not or has in another size.
    left_out: names in the file that the model has no use for. mean, std: by channel, what images in [0, 1] were
    normalized with, from preprocessor_config.json; None without it.
    """

    source: str
    layout: str
    loaded: tuple[str, ...]
    new: tuple[str, ...]
    left_out: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __str__(self) -> str:
        said = f"{len(self.loaded)} tensors of {self.layout} from {self.source}"
        said += f"; newly initialized: {some_of(self.new)}" if self.new else ""
        return said + (f"; left out of the file: {some_of(self.left_out)}" if self.left_out else "")


def load_weights(model: nn.Module, weights: Weights) -> LoadedWeights:
    """Load pretrained weights into `model`, converted by name from the layout that their names show.

    weights: a file (.safetensors, .pt, .pth, .bin), the index of several, a folder with one of these, `owner/model` of
    the Hugging Face Hub, or a dict of tensors by name. A model of another library's layout is converted as its table
    says (ampkit/models/weights/tables.py); any other model takes its own names. A head of another size, or none in the
    file, leaves the model's head as it is: see `new` of the result. config.json beside the file is checked for what no
    shape shows, such as the number of heads.
    Raises StateError, with the model unchanged, with one table of what does not fit, or the name of the architecture
    that the weights are of; FileError for files that are missing or damaged; ArgumentError for another config.json.
    """
    where = f"load_weights of {type(model).__name__}"
    state, path = _state(where, weights)
    layout = _layout(where, model, state, "a dict" if path is None else str(path))
    if path is not None:
        _check_settings(where, model, layout, source.config(path))
    mean, std = (None, None) if path is None else _normalization(path)
    found = layout.convert(state)
    own = dict(named(model))
    loaded, new = _fitted(where, own, layout, found)
    model.load_state_dict({name: found.state[name] for name in loaded}, strict=False)
    left_out = found.left_out + [found.origins[name] for name in found.state if name not in own]
    return LoadedWeights(str(path or "a dict"), layout.name, tuple(loaded), tuple(new), tuple(left_out), mean, std)


def started(model: AnyModule, weights: Weights | None) -> AnyModule:
    """`model` with `weights` loaded, if given; then `model.pretrained` is the LoadedWeights."""
    if weights is not None:
        object.__setattr__(model, "pretrained", load_weights(model, weights))
    return model


def config_of(weights: Any) -> dict[str, Any]:
    """The config.json of `weights`; {} without one."""
    return {} if weights is None or isinstance(weights, Mapping) else source.config(source.find("weights", weights))


def _state(where: str, weights: Weights) -> tuple[State, Path | None]:
    path = None
    if isinstance(weights, Mapping):
        if not source.is_state(weights):
            raise DTypeError(where, "a dict of tensors by name", f"one with {some_of(tuple(map(repr, weights)))}")
        state: State = {name: _as_tensor(value) for name, value in weights.items()}
    else:
        path = source.find(where, weights)
        state = source.read(where, path)
    return unwrapped(state), path


def _as_tensor(value: Any) -> Any:
    return to_tensor(value, copy=False) if is_foreign(value) else value


def _layout(where: str, model: nn.Module, state: State, name: str) -> Layout:
    """The layout of a file for `model`. Raises StateError for weights of another architecture."""
    kinds = [kind.__name__ for kind in type(model).__mro__]
    known = list(matching(LAYOUTS, state))
    if fitting := [layout for layout in known if layout.model in kinds]:
        return fitting[0]
    own = dict(named(model))
    if any(each in own for each in state):
        return Layout("the model itself", kinds[0], (), SAME)
    strangers = [kind for sign, kind in STRANGERS.items() if any(fits(sign, each) for each in state)]
    what = known[0].name if known else strangers[0] if strangers else f"another: {some_of(tuple(state))}"
    cure = f"ampkit.models has {known[0].model} for them" if known else None
    raise StateError(where, f"weights of a {kinds[0]}", f"those of {what}, in {name}", cure)


def _check_settings(where: str, model: nn.Module, layout: Layout, config: Mapping[str, Any]) -> None:
    if not config:
        return
    for setting in layout.settings:
        value = config.get(setting.key, setting.default)
        if value not in (accepted := setting.accepted(model)):
            needs = f"{setting.key} {' or '.join(map(repr, accepted))} in config.json, as the model has it"
            cure = "models.from_pretrained builds the model that config.json describes, if it can"
            raise ArgumentError(where, needs, repr(value), cure)


def _normalization(path: Path) -> tuple[Any, Any]:
    found = source.beside(path, "preprocessor_config.json")
    if "image_mean" not in found or "image_std" not in found:
        return None, None
    with foreign(str(path.with_name("preprocessor_config.json")), "lists of numbers as image_mean and image_std"):
        return tuple(map(float, found["image_mean"])), tuple(map(float, found["image_std"]))


def _fitted(where: str, own: Mapping[str, Tensor], layout: Layout, found: Converted) -> tuple[list[str], list[str]]:
    """The names of the model to load and those that stay new. Raises StateError for what does not fit."""
    state = found.state
    misshapen = [name for name in own if name in state and tuple(own[name].shape) != tuple(state[name].shape)]
    headless = {name for name in misshapen if fits_any(layout.head, name)}
    if headless:  # a head stays as a whole
        headless |= {name for name in own if fits_any(layout.head, name)}
    loaded = [name for name in own if name in state and name not in headless]
    present = {id(own[name]) for name in loaded}
    absent = [name for name in own if name not in loaded and id(own[name]) not in present]
    new = [name for name in absent if fits_any(layout.head, name)]
    missing = [name for name in absent if name not in new and not name.endswith("num_batches_tracked")]
    extra = [name for name in state if name not in own and not fits_any(layout.optional, name)]
    unexpected = [*found.unexpected, *(found.origins[name] for name in extra)]
    misfits = [(name, tuple(own[name].shape), tuple(state[name].shape)) for name in misshapen if name not in headless]
    if missing or unexpected or misfits:
        what = f"{where}: weights of {layout.name}"
        raise mismatch(what, Keys(missing, unexpected), misfits, _advice(layout, own, found, misfits))
    for name in loaded:
        _need_floats(where, name, own[name], state[name])
    _need_tied(where, own, {name: state[name] for name in loaded})
    return loaded, new


def _advice(layout: Layout, own: Mapping[str, Tensor], found: Converted, misfits: Any) -> str | None:
    there, here = layout.size(found.state), layout.size(own)
    if there != here:
        return f"the weights are of {there}, the model has {here}"
    wanted, has = ({key: find(state) for key, find in layout.arguments.items()} for state in (found.state, own))
    unlike = {key: size for key, size in wanted.items() if None not in (size, has[key]) and size != has[key]}
    compared = sum(bool(own[name].ndim) for name in own if name in found.state and not fits_any(layout.head, name))
    is_width = bool(misfits) and len(misfits) > 0.8 * compared
    if not unlike:
        return f"{_differing(misfits, compared)}: build the model with that of the weights" if is_width else None
    said = f"the weights have {_pairs(unlike)}, the model {_pairs({key: has[key] for key in unlike})}"
    said += f", so {_differing(misfits, compared)}" if is_width else ""
    heads = f"; {layout.heads}, which no shape shows, must be theirs too" if is_width and layout.heads else ""
    return f"{said}; in a recipe {_keys(unlike)}{heads}"


def _differing(misfits: Any, compared: int) -> str:
    count = "all" if len(misfits) == compared else f"{len(misfits)} of"
    return f"{count} {compared} tensors differ by the width"


def _pairs(sizes: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={size!r}" for key, size in sizes.items())


def _keys(sizes: Mapping[str, Any]) -> str:
    """The keys of a recipe that give a model these sizes: those of its images follow from the data."""
    keys = [f"model.{key}={size}" for key, size in sizes.items() if key not in _OF_IMAGES]
    shape = [f"data.shape for {key}={size}" for key, size in sizes.items() if key in _OF_IMAGES]
    return ", ".join([" ".join(keys)] * bool(keys) + shape)


_OF_IMAGES = ("image_size", "in_channels")


def _need_floats(where: str, name: str, own: Tensor, value: Any) -> None:
    # Whole numbers are those of a quantized model: as weights they would be wrong.
    kind = value.dtype if not isinstance(value, Tensor) else value.array.dtype
    if own.is_floating_point() and np.dtype(kind).kind in "iub":
        raise DTypeError(where, f"floating-point values as {name!r}", np.dtype(kind).name, "of a quantized model?")


def _need_tied(where: str, own: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Raise StateError where the model has one Parameter for two names and the file has two tensors."""
    first: dict[int, str] = {}
    for name in values:
        other = first.setdefault(id(own[name]), name)
        if other != name and not np.array_equal(_host(values[name]), _host(values[other])):
            needs = f"one tensor as {other!r} and {name!r}, which the model ties"
            raise StateError(where, needs, "two that differ", "build it untied: GPT has tie_weights=False")


def _host(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
