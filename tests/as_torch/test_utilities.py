"""Functions and utilities of PyTorch that the alias has in files of their own."""

from __future__ import annotations

from collections import OrderedDict

import pytest

pytestmark = pytest.mark.cpu


def test_segment_reduce_reduces_runs_of_neighbors(run_aliased):
    # The answers are those of PyTorch 2.14.
    code = """
import torch
x = torch.arange(6.0).requires_grad_()
for kind in ("sum", "mean", "max", "min", "prod"):
    y = torch.segment_reduce(x, kind, lengths=torch.tensor([2, 0, 3, 1]))
    (dx,) = torch.autograd.grad(y[torch.isfinite(y)].sum(), x)
    more = torch.segment_reduce(x, kind, lengths=torch.tensor([2, 0, 3, 1]), initial=2.0)
    print(kind, y.tolist(), [round(v, 3) for v in dx.tolist()], [round(v, 3) for v in more.tolist()])
print(torch.segment_reduce(torch.arange(12.0).view(6, 2), "sum", offsets=torch.tensor([0, 1, 1, 6])).tolist())
lengths = torch.tensor([[1, 5], [2, 4]])
print(torch.segment_reduce(torch.arange(12.0).view(2, 6), "sum", lengths=lengths, axis=1).tolist())
for given in ({"lengths": torch.tensor([2, 3])}, {"lengths": torch.tensor([[6]])}, {"indices": torch.tensor([0])}):
    try:
        torch.segment_reduce(x, "sum", **given)
    except ValueError as error:
        print(str(error).splitlines()[0])
"""
    assert run_aliased(code) == [
        "sum [1.0, 0.0, 9.0, 5.0] [1.0, 1.0, 1.0, 1.0, 1.0, 1.0] [3.0, 2.0, 11.0, 7.0]",
        "mean [0.5, nan, 3.0, 5.0] [0.5, 0.5, 0.333, 0.333, 0.333, 1.0] [1.5, 2.0, 3.667, 7.0]",
        "max [1.0, -inf, 4.0, 5.0] [0.0, 1.0, 0.0, 0.0, 1.0, 1.0] [2.0, 2.0, 4.0, 5.0]",
        "min [0.0, inf, 2.0, 5.0] [1.0, 0.0, 1.0, 0.0, 0.0, 1.0] [0.0, 2.0, 2.0, 2.0]",
        "prod [0.0, 1.0, 24.0, 5.0] [1.0, 0.0, 12.0, 8.0, 6.0, 1.0] [0.0, 2.0, 48.0, 10.0]",
        "[[0.0, 1.0], [0.0, 0.0], [30.0, 35.0]]",
        "[[0.0, 15.0], [13.0, 38.0]]",
        "segment_reduce: needs lengths of at least 0 that add up to 6, got [2, 3]",
        "segment_reduce: needs lengths of shape [(), segments], got (1, 1)",
        "segment_reduce: needs lengths or offsets, got indices",
    ]


def test_a_timer_measures_a_statement_and_a_table_compares(run_aliased):
    code = """
from torch.utils.benchmark import Compare, Measurement, Timer
import torch
seen = []
timer = Timer("x + y", "y = x", globals={"x": 1}, label="sum", sub_label="ints", description="first")
found = timer.blocked_autorange(lambda number, seconds: seen.append(number * seconds > 0), min_run_time=0.001)
print(type(found).__name__, found.number_per_run * len(found.times) > 1, found.median > 0, found.iqr >= 0, all(seen))
print(len(timer.timeit(10).raw_times), timer.adaptive_autorange(max_run_time=0.01).mean > 0, found.label)
task = found.task_spec
a = Measurement(2, [2.0, 4.0], task)
b = Measurement(1, [2e-3], Timer(lambda: 3, label="sum", sub_label="ints", description="second")._task_spec)
print(a.times, a.median, Measurement.merge([a, a])[0].times)
Compare([a, b]).print()
for use in (lambda: Timer(language="c++"), lambda: Compare([1])):
    try:
        use()
    except ValueError as error:
        print(error)
"""
    assert run_aliased(code) == [
        "Measurement True True True True",
        "1 True sum",
        "[1.0, 2.0] 1.5 [1.0, 2.0, 1.0, 2.0]",
        "[ sum ]",
        "      |   first  |  second",
        "ints  |  1500.0  |     2.0",
        "Times are in ms.",
        "Timer: needs language 'python', got 'c++'",
        "Compare: needs Measurements, got int",
    ]


def test_structures_of_containers_are_written_as_pytorch_does(run_aliased):
    code = """
from collections import OrderedDict, defaultdict, deque
import torch.utils._pytree as pytree
class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b
pytree.register_pytree_node(Pair, lambda x: ([x.a], x.b), lambda c, b: Pair(*c, b), serialized_type_name="mine.Pair",
                            to_dumpable_context=str, from_dumpable_context=int)
tree = [1, (2, {"a": 3, 4: 5}), OrderedDict(b=1), defaultdict(int, {"c": 2}), deque([1], maxlen=3), Pair(6, 7)]
spec = pytree.tree_structure(tree)
text = pytree.treespec_dumps(spec)
print(text[:109])
print(pytree.treespec_loads(text) == spec, pytree.tree_unflatten(range(8), pytree.treespec_loads(text))[1:4])
pytree.register_pytree_node(set, lambda x: (list(x), None), lambda c, _: set(c))
for use in (lambda: pytree.treespec_dumps(pytree.tree_structure({1})), lambda: pytree.treespec_dumps(spec, 2),
            lambda: pytree.treespec_loads(text.replace("mine.Pair", "yours.Pair"))):
    try:
        use()
    except (NotImplementedError, ValueError) as error:
        print(error)
"""
    leaf = '{"type": null, "context": null, "children_spec": []}'
    assert run_aliased(code) == [
        f'[1, {{"type": "builtins.list", "context": "null", "children_spec": [{leaf}'[:109],
        "True [(1, {'a': 2, 4: 3}), OrderedDict({'b': 4}), defaultdict(<class 'int'>, {'c': 5})]".replace(
            "OrderedDict({'b': 4})", repr(OrderedDict(b=4))
        ),
        "treespec_dumps: set is registered without serialized_type_name",
        "treespec: needs protocol 1, got 2",
        "treespec_loads: yours.Pair is not registered",
    ]


def test_tensors_become_one_flat_tensor_and_views_of_it_again(run_aliased):
    code = """
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
given = [torch.arange(4.0).view(2, 2).t(), torch.tensor(7.0), torch.zeros(0), torch.tensor([8.0, 9.0])]
flat = _flatten_dense_tensors(given)
print(flat.tolist())
parts = _unflatten_dense_tensors(flat, given)
print(all(a.shape == b.shape and bool((a == b).all()) for a, b in zip(parts, given, strict=True)), type(parts).__name__)
flat.zero_()
print([part.sum().item() for part in parts])
"""
    assert run_aliased(code) == [
        "[0.0, 2.0, 1.0, 3.0, 7.0, 8.0, 9.0]",
        "True tuple",
        "[0.0, 0.0, 0.0, 0.0]",
    ]


def test_a_softmax_without_an_axis_takes_pytorchs_and_warns(run_aliased):
    code = """
import warnings
import torch
import torch.nn.functional as F
for function in (F.softmax, F.log_softmax, F.softmin):
    for ndim in range(1, 5):
        x = torch.arange(2.0**ndim).reshape([2] * ndim) ** 2
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = function(x)
        assert bool((found == function(x, 0 if ndim in (1, 3) else 1)).all()), (function, ndim)
        assert [str(one.message)[: len(function.__name__) + 12] for one in said] == [f"{function.__name__} without dim"]
print(F.softmax(torch.zeros(2), 0, dtype=torch.float64).dtype, F.softmax(torch.zeros(2), dim=0, _stacklevel=5).tolist())
"""
    assert run_aliased(code) == ["torch.float64 [0.5, 0.5]"]


def test_a_function_saves_sparse_tensors_for_its_backward(run_aliased):
    # The spmm of pyGAT and of other graph networks: forward makes a sparse matrix, and saves it.
    code = """
import torch
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, indices, values, shape, b):
        a = torch.sparse_coo_tensor(indices, values, shape)
        ctx.save_for_backward(a, b, None)
        return torch.matmul(a, b)

    @staticmethod
    def backward(ctx, dy):
        a, b, nothing = ctx.saved_tensors
        assert nothing is None and a.is_sparse and a.shape == (2, 3)
        row, column = a._indices()
        return None, dy.matmul(b.t())[row, column], None, a.t().matmul(dy)

values = torch.tensor([2.0, 3.0, 5.0], requires_grad=True)
b = torch.arange(6.0).view(3, 2).requires_grad_()
indices = torch.tensor([[0, 1, 1], [2, 0, 1]])
(Product.apply(indices, values, (2, 3), b) ** 2).sum().backward()
found = values.grad.tolist(), b.grad.tolist()
values.grad = b.grad = None
((torch.sparse_coo_tensor(indices, values, (2, 3)) @ b) ** 2).sum().backward()
print(found == (values.grad.tolist(), b.grad.tolist()), found[0])
"""
    assert run_aliased(code) == ["True [164.0, 36.0, 148.0]"]


def test_names_of_torch_sparse_are_there_or_say_what_to_use(run_aliased):
    code = """
import torch
indices = torch.tensor([[0, 1], [2, 0]])
print(*[getattr(torch.sparse, name + "Tensor")(indices, torch.ones(2)).dtype for name in ("BFloat16", "Byte", "Int")])
check = torch.sparse.check_sparse_tensor_invariants
with check(False):
    check.disable()
    try:
        torch.sparse_csc_tensor([0, 1], [3], [1.0], (3, 1))
    except IndexError as error:
        print(check.is_enabled(), error)
print(torch.eye(2).to_sparse_csc().layout == torch.sparse_csc)
try:
    from torch.sparse import spsolve
except ImportError as error:
    print(error)
"""
    assert run_aliased(code) == [
        "torch.bfloat16 torch.uint8 torch.int32",
        "True sparse_coo_tensor: needs indices from 0 to 2, got 3 at position 0", "True",
        "ampkit has no torch.sparse.spsolve", "help: `ampkit.linalg.solve(x.to_dense(), b)`",
    ]  # fmt: skip


def test_an_error_goes_to_another_thread_or_process_and_is_raised_there(run_aliased):
    code = """
import pickle
from torch._utils import ExceptionWrapper
for make in (lambda: [][1], lambda: bytes([255]).decode()):  # the error of the second takes five arguments
    try:
        make()
    except Exception:
        held = ExceptionWrapper(where="in worker 3")
    try:
        pickle.loads(pickle.dumps(held)).reraise()
    except Exception as error:
        lines = str(error).splitlines()
        print(type(error).__name__, "|", lines[0], "|", lines[1][:9], "|", lines[-1])
"""
    assert run_aliased(code) == [
        "IndexError | IndexError in worker 3 | Traceback | IndexError: list index out of range",
        "RuntimeError | UnicodeDecodeError in worker 3 | Traceback | UnicodeDecodeError: 'utf-8' "
        "codec can't decode byte 0xff in position 0: invalid start byte",
    ]


def test_print_options_of_a_context_are_those_of_tensors(run_aliased):
    code = """
import torch
x = torch.tensor([1e-9, 1.0])
before = repr(x)
with torch._tensor_str.printoptions(precision=1, sci_mode=False):
    print(x)
print(repr(x) == before)
"""
    assert run_aliased(code) == ["tensor([0.0, 1.0])", "True"]


def test_the_prefix_of_a_wrapped_model_is_taken_from_a_state_dict(run_aliased):
    code = """
import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
model = torch.nn.Sequential(torch.nn.Linear(1, 1))
state = torch.nn.ModuleDict({"module": model}).state_dict()
state["other"] = 1
consume_prefix_in_state_dict_if_present(state, "module.")
print(list(state), list(state._metadata))
"""
    assert run_aliased(code) == ["['other', '0.weight', '0.bias'] ['', '0']"]
