"""What optimizers refuse: one line each, and nothing has changed."""

import inspect

import numpy as np
import pytest

import ampkit
from ampkit import nn, optim
from ampkit.base.errors import ArgumentError, DTypeError, StateError


def signature(kind):
    return inspect.signature(kind).parameters


def adam():
    p = nn.Parameter(ampkit.ones(3))
    optimizer = optim.Adam([p], lr=0.5)
    p.grad = ampkit.ones(3)
    optimizer.step()
    return optimizer


ONE = [{"params": [0]}]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "needs a dict with 'state' and 'param_groups', got None"),
        ({"state": {}, "param_groups": [{"lr": 1.0}]}, "needs 'param_groups' as dicts with 'params'"),
        ({"state": {}, "param_groups": "x"}, "needs 'param_groups' as dicts with 'params'"),
        ({"state": [1], "param_groups": ONE}, "'state' as a dict, got"),
        ({"state": {0: 5}, "param_groups": ONE}, "the state of each parameter as a dict"),
        ({"state": {"0": {"step": 1}}, "param_groups": ONE}, "a state of the parameters that its groups name"),
        ({"state": {"weight": {}}, "param_groups": ONE}, "a state of the parameters that its groups name"),
        (
            {"state": {0: {"step": float("nan")}}, "param_groups": ONE},
            r"needs the step of parameter 0 \[3\] .*, got nan",
        ),
        ({"state": {0: {"step": "x"}}, "param_groups": ONE}, "as a count from 0, got 'x'"),
        ({"state": {0: {"step": -1}}, "param_groups": ONE}, "as a count from 0, got -1"),
        ({"state": {0: {"exp_avg": np.ones(2)}}, "param_groups": ONE}, r"in the shape of parameter 0 \[3\]"),
        ({"state": {0: {"exp_avg": list("abc")}}, "param_groups": ONE}, "needs exp_avg as numbers, got"),
        ({"state": {0: {"exp_avg": [[1], [1, 2]]}}, "param_groups": ONE}, "needs exp_avg as numbers, got"),
        ({"state": {0: {"speed": np.ones(3)}}, "param_groups": ONE}, "needs state exp_avg"),
        ({"state": {}, "param_groups": [{"params": [0], "lr": -1}]}, "needs lr >= 0, got -1"),
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_changes_nothing(state, message):
    optimizer = adam()
    before = optimizer.state_dict()
    with pytest.raises(ArgumentError, match=message):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert {k: v.tolist() for k, v in after["state"][0].items()} == {
        k: v.tolist() for k, v in before["state"][0].items()
    }


@pytest.mark.parametrize(
    ("kind", "name"), [(optim.ASGD, "eta"), (optim.NAdam, "mu_product"), (optim.Adafactor, "variance")], ids=str
)
def test_a_state_that_lacks_what_is_no_moment_is_refused(kind, name):
    optimizer = kind(parameters := one())
    parameters[0].grad = ampkit.ones(3)
    optimizer.step()
    state = optimizer.state_dict()
    del state["state"][0][name]
    with pytest.raises(ArgumentError, match=rf"needs the whole state of parameter 0 \[3\], got one without {name}"):
        kind(one()).load_state_dict(state)


@pytest.mark.parametrize(
    ("key", "value"), [("lr", -1), ("lr", "x"), ("weight_decay", -1), ("eps", None), ("betas", (0.9, 1.0))], ids=str
)
def test_options_out_of_range_are_refused_when_they_are_assigned(key, value):
    optimizer = adam()
    group = optimizer.param_groups[0]
    before = group[key]
    with pytest.raises(ArgumentError, match=r"Adam: needs .*, got "):
        group[key] = value
    assert group[key] == before


def test_a_group_keeps_its_parameters_and_what_an_update_reads():
    group = adam().param_groups[0]
    with pytest.raises(StateError, match="got other parameters"):
        group["params"] = []
    with pytest.raises(StateError, match="got one without 'lr'"):
        del group["lr"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.step(3), "Adam.step: needs a closure or nothing, got a int"),
        (lambda o: optim.clip_grad_norm_(3, 1.0), "clip_grad_norm_: needs parameters as a Tensor or an iterable"),
        (lambda o: optim.clip_grad_value_([3], 1.0), "clip_grad_value_: needs parameters as a Tensor or an iterable"),
    ],
)
def test_arguments_of_another_kind_are_refused(call, message):
    with pytest.raises(DTypeError, match=message):
        call(adam())


def test_a_scaler_s_state_is_a_dict():
    with pytest.raises(ArgumentError, match=r"GradScaler.load_state_dict: needs the dict of state_dict\(\), got a int"):
        ampkit.GradScaler().load_state_dict(3)


ALL = [kind for name in optim.__all__ if isinstance(kind := getattr(optim, name), type) and "lr" in signature(kind)]
WORDS = {"foreach", "fused", "capturable", "differentiable"}


def asked(kind, *kinds):
    """The arguments of an optimizer whose default is of one of these types."""
    return [name for name, p in signature(kind).items() if type(p.default) in kinds]


def one(kind=None):
    """A parameter that an optimizer of this kind takes, in a group where it must say how."""
    parameters = [nn.Parameter(ampkit.ones(2, 3) if kind is optim.Muon else ampkit.ones(3))]
    return [{"params": parameters, "use_muon": False}] if kind is optim.MuonWithAuxAdam else parameters


def another(kind, **options):
    group = {"params": one(kind)} if kind is not optim.MuonWithAuxAdam else one(kind)[0]
    return group | options


def loaded(kind, key, value):
    optimizer = kind(one(kind))
    state = optimizer.state_dict()
    state["param_groups"][0][key] = value
    optimizer.load_state_dict(state)


def assigned(kind, key, value):
    optimizer = kind(one(kind))
    optimizer.param_groups[0][key] = value


WAYS = {
    "made": lambda kind, key, value: kind(one(kind), **{key: value}),
    "added": lambda kind, key, value: kind(one(kind)).add_param_group(another(kind, **{key: value})),
    "assigned": assigned,
    "loaded": loaded,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_what_is_true_or_false_is_nothing_else_in_any_optimizer(kind, way):
    flags = set(asked(kind, bool)) - WORDS - {"stochastic_rounding"}
    assert "maximize" in flags
    for key in flags:
        for value in ("false", 1, 0.0, None):
            with pytest.raises(ArgumentError, match=f"^{kind.__name__}: needs {key} True or False, got {value!r}"):
                WAYS[way](kind, key, value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_number_is_a_finite_number_in_any_optimizer(kind, way):
    for key in asked(kind, int, float):
        for value in ("0.1", True, None, float("nan"), float("inf"), 10**400):
            with pytest.raises(ArgumentError, match=f"^{kind.__name__}: needs .*{key}.*, got "):
                WAYS[way](kind, key, value)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_words_that_change_nothing_are_true_false_or_none(kind):
    for key in WORDS & set(signature(kind)):
        for value in ("false", 1, [True]):
            with pytest.raises(ArgumentError, match=f"{kind.__name__}: needs {key} True.*, got "):
                kind(one(kind), **{key: value})
        if key != "differentiable":
            kind(one(kind), **{key: np.bool_(True)})
    with pytest.raises(ArgumentError, match="needs foreach True, False or None, got 'x'"):
        kind(one(kind)).add_param_group(another(kind, foreach="x"))


def test_a_word_in_quotes_is_named_with_its_cure():
    with pytest.raises(ArgumentError, match="got 'false'\nhelp: write amsgrad=False, without quotes"):
        optim.Adam(one(), amsgrad="false")


def test_options_that_do_not_go_together_are_refused_wherever_they_come_from():
    optimizer = optim.SGD(one(), momentum=0.9, nesterov=True)
    with pytest.raises(ArgumentError, match="SGD with nesterov: needs momentum > 0 and dampening 0, got momentum=0"):
        optimizer.param_groups[0]["momentum"] = 0
    assert optimizer.param_groups[0]["momentum"] == 0.9
    with pytest.raises(ArgumentError, match="SGD with nesterov"):
        optimizer.add_param_group({"params": one(), "dampening": 0.1})
    optimizer.load_state_dict(optim.SGD(one()).state_dict())
    assert optimizer.param_groups[0]["momentum"] == 0 and optimizer.param_groups[0]["nesterov"] is False


def test_decay_that_is_decoupled_is_so_for_a_group_and_in_its_state():
    def moved(**options):
        optimizer = optim.Adam(one(), lr=0.5, weight_decay=0.5)
        optimizer.add_param_group({"params": (added := one()), **options})
        added[0].grad = ampkit.zeros(3)
        optimizer.step()
        return added[0].tolist(), optimizer

    (coupled, _), (decoupled, optimizer) = moved(), moved(decoupled_weight_decay=True)
    assert decoupled == [0.75] * 3 != coupled
    other = moved()[1]
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[1]["decoupled_weight_decay"] is True


def test_adamw_stays_adamw():
    adam, adamw = optim.Adam(one()), optim.AdamW(one())
    adamw.load_state_dict(adam.state_dict())
    assert adamw.param_groups[0]["decoupled_weight_decay"] is True
    with pytest.raises(ArgumentError, match="AdamW: needs decoupled_weight_decay True, got False\nhelp: use Adam"):
        adamw.param_groups[0]["decoupled_weight_decay"] = False


def test_integers_beyond_64_bits_are_floats_of_whatever_class_they_come():
    for given in (2**64 - 1, np.uint64(2**64 - 1)):
        p = nn.Parameter(ampkit.ones(2))
        p.grad = ampkit.ones(2)
        optimizer = optim.NAdam([p], momentum_decay=given)
        optimizer.step()
        assert np.isfinite(p.numpy(force=True)).all()
