"""The ops that both libraries have: PyTorch's OpInfos and ampkit's callables of the same names."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db

import ampkit

# Where the numbers are random or left as the memory has them: dtypes and shapes are compared, values are not.
RANDOM = {
    *"bernoulli cauchy exponential geometric log_normal normal uniform multinomial rand rand_like randn".split(),
    *"randn_like randint randint_like randperm empty empty_like new_empty svd_lowrank pca_lowrank".split(),
    *[
        f"nn.functional.{name}"
        for name in "dropout dropout2d dropout3d alpha_dropout feature_alpha_dropout rrelu fractional_max_pool2d "
        "fractional_max_pool3d".split()
    ],
}

# OpInfo calls these with their arguments in an order of its own.
ADAPTED: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "einsum": lambda f: lambda tensors, equation: f(equation, tensors),
    "polygamma": lambda f: lambda x, n, **kw: f(n, x, **kw),
    "special.polygamma": lambda f: lambda x, n, **kw: f(n, x, **kw),
    "where": lambda f: lambda x, condition, other, **kw: f(condition, x, other, **kw),
    "nn.functional.embedding": lambda f: lambda weight, index, **kw: f(index, weight, **kw),
    "nn.functional.embedding_bag": lambda f: lambda weight, index, **kw: f(index, weight, **kw),
    "linalg.lstsq.grad_oriented": lambda f: lambda a, b, **kw: f(a, b, **kw)[:2],
    "svd_lowrank": lambda f: lambda a, b, **kw: f(a @ b.mT, **kw),
    "pca_lowrank": lambda f: lambda a, b, **kw: f(a @ b.mT, **kw),
    "linalg.pinv.singular": lambda f: lambda a, b: f(a @ b.mT),
    "normal.in_place": lambda f: lambda x, *args, **kw: x.normal_(*args, **kw),
    "zero_": lambda f: lambda x: f(x.clone()),
    "normal.number_mean": lambda f: lambda std, mean, *args, **kw: f(mean, std, *args, **kw),
}
_PROPERTIES = {"T", "H", "mT", "mH"}
_ADDRESSES = {"nn.functional": ampkit.ops, "linalg": ampkit.linalg, "special": ampkit.special, "": ampkit}


class Variant(NamedTuple):
    """One way to call an op: its name in a report, PyTorch's and ampkit's callables, and whether it is in-place."""

    title: str
    theirs: Callable[..., Any]
    ours: Callable[..., Any]
    inplace: bool = False


def infos() -> dict[str, list[Any]]:
    """The OpInfos of ops that ampkit has, by name."""
    found: dict[str, list[Any]] = {}
    for info in op_db:
        if callable_of(info.name) is not None:
            found.setdefault(info.name, []).append(info)
    return found


def callable_of(name: str, variant: str = "") -> Callable[..., Any] | None:
    """ampkit's function of the same path as PyTorch's, else the method of that name; None if there is neither."""
    address, _, plain = name.rpartition(".")
    if address not in _ADDRESSES:
        return None
    found = getattr(_ADDRESSES[address], plain, None) if _is_function(name) else None
    if found is None and not address:
        found = _method(plain) or (_method(plain + "_") if name in RANDOM else None)
    adapt = ADAPTED.get(f"{name}.{variant}") or ADAPTED.get(name)
    return adapt(found) if found is not None and adapt is not None else found


def _is_function(name: str) -> bool:
    found = reduce(lambda space, part: getattr(space, part, None), name.split("."), torch)
    return callable(found) and not isinstance(found, (torch.dtype, type))


def _method(name: str) -> Callable[..., Any] | None:
    if not hasattr(ampkit.Tensor, name):
        return None
    if name in _PROPERTIES:
        return lambda x: getattr(x, name)
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def variants(info: Any) -> list[Variant]:
    """Every way to call an op that both libraries have: function, method, in-place method, operator, aliases."""
    function = callable_of(info.name, info.variant_test_name)
    assert function is not None
    found = [Variant("function", info.get_op(), function)]
    if info.name in ADAPTED or info.variant_test_name == "singular":
        return found
    ways = [
        ("method", info.get_method(), False),
        ("inplace", info.get_inplace(), True),
        ("operator", info.get_operator(), False),
        ("inplace operator", info.get_inplace_operator(), True),
    ]
    for title, theirs, inplace in ways:
        ours = _of_variant(title, theirs)
        if ours is not None:
            found.append(Variant(title, theirs, ours, inplace))
    return found + [v for alias in info.aliases for v in _of_alias(alias)]


def _of_variant(title: str, theirs: Any) -> Callable[..., Any] | None:
    name = getattr(theirs, "__name__", "")
    if theirs is None or name == "<lambda>":
        return None
    return theirs if "operator" in title else _method(name)


def _of_alias(alias: Any) -> list[Variant]:
    function = callable_of(alias.name)
    found = [] if function is None else [Variant(f"as {alias.name}", alias.op, function)]
    inplace = alias.inplace_variant
    method = None if inplace is None else _method(inplace.__name__)
    return found if method is None else [*found, Variant(f"as {inplace.__name__}", inplace, method, True)]
