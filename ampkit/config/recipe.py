"""A recipe as a whole: its sections, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple, Self, get_args

from pydantic import model_validator

from ..models.lenet import SMALLEST as LENET5_SMALLEST
from .sections import (
    BERT,
    CIFAR10,
    CNN,
    GPT,
    MNIST,
    SGD,
    VGG,
    AdamW,
    AlexNet,
    Amp,
    Constant,
    ConvMixer,
    Data,
    Digits,
    Images,
    LeNet5,
    Model,
    Optimizer,
    Schedule,
    Section,
    Segmentation,
    SyntheticImages,
    SyntheticMaps,
    SyntheticMasked,
    SyntheticSpeech,
    SyntheticTokens,
    Table,
    Text,
    Train,
    ViT,
    Wav2Letter,
)

# What each model learns from; those that are not named, from images.
_DATA: dict[type[Section], tuple[type[Section], ...]] = {
    GPT: (Text, SyntheticTokens),
    BERT: (SyntheticMasked,),
    Segmentation: (SyntheticMaps,),
    Wav2Letter: (SyntheticSpeech,),
}
_IMAGES: tuple[type[Section], ...] = (Digits, MNIST, CIFAR10, Images, Table, SyntheticImages)
_MOST_VALUES = 2**28  # of an image
_LEAST_SIDE: dict[type[Section], int] = {LeNet5: LENET5_SMALLEST, AlexNet: 63, VGG: 32}  # pixels


class Fault(NamedTuple):
    """One mistake: the dotted key, what it needs, what came, and the cure or None."""

    key: str
    needs: str
    got: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: needs {self.needs}, got {self.got}" + (f"; {self.hint}" if self.hint else "")


class Recipe(Section):
    """A training run. Made by hand, it raises pydantic's ValidationError; `load` raises ConfigError."""

    model: Model
    data: Data
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Constant()
    amp: Amp = Amp()
    train: Train

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        faults = list(misfits(dict(self)))
        if faults:
            raise ValueError("; ".join(map(str, faults)))
        return self


def misfits(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """What does not fit between keys that are right by themselves; sections may be absent."""
    model, data, train = sections.get("model"), sections.get("data"), sections.get("train")
    yield from _data_misfits(model, data)
    yield from _model_misfits(model, data)
    yield from _train_misfits(train, data, sections.get("schedule"))
    yield from _amp_misfits(sections.get("amp"), sections.get("optimizer"))
    optimizer = sections.get("optimizer")
    if isinstance(optimizer, SGD) and optimizer.nesterov and not optimizer.momentum:
        yield Fault("optimizer.momentum", "a momentum above 0 for nesterov", "0.0")


def _data_misfits(model: Any, data: Any) -> Iterator[Fault]:
    if model is None or data is None:
        return
    taken = _DATA.get(type(model), _IMAGES)
    if not isinstance(data, taken):
        yield Fault("data.name", f"{_names(taken)} for {model.name}", repr(data.name))
    if isinstance(data, Images):
        for key, values in (("mean", data.mean), ("std", data.std)):
            if len(values) not in (1, data.shape[0]):
                yield Fault(f"data.{key}", f"1 number, or one for each of {data.shape[0]} channels", f"{len(values)}")


def _names(kinds: tuple[type[Section], ...]) -> str:
    *most, last = [repr(name) for kind in kinds for name in get_args(kind.model_fields["name"].annotation)]
    return f"{', '.join(most)} or {last}" if most else last


def _model_misfits(model: Any, data: Any) -> Iterator[Fault]:
    shape = getattr(data, "shape", None)
    if shape is not None and prod(shape) > _MOST_VALUES:
        yield Fault("data.shape", f"at most {_MOST_VALUES} values in an image", str(prod(shape)))
    yield from _image_misfits(model, shape)
    if isinstance(model, GPT) and model.n_embd % model.n_head:
        yield Fault("model.n_head", f"a divisor of n_embd, {model.n_embd}", str(model.n_head))
    if isinstance(model, BERT):
        yield from _bert_misfits(model, data)
    if isinstance(model, Wav2Letter) and model.input_type == "waveform" and model.num_features != 1:
        yield Fault("model.num_features", "1 for a waveform", str(model.num_features))
    if hasattr(model, "vocab_size") and model.vocab_size < getattr(data, "least_vocab", 1):
        yield Fault("model.vocab_size", f"at least {data.least_vocab} for {data.name}", str(model.vocab_size))


def _bert_misfits(model: BERT, data: Any) -> Iterator[Fault]:
    if model.hidden_size % model.num_attention_heads:
        got = str(model.num_attention_heads)
        yield Fault("model.num_attention_heads", f"a divisor of hidden_size, {model.hidden_size}", got)
    if isinstance(data, SyntheticMasked) and data.length > model.max_position_embeddings:
        most = f"at most max_position_embeddings, {model.max_position_embeddings}"
        yield Fault("data.length", most, str(data.length))


def _image_misfits(model: Any, shape: tuple[int, ...] | None) -> Iterator[Fault]:
    if isinstance(model, ViT) and model.hidden_dim % model.num_heads:
        yield Fault("model.num_heads", f"a divisor of hidden_dim, {model.hidden_dim}", str(model.num_heads))
    if isinstance(model, ConvMixer) and model.kernel_size % 2 == 0:
        yield Fault("model.kernel_size", "an odd number", str(model.kernel_size))
    if shape is None:
        return
    least, most = min(shape[1:]), max(shape[1:])
    if isinstance(model, CNN) and model.stages > (halvings := least.bit_length()):
        yield Fault("model.stages", f"at most {halvings}: each halves an image of {least} pixels", str(model.stages))
    if isinstance(model, ViT | LeNet5) and least != most:
        yield Fault("data.shape", f"square images for {model.name}", f"{shape[1]} x {shape[2]}")
    elif isinstance(model, ViT) and least % model.patch_size:
        yield Fault("model.patch_size", f"a divisor of the image's {least} pixels", str(model.patch_size))
    if isinstance(model, ConvMixer) and model.patch_size > least:
        yield Fault("model.patch_size", f"at most the image's {least} pixels", str(model.patch_size))
    if least < _LEAST_SIDE.get(type(model), 1):
        yield Fault("data.shape", f"images of at least {_LEAST_SIDE[type(model)]} pixels for {model.name}", f"{least}")


def _train_misfits(train: Any, data: Any, schedule: Any) -> Iterator[Fault]:
    if train is None:
        return
    if (train.steps is None) == (train.epochs is None):
        got = "neither" if train.steps is None else "both"
        yield Fault("train", "either steps or epochs", got, "`train.epochs=` unsets a key")
    if train.epochs is not None and isinstance(data, Text):
        yield Fault("train.epochs", "steps instead: windows of text are drawn without end", str(train.epochs))
    warmup = getattr(schedule, "warmup", 0)
    for key in ("steps", "bench_steps"):
        steps = getattr(train, key)
        if steps is not None and warmup >= steps:
            yield Fault("schedule.warmup", f"less than train.{key}, {steps}", str(warmup))


def _amp_misfits(amp: Any, optimizer: Any) -> Iterator[Fault]:
    if amp is None:
        return
    if getattr(optimizer, "stochastic_rounding", False) and amp.parameters != "low":
        needs = "false, or parameters in 16 bits"
        yield Fault("optimizer.stochastic_rounding", needs, "true", "`amp.parameters=low` makes them so")
    if amp.min_scale is not None and amp.min_scale > amp.init_scale:
        yield Fault("amp.min_scale", f"at most init_scale, {amp.init_scale}", str(amp.min_scale))
    if amp.max_scale is not None and amp.max_scale < amp.init_scale:
        yield Fault("amp.max_scale", f"at least init_scale, {amp.init_scale}", str(amp.max_scale))
