"""`torch.utils._pytree`: nested lists, tuples and dicts as a list of leaves and a structure."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from ....base.errors import ArgumentError
from .pytree_keys import GetAttrKey, KeyEntry, MappingKey, SequenceKey

__all__ = []

Context = PyTree = Any
FlattenFunc = Callable[[Any], tuple[Iterable[Any], Any]]
UnflattenFunc = Callable[[Any, Any], Any]
FlattenWithKeysFunc = Callable[[Any], tuple[list[tuple[KeyEntry, Any]], Any]]


class TreeSpec(NamedTuple):
    """A container's type, what it needs beside its children, and the structures of these; type None: a leaf."""

    type: Any
    context: Any
    children_specs: list[TreeSpec]

    @property
    def num_leaves(self) -> int:
        """The number of leaves below."""
        return sum(child.num_leaves for child in self.children_specs) if self.type is not None else 1

    @property
    def num_nodes(self) -> int:
        """The number of containers and leaves, itself among them."""
        return 1 + sum(child.num_nodes for child in self.children_specs)

    @property
    def num_children(self) -> int:
        """The number of children."""
        return len(self.children_specs)

    def is_leaf(self) -> bool:
        """Whether it is that of a leaf."""
        return self.type is None

    def children(self) -> list[TreeSpec]:
        """The structures of the children."""
        return list(self.children_specs)

    def child(self, index: int) -> TreeSpec:
        """The structure of a child."""
        return self.children_specs[index]

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """What `tree` has in the places of the leaves. Raises ValueError where it has another structure above them."""
        if self.type is None:
            return [tree]
        kind = _get_node_type(tree)
        parts: list[Any] = []
        if kind is self.type:
            children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
            parts = list(children)
            if kind in (dict, OrderedDict, defaultdict):  # by keys, in the order of this one
                keys, wanted = (each[1] if kind is defaultdict else each for each in (context, self.context))
                parts = [tree[key] for key in wanted] if set(keys) == set(wanted) else []
        if kind is not self.type or len(parts) != len(self.children_specs):
            raise ArgumentError("tree_map", f"trees of one structure, a {self.type.__name__} here", f"{tree!r}"[:80])
        return [
            leaf for child, part in zip(self.children_specs, parts, strict=True) for leaf in child.flatten_up_to(part)
        ]

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """`tree_unflatten` with this structure."""
        return tree_unflatten(leaves, self)


class LeafSpec(TreeSpec):
    """The structure of a leaf."""

    __slots__ = ()

    def __new__(cls) -> LeafSpec:
        return super().__new__(cls, None, None, [])


class NodeDef(NamedTuple):
    """How a class of containers is taken apart and put together."""

    type: Any
    flatten_fn: FlattenFunc
    unflatten_fn: UnflattenFunc
    flatten_with_keys_fn: FlattenWithKeysFunc | None = None
    serialized_type_name: str | None = None
    to_dumpable_context: Callable[[Any], Any] | None = None
    from_dumpable_context: Callable[[Any], Any] | None = None


SUPPORTED_NODES: dict[Any, NodeDef] = {}  # by class; namedtuple stands for all of its kind
BUILTIN_TYPES = frozenset({tuple, list, dict, namedtuple, OrderedDict, defaultdict, deque})


def register_pytree_node(
    cls: Any, flatten_fn: FlattenFunc, unflatten_fn: UnflattenFunc, *,
    flatten_with_keys_fn: FlattenWithKeysFunc | None = None, **text: Any,
) -> None:  # fmt: skip
    """Treat a class as a container. Raises ValueError for one that is a container already."""
    if cls in SUPPORTED_NODES:
        raise ArgumentError("register_pytree_node", "a class that is no container yet", cls.__name__)
    _private_register_pytree_node(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn=flatten_with_keys_fn, **text)


def _private_register_pytree_node(cls: Any, flatten_fn: Any, unflatten_fn: Any, *, flatten_with_keys_fn: Any = None,
                                  **text: Any) -> None:  # fmt: skip
    more = [text.get(name) for name in NodeDef._fields[4:]]
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn, *more)


_register_pytree_node = _private_register_pytree_node


def _deregister_pytree_node(cls: Any) -> None:
    del SUPPORTED_NODES[cls]


def register_dataclass(cls: Any, *, field_names: Any = None, drop_field_names: Any = (), **ignored: Any) -> None:
    """Treat a data class as a container of its fields."""
    names = list(field_names or [each.name for each in fields(cls) if each.init and each.name not in drop_field_names])

    def with_keys(x: Any) -> Any:
        return [(GetAttrKey(name), getattr(x, name)) for name in names], None

    def unflatten(children: Any, _: Any) -> Any:
        return cls(**dict(zip(names, children, strict=True)))

    register_pytree_node(
        cls, lambda x: ([getattr(x, name) for name in names], None), unflatten, flatten_with_keys_fn=with_keys
    )


def register_constant(cls: Any) -> None:
    """Treat objects of a class as containers without leaves."""
    register_pytree_node(cls, lambda x: ((), x), lambda _, x: x, flatten_with_keys_fn=lambda x: ([], x))


def _register_builtin(kind: Any, children: Any, keys: Any, context: Any, unflatten: UnflattenFunc) -> None:
    # By functions of a container: its children, their keys, its context. Libraries call what is made of them by name.
    def flatten(d: Any) -> Any:
        return list(children(d)), context(d)

    def with_keys(d: Any) -> Any:
        return list(zip(keys(d), children(d), strict=True)), context(d)

    name = f"_{kind.__name__.lower()}"
    made = {f"{name}_flatten": flatten, f"{name}_flatten_with_keys": with_keys, f"{name}_unflatten": unflatten}
    globals().update(made)
    _private_register_pytree_node(kind, flatten, unflatten, flatten_with_keys_fn=with_keys)


_by_index = (iter, lambda d: map(SequenceKey, range(len(d))))
_by_key = (lambda d: d.values(), lambda d: map(MappingKey, d))
_register_builtin(list, *_by_index, lambda d: None, lambda values, _: list(values))
_register_builtin(tuple, *_by_index, lambda d: None, lambda values, _: tuple(values))
_register_builtin(deque, *_by_index, lambda d: d.maxlen, lambda values, maxlen: deque(values, maxlen=maxlen))
_register_builtin(namedtuple, iter, lambda d: map(GetAttrKey, d._fields), type, lambda values, kind: kind(*values))
_register_builtin(dict, *_by_key, list, lambda values, keys: dict(zip(keys, values, strict=True)))
_register_builtin(OrderedDict, *_by_key, list, lambda values, keys: OrderedDict(zip(keys, values, strict=True)))
_register_builtin(
    defaultdict, *_by_key, lambda d: [d.default_factory, list(d)],
    lambda values, context: defaultdict(context[0], zip(context[1], values, strict=True)),
)  # fmt: skip


def is_namedtuple_class(cls: type) -> bool:
    """Whether it is a class of named tuples."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_namedtuple_instance(obj: Any) -> bool:
    """Whether it is a named tuple."""
    return is_namedtuple_class(type(obj))


def is_structseq_class(cls: type) -> bool:
    """Whether it is a class of C's named tuples, as `time.struct_time`."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")


def is_structseq_instance(obj: Any) -> bool:
    """Whether it is one of C's named tuples."""
    return is_structseq_class(type(obj))


def _get_node_type(tree: Any) -> Any:
    found = type(tree)
    named = found not in SUPPORTED_NODES and isinstance(tree, tuple) and hasattr(found, "_fields")
    return namedtuple if named else found


def tree_is_leaf(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether it is no container, or `is_leaf` holds for it."""
    return (is_leaf is not None and is_leaf(tree)) or _get_node_type(tree) not in SUPPORTED_NODES


_is_leaf = tree_is_leaf


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """The leaves, from left to right, and the structure."""
    if tree_is_leaf(tree, is_leaf):
        return [tree], LeafSpec()
    kind = _get_node_type(tree)
    children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    parts = [tree_flatten(child, is_leaf) for child in children]
    return [leaf for leaves, _ in parts for leaf in leaves], TreeSpec(kind, context, [spec for _, spec in parts])


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The inverse of `tree_flatten`. Raises ValueError for another number of leaves."""
    given = list(leaves)
    if len(given) != treespec.num_leaves:
        raise ArgumentError("tree_unflatten", f"{treespec.num_leaves} leaves", f"{len(given)}")
    return _unflatten(iter(given), treespec)


def _unflatten(left: Iterator[Any], treespec: TreeSpec) -> Any:
    if treespec.type is None:
        return next(left)
    children = [_unflatten(left, child) for child in treespec.children_specs]
    return SUPPORTED_NODES[treespec.type].unflatten_fn(children, treespec.context)


def tree_iter(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """The leaves, one after the other."""
    yield from tree_flatten(tree, is_leaf)[0]


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves, from left to right."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """The structure."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The same structure of `func` of the leaves, of one tree or of several alike.

    Raises ValueError where another tree has another structure above the leaves of the first.
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return tree_unflatten([func(*row) for row in zip(leaves, *others, strict=True)], spec)


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Call `func` of the leaves; returns the tree."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def map_only(kind: Any, /) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """A decorator: the function for values of a type, of several, or for which a function holds; others stay."""
    holds = kind if callable(kind) and not isinstance(kind, type) else lambda x: isinstance(x, kind)
    return lambda func: lambda x: func(x) if holds(x) else x


def tree_map_only(kind: Any, /, func: Callable[[Any], Any], tree: Any,
                  is_leaf: Callable[[Any], bool] | None = None) -> Any:  # fmt: skip
    """`tree_map` for the leaves of a type, of several, or for which a function holds; others stay."""
    return tree_map(map_only(kind)(func), tree, is_leaf=is_leaf)


def tree_map_only_(kind: Any, /, func: Callable[[Any], Any], tree: Any,
                   is_leaf: Callable[[Any], bool] | None = None) -> Any:  # fmt: skip
    """`tree_map_` for the leaves of a type."""
    return tree_map_(map_only(kind)(func), tree, is_leaf=is_leaf)


def tree_any(pred: Callable[[Any], bool], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether `pred` holds for a leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all(pred: Callable[[Any], bool], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether `pred` holds for every leaf."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any_only(kind: Any, /, pred: Callable[[Any], bool], tree: Any, is_leaf: Any = None) -> bool:
    """Whether `pred` holds for a leaf of a type."""
    return any(pred(leaf) for leaf in tree_leaves(tree, is_leaf) if isinstance(leaf, kind))


def tree_all_only(kind: Any, /, pred: Callable[[Any], bool], tree: Any, is_leaf: Any = None) -> bool:
    """Whether `pred` holds for every leaf of a type."""
    return all(pred(leaf) for leaf in tree_leaves(tree, is_leaf) if isinstance(leaf, kind))


def _broadcast_to_and_flatten(tree: Any, treespec: TreeSpec, is_leaf: Any = None) -> list[Any] | None:
    if tree_is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    kind = _get_node_type(tree)
    children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    parts = list(children)
    if kind is not treespec.type or context != treespec.context or len(parts) != treespec.num_children:
        return None
    found = [_broadcast_to_and_flatten(*each, is_leaf) for each in zip(parts, treespec.children_specs, strict=True)]
    return None if None in found else [leaf for leaves in found for leaf in leaves or ()]


def tree_flatten_with_path(tree: Any, is_leaf: Any = None) -> tuple[list[tuple[tuple[KeyEntry, ...], Any]], TreeSpec]:
    """The leaves, each with its path, a tuple of keys, and the structure."""
    return _with_paths(tree, (), is_leaf), tree_structure(tree, is_leaf)


def tree_leaves_with_path(tree: Any, is_leaf: Any = None) -> list[tuple[tuple[KeyEntry, ...], Any]]:
    """The leaves, each with its path."""
    return _with_paths(tree, (), is_leaf)


def _with_paths(tree: Any, path: tuple[KeyEntry, ...], is_leaf: Any) -> list[tuple[tuple[KeyEntry, ...], Any]]:
    if tree_is_leaf(tree, is_leaf):
        return [(path, tree)]
    node = SUPPORTED_NODES[_get_node_type(tree)]
    if node.flatten_with_keys_fn is None:
        got, cure = node.type.__name__, "register it with flatten_with_keys_fn"
        raise ArgumentError("tree_flatten_with_path", "containers whose children have keys", got, cure)
    return [
        leaf for key, child in node.flatten_with_keys_fn(tree)[0] for leaf in _with_paths(child, (*path, key), is_leaf)
    ]


def tree_map_with_path(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Any = None) -> Any:
    """`tree_map` of `func(path, leaf, ...)`."""
    leaves, spec = tree_flatten_with_path(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return spec.unflatten([func(*leaf, *row) for leaf, *row in zip(leaves, *others, strict=True)])


__all__ = [
    name for name, value in list(globals().items())
    if getattr(value, "__module__", None) == __name__ or name.isupper() or name in ("Context", "PyTree", "_is_leaf")
]  # fmt: skip
