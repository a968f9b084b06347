"""One op, defined by a user: bound, checked, cast, rounded once, recorded."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import autocast, nn, observe, ops
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core import op as op_module
from ampkit.core import policy
from ampkit.core.autograd import traced_array
from ampkit.core.dispatch import reference_only
from ampkit.core.op import Array, Arrays, Cast, Index, Op, Saved, op


@pytest.fixture(autouse=True)
def registry():
    """Ops defined in a test are forgotten after it."""
    before = dict(op_module.ops), dict(policy.categories), dict(traced_array.stands_for)
    yield
    for table, held in zip((op_module.ops, policy.categories, traced_array.stands_for), before, strict=True):
        table.clear()
        table.update(held)


def scaled(cast: Cast = Cast.KEEP) -> Op:
    @op(cast=cast)
    def scaled_tanh(input: Array, weight: Array | None = None, *, gain=1.0):
        """gain tanh(input) weight."""
        out = np.tanh(input) * gain
        return (out if weight is None else out * weight), Saved(input=input, weight=weight)

    @scaled_tanh.check
    def scaled_tanh_check(input, weight, gain):
        if weight is not None and weight.shape != input.shape[-1:]:
            raise ShapeError("scaled_tanh", f"weight {input.shape[-1:]}", f"{weight.shape}")

    @scaled_tanh.backward(weight="input")
    def scaled_tanh_backward(dy, saved, needs, gain):
        t = np.tanh(saved.input)
        dx = dy * gain * (1 - t * t) * (1 if saved.weight is None else saved.weight) if needs[0] else None
        return dx, (dy * gain * t if needs[1] else None)

    return scaled_tanh


def tensor(values, dtype=ampkit.float64, grad=True):
    return ampkit.tensor(values, dtype=dtype, requires_grad=grad)


@pytest.mark.cpu
def test_a_user_s_op_gets_values_gradients_and_second_derivatives():
    f = scaled()
    x, w = tensor([[0.3, -0.7]]), tensor([2.0, 3.0])
    y = f(x, w, gain=2.0)
    np.testing.assert_allclose(y.array, 2 * np.tanh(x.array) * w.array)
    gx, gw = ampkit.grad(y.sum(), (x, w), create_graph=True)
    t = np.tanh(x.array)
    np.testing.assert_allclose(gx.array, 2 * (1 - t * t) * w.array)
    np.testing.assert_allclose(gw.array, 2 * t[0])
    (h,) = ampkit.grad(gx.sum(), x)
    np.testing.assert_allclose(h.array, -4 * t * (1 - t * t) * w.array)


def test_arguments_bind_like_the_function_s_own():
    f = scaled()
    x = tensor([[0.3, -0.7]], grad=False)
    assert np.array_equal(f(x).array, f(input=x, weight=None).array)
    with pytest.raises(TypeError, match="scaled_tanh"):
        f()
    with pytest.raises(TypeError, match="unexpected keyword argument 'gian'"):
        f(x, gian=2.0)


def test_the_check_runs_before_any_arithmetic():
    f, ran = scaled(), []
    with observe.watch(lambda *event: ran.append(event)), pytest.raises(ShapeError, match="scaled_tanh: needs weight"):
        f(tensor([[0.3, -0.7]]), tensor([1.0, 2.0, 3.0]))
    assert not ran


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [ampkit.float16, ampkit.bfloat16])
def test_a_reference_computes_in_float32_and_is_rounded_once(dtype):
    f, seen = scaled(), []
    reference = f.forward.reference.run
    f.forward.reference.run = lambda *args, **more: seen.append(args[0].dtype) or reference(*args, **more)
    x = tensor(np.linspace(-2, 2, 50), dtype)
    y = f(x, gain=0.3)
    assert seen == [ampkit.float32] and y.dtype == dtype
    exact = (np.tanh(x.array.astype(np.float32)) * 0.3).astype(dtype)
    np.testing.assert_array_equal(y.array.astype(np.float32), exact.astype(np.float32))
    assert y.node.saved.input.dtype == dtype  # the wide copy is not kept


def test_categories_decide_the_dtype_and_overrides_the_category():
    low = scaled(Cast.LOW)
    x = tensor([[0.5, 0.25]], ampkit.float32)
    assert low(x).dtype == ampkit.float32
    with autocast(dtype=ampkit.float16):
        assert low(x).dtype == ampkit.float16
    with autocast(policy=ampkit.Policy("float16", scaled_tanh="float32")):
        assert low(x).dtype == ampkit.float32


def test_an_op_without_a_marked_tensor_or_with_a_taken_name_is_refused():
    with pytest.raises(DTypeError, match="a parameter marked Array"):

        @op(cast=Cast.KEEP)
        def nothing(x, y):
            return x

    with pytest.raises(ArgumentError, match="a name that no op has yet"):

        @op(cast=Cast.KEEP)
        def relu(input: Array):
            return input


def test_arrays_and_numbers_in_the_wrong_place_are_refused_in_one_line():
    with pytest.raises(DTypeError, match=r"ampkit\.tensor"):
        ops.add(tensor([1.0]), np.ones(1))
    with pytest.raises(DTypeError, match=r"ampkit\.tensor"):
        ops.add(1.0, 2.0)
    with pytest.raises((DTypeError, TypeError)):
        np.ones(1) * tensor([1.0])


def test_python_numbers_and_0d_tensors_do_not_widen():
    half = tensor([1.0, 2.0], ampkit.float16, grad=False)
    for other in (3, 2.5, True, np.float64(2.5), tensor(2.5, ampkit.float32)):
        assert (half * other).dtype == ampkit.float16
        assert (other * half).dtype == ampkit.float16 if not isinstance(other, np.generic) else True
    whole = tensor([1, 2], ampkit.int64, grad=False)
    assert (whole * 2).dtype == ampkit.int64
    assert (whole * 2.5).dtype == ampkit.float32
    assert (whole * tensor(2.5, ampkit.float16)).dtype == ampkit.float16
    assert (half * whole).dtype == ampkit.float16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_number_is_rounded_to_16_bits_alike_whenever_it_comes_and_zeros_keep_their_sign(dtype):
    x = ampkit.tensor([-0.0], dtype=dtype)
    for number in (0.0, -0.0, 0, 0.3, -0.3, 300, 300.0, 257, 1e-30, 1e38, float("inf"), float("nan")) * 2:
        found = (x + number).float().numpy()
        with np.errstate(over="ignore"):
            wanted = np.asarray(x.numpy() + np.full(1, number, np.float32).astype(x.dtype), np.float32)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_index_inputs_take_no_part_in_the_choice_of_dtype():
    @op(cast=Cast.KEEP)
    def pick_rows(input: Array, rows: Index):
        return input[rows]

    x = tensor([[1.0], [2.0]], ampkit.float16, grad=False)
    assert pick_rows(x, tensor([1, 1], ampkit.int64, grad=False)).dtype == ampkit.float16


def test_a_list_of_tensors_is_one_input():
    @op(cast=Cast.WIDEST)
    def total(tensors: Arrays, power=1):
        return sum(t**power for t in tensors), Saved()

    @total.backward
    def total_backward(dy, saved, needs, power):
        return tuple(dy if need else None for need in needs)

    a, b = tensor([1.0], ampkit.float16), tensor([2.0], ampkit.float32)
    y = total([a, b])
    y.backward(ampkit.tensor([3.0]))
    assert y.dtype == ampkit.float32
    assert (a.grad.item(), a.grad.dtype, b.grad.item()) == (3.0, ampkit.float16, 3.0)


# kernels


@pytest.mark.cpu
def test_the_first_kernel_whose_condition_holds_runs_and_brings_its_own_backward():
    f, ran = scaled(), []

    @f.on("cpu", when=lambda input, weight, gain: input.ndim == 1)
    def flat(input, weight, *, gain, dtype):
        ran.append(("flat", input.dtype, dtype))
        return input, Saved(mine=input)

    @flat.backward
    def flat_backward(dy, saved, needs, gain):
        ran.append("flat_backward")
        return dy * 7, None

    x = tensor([1.0, 2.0], ampkit.float16)
    y = f(x)
    y.backward(tensor([1.0, 1.0], ampkit.float16, grad=False))
    assert ran == [("flat", ampkit.float16, ampkit.float16), "flat_backward"]
    np.testing.assert_array_equal(x.grad.array, [7, 7])
    f(tensor([[1.0]]))
    with reference_only():
        f(x)
    assert len(ran) == 2


@pytest.mark.cpu
def test_a_faster_backward_gets_the_dtypes_that_gradients_are_wanted_in():
    f, seen = scaled(Cast.LOW), []

    @f.on_backward("cpu")
    def fast(dy, saved, needs, gain):
        seen.append(needs)
        return np.ones(dy.shape, needs[0]), np.ones(saved.weight.shape, needs[1])

    x, w = tensor([[0.5, 0.25]], ampkit.float32), nn.Parameter(np.ones(2, np.float32))
    with autocast(dtype=ampkit.float16):
        y = f(x, w)
    y.backward(ampkit.tensor([[1.0, 1.0]], dtype=ampkit.float16))
    assert seen == [(ampkit.float16, ampkit.float32)]
    assert x.grad.dtype == w.grad.dtype == ampkit.float32


# observers


def test_observers_see_kernels_casts_and_backwards_and_nothing_after():
    seen = []
    x = tensor([[1.0, 2.0]], ampkit.float32)
    with observe.watch(lambda name, inputs, output: seen.append(name)), autocast(dtype=ampkit.float16):
        y = ops.linear(x, nn.Parameter(ampkit.tensor([[1.0, 2.0]])))
        y.sum().backward()
    forward, backward = ["cast", "cast", "linear", "sum"], ["sum_backward", "linear_backward"]
    assert [name for name in seen if name != "cast"] == [*forward[2:], *backward]
    assert seen[:4] == forward
    before = len(seen)
    ops.exp(x)
    assert len(seen) == before


def events(loss):
    """The events of the forward and the backward of what the function `loss` returns."""
    seen = []
    with observe.observing(seen.append):
        loss().backward()
    return seen


def test_events_tell_the_operands_before_casts_and_the_node_of_a_forward_and_of_its_backward():
    w = ampkit.tensor([2.0], requires_grad=True)
    with autocast(dtype=ampkit.float16):
        seen = events(lambda: ops.linear(w, ampkit.tensor([[1.0]])).sum())
    forward = next(event for event in seen if event.name == "linear")
    backward = next(event for event in seen if event.name == "linear_backward")
    assert forward.operands[0] is w
    assert forward.inputs[0].dtype == forward.output.dtype == ampkit.float16
    assert forward.node is backward.node is not None
    assert (forward.phase, backward.phase) == (observe.FORWARD, observe.BACKWARD)
    assert forward.op is ops.linear


def test_events_show_a_gradient_that_is_cast_for_its_input_replaced_by_a_hook_and_accumulated():
    w = ampkit.tensor([2.0], requires_grad=True)

    def loss():
        y = ops.linear(w, ampkit.tensor([[1.0]]))
        y.register_hook(lambda gradient: gradient * 2)
        return y.sum()

    with autocast(dtype=ampkit.float16):
        seen = events(loss)
    after = [(event.name, event.phase) for event in seen][seen.index(next(e for e in seen if e.name == "hook")) :]
    assert after[:2] == [("hook", "hook"), ("linear_backward", "backward")]
    # To the float16 that linear read, where its kernel has not written it, and to the float32 of the leaf.
    assert after[2:-1] in ([("cast", "backward")], [("cast", "backward")] * 2)
    assert after[-1] == ("accumulate", "accumulate")
    assert seen[-1].output is w
    assert seen[-1].inputs[0].dtype == ampkit.float32
    assert seen[-2].inputs[0].dtype == ampkit.float16


def test_events_of_a_scaled_loss_s_backward_carry_its_scale():
    w = ampkit.tensor([2.0], requires_grad=True)
    scaler = ampkit.GradScaler(init_scale=8.0)
    tags = [event.tag for event in events(lambda: scaler.scale(w.exp().sum())) if event.phase == observe.BACKWARD]
    assert tags
    assert all(float(tag.factor) == 8.0 for tag in tags)


def test_a_function_reports_itself_after_the_ops_in_it():
    class Double(ampkit.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            return dy * 2

    w = ampkit.tensor([2.0], requires_grad=True)
    names = [event.name for event in events(lambda: Double.apply(w).sum())]
    assert names == ["mul", "Double", "sum", "backward", "sum_backward", "mul", "Double_backward", "accumulate"]


def test_numpy_s_warnings_stay_off_inside_and_on_outside():
    with np.errstate(all="raise"):
        assert np.isinf(ops.exp(tensor([1000.0])).array[0])
        assert np.isnan(ops.log(tensor([-1.0])).array[0])
        assert np.isinf(tensor([1e6], ampkit.float32).half().array[0])
        with pytest.raises(FloatingPointError):
            np.exp(np.float64(1000.0))


def test_a_backward_that_forgets_an_input_is_named():
    @op(cast=Cast.KEEP)
    def forgetful(a: Array, b: Array):
        return a * b, Saved(b=b)

    @forgetful.backward
    def forgetful_backward(dy, saved, needs):
        return dy * saved.b

    a, b = (ampkit.tensor([2.0], requires_grad=True) for _ in range(2))
    with pytest.raises(ArgumentError, match="forgetful_backward: needs 2 gradients, one per tensor input"):
        forgetful(a, b).sum().backward()


def test_a_numpy_scalar_is_a_number_from_the_first_call_on():
    @op(cast=Cast.WIDEST)
    def fresh(a: Array, b: Array):
        return a * b, Saved()

    out = fresh(ampkit.tensor([2.0]), np.float64(3))
    assert out.dtype == ampkit.float32
    assert out.tolist() == [6.0]


# mistakes in an op of one's own


def returning(gradients):
    @op(cast=Cast.KEEP)
    def twice(a: Array):
        return a * 2, Saved(a=a)

    @twice.backward
    def twice_backward(dy, saved, needs):
        return gradients(dy)

    return twice


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("gradients", "got"),
    [
        (lambda dy: dy[..., :2], r"\(2,\)"),
        (lambda dy: dy.reshape(3, 1), r"\(3, 1\)"),
        (lambda dy: dy.sum(), r"\(\)"),
        (lambda dy: "none", "str"),
    ],
)
def test_a_gradient_of_another_shape_is_refused_in_the_name_of_the_op(gradients, got, traced):
    f, x = returning(gradients), tensor([1.0, 2.0, 3.0])
    with pytest.raises(ShapeError, match=rf"^twice_backward: needs a gradient of the input's shape \(3,\), got {got}$"):
        ampkit.grad(f(x).sum(), x, create_graph=traced)


@pytest.mark.parametrize("traced", [False, True])
def test_a_backward_may_answer_with_a_list(traced):
    f, x = returning(lambda dy: [dy * 2]), tensor([1.0, 2.0, 3.0])
    assert ampkit.grad(f(x).sum(), x, create_graph=traced)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("traced", [False, True])
def test_a_backward_with_too_many_gradients_is_refused(traced):
    f, x = returning(lambda dy: (dy, dy)), tensor([1.0])
    with pytest.raises(ArgumentError, match="^twice_backward: needs 1 gradients, one per tensor input.*, got 2$"):
        ampkit.grad(f(x).sum(), x, create_graph=traced)


@pytest.mark.parametrize(
    ("out", "got"), [(lambda a: None, "nothing"), (lambda a: (), "nothing"), (lambda a: [a], "list")]
)
def test_a_reference_that_returns_no_array_is_refused(out, got):
    @op(cast=Cast.KEEP)
    def lost(a: Array):
        return out(a)

    with pytest.raises(DTypeError, match=rf"^lost: needs a kernel that returns an array, .*, got {got}$"):
        lost(tensor([1.0]))


def test_a_reference_may_return_a_tuple_of_one():
    @op(cast=Cast.KEEP)
    def one(a: Array):
        return (a * 2,)

    assert [o.tolist() for o in one(tensor([1.0]))] == [[2.0]]


def test_a_list_of_tensors_stands_alone_in_a_signature():
    with pytest.raises(DTypeError, match="^@op mixed: needs one `Arrays` and no other tensor, got b, a\n"):

        @op(cast=Cast.KEEP)
        def mixed(a: Array, b: Arrays):
            return a

    with pytest.raises(DTypeError, match=r"^@op starred: needs parameters with names, got \*more\n"):

        @op(cast=Cast.KEEP)
        def starred(a: Array, *more: Array):
            return a


def test_a_kernel_that_cannot_do_with_a_number_or_nothing_says_so():
    @op(cast=Cast.KEEP)
    def combine_tags(a: Array, b: Array):
        return np.concatenate([a, b.reshape(-1)])

    with pytest.raises(DTypeError, match="^combine_tags: needs a Tensor for `b`, got the number 2\nhelp: wrap it"):
        combine_tags(tensor([1.0]), 2)
    with pytest.raises(DTypeError, match="^combine_tags: needs a Tensor for `b`, got None$"):
        combine_tags(tensor([1.0]), None)


def test_an_error_in_a_kernel_that_is_no_matter_of_its_inputs_stays_as_it_is():
    @op(cast=Cast.KEEP)
    def broken(a: Array):
        return a.no_such_method()

    with pytest.raises(AttributeError, match="no_such_method"):
        broken(tensor([1.0]))


@pytest.mark.parametrize("error", [TypeError("a bug"), ValueError("a bug that cannot broadcast"), IndexError("a bug")])
@pytest.mark.parametrize("call", [lambda x: ops.log_softmax(x, -1), lambda x: ops.add(x, 1), lambda x: ops.mul(x, x)])
def test_a_mistake_in_the_code_of_an_op_is_never_called_the_users(monkeypatch, error, call):
    def broken(*args, **kwargs):
        raise error

    for name in ("log_softmax", "add", "mul"):
        monkeypatch.setattr(op_module.ops[name].forward.reference, "run", broken)
    with reference_only(), pytest.raises(type(error)) as raised:
        call(tensor([1.0, 2.0]))
    assert raised.value is error
