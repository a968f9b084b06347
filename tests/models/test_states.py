"""The state dicts of torchvision, torchaudio and Hugging Face, by a golden file: names, order, shapes, sizes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ampkit import models
from ampkit.nn import init

GOLDEN = Path(__file__).parents[1] / "golden" / "states.txt"
SIZES = {
    "vit_ti_16": 5_717_416, "vit_s_16": 22_050_664, "vit_b_32": 88_224_232, "vit_l_16": 304_326_632,
    "lenet5": 61_706, "convmixer_768_32": 21_110_248, "convmixer_1536_20": 51_625_960,
    "vgg11": 132_863_336, "vgg13": 133_047_848, "vgg19": 143_667_240, "vgg16_bn": 138_365_992,
    "efficientnet_b4": 19_341_616,
    "bert('tiny')": 4_416_698, "bert('large')": 335_174_458,
}  # fmt: skip


def sections():
    """{call: (parameters, rows)} of the golden file."""
    found = {}
    for part in re.split(r"^\[", GOLDEN.read_text(), flags=re.MULTILINE)[1:]:
        head, *rows = part.strip().splitlines()
        call, size = re.fullmatch(r"(.*)\] .*, (\d+) parameters", head).groups()
        found[call] = int(size), rows
    return found


def rows_of(state):
    """`pattern shape numbers` by rows: # in a pattern stands for each of the numbers, the first that a name has."""
    found = {}
    for name, value in state.items():
        number = re.search(r"\d+", name)
        pattern = name if number is None else f"{name[: number.start()]}#{name[number.end() :]}"
        shape = "x".join(map(str, value.shape)) or "scalar"
        found.setdefault(f"{pattern} {shape}", []).extend([] if number is None else [number.group()])
    return [" ".join([row, *[",".join(numbers)] * bool(numbers)]) for row, numbers in found.items()]


class NoDraw:
    """A generator that draws nothing: constructors of large models are then quick."""

    def uniform(self, *_, **__):
        return np.zeros(())

    normal = uniform


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr(init.random, "next_draw", lambda stream=None: NoDraw())
    monkeypatch.setattr(init, "_fill", lambda tensor, values: tensor)


def made(call):
    return eval(f"models.{call if '(' in call else call + '()'}", vars(models) | {"models": models})


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.cpu
@pytest.mark.parametrize("call", sections())
def test_the_state_is_the_other_librarys(call, undrawn):
    size, rows = sections()[call]
    model = made(call)
    assert rows_of(model.state_dict()) == rows
    assert count(model) == size


@pytest.mark.cpu
@pytest.mark.parametrize("call", SIZES)
def test_the_size_is_the_published_one(call, undrawn):
    assert count(made(call)) == SIZES[call]
