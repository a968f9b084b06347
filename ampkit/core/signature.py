"""Signature: which parameters of an op are tensors, and the functions that bind a call's arguments.

Binding with `inspect` would take longer than a small op, so these functions are generated as source, as
`collections.namedtuple` does, when the op is first called: all at once would take a fourth of the time of the import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from typing import Any

from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError
from . import arguments, policy, torch_compat
from .dispatch import overrides
from .tensor import Tensor

_ARRAY = {"Array", "Array | None"}
_INDEX = {"Index", "Index | None"}


class Signature:
    """An op's signature, split into tensor inputs and other parameters.

    entry(run): a function with the reference's signature that binds the arguments and calls `run`. names: the tensor
    parameters. param_names: the others, in order. variadic: the name of the parameter that is a list of tensors, or
    None. typed: whether the op has a `dtype` parameter; its value is the last item of the plan's key, and the reference
    gets None in its place. accepted: all parameters of the public function, with the compatibility arguments of
    `torch_compat`.
    Raises DTypeError at definition unless some parameter is annotated `Array`, `Arrays` or `Index`, and `Arrays` is the
    only tensor parameter.
    """

    def __init__(self, name: str, reference: Callable[..., Any]):
        self.name = name
        self.accepted = torch_compat.with_compat_args(inspect.signature(reference).parameters)
        parameters = {p.name: p for p in self.accepted if torch_compat.is_passed_on(p)}
        kind = {k: p.annotation if isinstance(p.annotation, str) else "" for k, p in parameters.items()}
        tensors = [k for k in parameters if kind[k] in _ARRAY | _INDEX]
        lists = [k for k in parameters if kind[k] == "Arrays"]
        _need_tensors(name, tensors, lists, parameters)
        self.variadic = lists[0] if lists else None
        self.names = () if self.variadic else tuple(tensors)
        self.param_names = tuple(k for k in parameters if k not in tensors and k != self.variadic)
        self._kinds = [kind[k] in _ARRAY for k in tensors]
        self._optional = [kind[k].endswith("None") for k in tensors]
        self.typed = "dtype" in self.param_names
        self.parameters = parameters

    @cached_property
    def call(self) -> Callable[..., Any]:
        """call(f, inputs, params): call f with the reference's signature."""
        return self._call("")

    @cached_property
    def call_kernel(self) -> Callable[..., Any]:
        """call_kernel(f, inputs, params, dtype): the same with `dtype=`, which kernels take, unlike the reference."""
        return self._call(", dtype=dtype")

    def kinds(self, count: int) -> list[bool]:
        """Per input, whether its dtype counts in type promotion (`Array`) or not (`Index`)."""
        return [True] * count if self.variadic else self._kinds

    def may_miss(self, position: int) -> bool:
        """Whether the input at `position` may be None."""
        return self.variadic is None and self._optional[position]

    def name_of(self, position: int) -> str:
        """The name of the input at `position`; every item of a list has the list's name."""
        return self.variadic or self.names[position]

    def entry(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Generate the function that binds the reference's arguments and returns run(inputs, params, arrays, edges,
        versions, key).

        arrays, edges and versions have one entry per input; key holds the autocast policies in force, each input's
        dtype, array class and whether it requires grad, and an explicit dtype: all that the op's plan depends on.
        """
        scope = torch_compat.namespace(self.accepted)
        scope |= {"_region": policy.scope, "_Tensor": Tensor, "_non_tensor": number_and_type, "_never": NEVER}
        scope |= {"_bind_list": _bind_list, "_parse": dtypes.parse, "_run": run}
        scope |= {"_plain": overrides.PLAIN, "_numbers": overrides.NUMBERS, "_reads": overrides.reads}
        scope |= {"_Overridden": overrides.Overridden, "_taken_over": _taken_over}
        given = ", ".join(f"{p.name!r}: {p.name}" for p in self.accepted if torch_compat.is_passed_on(p))
        taken_over = f"    return _taken_over(_self, {{{given}}})"
        params = _tuple(["None" if k == "dtype" else k for k in self.param_names])
        explicit = "None if dtype is None else _parse(dtype), " if self.typed else ""
        lines = [f"def {self.name}(_self, {torch_compat.parameter_list(self.accepted)}):"]
        lines += [*torch_compat.prologue(self.name, self.accepted, "_self"), *self._checks(scope)]
        if self.variadic:
            lines += [
                "    try:",
                f"        _bound = _bind_list({self.variadic}, {params}, ({explicit}))",
                "    except _Overridden:",
                "        pass",
                "    else:",
                "        return _run(*_bound)",
                taken_over,
            ]
        else:
            # Every op call runs this, so the loop over the inputs is unrolled.
            count = range(len(self.names))
            lines += [
                "    try:",
                *(_INPUT.format(i=i, name=name) for i, name in enumerate(self.names)),
                "    except _Overridden:",
                "        pass",
                "    else:",
                "        _policies = _region().value",
                "        if _policies is not None:",
                "            _policies = _policies.plan_key",
                f"        _key = (_policies, {_join('_k{0}, _t{0}, _e{0} is not None', count)}{explicit})",
                f"        return _run({_tuple(self.names)}, {params}, [{_join('_a{}', count)}], "
                f"({_join('_e{}', count)}), ({_join('_v{}', count)}), _key)",
                taken_over,
            ]
        return _compile("\n".join(lines), self.name, scope)

    def _checks(self, scope: dict[str, Any]) -> list[str]:
        # The source lines that check and convert the non-tensor parameters; `scope` gets the objects they name.
        lines = []
        for name in self.param_names:
            wanted = arguments.of_parameter(self.parameters[name], {})
            if wanted is not None:
                scope |= {f"_kind_{name}": wanted, f"_types_{name}": wanted.types, "_checked": arguments.checked}
                given = f"{name} is not _default_{name} and " if f"_default_{name}" in scope else ""
                call = f"{name} = _checked({self.name!r}, {name!r}, _kind_{name}, {name})"
                lines.append(f"    if {given}type({name}) not in _types_{name}: {call}")
            if self.parameters[name].annotation == "Bound":
                scope |= {"_LOW": dtypes.LOW, "_rounded": dtypes.rounded}
                first = self.names[0]
                low = f"isinstance({first}, _Tensor) and {first}._array.dtype in _LOW"
                lines.append(f"    if {low}: {name} = _rounded({name}, {first}._array.dtype)")
        return lines

    def _call(self, last: str) -> Callable[..., Any]:
        # The function that calls f from the inputs `a` and the parameters `p`; `last` is a further argument's source.
        sources = {k: f"a[{i}]" for i, k in enumerate(self.names)}
        sources |= {k: f"p[{i}]" for i, k in enumerate(self.param_names)}
        if self.variadic:
            sources[self.variadic] = "list(a)"
        if last and "dtype" in self.parameters:
            sources["dtype"], last = "dtype", ""
        first = next((i for i, p in enumerate(self.accepted) if not torch_compat.is_passed_on(p)), len(self.accepted))
        keyword = {p.name for i, p in enumerate(self.accepted) if i > first or p.kind is p.KEYWORD_ONLY}
        row = ", ".join(f"{k}={sources[k]}" if k in keyword else sources[k] for k in self.parameters)
        return _caller(row + last)


def _need_tensors(name: str, tensors: list[str], lists: list[str], parameters: Any) -> None:
    where = f"@op {name}"
    if not tensors and not lists:
        cure = "annotate its tensors: def f(input: Array, ...), under `from __future__ import annotations`"
        raise DTypeError(where, "a parameter marked Array, Arrays or Index", "none", cure)
    if len(lists) > 1 or (lists and tensors):
        cure = "pass all of its tensors in the list"
        raise DTypeError(where, "one `Arrays` and no other tensor", ", ".join([*lists, *tensors]), cure)
    if stars := [str(p).partition(":")[0] for p in parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
        raise DTypeError(where, "parameters with names", ", ".join(stars), "mark a list of tensors `Arrays`")


NEVER = (0,)  # the version of an input that is no Tensor, which is never modified in place

# The source that reads one input: its array _a, edge _e and version _v, and for the key its dtype _k (in a tuple if it
# is 0-d, see plan.Entry) and its array class _t.
_INPUT = """\
        _c = type({name})
        if _c in _plain or (_c not in _numbers and _reads({name})):
            _a{i}, _e{i}, _v{i} = {name}._array, {name}._edge, {name}._version_counter
            if _e{i} is not None and _e{i}[0] is None:  # `edge` of a leaf, written out
                _e{i} = {name}, 0, _e{i}[2], _e{i}[3]
            _k{i}, _t{i} = _a{i}.dtype if _a{i}.ndim else (_a{i}.dtype,), type(_a{i})
        elif _c is float:
            _a{i}, _k{i}, _e{i}, _t{i}, _v{i} = {name}, float, None, None, _never
        else:
            _e{i} = _t{i} = None
            _v{i} = _never
            _a{i}, _k{i} = _non_tensor({name})"""


def _join(pattern: str, count: range) -> str:
    return "".join(pattern.format(i) + ", " for i in count)


def number_and_type(item: Any) -> tuple[Any, Any]:
    """The value and the type of an input that is no Tensor: a number, None, or a mistake that the plan reports.

    NumPy's scalars and 0-d arrays become Python numbers, which do not follow NumPy's type promotion.
    """
    item = arguments.without_numpy(item)
    if type(item) is int and not -(2**63) <= item < 2**63:
        raise ArgumentError("operand", "a number within 64 bits", arguments.shown(item))
    return item, None if item is None else type(item)


def _bind_list(inputs: Any, params: tuple[Any, ...], dtype: tuple[Any, ...]) -> tuple[Any, ...]:
    # The arguments of `run`, as in `entry`, for an op that takes a list of tensors.
    if not isinstance(inputs, (list, tuple)) and not hasattr(inputs, "__iter__"):
        raise DTypeError("op", "a list of Tensors", f"a {type(inputs).__name__}")
    if type(inputs) not in (list, tuple) and overrides.overrides(inputs):
        raise overrides.Overridden
    inputs, region = tuple(inputs), policy.region()
    arrays: list[Any] = []
    key: list[Any] = [None if region is None else region.plan_key]
    for item in inputs:
        if type(item) in overrides.PLAIN or (type(item) not in overrides.NUMBERS and overrides.reads(item)):
            array = item._array
            key += (array.dtype if array.ndim else (array.dtype,), array.__class__, item._edge is not None)
        else:
            array, kind = number_and_type(item)
            key += (kind, None, False)
        arrays.append(array)
    edges = tuple([i._tape_edge if isinstance(i, Tensor) else None for i in inputs])
    versions = tuple([i._version_counter if isinstance(i, Tensor) else NEVER for i in inputs])
    return inputs, params, arrays, edges, versions, (*key, *dtype)


def _taken_over(op: Any, given: dict[str, Any]) -> Any:
    """A call of `op` by the classes of its arguments: the tensors by position, of the others what is no default."""
    accepted = {p.name: p for p in op.signature.accepted}
    last = max(i for i, name in enumerate(given) if name in op.signature.names or name == op.signature.variadic)
    args = tuple([value for i, value in enumerate(given.values()) if i <= last])
    others = list(given.items())[last + 1 :]
    return overrides.call(op, args, {name: value for name, value in others if value is not accepted[name].default})


def _tuple(names: Iterable[str]) -> str:
    return "(" + "".join(f"{n}, " for n in names) + ")"


@cache
def _caller(arguments: str) -> Callable[..., Any]:
    # Cached, because most ops share theirs.
    return _compile(f"def call(f, a, p, dtype=None): return f({arguments})", "call", {})


def _compile(source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    scope = dict(names)
    exec(source, scope)
    return scope[name]
