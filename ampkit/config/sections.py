"""What a recipe can say: its sections as frozen pydantic models. Defaults stand here and in the files of its kinds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .of_data import (
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
from .of_models import (
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
from .of_optimizers import (
    LAMB,
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Constant,
    Cosine,
    Linear,
    Lion,
    OneCycle,
    RMSprop,
    Step,
)
from .words import Count, Device, Part, Positive, Section, Seed

__all__ = [
    "BERT",
    "CIFAR10",
    "CNN",
    "GPT",
    "LAMB",
    "MLP",
    "MNIST",
    "SGD",
    "VGG",
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
    "OneCycle",
    "Optimizer",
    "Pictured",
    "RMSprop",
    "ResNet",
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
    """autocast, its policy and the loss scale. dtype = "float32" turns autocast off."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    policy: Literal["default", "fast"] = "default"
    overrides: dict[str, Literal["low", "float32", "widest", "keep", "banned"]] = Field(default_factory=dict)
    init_scale: Positive = 65536.0
    growth_factor: Annotated[float, Field(gt=1)] = 2.0
    backoff_factor: Part = 0.5
    growth_interval: Count = 2000
    min_scale: Positive | None = None
    max_scale: Positive | None = None
    hysteresis: Count = 1


class Train(Section):
    """How long, from which seed, where.

    eval_every None: once, at the end. eval_batches None: all that is held out. grad_clip: the largest norm.
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
    log_every: Count = 10
    eval_every: Count | None = None
    eval_batches: Count | None = None
    checkpoint_every: Count | None = None
    keep: Count = 2
    threads: Count | None = None
    compile: bool = False


_named = Field(discriminator="name")
_Pictures = MLP | CNN | ResNet | LeNet5 | AlexNet | VGG | EfficientNet | ConvMixer | ViT
Model = Annotated[_Pictures | Segmentation | Wav2Letter | BERT | GPT, _named]
_Synthetic = SyntheticImages | SyntheticMaps | SyntheticSpeech | SyntheticMasked | SyntheticTokens
Data = Annotated[Digits | MNIST | CIFAR10 | Images | Table | Text | _Synthetic, _named]
Optimizer = Annotated[SGD | Adam | AdamW | Adamax | Adagrad | RMSprop | Lion | LAMB | Adafactor, _named]
Schedule = Annotated[Constant | Cosine | Step | Linear | OneCycle, _named]
