"""Where infinity and NaN come from: the op and module that made them, what is only the scale search, and the cure."""

import gc
import weakref

import numpy as np
import pytest

import ampkit
from ampkit import autocast, debug, nn, ops
from ampkit.autograd import Function
from ampkit.base.errors import NonFiniteError
from ampkit.core import policy
from ampkit.core.op import Array, Saved, op
from ampkit.core.op import ops as made_ops
from ampkit.core.policy import Cast
from ampkit.debug.finite import is_finite

INF = float("inf")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = (self.query(x) @ x.transpose(-1, -2)).masked_fill(mask, float("-inf"))
        return (ops.softmax(scores, -1) @ x).mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x).square().mean()


@pytest.mark.parametrize("dtype", [ampkit.float16, ampkit.bfloat16, ampkit.float32, ampkit.float64])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1.0])
def test_is_finite_looks_at_every_value_in_every_layout(dtype, value):
    x = np.ones((6, 5), dtype)
    x[4, 3] = value
    assert is_finite(x) == is_finite(x.T) == is_finite(x[::2]) == is_finite(x[4, 3]) == (value == 1.0)
    assert is_finite(x[:4])
    assert is_finite(x[:0])


def test_an_overflow_in_float16_names_the_module_the_op_and_the_policy_that_cures_it():
    model = Model()
    with ampkit.no_grad():
        model.head.weight.fill_(0.25)
    with autocast(dtype=ampkit.float16):
        found = debug.explain(lambda: model(ampkit.full((4, 8), 6e4)))
    assert found is not None
    assert (found.path, found.op, found.phase, found.dtype) == ("head", "linear", "forward", "float16")
    assert found.inf > 0
    assert found.largest == pytest.approx(6e4, rel=1e-3)
    assert "does not fit float16, whose largest value is 65504" in found.cause
    assert 'Policy("float16", modules={"head": "float32"})' in found.cure


def test_modules_that_run_as_one_fused_op_are_named_by_themselves():
    model, seen = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), []
    for layer, large in (("0", 0.1), ("2", 1e4)):  # which product does not fit
        with ampkit.no_grad():
            model[0].weight.fill_(1e4 if layer == "0" else 0.01)
            model[2].weight.fill_(large)
        with autocast(dtype=ampkit.float16):
            found = debug.explain(lambda: model(ampkit.full((4, 8), 100.0)).mean(), repeat=False)
            with pytest.raises(NonFiniteError, match=f"linear in {layer}, forward"), debug.detect_nonfinite():
                model(ampkit.full((4, 8), 100.0)).mean().backward()
        assert (found.path, found.op) == (layer, "linear")
        assert f'Policy("float16", modules={{"{layer}": "float32"}})' in found.cure
    with ampkit.observe.watch(lambda name, *_: seen.append(name)):  # elsewhere it is one op
        model(ampkit.ones(4, 8))
    assert seen == ["linear_gelu_linear"]


def test_a_mask_of_minus_infinity_is_no_fault_but_a_row_of_nothing_else_is():
    model, x = Attention(), ampkit.randn(4, 8)
    some, whole = ampkit.tensor([[True, False] * 2] * 4), ampkit.ones(4, 4).bool()
    assert debug.explain(lambda: model(x, some).backward()) is None
    found = debug.explain(lambda: model(x, whole).backward())
    assert (found.op, found.phase, found.reached) == ("softmax", "forward", "the loss")
    assert found.mask == "masked_fill in (model)"
    assert "one finite value in each row" in found.cure


def test_the_derivative_of_a_root_at_zero_is_found_in_the_backward_pass():
    model = Model()
    model.head.weight.array[...] = 0
    model.head.bias.array[...] = 0
    found = debug.explain(lambda: model.head(ampkit.ones(2, 8)).sqrt().sum().backward())
    assert (found.op, found.phase) == ("sqrt", "backward")
    assert found.reached == "the gradient of weight"
    assert "100 % of its values are 0" in found.cause


@pytest.mark.parametrize("scale", [2.0**24, 1.0])
def test_a_gradient_that_overflows_by_the_loss_scale_alone_is_no_fault(scale):
    model, scaler = Model(), ampkit.GradScaler(init_scale=scale)

    model.head.weight.array[...] = 1

    def step(factor):
        with autocast(dtype=ampkit.float16):
            loss = (model.head(ampkit.ones(4, 8, requires_grad=True)).float() * factor).sum()
        scaler.scale(loss).backward()

    with debug.detect_nonfinite() as watching:
        step(1.0)
    assert (watching.overflows > 0) == (scale > 1)
    if scale == 1:
        says = r"(?s)linear.* in \(model\), backward, gave 100 % inf of float16.*up to 4.8e\+05, does not fit"
        with pytest.raises(NonFiniteError, match=says), debug.detect_nonfinite():
            step(6e4)


def test_values_that_no_op_has_computed_are_named_by_what_they_are():
    model, x = Model(), ampkit.ones(4, 8)
    assert debug.explain(lambda: model(x)) is None
    x.array[1, 2] = np.nan
    assert debug.explain(lambda: model(x)).op == "argument x"
    model.head.weight.array[0, 0] = np.inf
    assert debug.explain(lambda: model(ampkit.ones(4, 8))).op == "parameter head.weight"


def test_a_hook_that_returns_nan_is_named():
    model = Model()

    def step():
        y = model.head(ampkit.ones(4, 8))
        y.register_hook(lambda gradient: gradient * float("nan"))
        y.sum().backward()

    found = debug.explain(step)
    assert found.op == "a hook on the gradient"
    assert found.cure == "correct the hook"
    assert found.reached.startswith("the gradient of ")


def test_a_block_raises_where_harm_is_done_and_carries_the_finding():
    weight = nn.Parameter(ampkit.zeros(3))
    says = r"(?s)the loss is not finite: log .*help: add an eps"
    with pytest.raises(NonFiniteError, match=says) as caught, debug.detect_nonfinite():
        weight.log().sum().backward()
    assert caught.value.finding.op == "log"
    assert weight.grad is None


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ampkit.ArgumentError, match="explain: needs a function that runs a step, got a float"):
        debug.explain(3.0)


def test_masks_and_sound_steps_are_not_kept_in_memory():
    model, scores = Attention(), []
    model.query.register_forward_hook(lambda module, args, output: scores.append(weakref.ref(output.array)))
    mask = ampkit.tensor([[True, False] * 2] * 4)
    with debug.detect_nonfinite() as watching:
        for _ in range(3):
            model(ampkit.randn(4, 8), mask).backward()
            made = ampkit.zeros(2).masked_fill(ampkit.ones(2).bool(), float("-inf"))
            scores.append(weakref.ref(made.array))
            del made
        gc.collect()
        assert [held() for held in scores] == [None] * 6
    assert watching.overflows == 0


def test_a_block_without_a_backward_raises_for_its_result_alone():
    with debug.detect_nonfinite():
        ampkit.zeros(2).log()
        ampkit.ones(2).log()
    with pytest.raises(NonFiniteError, match="the result of the block is not finite: log"), debug.detect_nonfinite():
        ampkit.zeros(2).log()
    with debug.detect_nonfinite():  # a mask, and what is computed of scaled gradients for a log
        ampkit.zeros(2).masked_fill(ampkit.ones(2).bool(), float("-inf"))
    weight = nn.Parameter(ampkit.ones(2))
    with debug.detect_nonfinite():
        weight.sum().backward()
        (weight.detach() / 0).log()


@pytest.mark.parametrize("by_cast", [False, True])
def test_a_gradient_that_float16_flushes_to_zero_is_named_if_that_is_asked_for(by_cast):
    model, scaler = Model(), ampkit.GradScaler(init_scale=2.0**20)

    def step(scaled=False, dtype=ampkit.float16):
        with autocast(dtype=dtype):
            hidden = model.attention.query(ampkit.ones(4, 8))
            loss = (model.head(hidden if by_cast else hidden.float().to(dtype)).float() * 1e-9).sum()
        (scaler.scale(loss) if scaled else loss).backward()

    assert debug.explain(step) is None
    found = debug.explain(step, underflow=True)
    assert (found.kind, found.phase, found.dtype, found.inf, found.nan) == ("underflow", "backward", "float16", 0, 0)
    assert (found.path, found.op) == ("(outside modules)", "to")
    assert str(found).startswith(
        "the gradient of weight is zero: to (outside modules), backward, gave zeros of float16"
    )
    assert "1e-09, is below float16's smallest positive number, 5.96e-08" in found.cause
    assert found.cure == "scale the loss by a GradScaler, or train in bfloat16"
    assert debug.explain(lambda: step(scaled=True), underflow=True) is None
    assert debug.explain(lambda: step(dtype=ampkit.bfloat16), underflow=True) is None


def test_a_product_that_flushes_its_gradient_is_told_from_one_of_zeros():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Identity(), nn.Linear(8, 8)), ampkit.ones(4, 8)
    with ampkit.no_grad():
        model[2].weight.fill_(1e-5)

    def step(factor):
        with autocast(dtype=ampkit.float16):
            loss = (model(x).float() * factor).sum()
        loss.backward()

    found = debug.explain(lambda: step(1e-4), underflow=True)
    assert (found.path, found.op, found.reached) == ("2", "linear", "the gradient of 0.weight")
    assert debug.explain(lambda: step(0.0), underflow=True) is None
    assert debug.explain(lambda: step(1.0), underflow=True) is None


def test_a_compiled_step_runs_op_by_op():
    model, x = nn.Linear(8, 8), ampkit.ones(4, 8)
    optimizer = ampkit.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    compiled = ampkit.compile(step)
    for _ in range(5):
        compiled(x)
    with debug.detect_nonfinite():
        assert all(compiled(x).item() < 10 for _ in range(4))
    with debug.detect_nonfinite(), pytest.raises(ampkit.NonFiniteError, match="square"):
        compiled(x * 1e30)


def test_the_custom_backward_of_a_recorded_gradient_is_named():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x.detach().clone()

        @staticmethod
        def backward(ctx, dy):
            return ampkit.Tensor(dy.array * dy.array.dtype.type(np.nan))

    weight = nn.Parameter(ampkit.ones(2))
    found = debug.explain(lambda: ampkit.grad(Wrong.apply(weight).sum(), weight, create_graph=True))
    assert (found.op, found.phase, found.reached) == ("Wrong", "backward", "the gradient of a leaf [2]")
    assert found.cure == "correct what it returns"


@pytest.mark.parametrize("backward", [False, True])
def test_an_op_of_the_program_is_what_to_correct(backward):
    def infinite(input: "Array"):
        return input * 2 if backward else 1 / (input * 0), Saved(input=input)

    made = op(cast=Cast.FP32)(infinite)
    made.backward(lambda dy, saved, needs: dy / (saved.input * 0))
    model = Model()
    try:
        found = debug.explain(lambda: made(model.head(ampkit.randn(4, 8))).mean().backward())
    finally:
        del made_ops["infinite"], policy.categories["infinite"]
    assert (found.op, found.phase) == ("infinite", "backward" if backward else "forward")
    assert found.cure.startswith("correct infinite")


def test_the_argument_of_a_model_in_a_wrapper_of_any_arguments_is_named():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

    x = ampkit.ones(4, 8)
    x.array[1, 2] = np.nan
    found = debug.explain(lambda: Wrapper(Model())(x))
    assert (found.path, found.op) == ("module", "argument x")


def test_a_number_among_the_operands_is_shown():
    found = debug.explain(lambda: (nn.Parameter(ampkit.ones(2)) / 0).sum())
    assert found.cause == "div(1, 0) = inf at [0]"


@pytest.mark.parametrize(("function", "cause", "cure"), [
    (lambda x: ops.acos(x - 2), "acos(-2) = nan at [0, 0]: the function is not defined", "to where acos is defined"),
    (lambda x: ops.acos(x + 2), "acos(2) = nan at [0, 0]: the function is not defined", "to where acos is defined"),
    (lambda x: ops.sqrt(x - 2), "sqrt(-2) = nan at [0, 0]: the input is negative", "sqrt(x.clamp(min=1e-06))"),
    (lambda x: ops.std(x[:1], 0), "it is nan at [0]: it divides by 0, as of targets", "divide by at least 1"),
    (lambda x: ops.cross_entropy(x, ampkit.full((4,), -100).long()), "it is nan: it divides by 0", "leave out such"),
])  # fmt: skip
def test_where_a_function_is_not_defined_no_learning_rate_is_blamed(function, cause, cure):
    model = nn.Linear(8, 8)
    with ampkit.no_grad():
        model.weight.fill_(0.0), model.bias.fill_(0.0)
    found = debug.explain(lambda: function(model(ampkit.ones(4, 8))).sum())
    assert found.cause.startswith(cause) and cure in found.cure


@pytest.mark.parametrize("number", [INF, -INF, float("nan")])
def test_arithmetic_with_an_infinite_number_is_named_with_it(number):
    found = debug.explain(lambda: ampkit.ones(3).mean() * number)
    assert (found.op, found.mask) == ("mul", "")
    assert found.cause == f"it was given the number {number:g}: mul(1, {number:g}) = {number:g}"


def test_a_mask_times_infinity_is_named_with_masked_fill_as_the_cure():
    found = debug.explain(lambda: ops.softmax(ampkit.ones(2, 3) + ampkit.eye(2, 3) * -INF, -1).sum())
    assert found.op == "mul" and "mul(0, -inf) = nan at [0, 1]" in found.cause and "masked_fill" in found.cure


@pytest.mark.parametrize(("bad", "says"), [
    ([3, 9], "in 2 of the batch's 16 samples (3, 9)"),
    (range(16), "in all 16 samples of the batch"),
    (range(2, 14), "in 12 of the batch's 16 samples (2, 3, 4, 5, 6, 7, 8, 9, ...)"),
])  # fmt: skip
def test_the_samples_of_a_batch_that_are_not_finite_are_named(bad, says):
    x = np.ones((16, 8), np.float32)
    x[list(bad), 1] = np.nan
    model = nn.Linear(8, 4)
    found = debug.explain(lambda: model(ampkit.tensor(x)).sum())
    assert found.samples == tuple(bad) and says in found.cause
    target = ampkit.tensor(x[:, :4])
    found = debug.explain(lambda: ops.mse_loss(model(ampkit.ones(16, 8)), target))
    assert found.samples == tuple(bad) and says in found.cause and "assert target.isfinite().all()" in found.cure


def test_a_weight_that_is_not_finite_names_no_samples():
    model = nn.Linear(8, 4)
    with ampkit.no_grad():
        model.weight[1, 2] = float("nan")
    assert debug.explain(lambda: model(ampkit.ones(16, 8)).sum()).samples == ()


@pytest.mark.cpu  # a GPU of the emulation holds what it broadcasts
def test_a_broadcast_array_is_read_once():
    assert is_finite(np.broadcast_to(np.ones((2, 1, 3), np.float32), (2, 2**40, 3)))
    assert not is_finite(np.broadcast_to(np.array([1, np.inf], np.float16), (2**40, 2)))
    x = ampkit.ones(1, requires_grad=True)
    with debug.detect_nonfinite():
        ops.expand(x, 2**40)


def test_an_integer_beyond_64_bits_is_a_constant_as_others():
    def infinite_with(input: "Array", number):
        return input * np.inf, Saved()

    made = op(cast=Cast.FP32)(infinite_with)
    try:
        with pytest.raises(NonFiniteError, match="infinite_with"), debug.detect_nonfinite():
            made(ampkit.ones(2), 2**70)
    finally:
        del made_ops["infinite_with"], policy.categories["infinite_with"]


def _large(optimizer, taken):
    """A model whose largest weight is 1e5 after `taken` steps of an optimizer, and a step of it that overflows."""
    model = nn.Linear(4, 4)
    made = None if optimizer is None else optimizer(model.parameters())

    def step():
        if made is not None:
            made.zero_grad()
        with autocast(dtype=ampkit.float16):
            return model(ampkit.ones(2, 4)).square().sum()

    for _ in range(taken):
        (model.weight.sum() * 1e-3).backward()
        made.step()
        made.zero_grad()
    with ampkit.no_grad():
        model.weight.fill_(1e5)
    return model, step


@pytest.mark.parametrize(
    ("optimizer", "taken", "says"),
    [
        (lambda p: ampkit.optim.SGD(p, lr=1.0), 2, "weight has grown to 1e+05"),
        (
            lambda p: ampkit.optim.SGD(p, lr=1.0),
            0,
            "holds values up to 1e+05, and its optimizer has taken no step since",
        ),
        (lambda p: ampkit.optim.AdamW(p, lr=1e-3), 2, "which 2 steps at a learning rate of 0.001 cannot reach"),
        (lambda p: ampkit.optim.AdamW(p, lr=600.0), 2, "weight has grown to 1e+05"),
        (lambda p: ampkit.optim.AdamW(p, lr=300.0, weight_decay=0.01), 2, "weight has grown to 1e+05"),
        (None, 0, "weight holds values up to 1e+05, and no optimizer has it"),
    ],
)
def test_a_weight_has_grown_where_an_optimizer_can_have_made_it_so(optimizer, taken, says):
    model, step = _large(optimizer, taken)
    for _ in range(2):  # the repetitions of the first leave the count of steps
        found = debug.explain(step)
        assert says in found.cause
    assert optimizer is None or int(model.weight._arena_segment.arena.steps[0]) == taken


def test_a_weight_that_grew_at_a_rate_which_fell_since_has_grown():
    made = []
    _, step = _large(lambda p: made.append(ampkit.optim.AdamW(p, lr=600.0)) or made[0], 2)
    ampkit.optim.lr_scheduler.LambdaLR(made[0], lambda step: 0.0)
    assert "weight has grown to 1e+05" in debug.explain(step).cause
