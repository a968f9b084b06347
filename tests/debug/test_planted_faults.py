"""Faults planted in small models, in forward and backward: each is traced to its module and op, with a cure."""

import math
import re
import sys

import numpy as np
import pytest

import ampkit
from ampkit import Policy, autocast, debug, nn, ops, optim
from ampkit.autograd import Function

INF = float("inf")


class Apply(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Model(nn.Module):
    """embed, then `inner`, then head; the planted fault is in `inner` unless the test says otherwise."""

    def __init__(self, inner):
        super().__init__()
        self.embed, self.inner, self.head = nn.Linear(8, 8), inner, nn.Linear(8, 4)
        with ampkit.no_grad():
            for layer in (self.embed, self.head):
                layer.weight.fill_(0.25)
                layer.bias.fill_(0.0)

    def forward(self, x):
        return self.head(self.inner(self.embed(x)))


def inner(function):
    return Model(Apply(function))


def ones(*shape, value=1.0, **options):
    return ampkit.full(shape, value, **options)


def loss_of(model, x=None, dtype=None):
    with autocast(dtype=dtype or ampkit.float16, enabled=dtype is not None):
        y = model(ones(4, 8) if x is None else x)
        return (y.float() - 1).square().mean()


def trained(model, x=None, dtype=None):
    return lambda: loss_of(model, x, dtype).backward()


FAULTS = {}


def fault(path, op, phase, says=""):
    """Register a function that returns a step; `says` stands in the finding's cause or cure."""

    def register(function):
        FAULTS[function.__name__.replace("_", " ")] = (function, path, op, phase, says)
        return function

    return register


@fault("inner", "matmul", "forward", 'modules={"inner": "float32"}')
def scores_that_overflow():
    return trained(inner(lambda x: ops.softmax((x * 200) @ (x * 200).transpose(0, 1), -1) @ x), dtype=ampkit.float16)


@fault("inner", "mul", "forward", "-1e+09 does not fit float16")
def a_mask_of_a_number_beyond_float16():
    def attend(x):
        return ops.softmax((x @ x.transpose(0, 1)) + ones(4, 4).half() * -1e9, -1) @ x

    return trained(inner(attend), dtype=ampkit.float16)


@fault("inner", "softmax", "forward", "leave one finite value in each row")
def a_row_that_is_masked_whole():
    def attend(x):
        return ops.softmax((x @ x.transpose(0, 1)).masked_fill(ones(4, 4).bool(), -INF), -1) @ x

    return trained(inner(attend))


@fault("inner", "log", "forward", "add an eps inside: log(x + 1e-08)")
def the_logarithm_of_zero():
    return trained(inner(lambda x: ops.relu(-x).log()))


@fault("inner", "log", "backward", "replace the input before the op")
def a_logarithm_of_zero_under_a_where():
    return trained(inner(lambda x: ops.where(x > 9, (x * 0).log(), x)))


@fault("inner", "div", "forward", "are 0")
def an_eps_that_float16_flushes_to_zero():
    def standardize(x):
        centered = x - x.mean(-1, keepdim=True)
        return centered / (centered.square().mean(-1, keepdim=True).half() + 1e-8)

    return trained(inner(standardize), dtype=ampkit.float16)


@fault("inner", "div", "forward", "are 0")
def a_division_by_a_variance_of_zero():
    return trained(inner(lambda x: x / x.var(-1, keepdim=True)))


@fault("inner", "div", "forward", "does not fit float16")
def a_division_by_a_tiny_variance_in_float16():
    return trained(inner(lambda x: x.half() / 1e-5), dtype=ampkit.float16)


@fault("inner", "sqrt", "backward", "add an eps inside: sqrt(x + 1e-08)")
def the_derivative_of_a_root_at_zero():
    return trained(inner(lambda x: (x - 2).sqrt()))


@fault("inner", "pow", "backward", "add an eps inside: (x + 1e-08) ** ...")
def the_derivative_of_a_power_at_zero():
    return trained(inner(lambda x: (x - 2) ** 0.25))


@fault("inner", "exp", "forward", "does not fit float32")
def an_exponential_that_overflows():
    return trained(inner(lambda x: (x * 100).exp()), dtype=ampkit.float16)


@fault("inner", "mul", "forward", 'Policy("float16", mul="float32")')
def a_variance_written_by_hand_in_float16():
    def variance(x):
        x = x * 200
        mean = x.mean(-1, keepdim=True).half()
        return (x * x).mean(-1, keepdim=True) - mean * mean

    return trained(inner(lambda x: x / variance(x).sqrt()), dtype=ampkit.float16)


@fault("inner.1.4.linear", "linear", "forward", "train in bfloat16")
def a_residual_that_explodes():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            with ampkit.no_grad():
                self.linear.weight.fill_(1.0)

        def forward(self, x):
            return x + self.linear(x)

    model = Model(nn.Sequential(nn.ReLU(), nn.Sequential(*[Block() for _ in range(8)])))
    return trained(model, dtype=ampkit.float16)


@fault("(outside modules)", "square", "forward", "has grown to")
def a_learning_rate_that_is_too_high():
    model = Model(nn.Identity())
    optimizer = optim.SGD(model.parameters(), lr=1e3)

    def step():
        for _ in range(30):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    return step


@fault("(model)", "argument x", "forward", "1 of 32 values are NaN")
def nan_in_the_data():
    x = ones(4, 8)
    x.array[1, 2] = math.nan
    return trained(inner(ops.relu), x)


@fault("(model)", "argument x", "forward", "1 of 32 values are infinite")
def infinity_in_the_data():
    x = ones(4, 8)
    x.array[1, 2] = INF
    return trained(inner(ops.relu), x)


@fault("embed", "linear", "forward", "does not fit float16")
def data_beyond_float16():
    return trained(inner(ops.relu), ones(4, 8, value=3e5), dtype=ampkit.float16)


@fault("head", "linear", "forward", "does not fit float16")
def a_weight_beyond_float16():
    model = inner(ops.relu)
    with ampkit.no_grad():
        model.head.weight.fill_(1e5)
    return trained(model, dtype=ampkit.float16)


@fault("head", "parameter head.weight", "forward", "1 of 32 values are NaN")
def nan_in_a_weight():
    model = inner(ops.relu)
    with ampkit.no_grad():
        model.head.weight[1, 2] = math.nan
    return trained(model)


@fault("inner", "buffer inner.running_var", "forward", "values are NaN")
def nan_in_the_statistics_of_a_frozen_layer():
    model = Model(nn.BatchNorm1d(8))
    with ampkit.no_grad():
        model.inner.running_var.fill_(math.nan)
    model.inner.eval()
    return trained(model)


@fault("inner", "Reciprocal", "forward", "code of its own")
def a_custom_op_that_divides_by_zero():
    class Reciprocal(Function):
        @staticmethod
        def forward(ctx, x):
            with np.errstate(all="ignore"):
                return ampkit.Tensor(1 / (x.array * 0))

        @staticmethod
        def backward(ctx, dy):
            return dy

    return trained(inner(Reciprocal.apply))


@fault("inner", "Wrong", "backward", "code of its own")
def a_custom_backward_that_returns_nan():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x.detach().clone()

        @staticmethod
        def backward(ctx, dy):
            return ampkit.Tensor(dy.array + dy.array.dtype.type(math.nan))

    return trained(inner(Wrong.apply))


@fault("inner", "a hook on the gradient", "backward", "correct the hook")
def nan_in_a_hook():
    def watch(x):
        y = x.tanh()
        y.register_hook(lambda gradient: ops.full_like(gradient, math.nan))
        return y

    return trained(inner(watch))


@fault("head", "a hook on the gradient", "backward", "correct the hook")
def nan_in_a_hook_on_a_weight():
    model = inner(ops.tanh)
    model.head.weight.register_hook(lambda gradient: ops.full_like(gradient, math.nan))
    return trained(model)


@fault("(outside modules)", "to", "backward", "mean of the loss")
def a_loss_that_is_a_sum():
    model = inner(ops.relu)

    def step():
        with autocast(dtype=ampkit.float16):
            y = model(ones(4, 8))
        (y.float() * 200).square().sum().backward()

    return step


@fault("(outside modules)", "div", "forward", "are 0")
def a_mean_over_no_tokens():
    model, mask = inner(ops.relu), ampkit.zeros(4, 1)
    return lambda: ((model(ones(4, 8)) * mask).sum() / mask.sum()).backward()


@fault("(outside modules)", "cross_entropy", "forward", "")
def a_label_whose_logit_is_masked():
    model = inner(lambda x: x.masked_fill(ampkit.tensor([[True] + [False] * 7]), -INF))
    model.head = nn.Identity()
    return lambda: ops.cross_entropy(model(ones(4, 8)), ampkit.zeros(4).long()).backward()


@fault("inner", "linear", "forward", "does not fit float16")
def an_overflow_in_a_recomputed_block():
    linear = nn.Linear(8, 8)
    with ampkit.no_grad():
        linear.weight.fill_(1e4)
    return trained(inner(lambda x: ampkit.recompute(lambda y: linear.forward(y) - 1, x)), dtype=ampkit.float16)


@fault("inner", "a sum of two gradients", "backward", "does not fit float16")
def a_sum_of_two_gradients_that_overflows():
    def twice(x):
        y = x.half()
        return (y.float() + y.float()) * 1.0

    model = inner(twice)
    return lambda: (model(ones(4, 8)) * 5e4).sum().backward()


@fault("(outside modules)", "sqrt", "backward", "add an eps inside: sqrt(x + 1e-08)")
def a_gradient_penalty_at_zero():
    model = inner(lambda x: x * 0)

    def step():
        x = ones(4, 8, requires_grad=True)
        (gradient,) = ampkit.grad(model(x).sum(), x, create_graph=True)
        ((gradient.square().sum(-1).sqrt() - 1).square().mean()).backward()

    return step


@fault("inner", "log", "forward", "add an eps")
def a_fault_in_one_of_several_batches_that_add_up():
    model = inner(lambda x: (x - 2).log())

    def step():
        for value in (2.0, 3.0, 1.0, 4.0):
            (loss_of(model, ones(4, 8, value=value)) / 4).backward()

    return step


@fault("inner", "log", "forward", "add an eps")
def a_fault_in_a_compiled_step():
    model = inner(lambda x: (x * 0).log())

    def step():
        loss_of(model).backward()

    return ampkit.compile(step) if ampkit.get_default_device().type == "cpu" else step


@fault("embed", "adam", "step", "an eps of 1e-8")
def an_optimizer_without_an_eps():
    model = inner(ops.relu)
    optimizer = optim.Adam(model.parameters(), eps=0.0)

    def step():
        (loss_of(model) * 0).backward()
        optimizer.step()

    return step


@fault("embed", "sgd", "step", "lower the learning rate")
def an_update_that_overflows():
    model = inner(ops.relu)
    optimizer = optim.SGD(model.parameters(), lr=3e38)

    def step():
        (loss_of(model) * 100).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("name", FAULTS)
def test_the_module_and_the_op_are_named(name):
    function, path, op, phase, says = FAULTS[name]
    found = debug.explain(function())
    assert found is not None
    assert (found.path, found.op, found.phase) == (path, op, phase)
    assert says in f"{found.cause} {found.cure}" and found.cure
    assert 0 < found.inf + found.nan <= 1 and found.dtype in ("float16", "float32")
    assert (found.largest is None) == (name == "a row that is masked whole")  # which has no finite input


@pytest.mark.parametrize("name", FAULTS)
def test_a_block_raises_the_same(name):
    step = FAULTS[name][0]()
    with pytest.raises(ampkit.NonFiniteError) as caught, debug.detect_nonfinite():
        step()
    found = caught.value.finding
    assert (found.path, found.op, found.phase) == FAULTS[name][1:4]
    assert str(found).startswith(str(caught.value).partition("\n")[0])


@pytest.mark.parametrize("name", ["scores that overflow", "data beyond float16"])
def test_the_policy_that_the_cure_names_cures_the_step(name, monkeypatch):
    before = debug.explain(FAULTS[name][0]())
    policy = eval(re.search(r"Policy\(.*\)", before.cure)[0], {"Policy": Policy})
    monkeypatch.setattr(sys.modules[__name__], "autocast", lambda **_: ampkit.autocast(policy=policy))
    assert debug.explain(FAULTS[name][0]()) is None


NOT_TRIED = {
    "nan in the data", "infinity in the data", "nan in a weight", "nan in the statistics of a frozen layer",
    "a custom op that divides by zero", "a custom backward that returns nan", "nan in a hook",
    "nan in a hook on a weight", "a label whose logit is masked", "a variance written by hand in float16",
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_cure_has_worked_or_is_marked_as_not_tried(name):
    found = debug.explain(FAULTS[name][0]())
    assert found.tried == (name not in NOT_TRIED)
    assert str(found).endswith(" (not tried)") != found.tried
    alone = debug.explain(FAULTS[name][0](), repeat=False)
    assert not alone.tried and (alone.path, alone.op) == (found.path, found.op)
