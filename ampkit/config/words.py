"""What a section of a recipe is, and the kinds of its values."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]  # a probability, or a decay of a moment
Part = Annotated[float, Field(gt=0, lt=1)]
# TOML has lists and no tuples.
Sizes = Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
Betas = Annotated[tuple[Share, Share], Field(strict=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
ImageShape = Annotated[tuple[Count, Count, Count], Field(strict=False)]  # channels, height, width
Channels = Annotated[tuple[float, ...], Field(strict=False, min_length=1)]
Spreads = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)]
Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$", description="cpu, cuda or cuda:<index>")]


class Section(BaseModel):
    """A table of a recipe: frozen, of exact types, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
