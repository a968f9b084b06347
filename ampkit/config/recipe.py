"""A recipe as a whole: its sections, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Self

from pydantic import model_validator

from ..base import registry
from ..base.errors import one_of
from ..base.html import folded
from ..base.registry import DATASETS, MODELS, Fault
from ..core.policy.recipe import FAMILIES, family_of_name
from .field_types import Section
from .finetune_sections import Finetune, Lora
from .sections import OPTIMIZERS, SCHEDULES, Amp, Data, Debug, Model, Optimizer, Parallel, Schedule, Train

_MAX_IMAGE_VALUES = 2**28


class Recipe(Section):
    """A training run. The constructor raises pydantic's ValidationError; `load` raises ConfigError."""

    model: Model
    data: Data
    optimizer: Optimizer = OPTIMIZERS["adamw"]()
    schedule: Schedule = SCHEDULES["constant"]()
    finetune: Finetune = Finetune()
    lora: Lora = Lora()
    amp: Amp = Amp()
    debug: Debug = Debug()
    parallel: Parallel = Parallel()
    train: Train

    def _repr_html_(self) -> str:
        from .write import dump

        return folded(f"Recipe: {self.model.name} on {self.data.name}, {self.amp.precision}", dump(self))

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        faults = list(misfits(dict(self)))
        if faults:
            raise ValueError("; ".join(map(str, faults)))
        return self


def misfits(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults between keys that are valid by themselves; sections may be absent."""
    model, data, train = sections.get("model"), sections.get("data"), sections.get("train")
    if model is not None and data is not None and DATASETS[data.name].samples not in MODELS[model.name].samples:
        fitting = sorted(name for name, entry in DATASETS.items() if entry.samples in MODELS[model.name].samples)
        yield Fault("data.name", f"{one_of(fitting)} for {model.name}", repr(data.name))
        data = None
    yield from _data_misfits(data, model)
    if model is not None:
        yield from MODELS[model.name].check(model, data)
    yield from _train_misfits(train, data, sections.get("schedule"))
    yield from _amp_misfits(sections.get("amp"), sections.get("optimizer"))
    yield from _deterministic_misfits(sections)
    yield from _tensor_misfits(sections.get("parallel"), sections.get("train"))
    yield from _pipeline_misfits(sections)
    yield from _compile_misfits(sections.get("train"))
    if (optimizer := sections.get("optimizer")) is not None:
        yield from registry.OPTIMIZERS[optimizer.name].check(optimizer)


def _data_misfits(data: Any, model: Any) -> Iterator[Fault]:
    if data is None:
        return
    yield from DATASETS[data.name].check(data, model)
    if (size := prod(getattr(data, "shape", ()))) > _MAX_IMAGE_VALUES:
        yield Fault("data.shape", f"at most {_MAX_IMAGE_VALUES} values in an image", str(size))
    least = 0 if getattr(data, "tokenizer", None) else getattr(data, "least_vocab", 0)
    if getattr(model, "vocab_size", least) < least:
        yield Fault("model.vocab_size", f"at least {least} for {data.name}", str(model.vocab_size))


def _train_misfits(train: Any, data: Any, schedule: Any) -> Iterator[Fault]:
    if train is None:
        return
    if (train.steps is None) == (train.epochs is None):
        got = "neither" if train.steps is None else "both"
        yield Fault("train", "either steps or epochs", got, "`train.epochs=` unsets a key")
    endless = {"text": "windows of text are drawn without end", "stream": "the length of a stream is not known"}
    if train.epochs is not None and data is not None and (why := endless.get(DATASETS[data.name].loading)):
        yield Fault("train.epochs", f"steps instead: {why}", str(train.epochs))
    if data is not None and train.monitor not in (scores := _scores(data)):
        yield Fault("train.monitor", one_of(scores), repr(train.monitor))
    is_stream = data is not None and DATASETS[data.name].loading == "stream"
    if train.patience is not None and train.eval_every is None and not is_stream:
        yield Fault("train.patience", "train.eval_every, as it counts evaluations", "none")
    warmup = getattr(schedule, "warmup", 0)
    for key in ("steps", "bench_steps"):
        steps = getattr(train, key)
        if steps is not None and warmup >= steps:
            yield Fault("schedule.warmup", f"less than train.{key}, {steps}", str(warmup))


def _scores(data: Any) -> list[str]:
    """The names of what evaluations on a data set give."""
    if getattr(data, "task", None) == "regression":
        return ["val_loss", "rmse", "r2"]
    samples = DATASETS[data.name].samples
    others = {"speech": ["char_error_rate"], "pixel labels": ["accuracy", "mean_iou"]}
    return ["val_loss", *others.get(samples, ["accuracy"])]


def _amp_misfits(amp: Any, optimizer: Any) -> Iterator[Fault]:
    if amp is None:
        return
    word = None if amp.recipe is None else family_of_name(amp.recipe)
    if word is not None and amp.dtype in ("float32", *FAMILIES) and amp.dtype != word:
        needs = f"{word}, or 16 bits, for the recipe {amp.recipe}"
        yield Fault("amp.dtype", needs, amp.dtype)
    if getattr(optimizer, "stochastic_rounding", False) and amp.parameters != "low":
        needs = "false, or parameters in 16 bits"
        yield Fault("optimizer.stochastic_rounding", needs, "true", "`amp.parameters=low` makes them so")
    if amp.min_scale is not None and amp.min_scale > amp.init_scale:
        yield Fault("amp.min_scale", f"at most init_scale, {amp.init_scale}", str(amp.min_scale))
    if amp.max_scale is not None and amp.max_scale < amp.init_scale:
        yield Fault("amp.max_scale", f"at least init_scale, {amp.init_scale}", str(amp.max_scale))


def _tensor_misfits(parallel: Any, train: Any) -> Iterator[Fault]:
    """What does not go with layers that ranks divide, or that are computed in shards."""
    if parallel is not None and parallel.tensor_shards is not None and not parallel.deterministic:
        yield Fault("parallel.tensor_shards", "none without parallel.deterministic=true", str(parallel.tensor_shards))
    if parallel is None or parallel.tensor == 1:
        return
    if train is not None and train.compile:
        yield Fault("train.compile", "false with parallel.tensor", "true")


def _pipeline_misfits(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """What does not go with stages of a model."""
    parallel, train, amp, debug = (sections.get(name) for name in ("parallel", "train", "amp", "debug"))
    if parallel is None or parallel.pipeline == 1:
        return
    why = "with parallel.pipeline"
    for key, value in (("tensor", 1), ("stage", 0), ("sync_batchnorm", False)):
        if (got := getattr(parallel, key)) != value:
            yield Fault(f"parallel.{key}", f"{str(value).lower()} {why}", str(got).lower())
    if parallel.tensor == 1 and parallel.tensor_shards not in (None, 1):
        yield Fault("parallel.tensor_shards", f"1 {why}", str(parallel.tensor_shards))
    if parallel.wire_dtype != "float32":
        yield Fault("parallel.wire_dtype", f"float32 {why}", parallel.wire_dtype)
    if train is not None and train.compile:
        yield Fault("train.compile", f"false {why}", "true")
    if debug is not None and debug.ranges_every:
        yield Fault("debug.ranges_every", f"0 {why}", str(debug.ranges_every))
    if amp is not None and (amp.recipe is not None or amp.dtype in FAMILIES):
        yield Fault("amp.dtype", f"16 or 32 bits {why}", amp.precision)
    if amp is not None and amp.modules:
        yield Fault("amp.modules", f"no entries {why}, which calls layers one by one", next(iter(amp.modules)))


def _compile_misfits(train: Any) -> Iterator[Fault]:
    if train is not None and train.compile_mode != "default" and not train.compile:
        yield Fault("train.compile_mode", "default without train.compile=true", repr(train.compile_mode))


def _deterministic_misfits(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """What would let bits depend on the ranks, the threads or the accumulation, with parallel.deterministic."""
    parallel, train, data, amp = (sections.get(name) for name in ("parallel", "train", "data", "amp"))
    if parallel is None or not parallel.deterministic:
        return
    why, count = "with parallel.deterministic", parallel.microbatches
    if count & (count - 1):
        yield Fault("parallel.microbatches", f"a power of 2 {why}", str(count))
    elif train is not None and data is not None and (samples := data.batch_size * train.accumulate) % count:
        yield Fault("data.batch_size", f"a multiple of {count} samples in an update {why}", str(samples))
    if parallel.wire_dtype != "float32":
        yield Fault("parallel.wire_dtype", f"float32 {why}", parallel.wire_dtype)
    shards, optimizer = parallel.tensor_shards, sections.get("optimizer")
    if shards & (shards - 1) or shards % parallel.tensor:
        key = "tensor" if parallel.tensor == shards else "tensor_shards"
        of = f" that parallel.tensor={parallel.tensor} divides" if key == "tensor_shards" else ""
        yield Fault(f"parallel.{key}", f"a power of 2{of} {why}", str(shards))
    names = {"pipeline": parallel.pipeline, f"stage={parallel.stage}": parallel.stage, "tensor_shards": shards}
    parts = next((f"parallel.{name}" for name, count in names.items() if count > 1), None)
    if parts and (rounded := getattr(optimizer, "state_dtype", "float32")) != "float32":
        yield Fault("optimizer.state_dtype", f"float32 {why} and {parts}", rounded)
    if parts and getattr(optimizer, "stochastic_rounding", False):
        yield Fault("optimizer.stochastic_rounding", f"false {why} and {parts}", "true")
    if parallel.sync_batchnorm:
        yield Fault("parallel.sync_batchnorm", f"false {why}, as its statistics are those of a microbatch", "true")
    if train is not None and train.compile:
        yield Fault("train.compile", f"false {why}", "true")
    if data is not None and DATASETS[data.name].loading == "stream":
        yield Fault("data.name", f"data that ranks can divide {why}", repr(data.name))
    if amp is not None and any("delayed" in (name or "") for name in (amp.recipe, *amp.modules.values())):
        yield Fault("amp.recipe", f"scales that follow from the present values {why}", "'delayed'")
