"""The base class of all recipe sections, and types of keys that no signature has."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ..base.limits import Limits

Workers = Annotated[int, Limits(ge=0, le=1024)]
Threads = Annotated[int, Limits(ge=1, le=1024)]
FilePath = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,4})?)$", title="cpu, cuda or cuda:<index>")]


class Section(BaseModel):
    """A table of a recipe: frozen, of exact types, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
