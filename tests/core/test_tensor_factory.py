"""PyTorch's older constructors, default dtypes and default devices."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, backends, nn, tensor
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError

pytestmark = pytest.mark.cpu


@pytest.fixture
def restored():
    yield
    dtypes.set_default(dtypes.float32)
    backends.set_default_device("cpu")


@pytest.mark.no_gpu  # where there is one, nothing is refused
def test_a_tensor_type_makes_tensors_of_a_shape_or_of_values():
    assert ampkit.FloatTensor([1, 2]).tolist() == [1, 2]
    assert ampkit.LongTensor(np.array([1.0, 2.0])).dtype == dtypes.int64
    assert ampkit.BoolTensor((1, 0)).tolist() == [True, False]
    assert ampkit.HalfTensor(2, 3).shape == ampkit.HalfTensor(ampkit.Size((2, 3))).shape == (2, 3)
    assert ampkit.ByteTensor().shape == (0,)
    assert ampkit.ByteTensor(tensor([3])).dtype == dtypes.uint8
    with pytest.raises(ArgumentError, match="Tensor: needs values, or sizes from 0, got"):
        ampkit.FloatTensor(2, -1)
    with pytest.raises(DeviceError):
        ampkit.cuda.FloatTensor(2)


def test_the_constructor_of_tensors_takes_lists_and_sizes_beside_arrays():
    array = np.ones(3)
    assert Tensor(array).array is array
    assert (Tensor([1, 2]).tolist(), Tensor([1, 2]).dtype) == ([1, 2], dtypes.float32)
    assert [tuple(made.shape) for made in (Tensor(), Tensor(2), Tensor(2, 3), Tensor(1, 2, 3, 4))] == [
        (0,), (2,), (2, 3), (1, 2, 3, 4),
    ]  # fmt: skip
    for wrong in (1.5, "ab", None):
        with pytest.raises(DTypeError, match="Tensor: needs an array, got an object of type"):
            Tensor(wrong)


def test_new_makes_a_tensor_of_the_same_dtype():
    x = tensor([1, 2])
    assert (x.new([3, 4]).tolist(), x.new([3, 4]).dtype) == ([3, 4], dtypes.int64)
    assert (x.new(2, 3).shape, x.new().shape) == ((2, 3), (0,))


def test_a_tensor_tells_its_type_and_is_cast_to_one():
    x = tensor([1.5])
    assert x.type() == "torch.FloatTensor" == repr(ampkit.FloatTensor)
    for kind in (ampkit.LongTensor, "torch.LongTensor", ampkit.int64):
        assert x.type(kind).type() == "torch.LongTensor"
    assert isinstance(x, ampkit.FloatTensor)
    assert not isinstance(x, (ampkit.LongTensor, ampkit.cuda.FloatTensor))
    with pytest.raises(DTypeError, match="type: needs one of torch.DoubleTensor, "):
        x.type("torch.ComplexTensor")


def test_the_default_dtype_is_that_of_new_tensors_and_layers(restored):
    ampkit.set_default_dtype(ampkit.float64)
    made = [
        tensor(1.5), ampkit.zeros(2), ampkit.full((2,), 0.5), ampkit.arange(0.5), ampkit.linspace(0, 1, 3),
        ampkit.eye(2), ampkit.rand(2), ampkit.randn(2), ampkit.logspace(0, 1, 2), Tensor([1]), nn.Linear(2, 2).weight,
        nn.BatchNorm1d(2).running_mean,
    ]  # fmt: skip
    assert {each.dtype for each in made} == {ampkit.get_default_dtype()} == {dtypes.float64}
    assert ampkit.rand(1).item() != np.float32(ampkit.rand(1).item())
    assert {tensor(1).dtype, ampkit.arange(3).dtype} == {dtypes.int64}
    assert tensor(np.ones(1, np.float32)).dtype == dtypes.float32
    with pytest.raises(DTypeError, match="set_default_dtype: needs a floating-point dtype, got int64"):
        ampkit.set_default_dtype(ampkit.int64)
    ampkit.set_default_tensor_type("torch.HalfTensor")
    assert ampkit.ones(1).dtype == dtypes.float16


@pytest.mark.no_gpu
def test_a_device_is_a_context_in_which_it_is_the_default(restored):
    with ampkit.device("cpu") as outer:
        with pytest.raises(DeviceError), ampkit.device("cuda"):
            pass
        with pytest.raises(ZeroDivisionError), outer:
            raise ZeroDivisionError
        assert ampkit.get_default_device() == "cpu"
    assert not backends._outer
