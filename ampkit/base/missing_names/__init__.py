"""PyTorch's names that ampkit lacks, and what to use instead: for errors, and for docs/coming-from-pytorch.md.

pytorch_names.json lists the public names of PyTorch by namespace (`python -m tests.bench.pytorch_names` writes it).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import AmpkitError

PYTORCH_VERSION = "2.13.0"
GOLDEN = Path(__file__).with_name("pytorch_names.json")

# PyTorch's namespace and ampkit's.
NAMESPACES = {
    "torch": "ampkit",
    "torch.Tensor": "ampkit.Tensor",
    "torch.nn.functional": "ampkit.ops",
    "torch.nn": "ampkit.nn",
    "torch.nn.init": "ampkit.nn.init",
    "torch.nn.utils": "ampkit.nn.utils",
    "torch.nn.utils.parametrizations": "ampkit.nn.utils.parametrizations",
    "torch.nn.utils.parametrize": "ampkit.nn.utils.parametrize",
    "torch.optim": "ampkit.optim",
    "torch.optim.lr_scheduler": "ampkit.optim.lr_scheduler",
    "torch.optim.swa_utils": "ampkit.optim.swa_utils",
    "torch.amp": "ampkit.amp",
    "torch.autograd": "ampkit.autograd",
    "torch.autograd.functional": "ampkit.autograd.functional",
    "torch.distributions": "ampkit.distributions",
    "torch.linalg": "ampkit.linalg",
    "torch.special": "ampkit.special",
    "torch.utils.data": "ampkit.utils.data",
}

# Groups of names that have no meaning in ampkit: a pattern of whole names, with their namespace or without it, then
# what to use instead.
GROUPS = [
    ("further distributions, and transforms of them", r"torch\.distributions\..*",
     "a subclass of `ampkit.distributions.Distribution` with `sample` and `log_prob`"),
    ("sparse and nested tensors", r".*sparse.*|.*(crow|ccol|col|row)_indices.*|indices(_copy)?|values(_copy)?|coalesce|"
     r"is_coalesced|dense_dim|to_dense|smm|spmm|dsmm|hsmm|hspmm|saddmm|sspaddmm|jagged|is_nested|to_padded_tensor",
     "`ampkit.sparse` has the layouts COO, CSR and CSC; gradients of parameters are dense"),
    ("quantization, fp8 and integers of odd widths",
     r"q_.*|(?!nanq).*quant.*|qu?int.*|qscheme|per_(tensor|channel)_.*|int_repr|"
     r"fbgemm.*|bits?\d*(x\d)?|u?int[1-7]|uint(16|32|64)|float[48]_.*|.*choose_qparams.*|scaled_(grouped_)?mm|ScalingType|"
     r"SwizzleType|Q\w+Storage", "float16 and bfloat16 are the dtypes below float32"),
    ("complex numbers and spectra", r"c(double|float|half)|complex.*|.*conj.*|view_as_(complex|real)(_copy)?|real|"
     r"imag|angle|polar|isreal|i?stft|.*_window|m?H|adjoint|Complex.*|resolve_neg|is_neg|sgn_?", "tensors are real"),
    ("TorchScript, tracing, symbolic shapes", r".*Type|Script.*|.*Script\w+|sym_.*|Sym\w+|parse_.*|import_ir.*|Graph.*|"
     r"\w*(Argument|Schema|Object|Logger|Info|Report|Unit|Block|Code|Capsule)\w*|jit.*|fork|wait|Future|Await\w*|"
     r"merge_type.*|unify_type.*|get_file_path|Dispatch\w*|ExcludeDispatch\w*|AliasDb|AggregationType|AVG|SUM|"
     r"CallStack|DeepCopyMemo\w*|Deserialization\w*|Serialization\w*|DisableTorch\w*|ExecutionPlan|FatalError|FileCheck|"
     r"Gradient|IODescriptor|JITException|Node|StaticModule|Tag|ThroughputBenchmark|Benchmark\w*|TracingState|Use|Value|"
     r"PyTorchFile\w+|BroadcastingList.|boolean_dispatch|assert_int_or_pair|PRIVATE_OPS|DType|"
     r"\w+Builder|torch\.(Module|Parameter|Buffer)Dict",
     "none: Python code runs directly"),
    ("functional transforms and control flow", r"cond|while_loop", "write the loop or the branch in Python"),
    ("storages and the old tensor types",
     r"\w*Storage\w*|\w+Tensor|storage\w*|untyped_storage|set_|is_set_to|is_storage|"
     r"const_data_ptr|set_default_tensor_type|UninitializedBuffer|UninitializedParameter",
     "`ampkit.tensor(..., dtype=)`"),
    ("strides by hand", r"as_strided.*|empty_(strided|permuted)|new_empty_strided|resize\w*|dim_order|slice_\w+|"
     r"\w+_scatter|\w+_copy", "slices, `reshape` and `permute` for views; `where` and `cat` for copies"),
    ("other devices", r".*(xla|ipu|hpu|mps|xpu|mtia|maia|vulkan|mkldnn|miopen|cudnn).*|Event|Stream|record_stream|"
     r".*cudagraph.*", "CPUs and NVIDIA GPUs"),
    ("distributed training, and names that PyTorch's own code uses",
     r".*distributed.*|Distributed.*|DataParallel|SyncBatchNorm|"
     r"prepare_multiprocessing.*|get_worker_info|default_convert|\w*Pipe|\w*datapipe\w*|DataChunk|runtime_validation\w*|"
     r"(argument|guaranteed|non)_\w+|init_num_threads|.*interop_threads|get_device_module|compiled_with.*|"
     r"USE_\w+|inf|swap_in\w+|AcceleratorError|default_generator|as_subclass|has_(lapack|mkl|openmp|spectral)|"
     r"typename|classproperty|TYPE_CHECKING|\w*torch_function\w*|"
     r".*_notes|factory_kwargs|Container|skip_init|is_tensor_like|GRID_SAMPLE\w+|EPOCH_DEPR\w+|AUTOGRAD_\w+",
     "`ampkit.distributed` for training on many devices; the others have no equivalent"),
    ("internal functions of PyTorch's layers", r"native_\w+|batch_norm_\w+|unsafe_\w+|\w+_with_indices|.*_renorm_|"
     r"grouped_mm|multi_head_attention_forward|LinearCross\w+|.*_cell|rnn_\w+|lstm|gru|conv_tbc|"
     r"constant_pad_nd|grid_sampler\w*|affine_grid_generator|convolution|norm_except_dim|fused_.*|feature_\w+dropout|"
     r"Profiler\w+|DeviceType|\w*kineto\w*|\w+Counter|hash_tensor|nonzero_static|module_load|output_nr|grad_dtype",
     "the function without the prefix"),
    ("in-place functions", r"[a-z]\w*_", "the method: `x.relu_()`"),
    ("global switches of PyTorch",
     r"\w*(deterministic|anomaly|warn_always|multithreading|flush_denormal|view_replay)\w*|"
     r"thread_safe_generator|\w*autocast\w*|clear_autocast_cache|.*layout_policy|\w*default_dtype|"
     r"is_inference(_mode_enabled)?", "`with autocast(...)`; the others have no equivalent"),
    ("long deprecated",
     r"range|symeig|eig|solve|lstsq|matrix_rank|cholesky\w*|volatile|reinforce|NLLLoss2d|clip_grad_norm|"
     r"(constant|dirac|eye|(kaiming|xavier)_(normal|uniform)|orthogonal|sparse|uniform|normal)|Variable|variable|"
     r"upsample_\w*|new|name|NestedIOFunction|remove_(weight|spectral)_norm|legacy_contiguous_format|to_dlpack",
     "PyTorch's own successors, where ampkit has them"),
]  # fmt: skip
ONLY_IN = {"in-place functions": {"torch", "torch.nn.functional"}}
NOT_IN = {"long deprecated": {"torch.linalg"}}

# Replacements; a name stands for the function of `torch`, the method, and the in-place method.
REPLACEMENTS = {
    "addmv": "`input + ops.mv(a, x)`", "apply_": "`x.copy_(ampkit.tensor(f(x.numpy())))`",
    "convert_conv2d_weight_memory_format": "leave it out", "convert_conv3d_weight_memory_format": "leave it out",
    "eig": "`ampkit.linalg.eigh` of symmetric matrices; else np.linalg.eig(x.numpy()), as values may be complex",
    "eigvals": "`ampkit.linalg.eigvalsh` of symmetric matrices; else np.linalg.eigvals(x.numpy()), maybe complex",
    "deg2rad": "`x * (math.pi / 180)`", "erfc": "`1 - ops.erf(x)`", "feature_dropout": "`ops.dropout2d`",
    "fill": "`ops.full_like(x, value)`", "frac": "`x - x.trunc()`",
    "frexp": "`np.frexp(x.numpy())`, not differentiable", "frobenius_norm": "`x.norm()`",
    **dict.fromkeys(("geqrf", "householder_product", "orgqr", "ormqr"), "`ampkit.linalg.qr`"),
    **dict.fromkeys(("ldl_factor", "ldl_factor_ex"), "scipy.linalg.ldl(x.numpy()), not differentiable"),
    "ldl_solve": "`ampkit.linalg.solve`", "i0": "`ampkit.special.i0(x)`", "lu": "`ampkit.linalg.lu_factor`",
    "igamma": "`ampkit.special.gammainc`", "igammac": "`ampkit.special.gammaincc`", "lu_solve": "`ampkit.lu_solve`",
    "map2_": "`x.copy_(...)`", "triangular_solve": "`ampkit.triangular_solve`",
    "histogramdd": "`np.histogramdd(x.numpy())`, not differentiable", "index": "`x[i, j]`",
    "index_put": "`ops.where`, or `x[index] = value`, which is not differentiable",
    "lobpcg": "`ampkit.linalg.eigh`, all of it", "logit": "`ops.log(x / (1 - x))`", "map_": "`x.copy_(...)`",
    "mvlgamma": "`ampkit.special.multigammaln`",
    "nuclear_norm": '`ampkit.linalg.matrix_norm(x, "nuc")`', "qr": "`ampkit.linalg.qr`",
    "rad2deg": "`x * (180 / math.pi)`", "retains_grad": "`x.grad`, once `x.retain_grad()` was called",
    "segment_reduce": "`ops.scatter_reduce`",
    "sparse_bsc_tensor": "`ampkit.sparse_csc_tensor`, of elements without blocks",
    "sparse_bsr_tensor": "`ampkit.sparse_csr_tensor`, of elements without blocks",
    "sparse_compressed_tensor": "`ampkit.sparse_csr_tensor` or `ampkit.sparse_csc_tensor`",
    "sparse_mask": "`ampkit.sparse_coo_tensor(mask.indices(), x[tuple(mask.indices())], x.shape)`",
    "sparse_resize_": "another `ampkit.sparse_coo_tensor`",
    "split_with_sizes": "`x.split(sizes)`", "spsolve": "`ampkit.linalg.solve(x.to_dense(), b)`",
    "svd": "`ampkit.linalg.svd`, whose Vh is V transposed",
    "to_sparse_bsc": "`x.to_sparse_csc()`, without blocks", "to_sparse_bsr": "`x.to_sparse_csr()`, without blocks",
    "type_before_parametrizations": "`type(module)`", "upsample": "`ops.interpolate`",
    "xlogy": "`ops.where(x == 0, 0.0, x * ops.log(y))`",
}  # fmt: skip

# PyTorch's modules that ampkit lacks, and what to use instead.
_NARROW = '`ampkit.nn.quantization`, and `Policy("int8")` or another format below 16 bits (docs/formats.md)'
_DEVICES = "CPUs and NVIDIA GPUs: `ampkit.cuda.is_available()`"
_EAGER = "Python code runs directly; `ampkit.compile` records a step, `ampkit.onnx.export` writes a model as a graph"
_WHAT_THERE_IS = "docs/coming-from-pytorch.md lists what there is"
MODULES = {
    "accelerator": "`ampkit.cuda`, and `ampkit.get_default_device()`", "ao": _NARROW, "quantization": _NARROW,
    "mps": _DEVICES, "mtia": _DEVICES, "xpu": _DEVICES, "backends.mps": _DEVICES, "backends.mkldnn": "`ampkit doctor`",
    "compiler": _EAGER, "export": _EAGER, "fx": _EAGER, "jit": _EAGER, "_dynamo": _EAGER,
    "fft": "`np.fft` of `x.numpy()`, not differentiable", "functional": "`ampkit.ops`",
    "futures": "`ampkit.fork(f, x)` and `ampkit.wait(future)`",
    "hub": "`ampkit.models.from_pretrained(...)`, and `ampkit.models.load_weights(...)` for a model of your own",
    "library": "`ampkit.op`, an op of your own (docs/add-an-op.md)",
    "masked": "`ops.where`, and sums over the elements that count",
    "monitor": "the key train.loggers of a recipe (docs/logging.md)",
    "multiprocessing": "Python's multiprocessing, with `x.share_memory_()`; `ampkit launch` for several ranks",
    "nested": "pad: `nn.utils.rnn.pad_sequence`", "package": "`ampkit.save` and `ampkit.load`",
    "profiler": "`ampkit.profile()`", "quasirandom": "`scipy.stats.qmc.Sobol`, whose points are an array",
    "random": "`ampkit.manual_seed`, `seed`, `get_rng_state` and `set_rng_state`",
    "signal": "`ampkit.hann_window` and the other windows", "storage": "`ampkit.tensor(..., dtype=)`",
    "torch_version": "`ampkit.__version__`", "types": "`ampkit.Tensor`, `ampkit.dtype` and `ampkit.device`",
    "version": "`ampkit.__version__`",
}  # fmt: skip
# Where PyTorch has classes that are looked for at its top.
_CLASSES = ("torch.nn", "torch.optim", "torch.utils.data", "torch.nn.utils", "torch.optim.lr_scheduler")

_UNKNOWN = "no replacement is known: write it with ampkit.ops, or as an op of its own (docs/add-an-op.md)"
_LEAVE_OUT = "it changes no result here: leave it out"
# What to use instead of the names of a namespace that have no cure of their own.
OF_NAMESPACES = {
    "torch.special": "the function of `scipy.special` on `x.numpy()`, not differentiable",
    "torch.nn.utils.parametrize": "`register_parametrization` on the other module",
    "torch.backends.cuda": "cuBLAS, cuDNN and attention choose algorithms and workspaces by themselves: leave it out",
    "torch.nn.attention": "attention chooses its kernel by itself: leave it out",
    "torch.compiler": "Python code runs directly: leave it out", "torch.jit": "Python code runs directly: leave it out",
    **dict.fromkeys(("torch.cuda", "torch.accelerator", "torch.cpu"),
                    "`torch.cuda` has devices, streams, graphs and memory; nvidia-smi shows load, power and processes"),
    "torch.nn.parallel": "one process drives one device: DistributedDataParallel (docs/distributed.md)",
    "torch.hub": "`torch.hub.load`, `load_state_dict_from_url`, `get_dir` and `set_dir`",
    **dict.fromkeys(("torch.cuda.amp", "torch.func", "torch.multiprocessing", "torch.nn.utils.rnn", "torch.overrides",
                     "torch.profiler", "torch.types", "torch.utils.checkpoint", "torch.utils.hooks", "torch.version"),
                    _LEAVE_OUT),
}  # fmt: skip

# What a module has only where PyTorch compiled it (`torch.jit.script`, `torch.jit.trace`), and what to use instead.
SCRIPTED = {"save", "save_to_buffer", "code", "code_with_constants", "graph", "graph_for", "inlined_graph"}
INSTEAD_OF_SCRIPTED = (
    "save the weights: torch.save(model.state_dict(), path), or safetensors; the graph: torch.onnx.export"
)


class MissingNameError(AmpkitError, AttributeError):
    """A name of PyTorch that ampkit lacks."""


class MissingImportError(AmpkitError, ImportError):
    """A name of PyTorch that ampkit lacks, in `from ampkit import name`."""


class MissingModuleError(AmpkitError, ModuleNotFoundError):
    """A module of PyTorch that ampkit lacks."""


@cache
def known() -> dict[str, Any]:
    """PyTorch's names by namespace, its modules, and its version."""
    return json.loads(GOLDEN.read_text())


def replacement_of(name: str) -> str | None:
    """The replacement of a missing name; that of `erfc` serves `erfc_`, too."""
    return REPLACEMENTS.get(name) or REPLACEMENTS.get(name.rstrip("_"))


def group_of(namespace: str, name: str) -> tuple[str, str] | None:
    """The group of a missing name and what it uses instead, or None if it is listed by itself."""
    if replacement_of(name):
        return None
    for label, pattern, cure in GROUPS:
        names = (name, f"{namespace}.{name}")
        applies = namespace in ONLY_IN.get(label, {namespace}) and namespace not in NOT_IN.get(label, ())
        if applies and any(re.fullmatch(pattern, n) for n in names):
            return label, cure
    return None


def cure_of(namespace: str, name: str) -> str | None:
    """What to use instead of a name of PyTorch's `namespace`; None for a name that PyTorch does not have."""
    if name.startswith("_") or name not in known().get(namespace, ()):
        return None
    group = group_of(namespace, name)
    return replacement_of(name) or (group[1] if group else OF_NAMESPACES.get(namespace, _UNKNOWN))


def missing_name(namespace: str, name: str, cure: str | None = None) -> AttributeError:
    """The error for a name that PyTorch's `namespace` lacks in ampkit: with the cure, where PyTorch has it."""
    cure = cure or cure_of(namespace, name)
    if cure is None:
        return AttributeError(f"module {namespace!r} has no attribute {name!r}", name=name)
    return MissingNameError(f"ampkit has no {namespace}.{name}", cure=cure)


def missing_attribute(namespace: str, value: Any, name: str) -> AttributeError:
    """The error for an attribute that `value`, of PyTorch's class `namespace`, lacks."""
    if cure_of(namespace, name):
        return missing_name(namespace, name)
    of = f"type object {value.__name__!r}" if isinstance(value, type) else f"{type(value).__name__!r} object"
    return AttributeError(f"{of} has no attribute {name!r}", name=name, obj=value)


def missing_module_attribute(value: Any, name: str) -> AttributeError:
    """The error for an attribute that `value`, an nn.Module, lacks."""
    if name in SCRIPTED:
        return missing_name("torch.jit.ScriptModule", name, INSTEAD_OF_SCRIPTED)
    return AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}", name=name, obj=value)


def missing_module(name: str) -> ModuleNotFoundError:
    """The error for a module that ampkit lacks: with a cure, where PyTorch has it."""
    if name not in known()["modules"] and name not in known():
        return ModuleNotFoundError(f"No module named {name!r}", name=name)
    return MissingModuleError(f"ampkit has no {name}", cure=_WHAT_THERE_IS)


def answer_in(modules: Mapping[str, Any]) -> None:
    """Let the modules of NAMESPACES that are among `modules` answer a name of PyTorch that they lack with its cure."""
    for namespace, path in {**NAMESPACES, "torch.backends": "ampkit.backends"}.items():
        if path in modules and "__getattr__" not in vars(modules[path]):
            modules[path].__getattr__ = partial(_answer, namespace, modules[path])


def missing_in_module(namespace: str, module: ModuleType, name: str) -> Exception:
    """The error for a name that `module`, which stands for PyTorch's `namespace`, lacks: for its `__getattr__`."""
    error = _missing_in_module(namespace, module, name)
    if not isinstance(error, MissingNameError) or sys._getframe(2).f_code.co_name != _OF_IMPORT:
        return error
    # An AttributeError would become "cannot import name"; for a submodule it is what importlib waits for.
    is_module = find_spec(f"{module.__name__}.{name}") is not None
    return error if is_module else MissingImportError(str(error))


_OF_IMPORT = "_handle_fromlist"  # the function of importlib that looks whether a package has what `from` asks for


def _missing_in_module(namespace: str, module: ModuleType, name: str) -> AttributeError:
    path = f"{namespace}.{name}"
    if cure_of(namespace, name):
        return missing_name(namespace, name)
    if cure := MODULES.get(path.removeprefix("torch.")) or (path in known()["modules"] and _WHAT_THERE_IS):
        return MissingNameError(f"ampkit has no {path}", cure=cure)
    if namespace == "torch" and (place := _place_of(name)):
        return missing_name(module.__name__, name, f"it is `{place}.{name}`")
    return AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)


def _place_of(name: str) -> str | None:
    """The module of ampkit that has a name of PyTorch's layers, optimizers and loaders; None for other names."""
    places = (NAMESPACES[space] for space in _CLASSES if name in known()[space])
    return next((place for place in places if hasattr(import_module(place), name)), None)


def _answer(namespace: str, module: ModuleType, name: str) -> Any:
    raise missing_in_module(namespace, module, name)
