"""`grad_fn._saved_self` and its like: what the node of an op saved, by PyTorch's names, to draw graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ampkit import backends
from ampkit.base.dtypes import float32
from ampkit.base.errors import StateError

from ..tensor import Tensor
from .node import Node, alias, named_node_type
from .saved import NOTHING
from .saved_hooks import pack_items, unpack, versions_of

_OTHER_NAMES = {"input": "self", "out": "result"}


class RawSaved:
    """An item that a node saved, as `grad_fn._raw_saved_self`: hooks can be given to it alone."""

    def __init__(self, node: Node, name: str):
        self._node, self._name = node, name

    def register_hooks(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Any]) -> None:
        """Keep `pack_hook(tensor)` in its place, as within `saved_tensors_hooks`. Raises StateError a second time."""
        _need_unfreed(self._node)
        if self._name not in {**vars(self._node.saved or NOTHING), **(self._node.packed or {})}:
            raise StateError("register_hooks", "a tensor that was saved", "one that no gradient needs")
        if self._name in (self._node.packed or {}):
            raise StateError("register_hooks", "a saved tensor without hooks", "one that has them")
        pack_items(self._node, [self._name], (pack_hook, unpack_hook))


@cache
def node_type_of(op: Any) -> type[Node]:
    """The type of the nodes of an op, with PyTorch's form of name: of `log_softmax`, LogSoftmaxBackward0.

    It has an attribute `_saved_x` and `_raw_saved_x` for all that the op may save.
    """
    words = "".join([word[:1].upper() + word[1:] for word in op.name.split("_")])
    made: Any = named_node_type(f"{words}Backward0")
    signature = getattr(op, "signature", None)
    for name in () if signature is None else (*signature.names, signature.variadic or "out", "out"):
        shown = _OTHER_NAMES.get(name, name)
        setattr(made, f"_saved_{shown}", property(partial(_read, name=name)))
        setattr(made, f"_raw_saved_{shown}", property(partial(RawSaved, name=name)))
    return made


def _read(node: Node, name: str) -> Any:
    _need_unfreed(node)
    item = (node.packed or {}).get(name, vars(node.saved or NOTHING).get(name))
    edges = [edge for i, edge in enumerate(node.edges) if node.op.signature.name_of(i) == name]
    if name == "out":
        edges = [(node, 0, (), float32)]  # its shape and dtype are those of the item
    versions = versions_of(node, name)
    if type(item) is tuple:
        return tuple([_tensor(one, *about) for one, *about in zip(item, edges, versions, strict=False)])
    return _tensor(item, edges[0] if edges else None, versions[0])


def _tensor(item: Any, edge: Any, version: Any) -> Any:
    array = unpack(item)
    if not backends.is_array(array):
        return array
    if edge is not None and isinstance(edge[0], Tensor) and edge[0].array is array:
        return edge[0]
    made = Tensor(array)
    if edge is not None:
        made = alias(array, edge) if isinstance(edge[0], Tensor) else made
        made._tape_edge = made._tape_edge or (*edge[:2], array.shape, array.dtype)
    if version is not None and array is item:
        made._version_counter = version
    return made


def _need_unfreed(node: Node) -> None:
    if node.saved is None:
        cure = "Specify retain_graph=True in the first backward"
        raise StateError("saved tensor", "a graph that was not used before", "one that is already freed", cure)
