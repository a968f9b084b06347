"""What a policy can decide for a model: the modules whose products, and the ops that, can run in 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from ...base import observe
from ...base.dtypes import DType
from ...base.errors import StateError
from ...core import module_path, policy
from ...core.policy import Cast, Policy, autocast

_MOST_MODULES = 32  # above, the modules of repeated blocks are one choice: each choice costs a forward and backward


class Choice(NamedTuple):
    """Something that runs either in 16 bits or in float32.

    name: the path of a module, in which `*` stands for the numbers of repeated blocks, or the name of an op. is_op:
    which of the two. low_by_default: whether `Policy(dtype)` runs it in 16 bits. ops: those that run so.
    """

    name: str
    is_op: bool
    low_by_default: bool
    ops: tuple[str, ...]


class Choices:
    """The choices that a model leaves to a policy, as its forward shows them.

    run: calls the model, and computes its loss, once; under `Policy(dtype)`. The products of a module are a choice by
    the path of that module; those outside of modules, and in the model's own forward, which no path names, are one by
    op. So are the ops that compute in float32, such as softmax and layer_norm, with more than one value to store.
    What runs in a region of its own, such as autocast(enabled=False), is left out. Raises StateError if that is all.
    """

    def __init__(self, model: Any, run: Callable[[], Any], dtype: DType):
        self.model, self.dtype = model, dtype
        products: dict[str, set[str]] = {}
        others: dict[str, bool] = {}
        ran: set[bool] = set()  # whether under the policy
        region = autocast(policy=Policy(dtype))
        paths = {path for path, _ in model.named_modules() if path}

        def seen(event: observe.Event) -> None:
            if event.phase != observe.FORWARD or event.op is None:
                return
            ran.add(_is_in_force(region))
            if not _is_in_force(region):
                return
            path = _path_in(model)
            if event.op.cast is Cast.LOW and path is not None and path in paths:
                products.setdefault(path, set()).add(event.op.name)
            elif event.op.cast in (Cast.LOW, Cast.FP32) and getattr(event.output, "size", 0) > 1:
                others[event.op.name] = event.op.cast is Cast.LOW

        with module_path.follow(), observe.observing(seen), region:
            run()
        if ran == {False}:
            cure = "leave autocast to the caller: the policies that are compared are entered around the loss"
            raise StateError("debug.tune", "a loss that enters no autocast region", "one that does", cure)
        self._grouped = len(products) > _MOST_MODULES
        groups: dict[str, set[str]] = {}
        for path, ops in products.items():
            groups.setdefault(self._name(path), set()).update(ops)
        self.all = (
            *(Choice(name, False, True, tuple(sorted(ops))) for name, ops in groups.items()),
            *(Choice(name, True, low, (name,)) for name, low in sorted(others.items())),
        )
        self._by_name = {(choice.name, choice.is_op): choice for choice in self.all}

    def _name(self, path: str) -> str:
        return module_path.starred(path) if self._grouped else path

    def of(self, op: Any, path: str | None) -> Choice | None:
        """The choice that decides the dtype of `op` in the module `path` of the model; None for neither."""
        found = self._by_name.get((op.name, True))
        if op.cast is Cast.LOW and path:
            return self._by_name.get((self._name(path), False)) or found
        return found

    def policy(self, low: Iterable[Choice]) -> Policy | None:
        """The policy that runs the choices `low` in 16 bits and the others in float32; None for no choice."""
        return policy_of(self.all, low, self.dtype)

    def default(self) -> list[Choice]:
        """The choices that `Policy(dtype)` runs in 16 bits."""
        return [choice for choice in self.all if choice.low_by_default]

    def alone(self) -> list[tuple[Policy | None, Policy]]:
        """For each choice a policy that runs it in 16 bits, and the policy without it.

        A product alone, beside float32. An op that takes 16 bits only if told to, such as softmax, beside the default
        policy: in a module that runs in float32 it would too.
        """
        base = self.policy(self.default())
        pairs = [
            (None, self.policy([choice])) if choice.low_by_default else (base, self.policy([*self.default(), choice]))
            for choice in self.all
        ]
        return [(reference, policy) for reference, policy in pairs if policy is not None]

    def path(self) -> str | None:
        """The path of the running module in the model, None outside of it."""
        return _path_in(self.model)


def policy_of(choices: Iterable[Choice], low: Iterable[Choice], dtype: DType) -> Policy | None:
    """The policy that runs `low`, a part of `choices`, in `dtype` and the others in float32; None for no choice."""
    low = set(low)
    modules = {c.name: dtype.name if c in low else "float32" for c in choices if not c.is_op}
    overrides = {
        c.name: "low" if c in low else "float32" for c in choices if c.is_op and (c in low) != c.low_by_default
    }
    return Policy(dtype, modules=dict(module_entries(modules, dtype.name)), **overrides) if low else None


def _path_in(model: Any) -> str | None:
    call = module_path.current()
    return call.path if call is not None and call.model is model else None


def _is_in_force(owner: autocast) -> bool:
    entry = policy.region()
    return entry is not None and entry.owner is owner


def module_entries(dtypes: Mapping[str, str], inherited: str, prefix: str = "") -> list[tuple[str, str]]:
    """`modules` of a policy that gives the modules `dtypes`: nothing below a module whose modules all agree.

    inherited: the dtype of what has no entry. prefix: the path above all of `dtypes`.
    """
    if prefix and len(kinds := set(dtypes.values())) == 1:
        dtype = kinds.pop()
        return [] if dtype == inherited else [(prefix, dtype)]
    entries = []
    own = dtypes.get(prefix, inherited)
    if own != inherited:
        entries.append((prefix, own))
    depth = prefix.count(".") + 1 if prefix else 0
    below = sorted((name for name in dtypes if name != prefix), key=lambda name: name.split(".")[depth])
    for part, names in groupby(below, key=lambda name: name.split(".")[depth]):
        path = f"{prefix}.{part}" if prefix else part
        entries += module_entries({name: dtypes[name] for name in names}, own, path)
    return entries
