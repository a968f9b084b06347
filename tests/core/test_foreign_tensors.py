"""Tensors of other libraries, which have `__dlpack__`, as data, indices, weights and, refused, as operands."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit.base.errors import DTypeError
from ampkit.utils.data import DataLoader, default_collate, default_convert

pytestmark = pytest.mark.cpu
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool")


class Tensor:
    """A tensor of a library that is not ampkit, named as ampkit's."""

    __module__ = "torch"

    def __init__(self, held, requires_grad=False):
        self.held, self.requires_grad = held, requires_grad

    def detach(self):
        return Tensor(self.held)

    def __dlpack__(self, **options):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.held.__dlpack_device__()


def foreign(values, dtype="float32", requires_grad=False):
    return Tensor(ampkit.tensor(values, dtype=dtype), requires_grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [ampkit.tensor, ampkit.as_tensor, ampkit.asarray])
def test_a_tensor_of_another_library_is_copied_with_its_dtype(make, dtype):
    given = foreign([1, 0, 1], dtype)
    made = make(given)
    assert made.dtype.name == dtype and made.tolist() == [1, 0, 1]
    assert not np.shares_memory(made.array, given.held.array)
    made[0] = 0  # unlike shared memory, which is read-only
    assert make(given, dtype=ampkit.float32).dtype == ampkit.float32


def test_lists_and_tapes_of_another_library_are_left_behind():
    assert ampkit.tensor(foreign([1.0], requires_grad=True)).requires_grad is False
    assert ampkit.tensor([foreign(1.5), foreign(2.0, "bfloat16")]).tolist() == [1.5, 2.0]
    x = ampkit.arange(4.0)
    assert x[foreign([0, 2], "int64")].tolist() == [0, 2]
    x[1] = foreign(9.0, requires_grad=True)
    assert x.tolist() == [0, 9, 2, 3]


def test_weights_that_require_grad_in_another_library_are_loaded():
    layer = ampkit.nn.Linear(2, 1, bias=False)
    layer.load_state_dict({"weight": foreign([[1, 2]], "bfloat16", requires_grad=True)})
    assert layer.weight.tolist() == [[1, 2]]


def test_parameters_and_buffers_are_made_of_it_and_of_lists():
    for make in (ampkit.nn.Parameter, ampkit.nn.Buffer):
        assert make(foreign([1, 2], "bfloat16")).dtype == ampkit.bfloat16
        assert make([1.0, 2.0]).dtype == ampkit.float32
        assert make([np.float64(1.0), 2.0]).dtype == ampkit.float64


def test_a_loader_collates_tensors_of_another_library():
    items = [(foreign([i, i], "bfloat16"), {"label": foreign(i, "int64"), "weight": 0.1}) for i in range(3)]
    x, rest = next(iter(DataLoader(items, batch_size=3)))
    assert (x.dtype, x.shape) == (ampkit.bfloat16, (3, 2)) and rest["label"].tolist() == [0, 1, 2]
    assert rest["weight"].dtype == ampkit.float64
    assert isinstance(default_convert(items[0])[0], ampkit.Tensor)
    assert default_collate([foreign(1.0, requires_grad=True)]).requires_grad is False


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ampkit.nn.Linear(2, 1)(x), lambda x: ampkit.ones(2) * x, lambda x: ampkit.ones(2) == x,
        lambda x: ampkit.ops.relu(x), lambda x: ampkit.ops.mse_loss(ampkit.ones(2), x), lambda x: ampkit.zeros_like(x),
    ],
)  # fmt: skip
def test_as_an_operand_it_is_refused_by_its_name_with_a_cure_that_works(call):
    with pytest.raises(DTypeError, match=r"got torch\.Tensor\nhelp: wrap (it|arrays)(:| with) ampkit\.tensor\("):
        call(foreign([1, 2]))
    call(ampkit.tensor(foreign([1, 2])))
