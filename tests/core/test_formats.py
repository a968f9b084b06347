"""Tensors of formats below 16 bits: they are cast, moved, shown, stored and shared, and take part in no arithmetic."""

from __future__ import annotations

import copy
import inspect
import pickle

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import DTypeError, ShapeError, ops
from ampkit.base import dtypes
from ampkit.base.errors import AmpkitError
from ampkit.base.formats import FORMATS, is_packed

E4M3, E5M2, PAIRS = ampkit.float8_e4m3fn, ampkit.float8_e5m2, ampkit.float4_e2m1fn_x2
BYTES = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
ARITHMETIC = r"^\S+: needs (a dtype|dtypes) with arithmetic, got .*float8_e4m3fn.*\nhelp: cast"
CONVERTING = {"full_like", "ones_like", "scalar_tensor", "to"}  # what may have other values
VALUES = [[1.0, 2.5, -500.0, 0.1], [1e-9, -0.0, 3.0, 448.0]]


def made(values=VALUES, dtype=E4M3):
    return ampkit.tensor(values).to(dtype)


def codes(tensor):
    return tensor.view(ampkit.uint8).tolist()


@pytest.mark.parametrize("name", BYTES)
def test_casts_are_those_of_every_dtype(name):
    dtype, stored = getattr(ampkit, name), getattr(dtypes, name)
    # Of powers of two alone without a tie, which versions of ml_dtypes round to different sides.
    values = [[1, 2, 2], [4, 8, 8]] if stored == dtypes.float8_e8m0fnu else [[1, 2, 3], [4, 6, 8]]
    for wide in (ampkit.float32, ampkit.float64, ampkit.float16, ampkit.bfloat16, ampkit.int32):
        given = ampkit.tensor(values).to(wide)
        found = given.to(dtype)
        assert found.dtype is dtype and (found.element_size(), found.nbytes) == (1, 6)
        want = np.array(values, np.float32).astype(FORMATS[stored].values).astype(np.float32)
        assert found.to(wide).tolist() == want.astype(wide.dtype).tolist()
        assert found.t().to(ampkit.float32).tolist() == want.T.tolist()
    assert made([3.0, 0.5], dtype).to(E5M2).dtype is E5M2
    assert made([3.0, 1.0], dtype).bool().tolist() == [True, True]


def test_what_is_too_large_is_the_largest_in_e4m3_and_inf_in_e5m2():
    given = ampkit.tensor([1e9, -float("inf"), 460.0])
    assert given.to(E4M3).tolist() == [448, -448, 448]
    assert given.to(E5M2).tolist() == [float("inf"), -float("inf"), 448]


def test_large_tensors_keep_the_order_of_their_axes():
    given = ampkit.randn(3, 40, 50).permute(2, 0, 1)
    found = given.to(E4M3)
    assert found.stride() == given.stride()
    assert ampkit.equal(found, given.contiguous().to(E4M3))
    assert ampkit.equal(found.float(), found.contiguous().float())


def test_tensors_of_values_and_constants():
    assert ampkit.tensor([[1, 2.1]], dtype=E4M3).tolist() == [[1, 2]]
    assert ampkit.tensor(3, dtype="float8_e5m2").item() == 3
    assert ampkit.zeros(2, dtype=E4M3).tolist() == [0, 0] and ampkit.ones(2, dtype=E5M2).tolist() == [1, 1]
    assert ampkit.full((2,), 7.7, dtype=E4M3).tolist() == [7.5, 7.5]
    assert ampkit.eye(2, dtype=E4M3).tolist() == [[1, 0], [0, 1]]
    assert ampkit.empty(2, 3, dtype=E4M3).shape == (2, 3) and ampkit.zeros_like(made()).dtype is E4M3
    assert ampkit.ones(2, dtype=PAIRS).tolist() == [[1, 1], [1, 1]]
    assert made().new_zeros(2).dtype is E4M3


def test_bytes_are_viewed_and_moved():
    x = made()
    raw = x.view(ampkit.uint8)
    assert raw.tolist() == [[56, 66, 254, 29], [0, 128, 68, 126]] and codes(raw.view(E4M3)) == raw.tolist()
    assert raw.view(E5M2).dtype is E5M2 and x.view(E5M2).view(ampkit.int8).dtype is ampkit.int8
    index = ampkit.tensor([1, 0])
    for move in (
        lambda t: t.reshape(4, 2), lambda t: t.t().contiguous(), lambda t: t[:, 1:3], lambda t: t[index],
        lambda t: t[0, 1],
        lambda t: ampkit.cat([t, t], 1), lambda t: ampkit.stack([t, t]), lambda t: t.clone(), lambda t: t.detach(),
        lambda t: t.flip(0), lambda t: t.roll(1, 0), lambda t: t.repeat(2, 1), lambda t: t.expand(3, 2, 4),
        lambda t: t.unbind()[1], lambda t: t.split(1, 1)[2], lambda t: t.index_select(1, index),
        lambda t: t.squeeze()[None],
        lambda t: t.gather(1, index[:, None]), lambda t: ampkit.where(index[:, None] > 0, t, t.flip(1)),
        lambda t: t[raw > 60], lambda t: t.diagonal(),
        lambda t: t.repeat_interleave(2, 0), lambda t: t.unfold(1, 2, 1), lambda t: copy.deepcopy(t),
        lambda t: t.to("cpu"),
    ):  # fmt: skip
        found = move(x)
        assert found.dtype is E4M3 and codes(found) == move(raw).tolist()


def test_values_are_written_in_place():
    x = made()
    x[0] = 2.5
    x[1, 1:] = ampkit.tensor([1.0, 900.0, -3.0])
    assert x.tolist() == [[2.5] * 4, [0, 1, 448, -3]]
    x[ampkit.tensor([0, 1]), 0] = ampkit.tensor([5.0, 6.0])
    x[x.float() > 400] = 9
    assert x.tolist() == [[5, 2.5, 2.5, 2.5], [6, 1, 9, -3]]
    assert x.fill_(7.7).tolist() == [[7.5] * 4] * 2 and x.zero_().tolist() == [[0.0] * 4] * 2
    assert x.copy_(ampkit.tensor(VALUES)).tolist() == made().tolist()
    assert x.fill_diagonal_(2).tolist()[1][1] == 2
    wide = ampkit.zeros(2, 4)
    assert wide.copy_(made()).tolist() == made().tolist()
    wide[0] = made()[1]
    assert wide[0].tolist() == made()[1].tolist()
    x.data = made()
    x.data = made().float()
    assert x.dtype is ampkit.float32
    number = ampkit.tensor([1, 2])
    with pytest.raises(DTypeError, match="needs whole numbers, for int64, got floats"):
        number[0] = made()[0, 0]


def test_views_share_memory():
    x = made()
    x.view(ampkit.uint8)[0, 0] = 57
    row = x[0]
    row.fill_(2)
    assert x[0].tolist() == [2, 2, 2, 2]


def test_arithmetic_raises_one_line_with_the_cure():
    x = made()
    for run in (
        lambda: x + x, lambda: x * 2, lambda: -x, lambda: x @ x.t(), lambda: x == x, lambda: x.sum(),
        lambda: ampkit.relu(x), lambda: x.max(), lambda: x.sort(), lambda: x.add_(1), lambda: x.float().sum(dtype=E4M3),
        lambda: x.unique(), lambda: x.nonzero(), lambda: ampkit.cat([x, x.float()]), lambda: x.masked_fill(x.bool(), 0),
        lambda: ampkit.where(x.bool(), x, 0.0), lambda: ampkit.where(x), lambda: ampkit.promote_types(E4M3, E5M2),
    ):  # fmt: skip
        with pytest.raises(DTypeError, match=ARITHMETIC):
            run()
    with (
        ampkit.autocast(dtype=ampkit.bfloat16),
        pytest.raises(DTypeError, match="matmul: needs a dtype with arithmetic"),
    ):
        x @ x.t()
    for run in (
        lambda: ampkit.rand(2, dtype=E4M3),
        lambda: ampkit.set_default_dtype(E4M3),
        lambda: ampkit.nn.Linear(1, 1).to(E4M3),
    ):
        with pytest.raises(DTypeError, match="needs a floating-point dtype, got float8_e4m3fn"):
            run()


def answered(function, args):
    """What it returns, in a tuple; nothing where it raises an error, which then names no structure of NumPy."""
    try:
        found = function(*args)
    except (AmpkitError, TypeError) as error:
        if "void8" in str(error):
            raise
        return ()
    return found if isinstance(found, (tuple, list)) else (found,)


@pytest.mark.cpu  # which functions read a tensor's array does not depend on the device
def test_no_function_computes_with_codes():
    x, index = made([[1.0, 2.5], [-3.0, 0.5]]), ampkit.tensor([0, 1])
    answers = x.tolist()
    for name in (name for name in dir(ops) if not name.startswith("_") and name not in CONVERTING):
        function = getattr(ops, name)
        if not inspect.isfunction(function) and type(function).__name__ != "Op":
            continue
        for args in (
            (x,),
            (x, x),
            (x, 0),
            (x, index),
            (x, 1.5),
            ([x, x],),
            (x, (2, 2)),
            (index.float(), x),
            (x, 0, index),
        ):
            for one in answered(function, args):
                if isinstance(one, ampkit.Tensor) and one.numel() and one.dtype is E4M3 and "empty" not in name:
                    assert {*one.reshape(-1).tolist()} <= {1.0, 2.5, -3.0, 0.5, 0.0}, (name, args)
    assert x.tolist() in (answers, [[0, 0], [0, 0]])  # zero_ is the last


def test_gradients_pass_through_casts_in_the_narrow_dtype_as_in_pytorch():
    x = ampkit.tensor([1.1, 2.0, 700.0], requires_grad=True)
    x.to(E4M3).float().backward(ampkit.tensor([1000.0, 1e-9, 1.1]))
    assert x.grad.tolist() == [448, 0, 1.125]
    x.grad = None
    (x.to(E5M2).reshape(3, 1)[1:].float().sum() * 3).backward()
    assert x.grad.tolist() == [0, 3, 3]
    index = ampkit.tensor([1, 0, 1])
    for move in (
        lambda t: t.reshape(6), lambda t: t[index], lambda t: t[1:], lambda t: t.flip(0), lambda t: t.roll(1, 1),
        lambda t: t.repeat(2, 1), lambda t: t.expand(2, 2, 3), lambda t: t.permute(1, 0), lambda t: t.unbind()[1],
        lambda t: t.index_select(0, index), lambda t: t.split(2, 1)[1], lambda t: t.clone(),
        lambda t: t.unfold(1, 2, 1),
    ):  # fmt: skip
        found, want = (ampkit.arange(6.0).reshape(2, 3).clone().requires_grad_() for _ in range(2))
        move(found.to(E5M2)).float().sum().backward()
        move(want).sum().backward()
        assert found.grad.tolist() == want.grad.tolist()
    leaf = made([1.0, 2.0]).requires_grad_()
    leaf.float().sum().backward()
    assert leaf.grad.dtype is E4M3 and leaf.grad.tolist() == [1, 1]
    for run in (lambda: leaf.float().sum().backward(), lambda: (leaf.float() + leaf.float()).sum().backward()):
        with pytest.raises(DTypeError, match="backward: needs one gradient, got .* to add in float8_e4m3fn\nhelp: "):
            run()


def test_text_pickle_numpy_and_limits():
    x = made([[1.0, 2.5], [-500.0, 0.5]])
    device = "" if x.device.type == "cpu" else f", device='{x.device}'"
    assert repr(x).replace("\n       ", " ").startswith("tensor([[   1.0000,    2.5000],")
    assert f"{device}, dtype={E4M3}" in repr(x).replace("\n      ", "")
    assert repr(x[0, 1]) == f"tensor(2.5000{device}, dtype={E4M3})"
    again = pickle.loads(pickle.dumps(x))
    assert again.dtype is E4M3 and again.device == x.device and codes(again) == codes(x)
    assert (x[0, 1].item(), float(x[0, 0]), f"{x[0, 1]:.1f}") == (2.5, 1.0, "2.5")
    assert x.numpy().dtype == ml_dtypes.float8_e4m3fn and np.asarray(x).tolist() == x.tolist()
    assert ampkit.tensor(x.numpy()).dtype is E4M3 and ampkit.from_numpy(x.numpy()).dtype is E4M3
    assert x.is_floating_point() and not x.is_complex() and x.type().endswith("Float8_e4m3fnTensor")
    assert (ampkit.finfo(E4M3).max, ampkit.finfo(PAIRS).max, ampkit.finfo(ampkit.float8_e8m0fnu).eps) == (448, 6, 1)
    assert (
        ampkit.equal(x, x.clone()) and not ampkit.equal(x, x.to(E5M2)) and not ampkit.equal(x, made([[1.0, 2], [3, 4]]))
    )


def test_pairs_of_float4():
    x = ampkit.tensor([[0.5, 6.0, -100.0, 1.3], [0.0, 0.2, 0.25, -3.0]])
    pairs = ops.cast_to(x, PAIRS)
    assert (pairs.shape, pairs.dtype, pairs.numel(), pairs.nbytes) == ((2, 2), PAIRS, 4, 4)
    assert codes(pairs) == [[0x71, 0x3F], [0x00, 0xD0]]
    assert pairs.tolist() == [[[0.5, 6], [-6, 1.5]], [[0, 0], [0, -3]]]
    assert ops.cast_to(pairs, ampkit.float32).tolist() == [[0.5, 6, -6, 1.5], [0, 0, 0, -3]]
    assert codes(pairs.t().contiguous()) == [[0x71, 0x00], [0x3F, 0xD0]] and "size=(2, 2), dtype=" in repr(
        pairs
    ).replace("\n      ", "")
    assert is_packed(pairs.array.dtype) and ops.cast_to(pairs, E4M3).shape == (2, 4)
    for run in (lambda: x.to(PAIRS), pairs.float):
        with pytest.raises(
            DTypeError, match=r"needs dtypes of one value per element.*\nhelp: use ampkit.ops.cast_to\("
        ):
            run()
    with pytest.raises(DTypeError, match="help: use x.view"):
        pairs.numpy()
    with pytest.raises(ShapeError, match="cast_to: needs an even last axis"):
        ops.cast_to(x[:, :3], PAIRS)
    x.requires_grad_()
    ops.cast_to(ops.cast_to(x, PAIRS), ampkit.float32)[0].backward(ampkit.tensor([1.0, 2.0, 0.3, 100.0]))
    assert x.grad.tolist() == [[1, 2, 0.5, 6], [0, 0, 0, 0]]


def test_cast_to_chooses_saturation_and_rounding():
    x = ampkit.tensor([1e9, 1.0, -600.0])
    assert ops.cast_to(x, E5M2, saturate=True).tolist() == [57344, 1, -640]
    assert np.isnan(ops.cast_to(x, E4M3, saturate=False).float().tolist()).tolist() == [True, False, True]
    ampkit.manual_seed(3)
    halves = ampkit.full((4000,), 17.0)
    found = ops.cast_to(halves, E4M3, rounding="stochastic")
    assert {*found.tolist()} == {16, 18} and abs(found.float().mean().item() - 17) < 0.1
    ampkit.manual_seed(3)
    assert ampkit.equal(ops.cast_to(halves, E4M3, rounding="stochastic"), found)
    assert not ampkit.equal(ops.cast_to(halves, E4M3, rounding="stochastic"), found)
    own = ampkit.Generator().manual_seed(3)
    assert ampkit.equal(ops.cast_to(halves, E4M3, rounding="stochastic", generator=own), found)
    with pytest.raises(ampkit.ArgumentError, match="rounding as 'nearest' or 'stochastic'"):
        ops.cast_to(x, E4M3, rounding="up")
    with pytest.raises(DTypeError, match="got int64 to float8_e4m3fn"):
        ops.cast_to(x.long(), E4M3)
    assert ops.cast_to(found, E4M3) is found


def test_state_dicts_hold_and_load_them():
    layer, other = ampkit.nn.Module(), ampkit.nn.Module()
    layer.register_buffer("weight", made())
    other.register_buffer("weight", ampkit.zeros(2, 4, dtype=E4M3))
    other.load_state_dict(layer.state_dict())
    assert codes(other.weight) == codes(layer.weight)
    wide = ampkit.nn.Module()
    wide.register_buffer("weight", ampkit.zeros(2, 4))
    wide.load_state_dict(layer.state_dict())
    assert wide.weight.tolist() == made().tolist() and wide.weight.dtype is ampkit.float32


def test_dlpack_shares_their_memory():
    for name in [*BYTES, "float4_e2m1fn_x2"]:
        given = ampkit.tensor([1, 2, 3], dtype=ampkit.uint8).view(getattr(ampkit, name))
        shared = ampkit.from_dlpack(given)
        assert shared.dtype is given.dtype and codes(shared) == [1, 2, 3]


def test_they_move_between_devices():
    x = ampkit.tensor(VALUES, device="cpu").to(E4M3)
    there = x.to(ampkit.zeros(1).device)
    assert codes(there) == codes(x) == codes(there.cpu())
    assert ampkit.tensor(VALUES, dtype=E4M3).device == ampkit.zeros(1).device
