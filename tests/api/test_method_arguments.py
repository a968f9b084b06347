"""Methods of the public classes check their arguments: a wrong one gives one line that names the method."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest

import ampkit
from ampkit import distributions, nn, ops, optim, tensor, utils
from ampkit.base.errors import AmpkitError, ArgumentError, ConfigError, DTypeError
from ampkit.core.arguments import kind

MODULE, NORMAL = nn.Sequential(nn.Linear(3, 4)), distributions.Normal(tensor([0.0, 1.0]), 1.0)
SGD = optim.SGD(MODULE.parameters(), lr=0.1)
WRONG = {
    "bool": np.ones(3), "str": 1.5, "int": "no", "Callable": 3, "Mapping": [1], "MutableMapping": [1], "Tensor": "no",
    "Module": 3, "Iterable": 3, "Sequence": 3,
}  # fmt: skip


def methods(made):
    """(object, method, parameter, a wrong value) for each parameter whose annotation says what it takes."""
    for name in dir(type(made)):
        item = getattr(type(made), name)
        if (
            name.startswith("_")
            or name in ("forward", "add_module", "cuda", "run_state_hooks")
            or not inspect.isfunction(item)
        ):
            continue
        names = inspect.unwrap(item).__globals__
        for p in list(inspect.signature(item).parameters.values())[1:]:
            head = str(p.annotation).partition("[")[0].partition(" |")[0]
            if (
                p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
                and head in WRONG
                and kind(p.annotation, names) is not None
            ):
                yield pytest.param(made, name, p.name, WRONG[head], id=f"{type(made).__name__}.{name}-{p.name}")


def needed(made, name, parameter):
    # A value for each other parameter that has no default.
    found = inspect.signature(getattr(type(made), name)).parameters.values()
    return {p.name: tensor(1.0) for p in list(found)[1:] if p.default is p.empty and p.name != parameter}


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("made", "name", "parameter", "wrong"),
    [*methods(MODULE), *methods(NORMAL), *methods(distributions.Categorical(logits=tensor([0.0, 1.0])))],
)
def test_a_wrong_argument_of_a_method_is_refused_in_one_line_that_names_it(made, name, parameter, wrong):
    others = {key: value for key, value in needed(made, name, parameter).items() if key > parameter}
    unset = dict.fromkeys(set(needed(made, name, parameter)) - set(others))
    with pytest.raises(AmpkitError) as error:
        next(iter(getattr(made, name)(**{parameter: wrong}, **others, **unset)))  # some are generators
    assert f"{type(made).__name__}.{name}: needs " in str(error.value).splitlines()[0]


LAST = optim.lr_scheduler.StepLR(SGD, 1)
LOADER = utils.data.DataLoader([1, 2, 3], batch_size=2)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda: nn.init.normal_(ops.zeros(2, dtype="int64")), DTypeError, "normal_: needs a floating-point dtype"),
        (lambda: nn.init.trunc_normal_(ops.zeros(2, dtype="bool")), DTypeError, "trunc_normal_: needs a floating"),
        (lambda: nn.init.orthogonal_(ops.zeros(2, 2, dtype="int64")), DTypeError, "orthogonal_: needs a floating"),
        (lambda: nn.init.sparse_(ops.zeros(2, 2, dtype="int64"), 0.5), DTypeError, "sparse_: needs a floating"),
        (lambda: ampkit.grad([], tensor(1.0), is_grads_batched=True), ArgumentError, "at least one output"),
        (lambda: setattr(SGD, "param_groups", 3), DTypeError, "SGD.param_groups: needs a list"),
        (lambda: setattr(SGD, "param_groups", [3]), AmpkitError, "parameter group"),
        (lambda: setattr(SGD, "state", 3), DTypeError, "SGD.state: needs a dict"),
        (lambda: SGD.add_param_group({"params": 3}), DTypeError, "needs Parameters, got 3"),
        (lambda: setattr(LAST, "last_epoch", slice(1)), DTypeError, "StepLR.last_epoch: needs a number"),
        (lambda: LAST.load_state_dict(slice(1)), DTypeError, "StepLR.load_state_dict: needs a dict"),
        (lambda: setattr(LOADER, "batch_size", 3), ArgumentError, "batch_size as it was made with"),
        (lambda: list(utils.data.DataLoader([1, [None]], batch_size=2)), DTypeError, "numbers throughout"),
        (lambda: list(utils.data.DataLoader([tensor(1), "a"], batch_size=2)), DTypeError, "Tensors throughout"),
        (lambda: list(utils.data.DataLoader([{}, 1], batch_size=2)), DTypeError, "mappings throughout"),
        (lambda: list(utils.data.DataLoader([[1], 1], batch_size=2)), DTypeError, "sequences throughout"),
        (lambda: list(utils.data.DataLoader([1.0, 10**400], batch_size=2)), ArgumentError, "numbers that fit"),
        (lambda: utils.data.DataLoader([1], num_workers=2**62), ArgumentError, "num_workers from 0 to 1024"),
        (lambda: utils.data.StackDataset({1, 2}), DTypeError, "datasets with a length"),
        (lambda: ampkit.Policy("float16").category("no"), ConfigError, "Policy.category: needs the name of an op"),
        (lambda: ampkit.Policy("float16").in_module(3), DTypeError, "Policy.in_module: needs the path"),
        (lambda: ampkit.GradScaler(enabled=False).step(3), DTypeError, "scaler.step: needs an optimizer"),
        (lambda: tensor([1, 2]).__setitem__(0, 1j), DTypeError, "needs numbers, got 1j"),
        (lambda: setattr(tensor([1.0]), "data", [[1], [1, 2]]), DTypeError, "data: needs an array or numbers"),
        (lambda: tensor([1.0])[ampkit.Tensor], DTypeError, "index: needs integers"),
        (lambda: ampkit.func.grad(lambda x: x, 1)(tensor(1.0)), ArgumentError, "argnums below 1"),
        (lambda: np.datetime64("2020") / tensor([1.0]), AmpkitError, "needs"),
        (lambda: tensor([1.0]).__rtruediv__(np.str_("a")), AmpkitError, "needs"),
        (lambda: ops.histogram(tensor([1.0, float("inf")]), 2), ArgumentError, "histogram: needs a finite range"),
        (lambda: ops.histc(tensor([1.0, float("nan")]), 2), ArgumentError, "histc: needs a finite range"),
        (lambda: tensor([1.0]).new(2, device=np.ones(3)), AmpkitError, "device: needs"),
        (lambda: nn.UpsamplingBilinear2d(scale_factor=nn.Sequential()), DTypeError, "scale_factor as a number or"),
        (lambda: tensor([1.0]).roll(nn.Sequential()), DTypeError, "shifts as an integer or"),
        (lambda: ampkit.autograd.gradcheck(print, tensor([1.0])), DTypeError, "a function that returns Tensors"),
        (lambda: setattr(tensor([1.0]), "requires_grad", np.zeros((0, 3))), ArgumentError, "requires_grad: needs"),
        (lambda: setattr(tensor([1.0]), "requires_grad", "no"), ArgumentError, "requires_grad True or False, got 'no'"),
        (lambda: ampkit.set_grad_enabled(NotImplemented), ArgumentError, "True or False"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_where_they_are_given(call, error, line):
    with pytest.raises(error, match=line):
        call()


def test_bools_are_sizes_of_0_and_1_in_every_function_of_shapes():
    x = ops.ones(1)
    for shape in ([True, 1], (True, False)):
        assert ops.broadcast_to(x, shape).shape == x.expand(shape).shape == tuple(map(int, shape))


def test_a_parameter_whose_data_got_another_shape_is_copied_with_its_old_gradient():
    parameter = nn.Parameter(ops.ones(3))
    parameter.grad = ops.ones(3)
    parameter.data = ops.ones(())
    twin = copy.deepcopy(parameter)
    assert (tuple(twin.shape), tuple(twin.grad.shape)) == ((), (3,))
    twin.grad.zero_()
    assert parameter.grad.tolist() == [1, 1, 1]


def test_a_division_by_a_numpy_bool_has_a_gradient():
    x = tensor([2.0, 4.0], requires_grad=True)
    (np.bool_(True) / x).sum().backward()
    assert x.grad.tolist() == [-0.25, -0.0625]


def test_where_of_two_numbers_gives_infinity_beyond_the_default_dtype():
    ampkit.set_default_dtype(ampkit.float16)
    try:
        assert ops.where(tensor([True, False]), 1.0, 2**62).tolist() == [1.0, float("inf")]
    finally:
        ampkit.set_default_dtype(ampkit.float32)


def test_rounding_to_more_digits_than_a_float_has_ends_at_once():
    assert ops.round(tensor([7, 8]), decimals=2**31 - 1).tolist() == [7, 8]
