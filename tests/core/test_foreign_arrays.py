"""NumPy arrays of others: subclasses, dtypes that no tensor has, byte orders, masks."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, nn
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError
from ampkit.data.collate import default_collate, default_convert

pytestmark = pytest.mark.cpu


class Hostile(np.ndarray):
    """A subclass whose own methods must not run on tensors."""

    size = property(lambda self: 1 / 0)

    def __array_ufunc__(self, *args, **kwargs):
        raise AssertionError("the subclass's arithmetic")

    def __array_function__(self, *args, **kwargs):
        raise AssertionError("the subclass's functions")


def load(array):
    module = nn.Module()
    module.w = nn.Parameter(ampkit.zeros(array.shape))
    module.load_state_dict(OrderedDict(w=array))
    return module.w.detach()


def assigned(array):
    made = ampkit.zeros(*array.shape, dtype=array.dtype)
    made.data = array
    return made


SHARING = {"Tensor": Tensor, "from_numpy": ampkit.from_numpy, "as_tensor": ampkit.as_tensor,
           "asarray": ampkit.asarray, "Parameter": nn.Parameter, "Buffer": nn.Buffer}  # fmt: skip
COPYING = {"tensor": ampkit.tensor, "FloatTensor": ampkit.FloatTensor, "load_state_dict": load, "data": assigned,
           "default_convert": default_convert, "collate": lambda array: default_collate([array])[0]}  # fmt: skip
EVERY = {**SHARING, **COPYING, "from_dlpack": ampkit.from_dlpack}
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
SUBCLASSES = {
    "matrix": lambda values: np.matrix(values, copy=False),
    "masked": lambda values: np.ma.array(values),
    "recarray": lambda values: values.view(np.recarray),
    "own": lambda values: values.view(Hostile),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("kind", SUBCLASSES)
@pytest.mark.parametrize("name", EVERY)
def test_of_a_subclass_of_ndarray_a_tensor_has_the_memory_alone(name, kind):
    values = VALUES.copy()
    made = EVERY[name](SUBCLASSES[kind](values))
    assert type(made.array) is np.ndarray
    assert np.array_equal(made.array, VALUES)
    assert np.shares_memory(made.array, values) is (name not in COPYING)
    if name != "from_dlpack":
        assert np.array_equal((made.detach() * made.detach()).array, VALUES * VALUES)


def test_of_a_memory_mapped_file_a_tensor_has_the_memory(tmp_path):
    mapped = np.memmap(tmp_path / "values", np.float32, "w+", shape=(2, 3))
    made = ampkit.from_numpy(mapped)
    made.fill_(3)
    assert type(made.array) is np.ndarray
    assert mapped.tolist() == [[3] * 3] * 2


UNKNOWN = {
    "object": np.array([1, 2.0], object), "str": np.array(["a"]), "bytes": np.array([b"a"]), "complex": np.array([1j]),
    "datetime": np.array(["2020-01-01"], "M8[D]"), "timedelta": np.array([3], "m8[s]"),
    "structured": np.zeros(2, "f4,i4"), "void": np.zeros(2, "V4"), "uint16": np.zeros(2, np.uint16),
    "uint64": np.zeros(2, np.uint64), "longdouble": np.zeros(2, np.longdouble), "records": np.recarray(2, "f4,i4"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("name", sorted({*EVERY} - {"default_convert", "load_state_dict", "data"}))
def test_an_array_of_a_dtype_that_no_tensor_has_is_refused_in_one_line(name, kind):
    if name == "FloatTensor" and kind in ("uint16", "uint64"):
        assert EVERY[name](UNKNOWN[kind]).tolist() == [0, 0]  # integers, of which it makes float32
        return
    with pytest.raises(AmpkitError) as error:
        EVERY[name](UNKNOWN[kind])
    lines = str(error.value).splitlines()
    assert "needs " in lines[0]
    assert all(line.startswith("help: ") for line in lines[1:])


@pytest.mark.parametrize("array", [np.arange(3, dtype=">f4"), np.arange(3, dtype=">i8")], ids=str)
def test_another_byte_order_is_refused_where_memory_is_shared_and_converted_where_it_is_copied(array):
    for share in SHARING.values():
        with pytest.raises(DTypeError, match=r"needs native byte order, got >.\d\nhelp: ampkit.tensor\(array\) copies"):
            share(array)
    for copy in COPYING.values():
        assert copy(array).tolist() == [0, 1, 2]
        assert copy(array).array.dtype.isnative


@pytest.mark.parametrize("name", EVERY)
def test_hidden_elements_of_a_masked_array_are_refused(name):
    masked = np.ma.array(VALUES, mask=VALUES > 3)
    with pytest.raises(ArgumentError, match=r"needs an array without masked elements, got 2 of 6 masked\nhelp: .*fill"):
        EVERY[name](masked)
    assert ampkit.from_numpy(masked.filled(0)).sum().item() == 6


def test_numpys_scalars_become_arrays():
    assert type(Tensor(np.float32(3)).array) is np.ndarray
    assert Tensor(np.float32(3)).exp().item() == pytest.approx(np.exp(3))


@pytest.mark.parametrize("shape", [(64, 0, 3), (0, 4), (4, 0), (1, 0, 1)])
def test_empty_arrays_of_a_subclass_are_padded_and_masked_like_others(shape):
    made = ampkit.from_numpy(np.zeros(shape, np.float32).view(Hostile))
    assert nn.functional.pad(made, (1, 1), value=7.0).shape == (*shape[:-1], shape[-1] + 2)
    assert made.tril().shape == shape
