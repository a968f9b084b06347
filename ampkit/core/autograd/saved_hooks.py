"""Hooks on what the tape saves: a script packs each saved tensor when it is saved, and unpacks it in backward.

Chen et al. 2016 (arXiv:1604.06174) trade memory for computing; packing trades it for transfers or precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from ampkit import backends
from ampkit.base.dtypes import Array, DType
from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.base.scoped import Scope, ScopedVariable

from ..tensor import Tensor
from .node import Node
from .saved import Saved

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Any]]

# The open blocks of all threads. While there are none, recording a node costs one look at this list.
packing: list[object] = []
_stack: ScopedVariable[Hooks | None] = ScopedVariable("ampkit.saved_tensors_hooks", None)
_refusal: ScopedVariable[str | None] = ScopedVariable("ampkit.disable_saved_tensors_hooks", None)


class saved_tensors_hooks:
    """Within the block, keep `pack_hook(tensor)` in place of each tensor that the tape saves.

    Backward calls `unpack_hook` on it, and goes on with the Tensor that it returns, which has the shape and dtype of
    the one that was saved. The tensor that pack_hook gets requires no grad, shares the memory of the saved one, and
    must not be changed. Once it is packed the saved tensor may be changed in place, unless the hook kept its memory:
    then backward raises. Of nested blocks the inner one counts. Holds for the thread that opens it.
    Raises StateError within `disable_saved_tensors_hooks`, DTypeError for something that cannot be called.
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Any]):
        for name, hook in (("pack_hook", pack_hook), ("unpack_hook", unpack_hook)):
            if not callable(hook):
                raise DTypeError("saved_tensors_hooks", f"{name} that can be called", f"a {type(hook).__name__}")
        self._pack, self._unpack = pack_hook, unpack_hook

    def _hooks(self) -> Hooks:
        return self._pack, self._unpack

    def __enter__(self) -> Self:
        if (message := _refusal.scope().value) is not None:
            raise StateError(message)
        scope = _stack.enter(self._hooks())
        self.__dict__.setdefault("_scopes", []).append(scope)
        packing.append(scope)
        return self

    def __exit__(self, *error: object) -> None:
        open_here: list[Scope[Any]] = self.__dict__.get("_scopes", [])
        scope = _stack.innermost(open_here, error)
        if scope is not None:
            open_here.remove(scope)
            packing.remove(scope)
            _stack.leave_in_any_order(scope)


def close_since(before: Scope[Any]) -> None:
    """Close the blocks that were opened since `innermost_block` gave `before`, by hooks in a backward pass."""
    if not _stack.is_open(before):  # a hook has closed what was open when the pass began
        return
    for scope in _stack.since(before):
        packing.remove(scope)
        scope.end(before)
    _stack.put(before)


innermost_block = _stack.scope


def in_force() -> Hooks | None:
    """The hooks of the innermost block; None outside of blocks."""
    return innermost_block().value


class disable_saved_tensors_hooks:
    """Within the block, `saved_tensors_hooks` raises StateError with this message; also for blocks that are open."""

    def __init__(self, error_message: str):
        self._message = error_message

    def __enter__(self) -> Self:
        if in_force() is not None:
            raise StateError(self._message)
        self._scope = _refusal.enter(self._message)
        return self

    def __exit__(self, *error: object) -> None:
        _refusal.leave(self._scope)


class Packed(NamedTuple):
    """A saved array in the form that a hook gave it."""

    value: Any
    unpack_hook: Callable[[Any], Any]
    shape: tuple[int, ...]
    dtype: DType
    version: Sequence[int]  # of the memory, if the hook kept it, and its value then
    packed_at: int


def pack(array: Array, version: Any = None, hooks: Hooks | None = None) -> Any:
    """`array` as the hooks in force keep it: Packed, or itself where there are none.

    version: of its memory. Raises StateError for a pack_hook that changes it in place.
    """
    found = in_force() if hooks is None else hooks
    if found is None:
        return array
    given = Tensor(array)
    given._version_counter = given._version_counter if version is None else version
    before = given._version_counter[0]
    value = found[0](given)
    if given._version_counter[0] != before or given.array is not array:
        needs = "a pack_hook that leaves its input as it is"
        raise StateError("saved_tensors_hooks", needs, "one that is modifying its input in place", "change a .clone()")
    kept = isinstance(value, Tensor) and value._version_counter is given._version_counter
    return Packed(value, found[1], array.shape, array.dtype, given._version_counter if kept else (before,), before)


def unpack(item: Any) -> Any:
    """The array of a Packed; anything else as it is.

    Raises DTypeError or ShapeError for what an unpack_hook returned, StateError for kept memory that has changed.
    """
    if type(item) is not Packed:
        return item
    if item.version[0] != item.packed_at:
        got = "memory that a pack_hook kept, changed in place since"
        raise StateError("backward", "the values that the forward saved", got, "pack a .clone()")
    found = item.unpack_hook(item.value)
    if not isinstance(found, Tensor):
        raise DTypeError("saved_tensors_hooks", "a Tensor from unpack_hook", f"a {type(found).__name__}")
    if found.array.shape != item.shape or found.array.dtype != item.dtype:
        needs = f"a Tensor of shape {tuple(item.shape)} and dtype {item.dtype.name} from unpack_hook"
        raise ShapeError("saved_tensors_hooks", needs, f"{tuple(found.shape)}, {found.dtype.name}")
    return found.array


def pack_saved(node: Node) -> None:
    """Let the hooks in force, if there are any, pack the arrays that the node of an op saved."""
    if in_force() is not None:
        kept = {name: value if type(value) is tuple else (value,) for name, value in vars(node.saved).items()}
        pack_items(node, [name for name, value in kept.items() if value and all(map(backends.is_array, value))])


def pack_items(node: Node, names: Sequence[str], hooks: Hooks | None = None) -> None:
    """Pack these items of what the node of an op saved, by the hooks in force or by `hooks`."""
    items, packed = dict(vars(node.saved)), dict(node.packed or {})
    for name in names:
        value, versions = items.pop(name), versions_of(node, name)
        if type(value) is tuple:
            packed[name] = tuple([pack(v, w, hooks) for v, w in zip(value, versions, strict=True)])
        else:
            packed[name] = pack(value, versions[0], hooks)
    if packed:
        node.saved, node.packed = Saved(**items), packed


def versions_of(node: Node, name: str) -> list[Any]:
    """The versions of the inputs of this name, or of the output; [None] for what is neither."""
    found: list[Any] = [v for i, v in enumerate(node.versions) if node.op.signature.name_of(i) == name]
    return found or [node.result if name == "out" else None]


def with_unpacked(node: Node) -> Any:
    """What the node saved, with the packed items unpacked."""
    more: dict[str, Any] = {}
    for name, item in (node.packed or {}).items():
        more[name] = tuple(map(unpack, item)) if type(item) is tuple else unpack(item)
    return Saved(**{**vars(node.saved), **more})


def without_packed(node: Node) -> Any:
    """What the node saved, but for the packed items."""
    return Saved(**{name: item for name, item in vars(node.saved).items() if name not in (node.packed or {})})
