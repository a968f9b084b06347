"""Results that a compiled step does not keep for its backward: it computes them anew from what is kept anyway.

A product saves its input. Where that is the output of a norm or an activation, whose backward needs their own input,
both are kept in an eager step. In a compiled one the product's backward calls the kernel again that made it, on the
same values, so that the bits are the same. Chen et al. 2016 (arXiv:1604.06174), section 3, drop results of cheap ops
likewise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import ref

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array
from ampkit.base.errors import StateError

from .. import dispatch
from ..autograd.node import Node
from ..autograd.saved import Saved
from ..autograd.saved_hooks import Packed, with_unpacked
from ..tensor import Tensor

MIN_BYTES = 1 << 17  # of what is left out; smaller arrays are cheaper to keep, and inputs up to it are copied
Tally = Counter[str]
steps: list[Tally] = []  # of compiled steps that run, in any thread; one look at this list while there are none


class Anew(NamedTuple):
    """How an op computes its last output anew.

    needs: the inputs that it reads, by name; None for all. output(node, items, inputs): items are what the node saved,
    inputs those that it needs, None for others.
    """

    needs: tuple[str, ...] | None
    output: Callable[[Node, dict[str, Any], list[Any]], Array]


def _by_its_kernel(node: Node, items: dict[str, Any], inputs: list[Any]) -> Array:
    out, _ = dispatch.forward(node.op, node.kernel, inputs, node.params, node.plan.out, None, ())
    return out[0] if type(out) is tuple else out


BY_ITS_KERNEL = Anew(None, _by_its_kernel)  # of an op of one output, by the kernel that ran, on the same inputs


class Again:
    """The last output of a node, computed when the first of those that left it out asks, and held until the last did.

    copies: of small inputs, by position. waiting: who left it out and did not ask yet.
    """

    def __init__(self, node: Node, how: Anew, copies: dict[int, Any]):
        self._node = ref(node)  # which refers to this; who left its output out keeps it alive
        self.how, self.copies, self.waiting = how, copies, 0
        self._array: Any = None

    def output(self) -> Tensor:
        """The output."""
        node = self._node()
        items = None if node is None else node.saved
        if node is None or items is None:
            name = "node" if node is None else node.op.name
            got = f"one whose {name} is already freed"
            raise StateError("backward", "a graph that was not used before", got, "retain_graph=True in that backward")
        node.op.check_versions(node)
        if self._array is None:
            held = vars(with_unpacked(node) if node.packed else items)
            names = [node.op.signature.name_of(i) for i in range(len(node.edges))]
            if queue.waiting:
                queue.flush()
            self._array = self.how.output(node, held, [self.copies.get(i, held.get(n)) for i, n in enumerate(names)])
        found = Tensor(self._array)
        self.waiting -= 1
        if self.waiting <= 0:
            self._array = None
        return found


@contextmanager
def computing_anew() -> Iterator[Tally]:
    """Within the block nodes that are recorded leave out what can be computed anew. -> the bytes of it, by op."""
    tally: Tally = Counter()
    steps.append(tally)
    try:
        yield tally
    finally:
        steps[:] = [other for other in steps if other is not tally]


def leaves_out(op: str, array: Array) -> bool:
    """Whether an array that `op` has made is to be computed anew rather than saved, which is counted then."""
    if not steps or array.nbytes < MIN_BYTES:
        return False
    for tally in steps:
        tally[op] += array.nbytes
    return True


def note(node: Node, inputs: Any, arrays: list[Any]) -> None:
    """Remember how the outputs of a new node are computed anew, or leave such outputs out of what it saved.

    inputs: of its call; arrays: as the op read them.
    """
    how = node.op.anew
    if how is not None and node.kernel is not node.op.forward.reference and not node.kernel.wants_cache:
        _remember(node, how, arrays)
    if not node.kernel.launches and type(node.saved) is Saved:
        _leave_out(node, inputs)


def _remember(node: Node, how: Anew, arrays: list[Any]) -> None:
    items, copies = vars(node.saved), {}
    for i, array in enumerate(arrays):
        name = node.op.signature.name_of(i)
        if (how.needs is not None and name not in how.needs) or not backends.is_array(array):
            continue
        if array.nbytes <= MIN_BYTES:
            copies[i] = array.copy()  # as it is now: a bias, say, that nothing else keeps from being changed
        elif items.get(name) is not array:
            return
    node.again = Again(node, how, copies)


def _leave_out(node: Node, inputs: Any) -> None:
    kept, packed = dict(vars(node.saved)), dict(node.packed or {})
    for i, tensor in enumerate(inputs):
        name, edge = node.op.signature.name_of(i), getattr(tensor, "_edge", None)
        array = kept.get(name)
        if edge is None or type(edge[0]) is not Node or array is None or array is not tensor._array:
            continue
        maker, index = edge[:2]
        again: Again | None = maker.again
        if again is None or index != len(maker.outputs) - 1:
            continue
        if maker.saved is None or vars(maker.saved).get("out") is array:  # it is kept anyway
            continue
        if not leaves_out(maker.op.name, array):
            continue
        del kept[name]
        again.waiting += 1
        packed[name] = Packed(again, Again.output, array.shape, array.dtype, (0,), 0)
    if len(kept) < len(vars(node.saved)):
        node.saved, node.packed = Saved(**kept), packed
