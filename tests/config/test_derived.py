"""Recipe sections derived from signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
from pydantic import ValidationError

from ampkit.base.limits import Probability, Size, Sizes
from ampkit.config.derived import derive_section, field_type
from ampkit.config.field_types import Section
from ampkit.core.tensor import Tensor


def build(
    width: Size,
    depth: int = 2,
    widths: int | Sizes = (4, 8),
    dropout: Probability = 0.0,
    lr: float | Tensor = 0.1,
    betas: tuple[Probability, Probability] = (0.9, 0.99),
    kind: Literal["a", "b"] = "a",
    clip: float | None = None,
    hidden: Sequence[int] = (1,),
    foreach: bool | None = None,
):
    """Build something."""


SECTION = derive_section("thing", build, exclude=("foreach",), defaults={"depth": 3}, constants={"classes": 10})


def test_a_section_has_the_keys_and_defaults_of_the_signature():
    section = SECTION(width=2)
    numbers = {"width": 2, "depth": 3, "widths": (4, 8), "dropout": 0.0, "lr": 0.1, "betas": (0.9, 0.99)}
    assert section.model_dump() == {"name": "thing", **numbers, "kind": "a", "clip": None, "hidden": (1,)}
    assert section.classes == 10
    assert SECTION.__doc__ == "Build something."


def test_a_list_of_toml_becomes_a_tuple():
    assert SECTION(width=2, widths=[3], hidden=[4, 5], betas=[0.1, 0.2]).hidden == (4, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"width": 0},
        {"width": 2**21},
        {"width": 1.0},
        {"width": 2, "depth": 0},
        {"width": 2, "widths": []},
        {"width": 2, "widths": [0]},
        {"width": 2, "widths": 3},
        {"width": 2, "dropout": 1.0},
        {"width": 2, "lr": 1e39},
        {"width": 2, "lr": True},
        {"width": 2, "betas": [0.9]},
        {"width": 2, "betas": [0.9, 1.0]},
        {"width": 2, "kind": "c"},
        {"width": 2, "clip": "1"},
        {"width": 2, "hidden": [0]},
        {"width": 2, "foreach": True},
    ],
    ids=str,
)
def test_a_value_outside_of_its_annotation_is_refused(wrong):
    with pytest.raises(ValidationError):
        SECTION(**wrong)


def test_a_section_keeps_the_keys_of_its_base():
    class Loader(Section):
        name: str
        batch_size: int = 8

    assert list(derive_section("thing", build, base=Loader).model_fields)[:3] == ["name", "batch_size", "width"]


def test_an_annotation_that_toml_cannot_hold_is_an_error():
    for annotation in (Tensor, Tensor | None, bytes):
        with pytest.raises(TypeError, match="no recipe key can hold"):
            field_type(annotation)
