"""`torch.utils._pytree`: nested lists, tuples and dicts as a list of leaves and a structure."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = [
    "SUPPORTED_NODES", "LeafSpec", "NodeDef", "PyTree", "TreeSpec", "_dict_flatten_with_keys", "_get_node_type",
    "_register_pytree_node", "register_pytree_node", "tree_all", "tree_any", "tree_flatten", "tree_leaves", "tree_map",
    "tree_map_", "tree_map_only", "tree_structure", "tree_unflatten",
]  # fmt: skip


class TreeSpec(NamedTuple):
    """A container's type, what it needs beside its children, and the structures of these; type None: a leaf."""

    type: Any
    context: Any
    children_specs: list[TreeSpec]

    @property
    def num_leaves(self) -> int:
        """The number of leaves below."""
        return sum(child.num_leaves for child in self.children_specs) if self.type is not None else 1


class LeafSpec(TreeSpec):
    """The structure of a leaf."""

    __slots__ = ()

    def __new__(cls) -> LeafSpec:
        return super().__new__(cls, None, None, [])


PyTree = Any
Flatten = Callable[[Any], tuple[Iterable[Any], Any]]
Unflatten = Callable[[Any, Any], Any]


class NodeDef(NamedTuple):
    """How a class of containers is taken apart and put together."""

    type: Any
    flatten_fn: Flatten
    unflatten_fn: Unflatten
    flatten_with_keys_fn: Callable[[Any], Any] | None = None


SUPPORTED_NODES: dict[Any, NodeDef] = {}  # by class; namedtuple stands for all of its kind


def register_pytree_node(
    cls: Any, flatten_fn: Flatten, unflatten_fn: Unflatten, *, flatten_with_keys_fn: Any = None, **ignored: Any
) -> None:
    """Treat a class as a container."""
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)


def _from_keys(make: Callable[[Any], Any]) -> Unflatten:
    return lambda children, keys: make(zip(keys, children, strict=True))


def _default_dict(children: Any, context: Any) -> Any:
    factory, keys = context
    return defaultdict(factory, zip(keys, children, strict=True))


register_pytree_node(list, lambda x: (x, None), lambda children, _: list(children))
register_pytree_node(tuple, lambda x: (x, None), lambda children, _: tuple(children))
register_pytree_node(dict, lambda x: (x.values(), list(x)), _from_keys(dict))
register_pytree_node(OrderedDict, lambda x: (x.values(), list(x)), _from_keys(OrderedDict))
register_pytree_node(defaultdict, lambda x: (x.values(), (x.default_factory, list(x))), _default_dict)
register_pytree_node(deque, lambda x: (x, x.maxlen), lambda children, longest: deque(children, longest))
register_pytree_node(namedtuple, lambda x: (x, type(x)), lambda children, kind: kind(*children))
_register_pytree_node = register_pytree_node


def _dict_flatten_with_keys(d: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
    return list(d.items()), list(d)


def _get_node_type(tree: Any) -> Any:
    found = type(tree)
    named = found not in SUPPORTED_NODES and isinstance(tree, tuple) and hasattr(found, "_fields")
    return namedtuple if named else found


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """The leaves, from left to right, and the structure."""
    kind = _get_node_type(tree)
    if kind not in SUPPORTED_NODES or (is_leaf is not None and is_leaf(tree)):
        return [tree], LeafSpec()
    children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    parts = [tree_flatten(child, is_leaf) for child in children]
    return [leaf for leaves, _ in parts for leaf in leaves], TreeSpec(kind, context, [spec for _, spec in parts])


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The inverse of `tree_flatten`."""
    left = iter(leaves)  # an iterator is its own
    if treespec.type is None:
        return next(left)
    children = [tree_unflatten(left, child) for child in treespec.children_specs]
    return SUPPORTED_NODES[treespec.type].unflatten_fn(children, treespec.context)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves, from left to right."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """The structure."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The same structure of `func` of the leaves, of one tree or of several alike."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [tree_leaves(rest, is_leaf) for rest in rests]
    return tree_unflatten([func(*row) for row in zip(leaves, *others, strict=True)], spec)


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Call `func` of the leaves; returns the tree."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def tree_map_only(kind: Any, func: Callable[..., Any], tree: Any) -> Any:
    """`tree_map` for the leaves of a type; others stay."""
    return tree_map(lambda leaf: func(leaf) if isinstance(leaf, kind) else leaf, tree)


def tree_any(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether `pred` holds for a leaf."""
    return any(map(pred, tree_leaves(tree)))


def tree_all(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether `pred` holds for every leaf."""
    return all(map(pred, tree_leaves(tree)))
