"""Layouts: tables that say which tensor of another library's model each name here is.

A layout is a table of rules, one line each: (the name there, the name here, what is done to the tensor). In a name
there `#` stands for a number and `*` for any text; in the name here they stand for the same, in their order.

    Layout(
        "timm's VisionTransformer", "VisionTransformer", signs=("blocks.#.attn.qkv.weight",),
        rules=(
            ("blocks.#.mlp.fc1.*", "encoder.layers.encoder_layer_#.mlp.0.*"),
            ("blocks.#.attn.qkv.weight", "encoder.layers.encoder_layer_#.self_attention.in_proj_weight"),
            ("h.#.mlp.c_fc.weight", "transformer.h.#.mlp.c_fc.weight", transposed),
            ("layer.#.query.weight", "layers.#.in_proj_weight", Part(0, 3)),
            ("attn_mask", None),
        ),
    )

The first rule that fits a name decides; names that none fits are unexpected. Shapes decide nothing: a square weight
would fit both ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from ... import ops
from ...base.errors import ShapeError
from ...core.tensor import Tensor

State = Mapping[str, Any]


def transposed(weight: Any) -> Any:
    """The weight [in, out] of Hugging Face's Conv1D as Linear keeps it, [out, in]."""
    return weight.T


class Part(NamedTuple):
    """The tensor is one of several that are concatenated along the first axis: number `number` of `of`, from 0."""

    number: int
    of: int


Rule = tuple[str, str | None] | tuple[str, str | None, Callable[[Any], Any] | Part]
SAME: tuple[Rule, ...] = (("*", "*"),)


class Setting(NamedTuple):
    """A number of the architecture that no shape shows, which config.json must therefore confirm.

    key, default: in config.json. accepted: the values of that key that the model computes with.
    """

    key: str
    default: Any
    accepted: Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Layout:
    """How a library names the tensors of an architecture.

    name: in errors. model: the name of the class here. signs: patterns of names; a file in this layout has a name for
    each. rules: see above; names there are written without `prefix`, which may stand before each of them. head:
    patterns of names here that keep their new values where the file has none, or some of another shape. optional:
    patterns of names here that the file may have and the model not. settings: what config.json must say. size: how many
    blocks a model with these names here has, in words. arguments: those of the model's constructor, keys of a recipe's
    [model], that the shapes of tensors here show, None where one does not. heads: the one that no shape shows. holds:
    what must be true of the tensors besides.
    """

    name: str
    model: str
    signs: tuple[str, ...]
    rules: tuple[Rule, ...] = SAME
    prefix: str = ""
    head: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    size: Callable[[Iterable[str]], str] = lambda names: ""
    arguments: Mapping[str, Callable[[State], Any]] = field(default_factory=dict)
    heads: str = ""
    holds: Callable[[State], bool] = lambda state: True

    def describes(self, state: State) -> bool:
        """Whether the tensors of a file are named in this layout."""
        names = [name.removeprefix(self.prefix) for name in state]
        return all(any(fits(sign, name) for name in names) for sign in self.signs) and self.holds(state)

    def convert(self, state: State) -> Converted:
        """The tensors of a file by their names here. Raises ShapeError for parts that cannot be concatenated."""
        found, parts = Converted({}, {}, [], []), dict[str, dict[int, tuple[str, Any]]]()
        counts: dict[str, int] = {}
        for there, value in state.items():
            rule = self._rule(there.removeprefix(self.prefix))
            if rule is None:
                found.unexpected.append(there)
            elif rule[1] is None:
                found.left_out.append(there)
            else:
                here, how = rule[1], rule[2]
                if isinstance(how, Part):
                    parts.setdefault(here, {})[how.number], counts[here] = (there, value), how.of
                else:
                    found.add(here, there, value if how is None else how(value))
        for here, each in parts.items():
            if len(each) < counts[here]:
                found.unexpected.extend(there for there, _ in each.values())
            else:
                names, values = zip(*(each[i] for i in range(counts[here])), strict=True)
                found.add(here, ", ".join(names), _concatenated(names, values))
        return found

    def _rule(self, name: str) -> tuple[str, str | None, Any] | None:
        for there, here, *how in self.rules:
            if match := _compiled(there).fullmatch(name):
                return name, None if here is None else _filled(here, match.groups()), how[0] if how else None
        return None


@dataclass
class Converted:
    """The tensors of a file by their names here.

    state: name here -> tensor. origins: name here -> name in the file. left_out: names in the file that the layout has
    no use for. unexpected: names that no rule fits.
    """

    state: dict[str, Any]
    origins: dict[str, str]
    left_out: list[str]
    unexpected: list[str]

    def add(self, here: str, there: str, value: Any) -> None:
        """Note a tensor."""
        self.state[here], self.origins[here] = value, there


def fits(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern with `#` for a number and `*` for any text."""
    return _compiled(pattern).fullmatch(name) is not None


def fits_any(patterns: Iterable[str], name: str) -> bool:
    """Whether a name fits one of the patterns."""
    return any(fits(pattern, name) for pattern in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\#", r"(\d+)").replace(r"\*", "(.*)"), re.DOTALL)


def _filled(here: str, groups: tuple[str, ...]) -> str:
    taken = iter(groups)
    return re.sub(r"[#*]", lambda match: next(taken), here)


def _concatenated(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) > 1:
        got = ", ".join(map(str, sorted(map(list, shapes))))
        raise ShapeError("load_weights", f"tensors of one shape as {', '.join(names)}", got)
    return ops.cat([value if isinstance(value, Tensor) else Tensor(value) for value in values])


WRAPPERS = ("module.", "_orig_mod.")  # of DataParallel and torch.compile


def unwrapped(state: State) -> State:
    """The state without the prefixes that wrappers put before every name."""
    while state and (prefix := next((p for p in WRAPPERS if all(n.startswith(p) for n in state)), None)):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def matching(layouts: Iterable[Layout], state: State) -> Iterator[Layout]:
    """The layouts in which the tensors of a file may be named."""
    return (layout for layout in layouts if layout.describes(state))
