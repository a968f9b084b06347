"""Objects, and sequences of calls of their methods: what a refused call leaves behind has to stay usable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from random import Random
from typing import Any, NamedTuple

import ampkit
from ampkit import distributions, nn, optim, utils

from . import values, verdict

_SHARED = {"extra_repr", "share_memory", "run_state_hooks", "forward"}


class Subject(NamedTuple):
    """A class whose methods are called: sources of its objects, and of what else is done to one, `o`.

    `{v}` in a source is a value, `{n}` a number, `{optimizer}` and `{scheduler}` one of them, others are of NAMES.
    `names`: the methods, by default all public ones.
    """

    kind: type
    made: tuple[str, ...]
    actions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


_STATE = ("o.load_state_dict(damaged(o.state_dict(), {n}))", "o.load_state_dict(o.state_dict())", "o.state_dict()")
_COPIES = ("copy.deepcopy(o)", "pickle.loads(pickle.dumps(o))", "repr(o)")
_MODULE = (
    *_STATE, *_COPIES, "o(t(2, 3))", "o(t(2, 3, grad=True)).sum().backward()", "o({v})", "setattr(o, {name}, {v})",
    "getattr(o, {name})", "o.load_state_dict(damaged(o.state_dict(), {n}), strict=False)",
    "optim.SGD(o.parameters(), lr=0.1).step()", "o.apply({v})", "o.to({v})", "o.register_buffer('more', {v})",
)  # fmt: skip
_CONTAINER = (
    "o[{v}]", "o.__setitem__({v}, {v})", "o.__delitem__({v})", "{v} in o", "len(o)", "list(o)", "o += {v}", *_STATE,
    *_COPIES, "o.append({v})", "o.extend({v})", "o.insert({v}, {v})", "o.pop({v})", "o.update({v})",
)  # fmt: skip
_OPTIMIZER = (
    *_STATE, *_COPIES, "o.step()", "o.step({v})", "o.zero_grad()", "o.add_param_group({v})",
    "o.add_param_group({'params': [parameter(3)], {option}: {v}})", "o.param_groups[0].__setitem__({option}, {v})",
    "setattr(o, 'param_groups', {v})", "setattr(o, 'state', {v})", "o.param_groups.append({'params': [parameter(3)]})",
    "setattr(o.param_groups[0]['params'][0], 'grad', {v})", "setattr(o.param_groups[0]['params'][0], 'data', {v})",
    "o.param_groups[0]['params'].append(parameter(3))", "o.state.clear()",
    "o.param_groups.clear()", "o.load_state_dict({v})", "o.step(lambda: {v})",
)  # fmt: skip
_SCHEDULE = (*_STATE, *_COPIES, "o.step()", "o.step({v})", "o.get_last_lr()", "o.optimizer.step()",
             "o.optimizer.param_groups[0].__setitem__('lr', {v})", "setattr(o, 'last_epoch', {v})")  # fmt: skip
_SCALER = (
    *_STATE, *_COPIES, "o.step(optimizer())", "o.step({v})", "o.unscale_({v})", "o.scale({v})", "o.update({v})",
    "o.update()", "o.scale(t(2, 3, grad=True).sum()).backward()", "stepped_by(o)", "stepped_by(o, unscale=2)",
    "stepped_by(o, clip={v})", "stepped_by(o, gradient={v})", "o.set_growth_interval({v})",
)  # fmt: skip
_LOADER = (*_STATE, *_COPIES, "drained(o)", "next(iter(o))", "list(o)", "len(o)", "o[{v}]",
"setattr(o, {loading}, {v})",
           "drained(iter(o))", "drained(zip(o, o))")  # fmt: skip
_DISTRIBUTION = (*_COPIES, "o.log_prob(o.sample())", "o.log_prob({v})", "o.sample({v})", "o.expand({v})",
                 "distributions.kl_divergence(o, o)", "distributions.kl_divergence(o, {v})",
                 "o.log_prob({v}).sum().backward()", "o.mean", "o.variance", "o.mode", "o.stddev",
                 "distributions.Independent(o, {v}).log_prob({v})", "o.support.check({v})")  # fmt: skip
_TENSOR = (
    "setattr(o, {attribute}, {v})", "o.__setitem__({v}, {v})", "o.__iadd__({v})", "o.__imul__({v})",
    "o.sum().backward()",
    "o.backward({v})", "(o * 2).sum().backward()", "o.register_hook({v})", "o.requires_grad_({v})", "o.detach_()",
    "o.grad",
    "o.zero_()", "o.copy_({v})", "o.set_({v})", "o.resize_({v})", "o.retain_grad()", "np.asarray(o)",
    "o.share_memory_()",
    "setattr(o, 'data', o.detach()[{v}])", "o.swapaxes(0, -1).add_({v})", "o[0].fill_({v})", "(o * o).sum().backward()",
    "o.view(-1)[::2].mul_({v})", "utils.swap_tensors(o, {v})", "np.add(o, {v})", "o.numpy()", "delattr(o, {attribute})",
    "o.index_put_(({v},), {v})", "o.squeeze_({v})", "o.t_()", "o.unsqueeze_({v})", *_COPIES,
)  # fmt: skip
NAMES = {
    "name": ("weight", "bias", "0", "no", "a.b", "", "running_mean"),
    "option": ("lr", "params", "momentum", "betas", "weight_decay", "eps", "maximize", "no", "nesterov", "foreach"),
    "loading": ("batch_size", "drop_last", "no"),
    "attribute": ("grad", "data", "requires_grad", "dtype", "shape", "T", "grad_fn", "device", "no", "names"),
}

SUBJECTS = {
    "Module": Subject(nn.Module, (
        "nn.Linear(3, 4)", "nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())", "nn.LSTM(3, 4)",
        "nn.LazyLinear(2)", "nn.Embedding(4, 3)", "nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))",
        "nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))", "nn.MultiheadAttention(4, 2)", "nn.Module()",
        "optim.swa_utils.AveragedModel(nn.Linear(3, 4))", "nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).half()"),
        _MODULE),
    "ModuleList": Subject(nn.ModuleList, ("nn.ModuleList([nn.Linear(3, 4), nn.ReLU()])", "nn.ModuleList()"),
    _CONTAINER),
    "Sequential": Subject(nn.Sequential, ("nn.Sequential(nn.Linear(3, 3), nn.ReLU())",), (*_CONTAINER, *_MODULE)),
    "ModuleDict": Subject(nn.ModuleDict, ("nn.ModuleDict({'a': nn.Linear(3, 4)})",), _CONTAINER),
    "ParameterList": Subject(nn.ParameterList, ("nn.ParameterList([parameter(2), parameter(3)])",), _CONTAINER),
    "ParameterDict": Subject(nn.ParameterDict, ("nn.ParameterDict({'a': parameter(2)})",), _CONTAINER),
    "Optimizer": Subject(optim.Optimizer, ("{optimizer}",), _OPTIMIZER, (
        "add_param_group", "load_state_dict", "register_load_state_dict_post_hook", "register_step_post_hook",
        "register_load_state_dict_pre_hook", "register_state_dict_post_hook", "register_state_dict_pre_hook",
        "register_step_pre_hook", "state_dict", "step", "zero_grad")),
    "LRScheduler": Subject(optim.lr_scheduler.LRScheduler, ("{scheduler}",), _SCHEDULE, (
        "get_last_lr", "load_state_dict", "state_dict", "step")),
    "GradScaler": Subject(ampkit.GradScaler, ("ampkit.GradScaler()", "ampkit.GradScaler(init_scale=2.0)",
                          "ampkit.GradScaler(enabled=False)"), _SCALER),
    "Generator": Subject(ampkit.Generator, ("ampkit.Generator()", "ampkit.Generator('cpu')"), (
        *_COPIES, "o.set_state(damaged(o.get_state(), {n}))", "o.set_state({v})", "o.manual_seed({v})", "o.seed()",
        "ampkit.randn(2, generator=o)", "ampkit.randperm(4, generator=o)"), (
        "get_state", "initial_seed", "manual_seed", "set_state")),
    "Policy": Subject(ampkit.Policy, ("ampkit.Policy('float16')",
    "ampkit.Policy('bfloat16', modules={'a': 'float32'})"),
                      ("ampkit.autocast(policy=o).__enter__().__exit__(None, None, None)", *_COPIES)),
    "DataLoader": Subject(utils.data.DataLoader, (
        "utils.data.DataLoader([1, 2, 3], batch_size=2)", "utils.data.DataLoader(range(5), shuffle=True)",
        "utils.data.DataLoader(utils.data.TensorDataset(t(4, 2), t(4)), batch_size=3, drop_last=True)",
        "utils.data.DataLoader([t(2), t(3)], batch_size=2)", "utils.data.DataLoader([{v}, {v}], batch_size=2)",
        "utils.data.DataLoader([(t(2), 1), (t(2), 2)], batch_size=2, collate_fn=len)"), _LOADER),
    "Distribution": Subject(distributions.Distribution, (
        "distributions.Normal(t(3), 1.0)", "distributions.Normal(t(2, 3, grad=True), t(3).exp())",
        "distributions.Categorical(logits=t(2, 3, grad=True))", "distributions.Categorical(probs=t(4).exp())",
        "distributions.Bernoulli(0.3)", "distributions.Bernoulli(logits=t(3))", "distributions.Exponential(t(2).exp())",
        "distributions.Laplace(0.0, t(2).exp())", "distributions.LogNormal(t(2), 1.0)",
        "distributions.Uniform(0, t(2).exp())",
        "distributions.OneHotCategorical(logits=t(2, 3))",
        "distributions.Independent(distributions.Normal(t(2, 3), 1.0), 1)"),
        _DISTRIBUTION),
    "Leaf": Subject(ampkit.Tensor, ("t(2, 3)", "t(2, 3, grad=True)", "parameter(2, 3)", "t(4, dtype='float16')",
                    "t(3, 3, layout='transposed')", "t(3, dtype='int64')", "t()", "t(0, 2)", "t(2, dtype='bool')"),
                    _TENSOR, ("__setitem__",)),
}  # fmt: skip


@cache
def methods(subject: str) -> tuple[str, ...]:
    """The methods of a subject that are called."""
    kind = SUBJECTS[subject].kind
    own = {n for n in dir(kind) if not n.startswith("_") and inspect.isfunction(getattr(kind, n))}
    return SUBJECTS[subject].names or tuple(sorted(own - _SHARED))


def targets() -> list[str]:
    """The paths of the methods, and one of the actions of each subject."""
    return [f"{name}.{method}" for name in SUBJECTS for method in (*methods(name), "actions")]


def sequence(rng: Random, path: str, call: Callable[[str], str], made: Callable[[str], str]) -> str:
    """The source of an object and of some calls of it. call: that of a method's arguments; made: a source's values."""
    name, _, method = path.partition(".")
    subject = SUBJECTS[name]
    first = [] if method == "actions" else [f"o.{method}({call(path)})"]
    others = [rng.choice(subject.actions) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
    steps = [*first, *others] if rng.random() < 0.5 else [*others, *first]
    texts = [one if one in first else made(one) for one in steps]
    actions = "".join(f", lambda o: {'operator.iadd(o, ' + t[5:] + ')' if t.startswith('o += ') else t}" for t in texts)
    return f"used({made(rng.choice(subject.made))}{actions})"


def used(item: Any, *actions: Callable[[Any], Any]) -> Any:
    """What the last action on `item` returns. A refused one is followed by the next; if all are, the last is raised."""
    found, refused = None, []
    for action in actions:
        try:
            found = action(item)
        except Exception as error:
            if verdict.kind(error) is not None:
                raise
            refused.append(error)
    if actions and len(refused) == len(actions):
        raise refused[-1]
    return found


def within(context: AbstractContextManager[Any], call: Callable[[], Any]) -> Any:
    """What `call` returns within the context, whose backward runs there too."""
    with context:
        found = call()
        if isinstance(found, ampkit.Tensor):
            differentiate(found)
    return found


def differentiate(out: ampkit.Tensor) -> bool:
    """Run a backward of the sum of `out` if it wants one, and is no view of billions of elements; whether it did."""
    wanted = out.requires_grad and out.is_floating_point() and out.numel() < 2**24
    if wanted:
        (out.float() * 1.0).sum().backward()
    return wanted


def stepped_by(scaler: Any, unscale: int = 0, clip: Any = None, gradient: Any = None) -> Any:
    """A step of an optimizer through the scaler, in one order of the calls or another."""
    made = values.optimizer()
    (weight,) = made.param_groups[0]["params"]
    scaler.scale((weight * 2).sum()).backward()
    if gradient is not None:
        weight.grad = gradient
    for _ in range(unscale):
        scaler.unscale_(made)
    if clip is not None:
        optim.clip_grad_norm_([weight], clip)
    scaler.step(made)
    scaler.update()
    return scaler.state_dict()


def damaged(state: Any, seed: int, hostile: Callable[[Random], Any]) -> Any:
    """`state` with one to three of its parts left out, renamed or replaced."""
    draw = Random(seed)
    for _ in range(draw.choice((1, 1, 2, 3))):
        state = _changed(state, draw, hostile)
    return state


def _changed(state: Any, draw: Random, hostile: Callable[[Random], Any]) -> Any:
    if not isinstance(state, (dict, list, tuple)) or not state or draw.random() < 0.1:
        return hostile(draw)
    if not isinstance(state, dict):
        items = list(state)
        place = draw.randrange(len(items))
        items[place : place + draw.choice((1, 1, 1, 2))] = [_changed(items[place], draw, hostile)] * draw.choice(
            (0, 1, 1, 1, 2)
        )
        return type(state)(items) if type(state) in (list, tuple) else items
    made, name = dict(state), draw.choice(list(state))
    value = made.pop(name)
    how = draw.random()
    if how < 0.7:
        made[name] = _changed(value, draw, hostile)
    elif how < 0.8:
        made[draw.choice(("no", 0, None, "1", (1, 2)))] = value
    elif how < 0.85:
        made |= {name: value, "more": value}
    return made
