"""Codes and what they stand for."""

import numpy as np
import pytest

import ampkit
from ampkit.base.errors import NonFiniteError
from ampkit.core.dispatch import reference_only
from ampkit.ops.quantized.codes import QParams, QuantizedTensor, quantize_per_tensor

pytestmark = pytest.mark.cpu  # int8 is not there yet on a GPU
VALUES = np.random.default_rng(0).normal(0, 3, (64, 96)).astype(np.float32)
UNSIGNED, SIGNED = QParams(0.05, 117), QParams(0.03, -7, signed=True)


@pytest.mark.parametrize("qparams", [UNSIGNED, SIGNED], ids=["uint8", "int8"])
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16, ampkit.float16], ids=str)
def test_the_kernel_has_the_codes_of_the_reference(qparams, dtype):
    x = ampkit.tensor(VALUES).to(dtype)
    with reference_only():
        wanted = quantize_per_tensor(x, qparams)
    found = quantize_per_tensor(x, qparams)
    assert found.dtype == wanted.dtype == qparams.dtype
    assert np.array_equal(found.numpy(), wanted.numpy())


def test_halves_round_to_even_and_ends_saturate():
    x = np.tile(np.array([0.5, 1.5, 2.5, -0.5, 300, -300, np.inf, -np.inf], np.float32), 256)
    codes = quantize_per_tensor(ampkit.tensor(x), QParams(1.0, 10)).numpy()
    assert codes[:8].tolist() == [10, 12, 12, 10, 255, 0, 255, 0]
    assert np.array_equal(codes, np.tile(codes[:8], 256))


@pytest.mark.parametrize("size", [8, 4096], ids=["reference", "kernel"])
def test_nan_is_refused(size):
    x = np.zeros(size, np.float32)
    x[-1] = np.nan
    with pytest.raises(NonFiniteError, match="activations without NaN"):
        quantize_per_tensor(ampkit.tensor(x), UNSIGNED)


def test_images_with_few_channels_become_channels_last_codes_of_the_same_values():
    x = VALUES[:, :72].reshape(2, 3, 24, 32)
    codes = quantize_per_tensor(ampkit.tensor(x.copy()), UNSIGNED).numpy()
    with reference_only():
        assert np.array_equal(codes, quantize_per_tensor(ampkit.tensor(x.copy()), UNSIGNED).numpy())


@pytest.mark.parametrize("qparams", [UNSIGNED, SIGNED], ids=["uint8", "int8"])
def test_a_quantized_tensor_reads_as_its_values(qparams):
    codes = np.arange(4096).astype(qparams.dtype).reshape(64, 64)
    x = QuantizedTensor(ampkit.tensor(codes), qparams)
    wanted = (codes.astype(np.float32) - np.float32(qparams.zero_point)) * np.float32(qparams.scale)
    assert np.array_equal((x + 0).numpy(), wanted)
    assert x.dtype == ampkit.float32
    assert (x.q_scale(), x.q_zero_point()) == (qparams.scale, qparams.zero_point)
    assert x.int_repr().dtype == qparams.dtype
