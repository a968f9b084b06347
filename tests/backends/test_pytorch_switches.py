"""PyTorch's `torch.backends` switches, as scripts set them after `import ampkit as torch`."""

from __future__ import annotations

import importlib
from contextlib import nullcontext

import pytest

import ampkit as torch
from ampkit.backends import precision
from ampkit.base.errors import ArgumentError

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def settings_restored():
    words = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_float32_matmul_precision(words[0])
    torch.use_deterministic_algorithms(words[1])
    precision.set_convolutions_use_tf32(None)
    torch.backends.cudnn.benchmark = False


def test_allow_tf32_of_matmul_sets_the_precision_of_float32_products():
    assert not torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "medium"
    torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.get_float32_matmul_precision() == "highest"


def test_allow_tf32_of_cudnn_concerns_convolutions_alone():
    torch.backends.cudnn.allow_tf32 = True
    assert precision.convolutions_use_tf32()
    assert torch.get_float32_matmul_precision() == "highest"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = False
    assert not precision.convolutions_use_tf32()
    assert torch.backends.cuda.matmul.allow_tf32


def test_convolutions_follow_the_precision_of_products_until_told_otherwise():
    torch.set_float32_matmul_precision("high")
    assert torch.backends.cudnn.allow_tf32


def test_deterministic_is_the_setting_of_use_deterministic_algorithms():
    torch.backends.cudnn.deterministic = False
    assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.backends.cudnn.deterministic


def test_switches_without_an_effect_keep_the_value_that_was_set():
    torch.backends.cudnn.benchmark = True
    assert torch.backends.cudnn.benchmark
    matmul = torch.backends.cuda.matmul
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        assert getattr(matmul, name)
        setattr(matmul, name, False)
        assert not getattr(matmul, name)
        setattr(matmul, name, True)


def test_a_cudnn_cannot_be_switched_off_and_the_error_names_what_can(monkeypatch):
    torch.backends.cudnn.enabled = True
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    with pytest.raises(ArgumentError, match="enabled = True.*\n.*reference_only"):
        torch.backends.cudnn.enabled = False
    assert torch.backends.cudnn.enabled


def test_text_is_refused_as_a_switch():
    with pytest.raises(ArgumentError, match="benchmark True or False"):
        torch.backends.cudnn.benchmark = "yes"


def test_the_module_is_imported_as_scripts_import_it():
    assert importlib.import_module("ampkit.backends.cudnn") is torch.backends.cudnn


def test_what_the_machine_has_is_told_without_an_error():
    assert isinstance(torch.backends.cudnn.is_available(), bool)
    assert isinstance(torch.backends.cuda.is_built(), bool)
    if not torch.backends.cudnn.is_available():
        assert torch.backends.cudnn.version() is None


def test_flags_set_the_switches_that_are_given_and_restore_them():
    cudnn = torch.backends.cudnn
    with cudnn.flags(enabled=True, deterministic=False, allow_tf32=True):
        assert (cudnn.deterministic, cudnn.allow_tf32, cudnn.benchmark) == (False, True, False)
    assert torch.are_deterministic_algorithms_enabled()
    assert precision.convolution_setting() is None

    @cudnn.flags(benchmark=True)
    def benchmark():
        return cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32

    assert benchmark() == (True, True, False)
    assert not cudnn.benchmark
    with pytest.raises(ArgumentError) if cudnn.is_available() else nullcontext(), cudnn.flags(enabled=False):
        assert not cudnn.enabled
    assert cudnn.enabled
