"""The models, data sets, optimizers and schedules that a recipe can name. Each is registered where it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

_Class = TypeVar("_Class", bound=Callable[..., Any])

Samples = Literal["images", "rows", "pixel labels", "tokens", "masked tokens", "speech"]
Loading = Literal["arrays", "generated", "images", "dataset", "text", "stream"]
# Arguments of a model's constructor that are no keys of a recipe, and how they follow from the [data] section.
FROM_DATA: Mapping[str, Callable[[Any], int]] = {
    "in_features": lambda data: prod(data.shape),
    "in_channels": lambda data: data.shape[0],
    "image_size": lambda data: data.shape[1],
    "out_features": lambda data: data.classes,
    "num_classes": lambda data: data.classes,
}


class Fault(NamedTuple):
    """One mistake in a recipe: the dotted key, what it needs, what came, and the cure or None."""

    key: str
    needs: str
    got: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: needs {self.needs}, got {self.got}" + (f"; {self.hint}" if self.hint else "")


Check = Callable[[Any, Any], Iterator[Fault]]
Elsewhere = Callable[[Any, Any, Mapping[str, Any]], Any]
Complete = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def no_faults(section: Any, other: Any) -> Iterator[Fault]:
    """The check of an entry whose annotations say all."""
    yield from ()


@dataclass(frozen=True)
class ModelEntry:
    """A model of recipes, see `register_model`."""

    name: str
    build: Callable[..., Any]
    samples: tuple[Samples, ...]
    signature: Callable[..., Any]
    exclude: tuple[str, ...]
    defaults: Mapping[str, Any]
    check: Check

    def from_data(self, data: Any) -> dict[str, int]:
        """The arguments that follow from what has `shape` and `classes` of the data."""
        parameters = inspect.signature(self.signature).parameters
        return {name: find(data) for name, find in FROM_DATA.items() if name in parameters}


@dataclass(frozen=True)
class DatasetEntry:
    """A data set of recipes, see `register_dataset`."""

    name: str
    load: Callable[..., Any]
    samples: Samples
    loading: Loading
    from_model: tuple[str, ...]
    defaults: Mapping[str, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)
    check: Check = no_faults
    complete: Complete | None = None
    elsewhere: Elsewhere | None = None

    @property
    def keys(self) -> set[str]:
        """The parameters of `load` that are keys of [data]."""
        return {*inspect.signature(self.load).parameters} - {*self.from_model}


class Splits(NamedTuple):
    """What the load function of a data set returns.

    train, held_out: tuples of arrays [n, ...], inputs first, or datasets, as `loading` says. mean, std: of images, by
    channel, of values in [0, 1]. classes: their names by number, where they have names. sizes: `shape` of an input and
    `classes`, their number, where no key and no constant says them. table: how rows become numbers, the state of a
    TableFeatures. notes: what the user should know of the data before training. identity: what differs between other
    data, such as a checksum of the files' names; a run only goes on with the same. tokenizer: the data.text.Tokenizer
    of text, None where a token is a byte.
    """

    train: Any
    held_out: Any
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    classes: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = MappingProxyType({})
    table: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    tokenizer: Any = None


@dataclass(frozen=True)
class OptimizerEntry:
    """An optimizer of recipes, see `register_optimizer`."""

    name: str
    build: Callable[..., Any]
    exclude: tuple[str, ...]
    types: Mapping[str, Any]
    check: Callable[[Any], Iterator[Fault]]
    groups: Callable[[Any], list[dict[str, Any]]]


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule of recipes, see `register_schedule`."""

    name: str
    build: Callable[..., Any]
    warms_up: bool


MODELS: dict[str, ModelEntry] = {}
DATASETS: dict[str, DatasetEntry] = {}
OPTIMIZERS: dict[str, OptimizerEntry] = {}
SCHEDULES: dict[str, ScheduleEntry] = {}


def register_model(
    build: Callable[..., Any],
    samples: Samples,
    *more: Samples,
    name: str | None = None,
    signature: Callable[..., Any] | None = None,
    exclude: tuple[str, ...] = (),
    defaults: Mapping[str, Any] | None = None,
    check: Check = no_faults,
) -> None:
    """Make `build` the model `name` of recipes, by default its own name; its parameters are the keys of [model].

    samples, more: what it learns from; it trains on every data set of these. signature: whose parameters are the keys,
    if not those of `build`. exclude: parameters that are no keys. defaults: for keys whose default in a recipe differs.
    check: yields a Fault for each mistake in check(model section, data section); data is None if it does not fit.
    """
    name = name or build.__name__
    MODELS[name] = ModelEntry(name, build, (samples, *more), signature or build, exclude, defaults or {}, check)


def register_dataset(
    name: str,
    load: Callable[..., Any],
    samples: Samples,
    loading: Loading,
    *,
    from_model: tuple[str, ...] = (),
    defaults: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    check: Check = no_faults,
    complete: Complete | None = None,
    elsewhere: Elsewhere | None = None,
) -> None:
    """Make `load` the data set `name` of recipes; its parameters are keys of [data], besides those of its loading.

    loading: "arrays": `load` returns Splits of arrays, shuffled each epoch. "generated": arrays from a seed, of which
    a share `validation` is held out. "images": Splits of (images [n, c, h, w] uint8, labels), normalized and
    augmented. "dataset": Splits of datasets that give batches. "text": Splits of bytes or tokens, from which windows
    are drawn. "stream": Splits of pairs (what a DataLoader streams, its collate_fn), whose place checkpoints hold.
    from_model: parameters of `load` that are keys of [model]. constants: what is no key but known of the section, as
    `shape` and `classes` of images. check: as in `register_model`, with the data section first. complete: given the
    keys as they are written, adds those that are left out and that the data itself tells, as the number of classes.
    elsewhere: what evaluates a run on other data than its own: elsewhere(data section, paths, about), with all that the
    checkpoint says of the data, returns their samples as `held_out` of Splits has them.
    """
    given = (from_model, defaults or {}, constants or {}, check, complete, elsewhere)
    DATASETS[name] = DatasetEntry(name, load, samples, loading, *given)


def one_group(model: Any) -> list[dict[str, Any]]:
    """The parameters of a model that are trained, as one group of an optimizer."""
    return [{"params": [each for each in model.named_parameters() if each[1].requires_grad]}]


def register_optimizer(
    build: _Class,
    *,
    name: str | None = None,
    groups: Callable[[Any], list[dict[str, Any]]] = one_group,
    exclude: tuple[str, ...] = (),
    types: Mapping[str, Any] | None = None,
    check: Callable[[Any], Iterator[Fault]] = lambda section: iter(()),
) -> _Class:
    """Make the class `build` the optimizer of recipes with its name in lower case; its parameters are the keys.

    -> the class, so that it can decorate one. name: another name. groups: of a model, the parameter groups that `build`
    takes, without those that are not trained. exclude: parameters that are no keys. types: of keys with narrower bounds
    in a recipe than in the constructor, where a value that PyTorch accepts diverges or trains nothing. check: yields a
    Fault for each mistake in a section.
    """
    name = name or build.__name__.lower()
    OPTIMIZERS[name] = OptimizerEntry(name, build, exclude, types or {}, check, groups)
    return build


def register_schedule(build: Callable[..., Any], *, warms_up: bool = True) -> None:
    """Make the function `build` the schedule of recipes with its name; its parameters after the first two are the keys.

    build(optimizer, steps, ...) returns the LRScheduler of `steps` updates. warms_up: [schedule] has a key `warmup`
    besides, and `steps` are those after it.
    """
    SCHEDULES[build.__name__] = ScheduleEntry(build.__name__, build, warms_up)


def smallest_image(pixels: int) -> Check:
    """A check that images have at least `pixels` rows and columns."""

    def check(model: Any, data: Any) -> Iterator[Fault]:
        if data is not None and (least := min(data.shape[1:])) < pixels:
            yield Fault("data.shape", f"images of at least {pixels} pixels for {model.name}", f"{least}")

    return check


def square_images(model: Any, data: Any) -> Iterator[Fault]:
    """A check that images are as high as wide."""
    if data is not None and data.shape[1] != data.shape[2]:
        yield Fault("data.shape", f"square images for {model.name}", f"{data.shape[1]} x {data.shape[2]}")


def divides(model: Any, part: str, whole: str) -> Iterator[Fault]:
    """A Fault unless the key `part` of a model divides its key `whole`."""
    divisor, dividend = getattr(model, part), getattr(model, whole)
    if dividend % divisor:
        yield Fault(f"model.{part}", f"a divisor of {whole}, {dividend}", str(divisor))
