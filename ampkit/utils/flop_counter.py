"""Floating-point operations of products, counted from the shapes of the ops that run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any, Self

from ..base.observe import BACKWARD, FORWARD, Event, observers
from ..core.module_path import current, follow, path_in_words
from ..ops.linalg.einsum import parse_equation


class FlopCounter:
    """Counts the floating-point operations of the products that run in its `with` block, forward and backward.

        with FlopCounter() as counted:
            model(x).sum().backward()
        counted.total, counted.by_op["linear"], counted.by_module["fc1"]

    A multiply-add is two operations, as in torch.utils.flop_counter; what is no product (biases, activations, norms)
    counts as none, nor does what an autograd.Function computes outside of ops. forward, backward: the operations of
    each. by_op, by_module: of both; a module's are those of its own forward, without its children's, by the dotted name
    in the outermost module called.
    """

    def __init__(self) -> None:
        self.forward, self.backward = 0, 0
        self.by_op: Counter[str] = Counter()
        self.by_module: Counter[str] = Counter()
        self._counted: dict[int, tuple[Any, int]] = {}  # by the id of a node: it, and the operations of its forward
        self._following: Any = None

    @property
    def total(self) -> int:
        """The operations of forward and backward."""
        return self.forward + self.backward

    def __enter__(self) -> Self:
        self._following = follow()
        self._following.__enter__()
        observers.append(self._count)
        return self

    def __exit__(self, *error: object) -> None:
        observers.remove(self._count)
        self._following.__exit__(*error)
        self._counted.clear()

    def _count(self, event: Event) -> None:
        if event.op is None or event.op.name not in _FORWARD:
            return
        if event.phase == FORWARD:
            found = _FORWARD[event.op.name](event)
            self.forward += found
            if event.node is not None:
                self._counted[id(event.node)] = event.node, found
        elif event.phase == BACKWARD and id(event.node) in self._counted:
            found = int(self._counted[id(event.node)][1] * _products_of_backward(event))
            self.backward += found
        else:
            return
        self.by_op[event.op.name] += found
        self.by_module[path_in_words(current())] += found


_Count = Callable[[Event], int]


def _out(event: Event) -> Any:
    return event.output[0] if type(event.output) is tuple else event.output


def _product(event: Event) -> int:
    return int(2 * _out(event).size * event.operands[0].shape[-1])


def _added_product(event: Event) -> int:
    return int(2 * _out(event).size * event.operands[1].shape[-1])


def _convolution(event: Event) -> int:
    return int(2 * _out(event).size * prod(event.operands[1].shape[1:]))


def _transposed_convolution(event: Event) -> int:
    images, kernels, *_ = event.operands
    return 2 * prod(images.shape) * prod(kernels.shape[1:])


def _attention(event: Event) -> int:
    query, key, value = (each.shape for each in event.operands[:3])
    return int(2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))


def _self_attention(event: Event) -> int:
    return int(4 * _out(event).size * event.operands[0].shape[-2])


def _einsum(event: Event) -> int:
    arrays = [operand.array for operand in event.operands]
    sizes: dict[str, int] = {}
    for letters, array in zip(parse_equation(event.params[0], arrays)[0], arrays, strict=True):
        sizes |= {letter: max(n, sizes.get(letter, 1)) for letter, n in zip(letters, array.shape, strict=True)}
    return 2 * prod(sizes.values()) if len(arrays) > 1 else 0


def _every_weight(event: Event) -> int:
    # Each row of the input, of a sequence each of its steps, meets every weight once.
    named = zip(event.op.signature.names, event.operands, strict=True)
    sizes = [prod(each.shape) for name, each in named if name.startswith("w") and each is not None]
    return 2 * prod(event.operands[0].shape[:-1]) * sum(sizes)


_RECURRENT = [f"{kind}{cell}" for kind in ("rnn_tanh", "rnn_relu", "gru", "lstm") for cell in ("", "_cell")]
_FORWARD: dict[str, _Count] = {
    **dict.fromkeys(("linear", "matmul", "mm", "tensordot", "bmm", "mv", "dot", "vdot"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), _added_product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed_convolution),
    **dict.fromkeys(("linear_gelu_linear", *_RECURRENT), _every_weight),
    "scaled_dot_product_attention": _attention,
    "self_attention": _self_attention,
    "einsum": _einsum,
}
# The products of a backward in units of its forward, where they are not one for each factor whose gradient is wanted:
# attention has four beside the forward's two, and computes the scores anew.
_BACKWARD: dict[str, float] = {
    **dict.fromkeys(("scaled_dot_product_attention", "self_attention"), 2.5),
    **dict.fromkeys(("linear_gelu_linear", *_RECURRENT), 2.0),
}


def _products_of_backward(event: Event) -> float:
    if event.op.name in _BACKWARD:
        return _BACKWARD[event.op.name]
    found = event.output if type(event.output) is tuple else (event.output,)
    if event.op.name != "einsum":
        found = found[1:3] if event.op.name in ("addmm", "baddbmm") else found[:2]
    return sum(each is not None for each in found)
