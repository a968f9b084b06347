"""What a library does with PyTorch's names while it is imported succeeds; what cannot work raises as it is used."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cpu


def test_names_that_are_decorated_with_annotated_subclassed_or_looked_up_can_be_imported(run_aliased):
    code = """
import torch, torch._custom_ops, torch.onnx.symbolic_helper
from torch.futures import Future
from torch.fx.graph_module import GraphModule
from torch.jit.annotations import BroadcastingList2, List
from torch.onnx import symbolic_opset11 as opset
from torch.distributed.fsdp import StateDictType
from torch._C import DispatchKey, DispatchKeySet

@torch.jit._script_if_tracing
@torch.jit.unused
@torch.fx.wrap
@torch.onnx.symbolic_helper.parse_args("v", "i")
def twice(x, size: BroadcastingList2[int] = 1, wait: Future[torch.Tensor] | None = None, kind=StateDictType.FULL):
    return 2 * x

@torch.jit._overload_method
def overloaded(x: List[torch.Tensor]): ...

class Graph(GraphModule):
    def __init__(self):
        super().__init__()

keys = DispatchKeySet(DispatchKey.AutocastCPU) | DispatchKeySet(DispatchKey.AutocastCUDA)
print(twice(3), sorted(keys), keys.has(DispatchKey.CPU), torch.hub.get_dir().startswith(torch.hub._get_torch_home()))
torch.onnx.register_custom_op_symbolic("mine::twice", twice, 11)
for use in (Graph, StateDictType, lambda: StateDictType.FULL(), lambda: opset.unsqueeze(1), lambda: list(opset.names)):
    try:
        use()
    except AttributeError as error:
        print(str(error).splitlines()[0])
print(hasattr(torch._C, "_no_such_function"), hasattr(torch._C, "SomeClass"))
"""
    assert run_aliased(code) == [
        "6 ['AutocastCPU', 'AutocastCUDA'] False True",
        "ampkit has no torch.fx.graph_module.GraphModule",
        "ampkit has no torch.distributed.fsdp.StateDictType",
        "ampkit has no torch.distributed.fsdp.StateDictType.FULL",
        "ampkit has no torch.onnx.symbolic_opset11.unsqueeze",
        "ampkit has no torch.onnx.symbolic_opset11.names",
        "False True",
    ]


def test_operators_are_defined_by_schemas_and_kernels_are_chosen_by_what_a_call_needs(run_aliased):
    code = """
import torch
library = torch.library.Library("three", "DEF")
library.define("scale(Tensor x, float factor=2.0, *, int[] shape=[1, 2]) -> Tensor")

@torch.library.register_fake("three::scale")
def shape(x, factor=2.0, *, shape): ...

@torch.library.impl(library, "scale", "CPU")
def scale(y, by, *, shape):
    return torch.from_numpy(y.detach().float().numpy() * by).to(y.dtype)

op = torch.ops.three.scale
x = torch.tensor([1.0, 3.0], requires_grad=True)
print(op(x).tolist(), op.default(factor=3.0, x=x).tolist(), op(x).requires_grad)

def setup(ctx, inputs, keyword_only_inputs, output):
    ctx.factor, ctx.shape = inputs[1], keyword_only_inputs["shape"]

def backward(ctx, gradient):
    return gradient * ctx.factor * len(ctx.shape), None

torch.library.register_autograd("three::scale", backward, setup_context=setup)
op(x, 4.0, shape=[5]).sum().backward()
print(x.grad.tolist())
torch.library.register_autocast("three::scale", "cpu", torch.bfloat16)
with torch.autocast("cpu"):
    print(op(x.detach()).dtype)

@torch.library.impl("three::scale", "Autograd")
def own(x, factor, *, shape):
    with torch._C._AutoDispatchBelowAutograd():
        return op(x, factor, shape=shape), torch.is_grad_enabled()

print(op(x))
for wrong in (lambda: op(), lambda: op(x, 1.0, shape=[1], size=2), lambda: torch.ops.three.scaled,
              lambda: torch.library.define("three::no", "Tensor x"),
              lambda: (library.define("later(Tensor x) -> Tensor"), torch.ops.three.later(x)),
              lambda: torch.ops.load_library("/no/such.so")):
    try:
        wrong()
    except (TypeError, ValueError, AttributeError, OSError) as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""
    found = run_aliased(code)
    assert found[:3] == ["[2.0, 6.0] [3.0, 9.0] False", "[4.0, 4.0]", "torch.bfloat16"]
    assert found[3] == "(tensor([2., 6.]), False)"
    schema = "scale(Tensor x, float factor=2.0, *, int[] shape=[1, 2]) -> Tensor"
    assert found[4:] == [
        f"ArgumentError three::scale: needs the arguments of {schema}, got no x",
        f"ArgumentError three::scale: needs the arguments of {schema}, got 2 by position, shape, size",
        "MissingNameError no operator three::scaled",
        "ArgumentError define: needs a schema, as 'name(Tensor x, int n=1) -> Tensor', got 'noTensor x'",
        "MissingNameError ampkit has no torch.ops.three.later, whose kernel is none of Python",
        "FileNotFoundError [Errno 2] No such file or directory: '/no/such.so'",
    ]


def test_functions_of_libraries_ask_torch_overrides_and_hand_calls_over(run_aliased):
    code = """
import torch
from torch._C import DisableTorchFunctionSubclass, _disabled_torch_function_impl
from torch.overrides import (
    TorchFunctionMode, handle_torch_function, has_torch_function, has_torch_function_unary, is_tensor_like)

class Image(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return out.as_subclass(cls) if func in (torch.Tensor.clone, torch.Tensor.to, blur) else out

class Held(torch.nn.Parameter): ...

class Quiet(torch.Tensor):
    __torch_function__ = _disabled_torch_function_impl

def blur(x):
    if has_torch_function_unary(x):
        return handle_torch_function(blur, (x,), x)
    return x * 0.5

image = torch.ones(2).as_subclass(Image)
print(*[type(out).__name__ for out in (image.clone(), image.to(torch.float64), image + 1, image[:1], blur(image))])
print(type(Held(torch.ones(1)) * 2).__name__, type(torch.ones(1).as_subclass(Quiet) * 2).__name__)
print(has_torch_function((torch.ones(1), image)), has_torch_function((Held(torch.ones(1)),)), is_tensor_like(image))

class Meta(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        return func(*args, **{**kwargs, "dtype": torch.float64} if func in (torch.zeros, torch.empty) else kwargs)

with Meta():
    print(torch.zeros(1).dtype, has_torch_function(()), torch._C._is_torch_function_mode_enabled())
print(torch.zeros(1).dtype, torch.split(torch.ones(3), 2)[1].shape, torch.tensor_split(torch.ones(3), indices=(1,))[1])
"""
    assert run_aliased(code) == [
        "Image Image Tensor Tensor Image", "Tensor Tensor", "True False True", "torch.float64 True True",
        "torch.float32 (1,) tensor([1., 1.])",
    ]  # fmt: skip


def test_trees_have_pytorchs_containers_structures_and_paths(run_aliased):
    code = """
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from torch.utils import _pytree as pytree

Pair = namedtuple("Pair", "left right")

@dataclass
class Box:
    low: int
    high: int

class Bag:
    def __init__(self, items):
        self.items = items

pytree.register_dataclass(Box)
pytree.register_pytree_node(Bag, lambda bag: (bag.items, None), lambda items, _: Bag(list(items)))
tree = {"a": [1, (2, 3)], "b": Pair(4, OrderedDict(x=5)), "c": defaultdict(list, y=6), "d": deque([7], 3)}
tree["e"] = Box(8, 9)
leaves, spec = pytree.tree_flatten(tree)
print(leaves, spec.num_leaves, spec.num_nodes, spec.child(0).type is list, pytree.LeafSpec().is_leaf())
print(pytree.tree_unflatten(leaves, spec) == tree, spec == pytree.tree_structure(tree), spec.unflatten(leaves) == tree)
print([pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(tree)])
print(all(pytree.key_get(tree, path) == leaf for path, leaf in pytree.tree_flatten_with_path(tree)[0]))
print(pytree.tree_map(lambda a, b: a + b, {"x": 1, "y": (2,)}, {"y": (20,), "x": 10}))
print(pytree.tree_map_with_path(lambda path, leaf: f"{pytree.keystr(path)}={leaf}", [1, {"k": 2}]))
print(pytree.tree_map_only((int, str), lambda x: x * 2, [1, "a", 2.5]), end=" ")
print(pytree.tree_any_only(int, lambda x: x > 1, [1, 2.0]))
print(pytree.tree_map(str, [[1, 2], [3]], is_leaf=lambda x: x == [3]), pytree.tree_leaves(Bag([1, Bag([2])])))
print(list in pytree.SUPPORTED_NODES, pytree._is_leaf(3), end=" ")
print(pytree._broadcast_to_and_flatten([1, 2], pytree.tree_structure([[0, 0], 0])))
for wrong in (lambda: pytree.tree_unflatten([1], spec), lambda: pytree.tree_leaves_with_path(Bag([1])),
              lambda: pytree.tree_map(print, [1, 2], [1]), lambda: pytree.register_pytree_node(Bag, 1, 2)):
    try:
        wrong()
    except ValueError as error:
        print(str(error).splitlines()[0])
"""
    paths = ["['a'][0]", "['a'][1][0]", "['a'][1][1]", "['b'].left", "['b'].right['x']", "['c']['y']", "['d'][0]"]
    assert run_aliased(code) == [
        "[1, 2, 3, 4, 5, 6, 7, 8, 9] 9 17 True True",
        "True True True",
        str([*paths, "['e'].low", "['e'].high"]),
        "True",
        "{'x': 11, 'y': (22,)}",
        "['[0]=1', {'k': \"[1]['k']=2\"}]",
        "[2, 'aa', 2.5] False",
        "[['1', '2'], '[3]'] [1, 2]",
        "True True [1, 1, 2]",
        "tree_unflatten: needs 9 leaves, got 1",
        "tree_flatten_with_path: needs containers whose children have keys, got Bag",
        "tree_map: needs trees of one structure, a list here, got [1]",
        "register_pytree_node: needs a class that is no container yet, got Bag",
    ]


def test_functions_of_lists_are_functions_of_each_tensor(run_aliased):
    code = """
import torch
a, b = [torch.tensor([1.0, 4.0]), torch.tensor([9.0])], [torch.tensor([2.0, 2.0]), torch.tensor([3.0])]
print([x.tolist() for x in torch._foreach_sqrt(a)], [x.tolist() for x in torch._foreach_add(a, b, alpha=2)])
print(torch._foreach_mul_(a, [2.0, 3.0]), torch._foreach_copy_(b, a), [x.tolist() for x in b])
print([x.item() for x in torch._foreach_norm(a, 1)], [x.tolist() for x in torch._foreach_maximum(a, 5.0)])
torch._foreach_addcdiv_(a, b, a, 1.0)
print([x.tolist() for x in a], torch.ops.aten.add.Tensor(a[1], b[1]).tolist())
try:
    torch.ops.aten.no_such_operator.default(a)
except AttributeError as error:
    print(str(error).splitlines()[0])
"""
    assert run_aliased(code) == [
        "[[1.0, 2.0], [3.0]] [[5.0, 8.0], [15.0]]",
        "None None [[2.0, 8.0], [27.0]]",
        "[10.0, 27.0] [[5.0, 8.0], [27.0]]",
        "[[3.0, 9.0], [28.0]] [55.0]",
        "ampkit has no torch.ops.aten.no_such_operator, whose kernel is none of Python",
    ]


def test_a_compiled_library_has_the_operators_that_ampkit_has(run_aliased, tmp_path):
    compiled, other = tmp_path / "ops.so", tmp_path / "other.so"
    declared = (
        "-> Tenboxed::nms(Tensor dets, Tensor scores, float iou_thresh\0other\0boxed::blur(Tensor x, int n) -> Tensor"
    )
    compiled.write_bytes(b"\x7fELF\0" + declared.encode())
    other.write_bytes(b"\x7fELF\0yours::blur(Tensor x, int n) -> Tensor\0nms(Tensor x)")
    code = f"""
import torch
torch.ops.load_library({str(compiled)!r})
boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 3], [5, 5, 6, 6]])
print(torch.ops.boxed.nms(boxes, torch.tensor([0.5, 0.7, 0.1]), iou_threshold=0.5), len(torch.ops.loaded_libraries))
torch.library.register_autograd("boxed::nms", lambda ctx, dy: None)
torch.library.Library("boxed", "IMPL", "Meta").impl(torch.ops.boxed.nms.default, print)
for use in (lambda: torch.ops.boxed.blur(boxes, 1), lambda: torch.ops.load_library({str(other)!r})):
    try:
        use()
    except (AttributeError, OSError) as error:
        print(str(error).splitlines()[0])
"""
    assert run_aliased(code) == [
        "tensor([1, 2]) 1",
        "ampkit has no torch.ops.boxed.blur, whose kernel is none of Python",
        f"{other}: its operators are compiled for PyTorch's tensors, and ampkit has none of them",
    ]


def test_a_library_of_the_stable_abi_declares_its_operators_without_their_namespace(run_aliased, tmp_path):
    compiled, other = tmp_path / "ops.so", tmp_path / "other.so"
    declared = (
        "stable\0CUDA\0nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor\0blur(Tensor x, int n) -> Tensor"
        "\0cuda_version() -> int?\0has_jpeg() -> bool\0version() -> int\0_lfilter_core_loop(Tensor "
        "input_signal_windows,Tensor a_coeff_flipped,Tensor(a!) padded_output_waveform) -> Tensor(a!)\0"
    )
    compiled.write_bytes(b"\x7fELF\0" + declared.encode())
    other.write_bytes(b"\x7fELF\0yours\0blur(Tensor x, int n) -> Tensor\0nms(Tensor x)\0")
    code = f"""
import torch
torch.ops.load_library({str(compiled)!r})
boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 3], [5, 5, 6, 6]])
ops = torch.ops.stable
print(ops.nms(boxes, torch.tensor([0.5, 0.7, 0.1]), iou_threshold=0.5), hasattr(torch.ops.another, "nms"))
print(ops.cuda_version(), ops.has_jpeg(), ops.version(), hasattr(ops, "none"))
y = torch.zeros(1, 1, 6)  # y[i] = x[i] + 0.5 y[i - 1] - y[i - 2]
ops._lfilter_core_loop(torch.tensor([[[1.0, 0, 2, 0]]]), torch.tensor([[1.0, -0.5, 1.0]]), y)
print(y.tolist())
for use in (lambda: ops.blur(boxes, 1), lambda: torch.ops.load_library({str(other)!r})):
    try:
        use()
    except (AttributeError, OSError) as error:
        print(str(error).splitlines()[0])
"""
    assert run_aliased(code) == [
        "tensor([1, 2]) False",
        "None False -1 False",
        "[[[0.0, 0.0, 1.0, 0.5, 1.25, 0.125]]]",
        "ampkit has no torch.ops.stable.blur, whose kernel is none of Python",
        f"{other}: its operators are compiled for PyTorch's tensors, and ampkit has none of them",
    ]


def test_a_future_has_a_result_once_it_is_set(run_aliased):
    code = """
import torch
from torch.futures import Future, collect_all, wait_all
first, second = Future(), torch.Future()
later = first.then(lambda done: done.wait() * 2)
both = collect_all([first, second])
print(first.done(), later.done(), isinstance(first, torch.Future))
first.set_result(3)
second.set_result(torch.ones(1))
print(later.wait(), first.value(), both.wait()[0] is first, wait_all([first, later]))
failed = Future()
after = failed.then(lambda done: done.wait())
failed.set_exception(ValueError("no"))
try:
    after.wait()
except ValueError as error:
    print(error)

class Metrics(torch.nn.ModuleDict):
    def __init__(self):
        super().__init__()
        self.known = {"a"}

    def update(self, modules):
        super().update({name: module for name, module in modules.items() if name in self.known})

print(len(Metrics()))
"""
    assert run_aliased(code) == ["False False True", "6 3 True [3, 6]", "no", "0"]


def test_no_tensor_is_made_of_others(run_aliased):
    code = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

class Mode(TorchDispatchMode):
    pass

print(is_traceable_wrapper_subclass(torch.ones(1)))
try:
    Mode()
except AttributeError as error:
    print(str(error).splitlines()[0])
"""
    assert run_aliased(code) == ["False", "ampkit has no torch.utils._python_dispatch.TorchDispatchMode"]


def test_what_compiles_for_pytorch_is_refused_with_the_nearest_way(run_aliased):
    code = """
import torch
from torch.utils import cpp_extension
print(cpp_extension.CUDA_HOME is None, cpp_extension.ROCM_HOME is None)
for make in (lambda: cpp_extension.load("name", ["a.cpp"]), lambda: cpp_extension.CUDAExtension("name", ["a.cu"]),
             lambda: torch.ops.compiled_elsewhere.scale(torch.ones(2))):
    try:
        make()
    except AttributeError as error:
        print(*str(error).splitlines(), sep=" | ")
"""
    cure = "help: C++ and CUDA for PyTorch need PyTorch; an op of array code, with kernels: docs/add-an-op.md"
    own = 'torch.library.custom_op("compiled_elsewhere::scale", ...) of Python code'
    assert run_aliased(code) == [
        "True True",
        f"ampkit has no torch.utils.cpp_extension.load | {cure}",
        f"ampkit has no torch.utils.cpp_extension.CUDAExtension | {cure}",
        f"no operator compiled_elsewhere::scale | help: compiled code for PyTorch has none here: {own}",
    ]
