"""Arguments are checked against annotations at the call, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pytest

import ampkit
from ampkit import (
    AmpkitError,
    ArgumentError,
    DTypeError,
    OutOfMemoryError,
    RangeError,
    ShapeError,
    Tensor,
    nn,
    ops,
    optim,
)
from ampkit.core.arguments import Checks, shown
from ampkit.optim import lr_scheduler
from ampkit.utils import data

pytestmark = pytest.mark.cpu


def taken(a: int, b: float = 0.5, *, c: bool = False, d: str | None = None, e: Sequence[int] | int = 0) -> None: ...


def given(f: Callable[[int], int], g: Iterable[Tensor] = (), h: Mapping[str, int] | None = None, i=None) -> None: ...


@pytest.mark.parametrize(("args", "words"), [
    ((np.int64(3), 2), {"c": np.True_, "e": [1, np.int32(2)]}),
    ((1, np.float32(0.5)), {"c": 1, "d": "x", "e": (1, 2)}),
    ((-(2**63), 2**62), {"d": None, "e": np.array([1, 2])}),
])  # fmt: skip
def test_what_annotations_say_is_taken(args, words):
    Checks(taken)("f", args, words)


@pytest.mark.parametrize(("args", "words", "error", "line"), [
    ((0.5,), {}, DTypeError, "f: needs a as an integer, got 0.5"),
    ((True,), {}, DTypeError, "f: needs a as an integer, got True"),
    ((2**63,), {}, ArgumentError, "f: needs a within 64 bits, got 9223372036854775808"),
    ((1, "0.5"), {}, DTypeError, "f: needs b as a number, got '0.5'"),
    ((1, 1j), {}, DTypeError, "f: needs b as a number, got 1j"),
    ((1, np.ones(2)), {}, DTypeError, "f: needs b as a number, got a ndarray"),
    ((1,), {"c": "no"}, ArgumentError, "f: needs c True or False, got 'no'"),
    ((1,), {"c": "false"}, ArgumentError, "f: needs c True or False, got 'false'\nhelp: write c=False, without quotes"),
    ((1,), {"c": np.ones(2)}, ArgumentError, "f: needs c True or False, got a ndarray"),
    ((1,), {"d": 5}, DTypeError, "f: needs d as text, got 5"),
    ((1,), {"e": [1, 0.5]}, DTypeError, "f: needs e as a sequence of integers or an integer, got [1, 0.5]"),
    ((1,), {"e": (1, 2**64)}, ArgumentError, "f: needs e within 64 bits, got (1, 18446744073709551616)"),
])  # fmt: skip
def test_what_annotations_do_not_say_is_refused_in_one_line(args, words, error, line):
    with pytest.raises(error) as caught:
        Checks(taken)("f", args, words)
    assert str(caught.value) == line


def test_functions_iterables_and_mappings_are_told_apart():
    check, x = Checks(given), ops.ones(2)
    check("f", (len, [x], {"a": 1}, object()), {})
    check("f", (len, x), {})
    for args in ((3,), (len, 5), (len, [5]), (len, "xy"), (len, [x], [1])):
        with pytest.raises(DTypeError):
            check("f", args, {})


def test_values_are_shown_short():
    assert shown(10**400).endswith("...")
    assert len(shown("x" * 500)) == 80
    x = ops.ones(2)
    assert [shown(v) for v in (None, [1, 2], x, len)] == [
        "None", "[1, 2]", f"a {type(x).__name__}", "a builtin_function_or_method",
    ]  # fmt: skip


X = ops.ones(2, 3)


@pytest.mark.parametrize(("call", "error"), [
    (lambda: nn.Linear(2**63, 1), ArgumentError),
    (lambda: nn.Linear(2**40, 2**40), OutOfMemoryError),
    (lambda: nn.PReLU(device=1.5), ampkit.DeviceError),
    (lambda: nn.Unflatten(1, 4), DTypeError),
    (lambda: nn.Hardtanh(max_val=None)(X), DTypeError),
    (lambda: nn.TransformerEncoderLayer(8, 2)(ops.ones(8)), ShapeError),
    (lambda: nn.LSTM(4, 4, num_layers=2**31), ArgumentError),
    (lambda: nn.Softmax2d()(1), ShapeError),
    (lambda: nn.ModuleDict([1]), DTypeError),
    (lambda: nn.utils.fuse_conv_bn_eval("x", "y"), DTypeError),
    (lambda: nn.utils.fuse_linear_bn_eval(nn.Linear(2, 2), nn.ReLU()), DTypeError),
    (lambda: ops.celu(X, 0), ArgumentError),
    (lambda: ops.searchsorted(ops.ones(3), X, sorter=ampkit.tensor([0, 1, 3])), RangeError),
    (lambda: ops.diag(ops.ones(2), 2**63), ArgumentError),
    (lambda: ops.diag(ops.ones(2), 2**62), OutOfMemoryError),
    (lambda: ops.histc(X, 2**63), ArgumentError),
    (lambda: ops.histc(X, 2**62), OutOfMemoryError),
    (lambda: X.split_with_sizes(0.5), DTypeError),
    (lambda: ops.result_type((1, 2), []), DTypeError),
    (lambda: ops.softmax(X, 0, dtype=ampkit.int64), DTypeError),
    (lambda: ops.zeros(2**62), OutOfMemoryError),
    (lambda: X.repeat(2**62, 1), OutOfMemoryError),
    (lambda: X + 2**70, ArgumentError),
    (lambda: ampkit.set_rng_state(2), ArgumentError),
    (lambda: ampkit.finfo(ampkit.bool), DTypeError),
    (lambda: lr_scheduler.SequentialLR(sgd(), 2, [1]), DTypeError),
    (lambda: lr_scheduler.LambdaLR(sgd(), lambda n: None), DTypeError),
    (lambda: data.DataLoader([1, 2], sampler=2), DTypeError),
    (lambda: data.StackDataset(2), DTypeError),
    (lambda: optim.LAMB(np.ones(())), DTypeError),
])  # fmt: skip
def test_what_was_an_error_of_pythons_or_numpys_is_said_at_the_call(call, error):
    with pytest.raises(error, match=r"^[\w.]+: needs .+, got .+"):
        call()


def sgd():
    return optim.SGD([nn.Parameter(ops.ones(2))], lr=0.1)


@pytest.mark.parametrize("call", [
    lambda: ops.embedding_bag(ampkit.tensor([[0, 1]]), ops.ones(3, 2), padding_idx=0.5),
    lambda: ops.scatter_reduce(X, 0, ampkit.tensor([[0, 0, 0]]), ops.ones(1, 3), "sum", include_self="no"),
])  # fmt: skip
def test_what_only_the_backward_would_mind_is_refused_at_the_call(call):
    with pytest.raises(AmpkitError):
        call()


@pytest.mark.parametrize("call", [
    lambda: ops.adaptive_avg_pool1d(ops.ones(1, 2, 4), 2**62),
    lambda: ops.adaptive_max_pool3d(ops.ones(1, 2, 2, 2, 2), 2**40),
    lambda: X.tensor_split(2**31),
    lambda: X.chunk(2**62),
    lambda: ops.polygamma(2**31, X),
    lambda: ampkit.special.multigammaln(X, 2**31),
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2**62),
])  # fmt: skip
def test_sizes_that_would_take_hours_are_refused_at_once(call):
    with pytest.raises(ArgumentError, match="needs"):
        call()
