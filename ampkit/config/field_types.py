"""What a section of a recipe is, and the kinds of its values."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Every number has a bound, far above what anybody trains with, so that a slip of the keyboard is told here, and sums
# and products of a few of them are sizes that NumPy can say no to.
_LARGEST = 3.4028234e38  # of float32
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Whole = Annotated[int, Field(ge=0, le=2**31 - 1)]
Size = Annotated[int, Field(ge=1, le=2**20)]  # of an axis: features, channels, pixels, tokens
Length = Annotated[int, Field(ge=1, le=2**24)]  # of a sequence
Features = Annotated[int, Field(ge=1, le=2**12)]
Classes = Annotated[int, Field(ge=2, le=2**20)]
Items = Annotated[int, Field(ge=2, le=10_000_000)]
Layers = Annotated[int, Field(ge=1, le=4096)]
Factor = Annotated[float, Field(gt=0, le=1024)]  # of a model's channels or blocks
Pixels = Annotated[int, Field(ge=0, le=2**16)]
Bytes = Annotated[int, Field(ge=1, le=2**48)]
Workers = Annotated[int, Field(ge=0, le=1024)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
Positive = Annotated[float, Field(gt=0, le=_LARGEST)]
NotNegative = Annotated[float, Field(ge=0, le=_LARGEST)]
AtLeastOne = Annotated[float, Field(ge=1, le=_LARGEST)]
AboveOne = Annotated[float, Field(gt=1, le=_LARGEST)]
Share = Annotated[float, Field(ge=0, lt=1)]  # a probability, or a decay of a moment
Part = Annotated[float, Field(gt=0, lt=1)]
# TOML has lists and no tuples.
Sizes = Annotated[tuple[Size, ...], Field(strict=False, min_length=1, max_length=4096)]
Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
FilePath = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Betas = Annotated[tuple[Share, Share], Field(strict=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
ImageShape = Annotated[tuple[Size, Size, Size], Field(strict=False)]  # channels, height, width
Channels = Annotated[tuple[Number, ...], Field(strict=False, min_length=1)]
Spreads = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)]
Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,4})?)$", description="cpu, cuda or cuda:<index>")]


class Section(BaseModel):
    """A table of a recipe: frozen, of exact types, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
