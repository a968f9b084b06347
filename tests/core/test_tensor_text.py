"""Tensors print as PyTorch's do: the texts in golden/tensor_text.json are its own (tests/peers/tensor_text.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit.base.tensor_text import printoptions

GOLDEN = Path(__file__).parents[1] / "golden/tensor_text.json"
TEXTS = json.loads(GOLDEN.read_text())["texts"]


@pytest.fixture
def print_options():
    yield
    ampkit.set_printoptions(profile="default")


@pytest.mark.cpu
@pytest.mark.parametrize("expression", TEXTS)
def test_a_tensor_prints_as_in_pytorch(expression):
    text = repr(eval(f"torch.{expression}", {"torch": ampkit}))
    expected = TEXTS[expression].replace("torch.", "ampkit.")
    assert text.replace(",\n       grad_fn", ", grad_fn") == expected.replace(",\n       grad_fn", ", grad_fn")


def test_a_tensor_elsewhere_names_its_device():
    x = ampkit.zeros(2)
    place = "" if x.device.type == "cpu" else f", device='{x.device}'"
    assert repr(x) == f"tensor([0., 0.]{place})"


def test_a_large_tensor_is_summarized_before_it_is_copied(monkeypatch):
    from ampkit import backends

    sizes, backend = [], backends.backend_of(ampkit.zeros(1).array)
    copy = backend.to_numpy
    monkeypatch.setattr(backend, "to_numpy", lambda array: sizes.append(array.size) or copy(array))
    assert "..." in repr(ampkit.zeros(3000, 7))
    assert sum(sizes) == 36


@pytest.mark.cpu
def test_options_change_digits_threshold_width_and_notation(print_options):
    x = ampkit.tensor([1 / 3, 200.0, 3.0])
    ampkit.set_printoptions(precision=2)
    assert repr(x) == "tensor([  0.33, 200.00,   3.00])"
    ampkit.set_printoptions(sci_mode=True)
    assert repr(x) == "tensor([3.33e-01, 2.00e+02, 3.00e+00])"
    ampkit.set_printoptions(profile="default", threshold=4, edgeitems=1)
    assert repr(ampkit.arange(6)) == "tensor([0,  ..., 5])"
    ampkit.set_printoptions(profile="default", linewidth=20)
    assert repr(ampkit.arange(6)) == "tensor([0, 1, 2, 3,\n        4, 5])"
    ampkit.set_printoptions(profile="full")
    assert "..." not in repr(ampkit.tensor(np.zeros(2000)))


@pytest.mark.cpu
def test_options_of_a_context_are_set_back_after_it_and_after_an_error(print_options):
    x = ampkit.tensor([1e-9, 1.0])
    ampkit.set_printoptions(precision=3)
    before = repr(x)

    def fail():
        with printoptions(precision=1, sci_mode=False):
            assert repr(x) == "tensor([0.0, 1.0])"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert repr(x) == before
    with pytest.raises(ampkit.ArgumentError, match="set_printoptions"):
        printoptions(precision=-1).__enter__()
    assert repr(x) == before


@pytest.mark.parametrize("options", [{"precision": -1}, {"profile": "long"}, {"linewidth": "80"}])
def test_wrong_options_are_refused(options, print_options):
    with pytest.raises(ampkit.ArgumentError, match="set_printoptions"):
        ampkit.set_printoptions(**options)
