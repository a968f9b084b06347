"""The generated half of docs/coming-from-pytorch.md: which of PyTorch's names there are, and which not.

    python -m tests.pytorch_page        # after an op, a layer or a method was added

PyTorch's names stand in golden/pytorch_names.json (see bench/pytorch_names.py), ampkit's are asked of ampkit itself.
What is here by another name, and what belongs together, is written below; a line about a name that ampkit has by now is
left out by itself.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import ampkit

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-pytorch.md"
GOLDEN = Path(__file__).parent / "golden" / "pytorch_names.json"
MARK = "<!-- What follows is written by `python -m tests.pytorch_page`: change nothing here. -->\n"

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
    "torch.linalg": "ampkit.linalg",
    "torch.special": "ampkit.special",
    "torch.utils.data": "ampkit.utils.data",
}

# Names that have no meaning here, by what they belong to: a pattern of whole names, with their namespace or without it,
# then what to do instead.
GROUPS = [
    ("sparse and nested tensors", r".*sparse.*|.*(crow|ccol|col|row)_indices.*|indices(_copy)?|values(_copy)?|coalesce|"
     r"is_coalesced|dense_dim|to_dense|smm|spmm|dsmm|hsmm|hspmm|saddmm|sspaddmm|jagged|is_nested|to_padded_tensor",
     "gradients and tensors are dense"),
    ("quantization, fp8 and integers of odd widths",
     r"q_.*|(?!nanq).*quant.*|qu?int.*|qscheme|per_(tensor|channel)_.*|int_repr|"
     r"fbgemm.*|bits?\d*(x\d)?|u?int[1-7]|uint(16|32|64)|float[48]_.*|.*choose_qparams.*|scaled_(grouped_)?mm|ScalingType|"
     r"SwizzleType|Q\w+Storage", "float16 and bfloat16 are what there is below float32"),
    ("complex numbers and spectra", r"c(double|float|half)|complex.*|.*conj.*|view_as_(complex|real)(_copy)?|real|"
     r"imag|angle|polar|isreal|i?stft|.*_window|m?H|adjoint|Complex.*|resolve_neg|is_neg|sgn_?", "tensors are real"),
    ("TorchScript, tracing, symbolic shapes", r".*Type|Script.*|.*Script\w+|sym_.*|Sym\w+|parse_.*|import_ir.*|Graph.*|"
     r"\w*(Argument|Schema|Object|Logger|Info|Report|Unit|Block|Code|Capsule)\w*|jit.*|fork|wait|Future|Await\w*|"
     r"merge_type.*|unify_type.*|get_file_path|Dispatch\w*|ExcludeDispatch\w*|AliasDb|AggregationType|AVG|SUM|"
     r"CallStack|DeepCopyMemo\w*|Deserialization\w*|Serialization\w*|DisableTorch\w*|ExecutionPlan|FatalError|FileCheck|"
     r"Gradient|IODescriptor|JITException|Node|StaticModule|Tag|ThroughputBenchmark|Benchmark\w*|TracingState|Use|Value|"
     r"PyTorchFile\w+|BroadcastingList.|boolean_dispatch|assert_int_or_pair|PRIVATE_OPS|DType|"
     r"\w+Builder|torch\.(Module|Parameter|Buffer)Dict",
     "none of it: Python runs as it stands"),
    ("functional transforms and control flow", r"vmap|cond|while_loop", "write the loop, or batch the op"),
    ("storages and the old tensor types",
     r"\w*Storage\w*|\w+Tensor|storage\w*|untyped_storage|set_|is_set_to|is_storage|"
     r"const_data_ptr|set_default_tensor_type|share_memory_|is_shared|UninitializedBuffer|UninitializedParameter",
     "`ampkit.tensor(..., dtype=)`"),
    ("strides by hand", r"as_strided.*|empty_(strided|permuted)|new_empty_strided|resize\w*|dim_order|slice_\w+|"
     r"\w+_scatter|\w+_copy", "views come from slices, `reshape`, `permute`; out of place from `where` and `cat`"),
    ("other machines", r".*(xla|ipu|hpu|mps|xpu|mtia|maia|vulkan|mkldnn|miopen|cudnn).*|Event|Stream|record_stream|"
     r".*cudagraph.*", "CPUs and NVIDIA's GPUs"),
    ("several processes, and what PyTorch's own code needs",
     r".*distributed.*|Distributed.*|DataParallel|SyncBatchNorm|"
     r"prepare_multiprocessing.*|get_worker_info|default_convert|\w*Pipe|\w*datapipe\w*|DataChunk|runtime_validation\w*|"
     r"(argument|guaranteed|non)_\w+|init_num_threads|.*interop_threads|get_device_module|compiled_with.*|"
     r"USE_\w+|inf|swap_in\w+|AcceleratorError|default_generator|as_subclass|has_(lapack|mkl|openmp|spectral)|"
     r"typename|classproperty|TYPE_CHECKING|\w*torch_function\w*|"
     r".*_notes|factory_kwargs|Container|skip_init|is_tensor_like|GRID_SAMPLE\w+|EPOCH_DEPR\w+|AUTOGRAD_\w+",
     "one process, one device"),
    ("what PyTorch keeps for its own layers", r"native_\w+|batch_norm_\w+|unsafe_\w+|\w+_with_indices|.*_renorm_|"
     r"grouped_mm|linear_cross_entropy|multi_head_attention_forward|LinearCross\w+|.*_cell|rnn_\w+|lstm|gru|conv_tbc|"
     r"constant_pad_nd|grid_sampler\w*|affine_grid_generator|convolution|norm_except_dim|fused_.*|feature_\w+dropout|"
     r"Profiler\w+|DeviceType|\w*kineto\w*|\w+Counter|hash_tensor|nonzero_static|module_load|output_nr|grad_dtype",
     "the function without the prefix"),
    ("changes in place by functions", r"[a-z]\w*_", "the method: `x.relu_()`"),
    ("switches of PyTorch's own",
     r"\w*(deterministic|anomaly|warn_always|multithreading|flush_denormal|view_replay)\w*|"
     r"thread_safe_generator|\w*autocast\w*|clear_autocast_cache|.*layout_policy|set_printoptions|\w*default_dtype|"
     r"is_inference(_mode_enabled)?", "`with autocast(...)`; the rest has no switch here"),
    ("long deprecated",
     r"range|symeig|eig|solve|lstsq|matrix_rank|cholesky\w*|volatile|reinforce|NLLLoss2d|clip_grad_norm|"
     r"(constant|dirac|eye|(kaiming|xavier)_(normal|uniform)|orthogonal|sparse|uniform|normal)|Variable|variable|"
     r"upsample_\w*|new|name|NestedIOFunction|remove_(weight|spectral)_norm|legacy_contiguous_format|to_dlpack|CrossMap\w+",
     "PyTorch's own successors, as far as they are here"),
]  # fmt: skip
ONLY_IN = {
    "changes in place by functions": {"torch", "torch.nn.functional"},
    "long deprecated": set(NAMESPACES) - {"torch.linalg"},
}

# What else to write; a name stands for a function of `torch`, the method, and the change in place.
CURES = {
    "AdaptiveLogSoftmaxWithLoss": "`nn.Linear`, and `ops.cross_entropy` over all classes",
    "addbmm": "`input + ops.bmm(a, b).sum(0)`", "addmv": "`input + ops.mv(a, x)`", "addr": "`input + ops.outer(a, b)`",
    "aminmax": "`x.amin(), x.amax()`", "apply_": "`x.copy_(ampkit.tensor(f(x.numpy())))`",
    "asarray": "`ampkit.tensor`, `ampkit.from_numpy`", "bilinear": '`ops.einsum("ni,oij,nj->no", a, weight, b)`',
    "binomial": "`ampkit.tensor(np.random.binomial(n, p.numpy()))`", "Buffer": "`self.register_buffer(name, tensor)`",
    "chain_matmul": "`a @ b @ c`", "cholesky_ex": "`ampkit.linalg.cholesky`",
    "cholesky_inverse": "`ops.cholesky_solve(ops.eye(n), L)`", "convert_conv2d_weight_memory_format": "leave it out",
    "convert_conv3d_weight_memory_format": "leave it out", "deg2rad": "`x * (math.pi / 180)`",
    "det": "`np.linalg.det(x.numpy())`, off the tape", "diagflat": "`ops.diag(x.flatten())`",
    "diff": "`x[..., 1:] - x[..., :-1]`", "dist": "`(a - b).norm(p)`", "erfc": "`1 - ops.erf(x)`",
    "feature_dropout": "`ops.dropout2d`", "fill": "`ops.full_like(x, value)`", "fliplr": "`x.flip(1)`",
    "flipud": "`x.flip(0)`", "float_power": "`x.double() ** y`", "fmax": "`ops.maximum`, where nothing is NaN",
    "fmin": "`ops.minimum`, where nothing is NaN", "frac": "`x - x.trunc()`",
    "frexp": "`np.frexp(x.numpy())`, off the tape", "frobenius_norm": "`x.norm()`", "get_device": "`x.get_device()`",
    "histogramdd": "`np.histogramdd(x.numpy())`, off the tape", "hypot": "`(a * a + b * b).sqrt()`",
    "iinfo": "`np.iinfo(x.dtype)`", "index": "`x[i, j]`",
    "index_put": "`ops.where`, or `x[index] = value` off the tape", "inv_ex": "`ampkit.linalg.inv`",
    "inverse": "`np.linalg.inv(x.numpy())`, off the tape", "is_complex": "`x.is_complex()`",
    "is_nonzero": "`x.is_nonzero()`", "is_same_size": "`x.is_same_size(y)`", "is_signed": "`x.is_signed()`",
    "isneginf": "`x == -math.inf`", "isposinf": "`x == math.inf`", "lobpcg": "`ampkit.linalg.eigh`, all of it",
    "logit": "`ops.log(x / (1 - x))`", "logspace": "`base ** ops.linspace(a, b, n)`",
    "lstsq": "`ampkit.linalg.pinv(A) @ B`", "map_": "`x.copy_(...)`", "msort": "`x.sort(0)[0]`",
    "mvlgamma": "`ampkit.special.multigammaln`", "nanmean": "`x[~x.isnan()].mean()`",
    "nansum": "`x.nan_to_num().sum()`", "ndtri": "`2**0.5 * ops.erfinv(2 * x - 1)`",
    "nextafter": "`np.nextafter(x.numpy(), y.numpy())`, off the tape",
    "nuclear_norm": '`ampkit.linalg.matrix_norm(x, "nuc")`', "pca_lowrank": "`ampkit.linalg.svd` of `x - x.mean(0)`",
    "poisson": "`ampkit.tensor(np.random.poisson(x.numpy()))`", "positive": "`+x`", "qr": "`ampkit.linalg.qr`",
    "rad2deg": "`x * (180 / math.pi)`", "ravel": "`x.ravel()`",
    "retains_grad": "`x.grad`, once `x.retain_grad()` was called", "rot90": "`x.flip(1).T`", "rsub": "`other - x`",
    "scalar_tensor": "`ampkit.tensor(3.0)`", "seed": "`ampkit.manual_seed(...)`",
    "segment_reduce": "`ops.scatter_reduce`", "short": "`ampkit.int16`", "signbit": "`x < 0`",
    "solve_ex": "`ampkit.linalg.solve`", "split_with_sizes": "`x.split(sizes)`",
    "squeeze_": "`x = x.squeeze()`, which shares memory", "std_mean": "`x.std(), x.mean()`",
    "svd": "`ampkit.linalg.svd`, whose Vh is V transposed", "svd_lowrank": "`ampkit.linalg.svd`, all of it",
    "t_": "`x = x.t()`, which shares memory", "tensor_split": "`x.split(sizes)`",
    "tensorinv": "`ampkit.linalg.inv` of `A.reshape(n, n)`",
    "tensorsolve": "`ampkit.linalg.solve` of `A.reshape(n, n)`",
    "transpose_": "`x = x.transpose(a, b)`, which shares memory",
    "triangular_solve": "`ampkit.linalg.solve_triangular`", "type_before_parametrizations": "`type(module)`",
    "unsqueeze_": "`x = x.unsqueeze(dim)`, which shares memory",
    "update_bn": "a pass over the data in `train()`, under `no_grad`", "upsample": "`ops.interpolate`",
    "var_mean": "`x.var(), x.mean()`", "xlogy": "`ops.where(x == 0, 0.0, x * ops.log(y))`",
}  # fmt: skip


def known() -> dict[str, Any]:
    """PyTorch's names by namespace, and its version."""
    return json.loads(GOLDEN.read_text())  # type: ignore[no-any-return]


def there(path: str, name: str) -> bool:
    """Whether ampkit's namespace has the name, for something other than a part of the package."""
    try:
        space = functools.reduce(getattr, path.split(".")[1:], ampkit)
    except AttributeError:
        return False
    return hasattr(space, name) and not inspect.ismodule(getattr(space, name))


def cure_of(name: str) -> str | None:
    """What else to write; `erfc` stands for `erfc_`, too."""
    return CURES.get(name) or CURES.get(name.rstrip("_"))


def group_of(namespace: str, name: str) -> str | None:
    """What a missing name belongs to, if it is not listed by itself."""
    if cure_of(name):
        return None
    for label, pattern, _ in GROUPS:
        names = (name, f"{namespace}.{name}")
        if namespace in ONLY_IN.get(label, NAMESPACES) and any(re.fullmatch(pattern, n) for n in names):
            return label
    return None


def missing(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """By namespace, PyTorch's names that ampkit lacks."""
    return {space: [name for name in names[space] if not there(path, name)] for space, path in NAMESPACES.items()}


def listed(names: list[str]) -> Iterator[str]:
    """A line per initial letter, wrapped."""
    for _, found in groupby(sorted(names, key=str.lower), lambda name: name[0].lower()):
        yield textwrap.fill(f"`{' '.join(found)}`", 120, initial_indent="- ", subsequent_indent="  ")


def sections(names: dict[str, list[str]], lacking: dict[str, list[str]]) -> Iterator[str]:
    """Per namespace, what is here and what is not."""
    for space, path in NAMESPACES.items():
        absent = lacking[space]
        here = [name for name in names[space] if name not in absent]
        single = [name for name in absent if group_of(space, name) is None and cure_of(name) is None]
        yield f"### `{space}`, here `{path}`"
        yield from listed(here) if here else ["This namespace is not here."]
        if here and single:
            yield "Not here:"
            yield from listed(single)


def rows(lacking: dict[str, list[str]]) -> Iterator[str]:
    """The tables of what is here by another name and of what is not here as a whole."""
    absent = {name for found in lacking.values() for name in found}
    yield "## By another name\n\n| PyTorch | ampkit |\n|---|---|"
    yield from (f"| `{name}` | {cure} |" for name, cure in sorted(CURES.items()) if name in absent)
    groups = {group_of(space, name) for space, found in lacking.items() for name in found}
    yield "\n## Not here as a whole\n\n| names for | instead |\n|---|---|"
    yield from (f"| {label} | {cure} |" for label, _, cure in GROUPS if label in groups)


def page() -> str:
    """The whole page: what is written by hand, and what follows from the names."""
    names: Any = known()
    lacking = missing(names)
    head = f"\n## Name by name\n\nThe public names of PyTorch {names['version']} that are here, with its signatures."
    kernel = "\n".join(f"\n{line}\n" if not line.startswith("- ") else line for line in sections(names, lacking))
    kernel = re.sub(r"\n{3,}", "\n\n", kernel).strip("\n")
    tables = "\n".join(rows(lacking))
    return f"{PAGE.read_text().partition(MARK)[0]}{MARK}{head}\n\n{kernel}\n\n{tables}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
