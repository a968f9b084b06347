"""PyTorch's names through the alias: there, or an error that says what to use instead."""

from __future__ import annotations

import pytest

import ampkit

pytestmark = pytest.mark.cpu


WALK = """
import importlib
import torch
from ampkit.base.missing_names import known

def answer(path, name, kind, look):
    try:
        look()
    except kind as error:
        _, _, cure = str(error).partition("\\nhelp: ")
        if not str(error).startswith("ampkit has no torch.") or not cure or "no replacement is known" in cure:
            print(path, name, type(error).__name__, error)

for path in known()["modules"]:
    answer(path, "", ImportError, lambda: importlib.import_module(path))
for path in set(known()) - {"version", "modules", "torch.Tensor"}:
    for name in known()[path]:
        answer(path, name, ImportError, lambda: exec(f"from {path} import {name}", {}))
        answer(path, name, AttributeError, lambda: getattr(importlib.import_module(path), name))
for name in known()["torch.Tensor"]:
    answer("torch.Tensor", name, AttributeError, lambda: getattr(torch.ones(2, 2), name))
    answer("torch.Tensor", name, AttributeError, lambda: getattr(torch.nn.Parameter, name))
"""


def test_every_public_name_of_pytorch_is_there_or_answers_with_what_to_use_instead(run_aliased):
    assert run_aliased(WALK) == []


def test_every_name_of_pytorch_that_ampkit_has_is_in_the_alias(run_aliased):
    code = """
import importlib, types
import torch
from ampkit.base.missing_names import NAMESPACES, known
for space, path in NAMESPACES.items():
    if space != "torch.Tensor":
        ours, alias = importlib.import_module(path), importlib.import_module(space)
        has = {name for name in known()[space] if not isinstance(getattr(ours, name, types), types.ModuleType)}
        for name in has - {*vars(alias)}:
            print(space, name)
"""
    assert run_aliased(code) == []


def test_what_a_module_has_only_where_pytorch_compiled_it_is_refused_with_what_to_use_instead(run_aliased):
    code = """
import torch
model = torch.nn.Linear(2, 2)
for look in (lambda: torch.jit.script(model).save("x.pt"), lambda: torch.jit.trace(model, torch.ones(1, 2)).graph):
    try:
        look()
    except AttributeError as error:
        print(error)
print(hasattr(model, "save"))
"""
    cure = "help: save the weights: torch.save(model.state_dict(), path), or safetensors; the graph: torch.onnx.export"
    assert run_aliased(code) == [
        *("ampkit has no torch.jit.ScriptModule.save", cure),
        *("ampkit has no torch.jit.ScriptModule.graph", cure),
        "False",
    ]


def test_a_name_that_pytorch_does_not_have_is_an_ordinary_error(run_aliased):
    code = """
import torch
print(hasattr(torch, "no_such_name"), hasattr(torch, "frexp"), getattr(torch.nn, "NoSuchLayer", None))
print(hasattr(torch.Tensor, "no_such_name"), hasattr(torch.Tensor, "apply_"))
try:
    torch.nn.Parameter.no_such_name
except AttributeError as error:
    print(error)
try:
    from torch.nn import NoSuchLayer
except ImportError as error:
    print(str(error).partition(" (")[0])
try:
    import torch.no_such_module
except ModuleNotFoundError as error:
    print(error, error.name)
"""
    assert run_aliased(code) == [
        "False False None",
        "False False",
        "type object 'Parameter' has no attribute 'no_such_name'",
        "cannot import name 'NoSuchLayer' from 'torch.nn'",
        "No module named 'torch.no_such_module' torch.no_such_module",
    ]


@pytest.mark.parametrize(
    ("space", "name", "cure"),
    [
        (ampkit, "frexp", "np.frexp"),
        (ampkit.nn, "NLLLoss2d", "PyTorch's own successors"),
        (ampkit.linalg, "eigvals", "ampkit.linalg.eigvalsh"),
        (ampkit.ones(2), "apply_", "x.copy_"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_without_the_alias_ampkits_modules_and_tensors_answer_too(space, name, cure):
    assert not hasattr(space, name)
    with pytest.raises(AttributeError, match=rf"ampkit has no torch\S*{name}\nhelp: .*{cure}"):
        getattr(space, name)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        space.no_such_name  # noqa: B018


def test_a_use_of_what_can_be_imported_only_says_what_to_do(run_aliased):
    code = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nested import nested_tensor
import torch.ao.quantization.observer
print(isinstance(3, FSDP))
for use in (lambda: FSDP(3), lambda: nested_tensor("x")):
    try:
        use()
    except AttributeError as error:
        print(str(error).splitlines()[0])
"""
    first, *lines = run_aliased(code)
    assert first == "False"
    assert lines == [
        "ampkit has no torch.distributed.fsdp.FullyShardedDataParallel",
        "ampkit has no torch.nested.nested_tensor",
    ]


def test_a_script_exports_to_onnx_and_finds_no_exporter_of_pytorch(run_aliased):
    pytest.importorskip("onnx", reason="needs onnx, of the extra onnx")
    code = """
import io, torch
file = io.BytesIO()
torch.onnx.export(torch.nn.Linear(2, 1), (torch.ones(3, 2),), file, input_names=["x"], dynamic_axes={"x": {0: "n"}})
print(len(file.getvalue()) > 100, torch.onnx.is_in_onnx_export())
torch.onnx.register_custom_op_symbolic("a::b", print, 9)
try:
    torch.onnx.dynamo_export(1)
except AttributeError as error:
    print(str(error).splitlines()[0])
"""
    assert run_aliased(code) == ["True False", "ampkit has no torch.onnx.dynamo_export"]


def test_the_version_is_pytorchs_and_metadata_says_so_too(run_aliased):
    code = """
import importlib.metadata, importlib.util, torch, ampkit
print(torch.__version__, torch.version.__version__, importlib.metadata.version("torch"), torch.version.cuda)
print(importlib.util.find_spec("torch") is not None, ampkit.__version__ == torch.__version__)
"""
    assert run_aliased(code) == ["2.13.0 2.13.0 2.13.0 None", "True False"]


def test_the_version_compares_with_tuples_and_texts_by_its_numbers(run_aliased):
    code = """
import torch
from torch.torch_version import TorchVersion
version = torch.__version__
print(isinstance(version, TorchVersion), version >= (2, 1), version >= (2, 13), version == (2, 13, 0), version < (3,))
print(version > "2.9", version < "2.20", "2.9" < version, version > "1.8.0a0", version == "2.13", version != "2.13.1")
print(TorchVersion("2.1.0a0+git") < "2.1", TorchVersion("2.1+cpu") > "2.1", TorchVersion("2.1.0rc2") > "2.1.0rc1")
print(version < "main", version in {"2.13.0"}, version.split("."), f"{version}")
"""
    lines = run_aliased(code)
    assert lines[:3] == ["True True True True True", "True True True True True True", "True True True"]
    assert lines[3] == "True True ['2', '13', '0'] 2.13.0"


def test_the_alias_refuses_a_process_that_has_imported_pytorch(run_aliased):
    code = """
import sys, types, ampkit.as_torch
held, sys.modules["torch"] = sys.modules["torch"], types.ModuleType("torch")
try:
    ampkit.as_torch.install()
except ampkit.StateError as error:
    print(error)
finally:
    sys.modules["torch"] = held
"""
    assert run_aliased(code)[0].startswith("ampkit.as_torch: needs a process without PyTorch")


def test_names_of_pytorch_are_the_objects_of_ampkit(run_aliased):
    code = """
import ampkit, torch, torch.nn.functional as F
from torch.nn.modules.conv import Conv2d
from torch.optim.adamw import AdamW
print(torch.Tensor is ampkit.Tensor, Conv2d is ampkit.nn.Conv2d, AdamW is ampkit.optim.AdamW)
print(F.relu is ampkit.ops.relu, torch.sum is ampkit.sum, torch.float32 is ampkit.float32)
torch.backends.cudnn.deterministic = False
print(ampkit.are_deterministic_algorithms_enabled())
print(torch.nn.Conv2d.__name__, torch.autograd.Variable(torch.ones(2), requires_grad=True).requires_grad)
"""
    assert run_aliased(code) == ["True True True", "True True True", "False", "Conv2d True"]


def test_names_of_the_engine_and_its_graphs_work_as_in_pytorch(run_aliased):
    code = """
import torch
from torch.autograd import Variable
from torch.autograd.graph import save_on_cpu

x = torch.ones(2)
v = Variable(x, requires_grad=True)
print(x.requires_grad, v.requires_grad, v.data_ptr() == x.data_ptr(), isinstance(x, Variable), isinstance(1, Variable))
seen = []
v.register_hook(lambda g: Variable._execution_engine.queue_callback(lambda: seen.append("end")))
with save_on_cpu():
    y = v.exp().sum()
y.backward()
try:
    Variable._execution_engine.queue_callback(print)
except RuntimeError as error:
    seen.append(str(error).partition(chr(10))[0])
print(seen)
with torch.autograd.set_multithreading_enabled(False):
    print(torch.autograd.is_multithreading_enabled())
region = torch.autograd.profiler.record_function("name")
with region, region:
    print(torch.autograd.is_multithreading_enabled())
print(torch.autograd.gradcheck(lambda x: x * x, torch.ones(2, requires_grad=True)))
"""
    assert run_aliased(code) == [
        "False True True True False",
        "['end', 'queue_callback: needs a backward pass under way, got none']",
        "False", "True", "True",
    ]  # fmt: skip


def test_settings_of_how_parameters_are_converted_are_kept(run_aliased):
    code = """
import torch
future = torch.__future__
for name in ("overwrite", "swap"):
    get, put = (getattr(future, f"{verb}_{name}_module_params_on_conversion") for verb in ("get", "set"))
    before = get()
    put(True)
    print(before, get())
"""
    assert run_aliased(code) == ["False True", "False True"]


def test_assert_close_compares_values_shapes_dtypes_and_containers(run_aliased):
    code = """
import torch
from torch.testing import assert_close
assert_close(torch.ones(3), torch.ones(3) + 1e-7)
assert_close({"a": [torch.ones(2), 3]}, {"a": [torch.ones(2), 3]})
for other in (torch.ones(3) + 1e-3, torch.ones(4), torch.ones(3).double()):
    try:
        assert_close(torch.ones(3), other)
    except AssertionError as error:
        print(str(error).strip().splitlines()[0])
"""
    first, *rest = run_aliased(code)
    assert first.startswith("Not equal to tolerance")
    assert rest == ["shape (3,) is not (4,)", "dtype torch.float32 is not torch.float64"]


def test_make_tensor_draws_from_its_range_in_the_layout_that_is_asked_for(run_aliased):
    code = """
import torch
from torch.testing import make_tensor
for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8):
    x = make_tensor((50, 40), dtype=dtype, device="cpu", low=1, high=4)
    assert x.dtype == dtype and x.shape == (50, 40) and ((x >= 1) & (x < 4)).all(), dtype
    x = make_tensor(1000, dtype=dtype, device="cpu")
    assert 8 <= x.double().max() <= 9 and x.double().min() <= (0 if dtype == torch.uint8 else -8), dtype
x = make_tensor(200, dtype=torch.int64, device="cpu", low=0, high=2, exclude_zero=True)
print(x.unique().tolist(), make_tensor(300, dtype=torch.bool, device="cpu").unique().tolist())
x = make_tensor(4, 6, dtype=torch.float32, device="cpu", noncontiguous=True, requires_grad=True)
print(x.shape, x.is_contiguous(), x.is_leaf, x.requires_grad)
x = make_tensor((2, 3, 4, 4), dtype=torch.float32, device="cpu", memory_format=torch.channels_last)
print(x.is_contiguous(memory_format=torch.channels_last), make_tensor((), dtype=torch.float32, device="cpu").shape)
try:
    make_tensor(3, dtype=torch.int64, device="cpu", low=4, high=4)
except ValueError as error:
    print(str(error).splitlines()[0])
"""
    assert run_aliased(code) == [
        "[1] [False, True]", "(4, 6) False True True", "True ()", "make_tensor: needs low below high, got 4 and 4",
    ]  # fmt: skip


def test_nn_grad_has_the_gradients_of_convolutions(run_aliased):
    code = """
import torch
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight
options = dict(stride=2, padding=1, dilation=2, groups=2)
x = torch.randn(2, 4, 9, 8, dtype=torch.float64, requires_grad=True)
w = torch.randn(6, 2, 3, 2, dtype=torch.float64, requires_grad=True)
y = F.conv2d(x, w, **options)
dy = torch.randn(*y.shape, dtype=torch.float64, requires_grad=True)
dx, dw = torch.autograd.grad(y, (x, w), dy)
print(torch.allclose(conv2d_input(x.shape, w, dy, **options), dx))
print(torch.allclose(F.grad.conv2d_weight(x, w.shape, dy, **options), dw))
print(torch.autograd.gradcheck(lambda w, dy: conv2d_input(x.shape, w, dy, **options), (w, dy)))
print(torch.cuda.is_tf32_supported() and not torch.cuda.is_available())
"""
    assert run_aliased(code) == ["True", "True", "True", "False"]


def test_reductions_have_pytorchs_numbers(run_aliased):
    code = """
from torch.nn import _reduction as reduction
print(*[reduction.get_enum(name) for name in ("none", "mean", "sum")])
try:
    reduction.get_enum("most")
except ValueError as error:
    print(error)
"""
    assert run_aliased(code) == ["0 1 2", "get_enum: needs one of none, mean, sum, got 'most'"]


def test_attention_is_a_function_of_its_weights(run_aliased):
    code = """
import torch
import torch.nn as nn
import torch.nn.functional as F
for words in ({}, {"kdim": 6, "vdim": 5}, {"add_bias_kv": True, "add_zero_attn": True}):
    layer = nn.MultiheadAttention(8, 2, **words).eval()
    q = torch.randn(3, 2, 8, requires_grad=True)
    k, v = torch.randn(4, 2, words.get("kdim", 8)), torch.randn(4, 2, words.get("vdim", 8))
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, 1] = True
    wanted = layer(q, k, v, key_padding_mask=mask)
    out, weights = F.multi_head_attention_forward(
        q, k, v, 8, 2, layer.in_proj_weight, layer.in_proj_bias, layer.bias_k, layer.bias_v, layer.add_zero_attn, 0.1,
        layer.out_proj.weight, layer.out_proj.bias, training=False, key_padding_mask=mask,
        use_separate_proj_weight=not layer._qkv_same_embed_dim, q_proj_weight=layer.q_proj_weight,
        k_proj_weight=layer.k_proj_weight, v_proj_weight=layer.v_proj_weight)
    print(torch.equal(out, wanted[0]), torch.equal(weights, wanted[1]))
out.sum().backward()
print(q.grad.shape, layer.out_proj.weight.grad.shape)
try:
    F.multi_head_attention_forward(q, k, v, 9, 2, None, None, None, None, False, 0.0, layer.out_proj.weight, None)
except ValueError as error:
    print(str(error).splitlines()[0])
"""
    needs = "a query whose last axis is embed_dim_to_check 9, which num_heads divides"
    assert run_aliased(code) == [
        *["True True"] * 3, "(3, 2, 8) (8, 8)",
        f"multi_head_attention_forward: needs {needs}, got [3, 2, 8] and 2 heads",
    ]  # fmt: skip


def test_methods_in_place_are_functions_of_torch_too(run_aliased):
    code = """
import torch
x = torch.tensor([-1.0, 4.0])
print(torch.relu_(x) is x, torch.sqrt_(x).tolist(), torch.clamp_(x, max=1.0).tolist(), torch.zero_(x).tolist())
print(x.to_dense() is x)
"""
    assert run_aliased(code) == ["True [0.0, 2.0] [0.0, 1.0] [0.0, 0.0]", "True"]


def test_losses_of_torch_itself_take_the_number_of_a_reduction(run_aliased):
    code = """
import inspect
import torch
import torch.nn.functional as F
x, t, n = torch.randn(3, 4), torch.rand(3, 4), torch.tensor([1.0, -1.0, 1.0])
print(torch.equal(torch.poisson_nll_loss(x, t, True, False, 1e-8, 2), F.poisson_nll_loss(x, t, reduction="sum")))
print(torch.equal(torch.kl_div(x, t, 0), F.kl_div(x, t, reduction="none")))
print(torch.equal(torch.kl_div(x, t, reduction="none", log_target=True),
                  F.kl_div(x, t, reduction="none", log_target=True)))
print(torch.equal(torch.binary_cross_entropy_with_logits(x, t), F.binary_cross_entropy_with_logits(x, t)))
print(torch.equal(torch.margin_ranking_loss(x[0], x[1], n[:1], 0.5, 2),
                  F.margin_ranking_loss(x[0], x[1], n[:1], 0.5, reduction="sum")))
print(torch.equal(torch.cosine_embedding_loss(x, t, n, 0.1, 2),
                  F.cosine_embedding_loss(x, t, n, 0.1, reduction="sum")))
print(torch.equal(torch.triplet_margin_loss(x, t, x + 1, reduction=0),
                  F.triplet_margin_loss(x, t, x + 1, reduction="none")))
print(torch.equal(torch.hinge_embedding_loss(x, t.sign()), F.hinge_embedding_loss(x, t.sign())))
try:
    torch.kl_div(x, t, 7)
except TypeError as error:
    print(str(error).splitlines()[0])
"""
    assert run_aliased(code) == ["True"] * 8 + ["kl_div: needs reduction as text, got 7"]


def test_a_summary_writer_writes_what_tensorboard_reads(run_aliased, tmp_path):
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    code = f"""
from torch.utils.tensorboard import SummaryWriter
import torch, warnings
with SummaryWriter({str(tmp_path)!r}) as writer:
    writer.add_scalar("loss", torch.tensor(0.5), 3)
    writer.add_scalars("accuracy", {{"train": 0.25, "val": 0.75}}, 4)
    writer.add_text("note", "words")
    writer.add_histogram("w", torch.ones(2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        writer.add_graph(torch.nn.Linear(2, 2), torch.ones(2))
    print([str(one.message) for one in said], hasattr(writer, "scalars"))
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator({str(tmp_path)!r}).Reload()
scalars = [(tag, event.step, event.value) for tag in read.Tags()["scalars"] for event in read.Scalars(tag)]
print(scalars, read.Tags()["histograms"])
"""
    assert run_aliased(code) == [
        "['SummaryWriter.add_graph: ampkit writes no event for it'] False",
        "[('loss', 3, 0.5)] ['w']",
    ]


def test_safetensors_saves_and_loads_through_the_alias(run_aliased, tmp_path):
    code = f"""
import torch
from safetensors.torch import load, load_file, load_model, save, save_file, save_model
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
model[1].weight = model[0].weight
torch.optim.SGD(model.parameters(), lr=0.1)
path = {str(tmp_path / "model.safetensors")!r}
save_model(model, path)
twin = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
twin[1].weight = twin[0].weight
load_model(twin, path)
print(torch.equal(twin[1].weight, model[0].weight), sorted(load_file(path)))
held = load(save({{"x": torch.arange(6, dtype=torch.bfloat16).view(2, 3)}}))["x"]
print(held.dtype, held.tolist())
"""
    assert run_aliased(code) == [
        "True ['0.bias', '0.weight', '1.bias']",
        "torch.bfloat16 [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]",
    ]
