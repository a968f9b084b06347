"""`custom_fwd` and `custom_bwd`: a Function under autocast, its two halves in the region that is meant."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import ops
from ampkit.amp import autocast, custom_bwd, custom_fwd
from ampkit.autograd import Function
from ampkit.base.errors import DeviceError, DTypeError

HERE = "cpu"


@pytest.fixture(autouse=True)
def kind():
    global HERE
    HERE = ampkit.zeros(1).device.type


def product(**options):
    """a b by a Function that writes down the dtypes its two halves compute in."""
    seen = []

    class Product(Function):
        @staticmethod
        @custom_fwd(device_type=HERE, **options)
        def forward(ctx, a, b, more=None):
            ctx.save_for_backward(a, b)
            out = ops.mm(a, b)
            seen.append(("forward", a.dtype.name, out.dtype.name, None if more is None else more[0]["x"].dtype.name))
            return out

        @staticmethod
        @custom_bwd(device_type=HERE)
        def backward(ctx, dy):
            a, b = ctx.saved_tensors
            da = ops.mm(dy, b.t())
            seen.append(("backward", dy.dtype.name, da.dtype.name))
            return da, ops.mm(a.t(), dy), None

    return Product, seen


class Split(Function):
    """The same with setup_context: forward has no ctx."""

    seen = None

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        da = ops.mm(dy, b.t())
        Split.seen = da.dtype.name
        return da, ops.mm(a.t(), dy)


def pair(dtype=ampkit.float32):
    return (ampkit.ones(2, 2, dtype=dtype, requires_grad=True) for _ in range(2))


def test_without_cast_inputs_both_halves_run_in_the_region_of_the_call():
    function, seen = product()
    a, b = pair()
    with autocast(dtype=ampkit.float16):
        out = function.apply(a, b)
    out.float().sum().backward()
    assert seen == [("forward", "float32", "float16", None), ("backward", "float16", "float16")]
    assert (a.grad.tolist(), a.grad.dtype) == ([[2.0, 2.0]] * 2, ampkit.float32)


def test_outside_of_a_region_neither_half_is_autocast_even_if_backward_is_called_in_one():
    function, seen = product()
    a, b = pair()
    out = function.apply(a, b).sum()
    with autocast(dtype=ampkit.float16):
        out.backward()
    assert [row[2] for row in seen] == ["float32", "float32"]


def test_the_backward_finds_the_policy_of_the_forward_and_leaves_the_region_again():
    function, seen = product()
    a, b = pair()
    with autocast(policy=ampkit.Policy("float16", mm="float32")), autocast(dtype=ampkit.bfloat16):
        first = function.apply(a, b)
    with autocast(policy=ampkit.Policy("float16", mm="float32")):
        second = function.apply(a, b)
    (first.float().sum() + second.sum()).backward()
    assert [row[2] for row in seen] == ["bfloat16", "float32", "float32", "bfloat16"]
    assert not ampkit.is_autocast_enabled(HERE)


def test_cast_inputs_casts_what_is_floating_and_turns_autocast_off_in_both_halves():
    function, seen = product(cast_inputs=ampkit.float32)
    a, b = pair(ampkit.float16)
    with autocast(dtype=ampkit.float16):
        out = function.apply(a, b, [{"x": ampkit.ones(1, dtype=ampkit.float16)}])
        inside = function.apply(a, b, ({"x": ampkit.ones(1, dtype=ampkit.int64)},))
    (out.sum() + inside.sum()).backward()
    assert seen[:2] == [("forward", "float32", "float32", "float32"), ("forward", "float32", "float32", "int64")]
    assert seen[2:] == [("backward", "float32", "float32")] * 2
    assert a.grad.dtype == ampkit.float16


def test_cast_inputs_leaves_float64_alone_and_does_nothing_outside_of_a_region():
    function, seen = product(cast_inputs="float16")
    function.apply(*pair()).sum().backward()
    with autocast(dtype=ampkit.float16):
        function.apply(*pair(ampkit.float64))
    assert seen[0][1] == "float32"
    assert seen[2][1] == "float64"


@pytest.mark.parametrize(("cast", "expected"), [(None, "float16"), (ampkit.float32, "float32")])
def test_forward_may_do_without_ctx(cast, expected):
    class Product(Split):
        forward = staticmethod(custom_fwd(lambda a, b: ops.mm(a, b), device_type=HERE, cast_inputs=cast))
        backward = staticmethod(custom_bwd(Split.backward, device_type=HERE))

    a, b = pair()
    with autocast(dtype=ampkit.float16):
        out = Product.apply(a, b)
    assert out.dtype.name == expected
    out.float().sum().backward()
    assert Split.seen == expected


@pytest.mark.cpu
def test_a_region_of_another_device_changes_nothing():
    class Product(Split):
        forward = staticmethod(custom_fwd(lambda a, b: ops.mm(a, b), device_type="cuda", cast_inputs=ampkit.bfloat16))
        backward = staticmethod(custom_bwd(Split.backward, device_type="cuda"))

    a, b = (ampkit.ones(2, 2, device="cpu", requires_grad=True) for _ in range(2))
    with autocast(dtype=ampkit.float16):
        out = Product.apply(a, b)
    assert out.dtype == ampkit.float16
    with pytest.raises(DTypeError, match="mm: needs operands of one dtype"):
        out.float().sum().backward()


def test_bad_arguments_are_refused():
    with pytest.raises(DeviceError, match="device_type 'cpu' or 'cuda'"):
        custom_fwd(device_type="tpu")
    with pytest.raises(DeviceError, match="device_type"):
        custom_bwd(device_type=None)
    with pytest.raises(DTypeError, match="custom_fwd: needs a floating-point dtype to cast to, got int32"):
        custom_fwd(device_type="cpu", cast_inputs=ampkit.int32)
    with pytest.raises(DTypeError, match="custom_bwd: needs a callable"):
        custom_bwd(3, device_type="cpu")
