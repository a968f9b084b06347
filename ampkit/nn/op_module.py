"""Modules that call one op: declared as the list of their constructor's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from inspect import signature
from typing import Any, ClassVar, Self, TypeAlias, cast, dataclass_transform

from ..core.tensor import Tensor
from .module import Module

Size: TypeAlias = int | Sequence[int]  # one number for all spatial axes, or one per axis


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class OpModule(Module):
    """A module whose constructor takes its annotated class attributes, as a dataclass's does, and calls one op.

    `class LeakyReLU(UnaryOpModule, op=ops.leaky_relu)` with the attributes `negative_slope: float = 0.01` and
    `inplace: bool = False` has the constructor `LeakyReLU(negative_slope=0.01, inplace=False)` and passes both to the
    op by name. `__post_init__` validates. A subclass that names no op inherits the constructor of its base.
    """

    _op: ClassVar[Callable[..., Any]]
    _passed: ClassVar[tuple[str, ...]] = ()  # the attributes that the op has a parameter for

    def __init_subclass__(cls, op: Callable[..., Any] | None = None) -> None:
        if op is not None:
            dataclass(eq=False, repr=False, match_args=False)(cls)
            for name in signature(cls.__init__).parameters.keys() & vars(cls).keys():
                delattr(cls, name)  # a default, which would hide a buffer of that name
            attributes = {f.name for f in fields(cast(Any, cls))} | {"training"}
            cls._op = staticmethod(op)
            cls._passed = tuple([name for name in signature(op).parameters if name in attributes])
        super().__init_subclass__()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        Module.__init__(made)  # before the dataclass assigns attributes
        return made

    def call_op(self, *inputs: Any) -> Any:
        """Return the op of `inputs`, with the attributes that it has parameters for passed by name."""
        return self._op(*inputs, **{name: getattr(self, name) for name in self._passed})

    def extra_repr(self) -> str:
        """`name=value` of each attribute; `inplace` if it is True."""
        shown = [f.name for f in fields(cast(Any, self)) if f.repr and (f.name != "inplace" or self.inplace)]
        return ", ".join([f"{name}={getattr(self, name)!r}" for name in shown])


class UnaryOpModule(OpModule):
    """An OpModule of one input, which the op's other parameters follow in the order of its signature."""

    def forward(self, input: Tensor) -> Tensor:
        arguments = [input]
        for name in self._passed:  # by position, which costs half as much as by name
            arguments.append(getattr(self, name))
        return self._op(*arguments)
