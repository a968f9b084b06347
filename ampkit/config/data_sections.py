"""The [data] sections."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from ..data import cifar10, digits, mnist, synthetic, text
from .field_types import (
    Bytes,
    Channels,
    Classes,
    Count,
    FilePath,
    ImageShape,
    Items,
    Length,
    Names,
    Part,
    Pixels,
    Section,
    Seed,
    Spreads,
    Workers,
)


class Digits(Section):
    """The handwritten digits of `ampkit.data.digits`."""

    name: Literal["digits"]
    batch_size: Count = 64
    shape: ClassVar[tuple[int, ...]] = digits.SHAPE
    classes: ClassVar[int] = digits.CLASSES


class Pictured(Section):
    """Images normalized and, in training, augmented batch by batch (`ampkit.data.augment`).

    crop: zeros around an image before a window of its size is taken at random. flip: mirror half of them. cutout: side
    of a square set to the mean. workers: threads that make batches ahead; 0 makes them when they are due. processes:
    they are processes instead, which is quicker where reading is Python's work and slower where it is NumPy's.
    """

    name: str
    folder: FilePath
    batch_size: Count = 64
    crop: Pixels = 0
    flip: bool = False
    cutout: Pixels = 0
    workers: Workers = 0
    processes: bool = False


class MNIST(Pictured):
    """MNIST in its official files, from `folder`, or with `download` fetched into it (`ampkit.data.mnist`)."""

    name: Literal["mnist"]
    download: bool = False
    shape: ClassVar[tuple[int, ...]] = mnist.SHAPE
    classes: ClassVar[int] = mnist.CLASSES
    mean: ClassVar[tuple[float, ...]] = mnist.MEAN
    std: ClassVar[tuple[float, ...]] = mnist.STD


class CIFAR10(Pictured):
    """CIFAR-10 in its binary version, from `folder`, or with `download` fetched into it (`ampkit.data.cifar10`)."""

    name: Literal["cifar10"]
    download: bool = False
    shape: ClassVar[tuple[int, ...]] = cifar10.SHAPE
    classes: ClassVar[int] = cifar10.CLASSES
    mean: ClassVar[tuple[float, ...]] = cifar10.MEAN
    std: ClassVar[tuple[float, ...]] = cifar10.STD


class Images(Pictured):
    """A folder per class under `folder`, and under `held_out` to evaluate on (`ampkit.data.imagefolder`).

    shape: channels, height and width of every image. mean, std: by channel, or one for all, of values in [0, 1].
    """

    name: Literal["images"]
    held_out: FilePath
    shape: ImageShape
    classes: Classes
    mean: Channels = (0.5,)
    std: Spreads = (0.25,)


class Table(Section):
    """Columns of Parquet or Arrow files (`ampkit.data.parquet`), of whose rows a share `validation` is held out.

    files: a path, or a pattern such as "part-*.parquet". inputs: numbers, or lists of them, that make an input of
    `shape`, by default a row of as many numbers as there are inputs. target: the column with the class, from 0.
    """

    name: Literal["parquet", "arrow"]
    files: FilePath
    inputs: Names
    target: str
    classes: Classes
    shape: ImageShape
    validation: Part = 0.1
    seed: Seed = 0
    batch_size: Count = 64
    workers: Workers = 0

    @model_validator(mode="before")
    @classmethod
    def _a_row(cls, table: Any) -> Any:
        if isinstance(table, dict) and "shape" not in table and isinstance(table.get("inputs"), list | tuple):
            return {**table, "shape": (1, 1, len(table["inputs"]))}
        return table


class Text(Section):
    """The bytes of a file or a folder (`ampkit.data.text`); the last share `validation` is held out."""

    name: Literal["text"]
    path: FilePath | None = None
    limit: Bytes = text.LIMIT
    validation: Part = 0.1
    batch_size: Count = 12
    least_vocab: ClassVar[int] = text.VOCABULARY


class SyntheticImages(Section):
    """`count` images of `ampkit.data.synthetic`; a share `validation` of them is held out."""

    name: Literal["synthetic_images"]
    shape: ImageShape = (3, 32, 32)
    classes: Classes = 10
    count: Items = 2048
    validation: Part = 0.1
    seed: Seed = 0
    batch_size: Count = 32


class SyntheticTokens(Section):
    """`count` sequences of `ampkit.data.synthetic`, of the model's block_size and vocab_size."""

    name: Literal["synthetic_tokens"]
    count: Items = 2048
    validation: Part = 0.1
    seed: Seed = 0
    batch_size: Count = 12
    least_vocab: ClassVar[int] = synthetic.LEAST_VOCABULARY


class SyntheticMasked(Section):
    """`count` sequences of `length` tokens of the model's vocab_size, some of them hidden, to be guessed."""

    name: Literal["synthetic_masked"]
    length: Length = 128
    count: Items = 2048
    validation: Part = 0.1
    seed: Seed = 0
    batch_size: Count = 16
    least_vocab: ClassVar[int] = synthetic.LEAST_MASKED_VOCABULARY


class SyntheticMaps(Section):
    """`count` images with the class of each pixel; a share `validation` of them is held out."""

    name: Literal["synthetic_maps"]
    shape: ImageShape = (3, 64, 64)
    classes: Classes = 21
    count: Items = 256
    validation: Part = 0.1
    seed: Seed = 0
    batch_size: Count = 8


class SyntheticSpeech(Section):
    """`count` sounds of up to `length` values, or rows of the model's num_features, and the letters said in them.

    classes: the blank and the letters. The steps of time of the answer, at least 8, follow from the model.
    """

    name: Literal["synthetic_speech"]
    length: Length = 16000
    classes: Classes = 40
    count: Items = 512
    validation: Part = 0.1
    seed: Seed = 0
    batch_size: Count = 8
