"""Tensors: made, read, changed in place, copied, and handed to other libraries."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import ampkit
from ampkit import nn
from ampkit.base import errors
from ampkit.base.errors import AmpkitError, ArgumentError, DeviceError, DTypeError, ShapeError, StateError


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (1.5, "float32"),
        ([1, 2], "int64"),
        ([[1.0], [2.0]], "float32"),
        ([True, False], "bool"),
        (np.ones(2), "float64"),
        (np.ones(2, ">f4"), "float32"),
        ([], "float32"),
        (np.ones(2, np.int8), "int8"),
    ],
)
def test_values_become_tensors_of_pytorch_s_dtypes(values, dtype):
    made = ampkit.tensor(values)
    assert made.dtype.name == dtype and made.dtype.isnative


@pytest.mark.parametrize("arguments", [("ab",), (None,), (2.0,)], ids=str)
def test_the_class_itself_takes_arrays_alone_and_says_what_takes_numbers(arguments):
    with pytest.raises(DTypeError, match=r"^Tensor: needs an array, got .*\nhelp: ampkit.tensor\(values\) makes"):
        ampkit.Tensor(*arguments)


def test_a_device_is_named_with_its_index_beside_it_too():
    device = ampkit.device("cuda", 1)
    assert (device, device.type, device.index) == ("cuda:1", "cuda", 1)
    assert pickle.loads(pickle.dumps(device)) == ampkit.device(type="cuda", index=1) == device
    assert ampkit.device("cpu").index is None


def test_a_tensor_does_not_share_the_memory_of_its_values():
    values = np.ones(3, np.float32)
    made = ampkit.tensor(values)
    values[0] = 5
    assert made.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("values", "dtype", "error"),
    [
        ([[1.0], [2.0, 3.0]], None, ShapeError),
        (["a"], None, DTypeError),
        ([1 + 2j], None, DTypeError),
        (np.array([object()]), None, DTypeError),
        ([1.0], "float8", DTypeError),
        ([1.0], "complex64", DTypeError),
    ],
)
def test_what_is_no_tensor_is_refused_in_one_line(values, dtype, error):
    with pytest.raises(error) as caught:
        ampkit.tensor(values, dtype=dtype)
    assert len(str(caught.value).splitlines()) <= 2


def test_an_unknown_or_missing_device_is_refused():
    with pytest.raises(DeviceError, match="'gpu'"):
        ampkit.tensor([1.0], device="gpu")
    with pytest.raises(DeviceError, match="cpu:3"):
        ampkit.tensor([1.0], device="cpu:3")


@pytest.mark.cpu
def test_shape_and_kind_answer_in_pytorch_s_words():
    x = ampkit.zeros(2, 3, dtype=ampkit.bfloat16)
    assert x.shape == (2, 3) and x.shape.numel() == 6 and x.size(1) == 3 and x.dim() == 2
    assert x.numel() == 6 and x.nbytes == 12 and x.stride() == (3, 1) and len(x) == 2
    assert x.device == "cpu" and x.device.type == "cpu" and x.device.index is None
    assert x.is_leaf and x.grad_fn is None and x.is_floating_point() and x.is_contiguous()


def test_one_element_reads_as_a_number_and_more_do_not():
    assert ampkit.tensor([2.5]).item() == 2.5 and float(ampkit.tensor(2.5)) == 2.5
    assert int(ampkit.tensor(3)) == 3 and bool(ampkit.tensor([0.0])) is False
    assert [10, 20, 30][ampkit.tensor(1)] == 20
    with pytest.raises(ShapeError, match="one element"):
        ampkit.tensor([1.0, 2.0]).item()
    with pytest.raises(DTypeError, match="an integer tensor"):
        [1, 2][ampkit.tensor(1.0)]


@pytest.mark.cpu
def test_numpy_shares_memory_and_refuses_a_tensor_on_the_tape():
    x = ampkit.tensor([1.0, 2.0])
    x.numpy()[0] = 7
    assert x.tolist() == [7, 2]
    with pytest.raises(StateError, match=r"detach\(\)\.numpy"):
        x.requires_grad_().numpy()
    with ampkit.no_grad():
        assert x.numpy().tolist() == [7, 2]


@pytest.mark.cpu
def test_data_reads_off_the_tape_and_writes_of_arrays_count_as_changes():
    p = nn.Parameter(np.ones(2, np.float32))
    before = p._version_counter[0]
    p.data = np.array([3.0, 4.0])
    assert p.tolist() == [3, 4] and p._version_counter[0] > before and not p.data.requires_grad
    with pytest.raises(ShapeError, match=r"shape \(2,\)"):
        p.data = np.array([1.0])


@pytest.mark.cpu
def test_a_gradient_can_be_set_and_must_fit():
    p = nn.Parameter(np.ones(2, np.float32))
    p.grad = ampkit.tensor([1.0, 2.0])
    assert p.grad is p.grad and p.grad.tolist() == [1, 2]
    p.grad = None
    assert p.grad is None
    with pytest.raises(ShapeError):
        p.grad = ampkit.tensor([1.0])


def test_a_16_bit_parameter_s_gradient_is_float32():
    p = nn.Parameter(ampkit.ones(2, dtype=ampkit.bfloat16))
    (p * 3.0).sum().backward()
    assert p.grad.dtype == ampkit.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool"])
def test_pickle_and_deepcopy_keep_values_and_kind(dtype):
    x = ampkit.tensor([1.0, 0.0], dtype=dtype)
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert twin.dtype == x.dtype and twin.tolist() == x.tolist() and twin.array is not x.array
    p = nn.Parameter(np.ones(2, np.float32))
    twin = pickle.loads(pickle.dumps(p))
    assert type(twin) is nn.Parameter and twin.requires_grad


@pytest.mark.cpu
def test_repr_shows_values_dtype_and_place_on_the_tape():
    x = ampkit.tensor([1.0, 2.0], requires_grad=True)
    assert repr(x) == "tensor([1., 2.], requires_grad=True)"
    assert repr(x * 2.0) == "tensor([2., 4.], grad_fn=<MulBackward0>)"
    assert "dtype=ampkit.bfloat16" in repr(ampkit.tensor([1.0], dtype="bfloat16"))


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool"])
def test_dlpack_hands_over_the_same_memory(dtype):
    x = ampkit.tensor([1.0, 0.0, 1.0], dtype=dtype)
    twin = ampkit.from_dlpack(x)
    assert twin.dtype == x.dtype and twin.tolist() == x.tolist()
    assert np.shares_memory(twin.array, x.array)


def test_dlpack_speaks_with_numpy_and_refuses_the_rest():
    values = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(ampkit.from_dlpack(values).array, values)
    assert np.from_dlpack(ampkit.tensor([1.0], device="cpu")).tolist() == [1.0]
    with pytest.raises(DTypeError, match="__dlpack__"):
        ampkit.from_dlpack([1.0])
    with pytest.raises(StateError, match="detach"):
        np.from_dlpack(ampkit.tensor([1.0], requires_grad=True))


@pytest.mark.parametrize("call", [len, iter, list, lambda x: [*x]])
def test_a_0_d_tensor_has_no_length_and_is_no_sequence(call):
    # a TypeError, by which callers tell a number from a sequence; a ShapeError as before
    for kind in (TypeError, ShapeError):
        with pytest.raises(kind, match=r"^(len\(\) of|iteration over) a 0-d tensor$"):
            call(ampkit.tensor(1.0))
    assert list(np.atleast_1d(ampkit.tensor(1.0))) == [1.0]


def test_copy_copy_gives_a_leaf_that_shares_the_memory():
    x = ampkit.ones(3, requires_grad=True)
    for given in (x, x * 2, x.detach()):
        twin = copy.copy(given)
        assert twin.is_leaf and twin.requires_grad == given.requires_grad
        assert np.shares_memory(twin.array, given.array)
    parameter = ampkit.nn.Parameter(np.ones(3))
    twin = copy.copy(parameter)
    assert type(twin) is type(parameter) and not np.shares_memory(twin.array, parameter.array)


@pytest.mark.parametrize("make", [np.asarray, np.array, lambda x: x.numpy()])
def test_an_array_of_a_tensor_that_requires_grad_is_refused_with_the_cure(make):
    x = ampkit.ones(2, requires_grad=True)
    for given in (x, x * 2):
        with pytest.raises(RuntimeError, match=r"help: use \.detach\(\)\.numpy\(\)"):
            make(given)
        assert make(given.detach()).shape == (2,)


# randomness


def test_the_same_seed_gives_the_same_numbers_and_a_state_brings_them_back():
    ampkit.manual_seed(5)
    first = ampkit.randn(4).tolist()
    state = ampkit.get_rng_state()
    second = ampkit.randn(4).tolist()
    ampkit.set_rng_state(state)
    assert ampkit.randn(4).tolist() == second != first
    ampkit.manual_seed(5)
    assert ampkit.randn(4).tolist() == first


def test_seed_takes_another_seed_each_time_and_returns_it():
    before = ampkit.get_rng_state()
    try:
        first, second = ampkit.seed(), ampkit.seed()
        assert first != second == ampkit.initial_seed() < 2**63
        drawn = ampkit.randn(4).tolist()
        ampkit.manual_seed(second)
        assert ampkit.randn(4).tolist() == drawn
    finally:
        ampkit.set_rng_state(before)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "x"])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ArgumentError, match="manual_seed"):
        ampkit.manual_seed(seed)


@pytest.mark.parametrize(
    "kind", [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.AmpkitError)]
)
def test_an_error_of_any_kind_is_a_runtime_error_and_survives_pickle(kind):
    twin = pickle.loads(pickle.dumps(errors.error_with_text(kind, "text")))
    assert type(twin) is kind and str(twin) == "text" and isinstance(twin, RuntimeError)


def test_errors_survive_pickle_with_their_text():
    error = ShapeError("linear", "input [..., 3]", "input [2, 5]", "transpose the weight")
    assert str(error) == "linear: needs input [..., 3], got input [2, 5]\nhelp: transpose the weight"
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is ShapeError and str(twin) == str(error) and isinstance(twin, (AmpkitError, ValueError))


BEYOND = np.full((2, 2), 1e9, np.float32)  # more than float16 holds; a warning of NumPy's would be an error here


def _half_layer():
    layer = nn.Linear(2, 2)
    layer.weight.data = BEYOND
    return layer.half().weight


def _loaded():
    layer = nn.Linear(2, 2, bias=False).half()
    layer.load_state_dict({"weight": ampkit.tensor(BEYOND)})
    return layer.weight


def _written(change):
    made = ampkit.zeros(2, 2, dtype=ampkit.float16)
    change(made)
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda: ampkit.tensor(BEYOND, dtype=ampkit.float16),
        lambda: ampkit.tensor([[1e9]], dtype=ampkit.float16),
        lambda: ampkit.tensor(BEYOND).half(),
        lambda: ampkit.full((2,), 1e9, dtype=ampkit.float16),
        lambda: _written(lambda x: x.fill_(1e9)),
        lambda: _written(lambda x: x.copy_(ampkit.tensor(BEYOND))),
        lambda: _written(lambda x: x.add_(ampkit.tensor(BEYOND))),
        lambda: _written(lambda x: x.__setitem__(slice(None), 1e9)),
        lambda: _written(lambda x: setattr(x, "data", BEYOND)),
        _half_layer,
        _loaded,
    ],
    ids="tensor list half full fill_ copy_ add_ setitem data module load_state_dict".split(),
)
def test_what_a_format_cannot_hold_becomes_inf_without_a_warning(make):
    assert np.isposinf(make().detach().numpy()).all()


def test_a_cast_in_autocast_overflows_without_a_warning():
    with ampkit.autocast(dtype=ampkit.float16):
        out = ampkit.tensor(BEYOND) @ ampkit.tensor(BEYOND)
    assert np.isposinf(out.numpy()).all()


def test_the_users_own_warnings_are_as_before():
    ampkit.tensor(BEYOND, dtype=ampkit.float16)
    with pytest.warns(RuntimeWarning, match="overflow"):
        BEYOND.astype(np.float16)


def test_a_tensor_of_one_element_takes_a_format():
    assert f"{ampkit.tensor(2 / 3):.3f}" == "0.667"
    assert f"{ampkit.tensor(12.0)}" == f"{ampkit.tensor(12.0, requires_grad=True)}" == "12.0"
    assert f"{ampkit.tensor(3)} {ampkit.tensor(True)} {ampkit.tensor(0.5).half()}" == "3 True 0.5"
    assert f"{ampkit.tensor([1.0], device='cpu')}" == "tensor([1.])"


@pytest.mark.parametrize("index", [[[[0], [1, 2]]], ([0, 1], [[0], [1, 2]])])
def test_an_index_of_ragged_lists_is_refused_in_one_line(index):
    x = ampkit.zeros(3, 3)
    with pytest.raises(ShapeError, match="^index: needs nested lists of equal lengths, got"):
        x[index]
    with pytest.raises(ShapeError, match="^index: needs nested lists of equal lengths, got"):
        x[index] = 1.0


def test_a_tensor_of_a_tensor_has_its_memory():
    class Named(ampkit.Tensor):
        def __new__(cls, source, name=""):
            return super().__new__(cls, source)

        def __init__(self, source, name=""):
            self.name = name

    source = ampkit.arange(3.0)
    plain, named = ampkit.Tensor(source), Named(source, name="x")
    plain[0] = 5.0
    assert source.tolist() == named.tolist() == [5.0, 1.0, 2.0] and named.name == "x"
    named.copy_(ampkit.zeros(3))
    assert source.tolist() == [0.0, 0.0, 0.0] and source._version == plain._version
