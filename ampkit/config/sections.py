"""What a recipe can say: its sections as frozen pydantic models. Defaults stand here and in the files of its kinds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .data_sections import (
    CIFAR10,
    MNIST,
    Digits,
    Images,
    Pictured,
    SyntheticImages,
    SyntheticMaps,
    SyntheticMasked,
    SyntheticSpeech,
    SyntheticTokens,
    Table,
    Text,
)
from .field_types import AboveOne, Count, Device, Part, Positive, Section, Seed, Threads
from .model_sections import (
    BERT,
    CNN,
    GPT,
    MLP,
    VGG,
    AlexNet,
    ConvMixer,
    EfficientNet,
    LeNet5,
    ResNet,
    Segmentation,
    ViT,
    Wav2Letter,
)
from .optimizer_sections import (
    ASGD,
    LAMB,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Constant,
    Cosine,
    Linear,
    Lion,
    NAdam,
    OneCycle,
    RMSprop,
    Rprop,
    Step,
)

__all__ = [
    "ASGD",
    "BERT",
    "CIFAR10",
    "CNN",
    "GPT",
    "LAMB",
    "MLP",
    "MNIST",
    "SGD",
    "VGG",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "AlexNet",
    "Amp",
    "Constant",
    "ConvMixer",
    "Cosine",
    "Data",
    "Digits",
    "EfficientNet",
    "Images",
    "LeNet5",
    "Linear",
    "Lion",
    "Model",
    "NAdam",
    "OneCycle",
    "Optimizer",
    "Pictured",
    "RMSprop",
    "ResNet",
    "Rprop",
    "Schedule",
    "Section",
    "Segmentation",
    "Step",
    "SyntheticImages",
    "SyntheticMaps",
    "SyntheticMasked",
    "SyntheticSpeech",
    "SyntheticTokens",
    "Table",
    "Text",
    "Train",
    "ViT",
    "Wav2Letter",
]


class Amp(Section):
    """autocast, its policy and the loss scale. dtype = "float32" turns autocast off.

    parameters = "low": the parameters are kept in `dtype` themselves, and no float32 copy of them where the optimizer
    rounds stochastically; buffers stay float32.
    """

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    parameters: Literal["float32", "low"] = "float32"
    policy: Literal["default", "fast"] = "default"
    overrides: dict[str, Literal["low", "float32", "widest", "keep", "banned"]] = Field(default_factory=dict)
    init_scale: Positive = 65536.0
    growth_factor: AboveOne = 2.0
    backoff_factor: Part = 0.5
    growth_interval: Count = 2000
    min_scale: Positive | None = None
    max_scale: Positive | None = None
    hysteresis: Count = 1


class Train(Section):
    """How long, from which seed, where.

    eval_every None: once, at the end. eval_batches None: all that is held out. grad_clip: the largest norm. ema: the
    decay of a running average of the weights, which evaluations then use; None: no average.
    threads: of matrix products, where they can be told (`ampkit doctor` says); None leaves them as they are, and the
    run directory says how many they were. bench_steps: how many `ampkit bench` takes in each precision; None: all.
    checkpoint_every: a checkpoint each so many steps; None: after each evaluation. The end and Ctrl-C leave one in any
    case. keep: how many of them, the newest, stay.
    """

    steps: Count | None = None
    epochs: Count | None = None
    bench_steps: Count | None = None
    seed: Seed = 0
    device: Device = "cpu"
    grad_clip: Positive | None = None
    accumulate: Count = 1
    ema: Part | None = None
    log_every: Count = 10
    eval_every: Count | None = None
    eval_batches: Count | None = None
    checkpoint_every: Count | None = None
    keep: Count = 2
    threads: Threads | None = None
    compile: bool = False


_named = Field(discriminator="name")
_Pictures = MLP | CNN | ResNet | LeNet5 | AlexNet | VGG | EfficientNet | ConvMixer | ViT
Model = Annotated[_Pictures | Segmentation | Wav2Letter | BERT | GPT, _named]
_Synthetic = SyntheticImages | SyntheticMaps | SyntheticSpeech | SyntheticMasked | SyntheticTokens
Data = Annotated[Digits | MNIST | CIFAR10 | Images | Table | Text | _Synthetic, _named]
Optimizer = Annotated[
    SGD | Adam | AdamW | Adamax | NAdam | Adadelta | Adagrad | RMSprop | Rprop | ASGD | Lion | LAMB | Adafactor, _named
]
Schedule = Annotated[Constant | Cosine | Step | Linear | OneCycle, _named]
