"""Arguments as source text: valid ones by the kind of their parameter, and hostile ones for any parameter."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np

import ampkit
from ampkit import Tensor, nn, optim

from .layouts import Subclass

SHAPES = ((), (3,), (4,), (0,), (2, 3), (3, 3), (4, 4), (2, 4, 6), (2, 4, 6, 6), (1, 4, 4, 4, 4), (2, 0, 3))
DTYPES = ("float32", "float32", "float32", "float16", "bfloat16", "float64")
OTHER_DTYPES = ("int64", "int32", "uint8", "bool")

HOSTILE = (
    "None", "True", "False", "0", "-1", "-5", "1", "7", "2**31", "2**62", "2**63", "2**64", "-2**63", "10**400",
    "0.5", "-0.5", "1e20", "nan", "inf", "-inf", "'no'", "''", "b'x'", "[]", "()", "{}", "[[1], [2, 3]]", "[1, [2]]",
    "(1, 2)", "(2**62,)", "(2**31, 2**31, 2**31)", "(-1, -1)", "[None]", "(0.5,)", "('a', 'b')", "object()", "print",
    "1j", "np.float32(2)", "np.int64(3)", "np.ones(3)", "np.array(['a'])", "np.array(2, object)", "slice(None)",
    "...", "ampkit.float16", "ampkit.int64", "nn.Linear", "nn.ReLU()", "t()", "t(0)", "t(3, 5)",
    "t(4, dtype='int64')", "t(2, 3, dtype='bool')", "t(2, 3, fill=nan)", "t(2, 3, fill=inf)",
    "t(2, 3, dtype='float16', grad=True)", "t(2, 3, layout='transposed')", "t(2, 4, 6, layout='sliced', grad=True)",
    "t(3, 3, layout='expanded')", "t(2, 2, dtype='int64', fill=2**62)", "t(3, dtype='int64', fill=-1)",
    "[t(3), t(3)]", "(t(2, 3), 2)", "{'a': t(2)}", "parameter(2, 3)", "'cuda'", "'cpu'",
    "-0.0", "2**31 - 1", "5e-324", "[2**63]", "[[]]", "[[], [1]]", "[True, False]", "[t(2), None]", "range(3)", "set()",
    "(i for i in range(2))", "iter([])", "'float32'", "'\\ud800'", "'a' * 3000", "bytearray(4)", "memoryview(b'xy')",
    "Fraction(1, 3)", "Decimal('0.5')", "Decimal('nan')", "np.float64(nan)", "np.bool_(True)", "np.array(3)",
    "np.int8(-1)", "np.uint64(2**64 - 1)", "np.longdouble(1)", "np.complex64(1j)", "np.datetime64('2020')",
    "np.array([1, 2], '>f4')", "np.ma.array([1.0], mask=[True])", "subclass(3)", "np.zeros((0, 3))", "Exception",
    "NotImplemented",
    "ampkit.Tensor", "ampkit.bool", "t(2, 3, grad=True)", "t(fill=nan)", "t(dtype='int64')", "t(dtype='bool')",
    "t(2, 0, grad=True)", "t(1)", "t(2, 3, dtype='uint8')", "t(3, dtype='bfloat16', layout='sliced', grad=True)",
    "t(2, 4, dtype='float8_e4m3fn')", "t(2, dtype='float8_e5m2').view(ampkit.float4_e2m1fn_x2)", "ampkit.float8_e4m3fn",
    "t(2, 3, dtype='float8_e5m2', layout='transposed')", "t(dtype='float8_e8m0fnu')", "'float4_e2m1fn_x2'",
    "t(2, 3, fill=-0.0)", "t(2, 3, grad=True) * 2", "optimizer()", "ampkit.device('cpu')", "(lambda *a, **k: None)",
    "(lambda x: x)", "[(2, 3), 4]", "{0: 1}", "{'params': [parameter(3)]}", "nn.Sequential()",
)  # fmt: skip
# Values that many parameters accept.
PLAUSIBLE = (
    "t(2, 3)", "t(2, 3)", "t(2, 4)", "t(3)", "t()", "t(2, 3, grad=True)", "t(2, 3, dtype='float16')", "0", "1", "2",
    "-1",
    "0.5", "1.0", "1e-3", "True", "False", "None", "(2,)", "(2, 3)", "()", "[0, 1]", "slice(1)", "'float16'",
    "ampkit.float64",
    "parameter(2, 3)", "nn.ReLU()", "nn.Linear(3, 4)", "t(2, dtype='int64')", "t(2, 3, dtype='bool')", "[1, 2]", "{}",
    "(0.9, 0.99)", "(lambda *a, **k: None)", "np.ones((2, 3))", "np.float32(2)", "'cpu'", "optimizer()", "'weight'",
)  # fmt: skip


def t(*shape: int, dtype: str = "float32", grad: bool = False, layout: str = "", fill: Any = None) -> Tensor:
    """A tensor whose values depend on its shape alone. layout: its strides; fill: one value for all elements."""
    rng = np.random.default_rng(zlib.crc32(repr(shape).encode()))
    wanted = getattr(ampkit, dtype)
    whole = dtype in OTHER_DTYPES
    values = rng.integers(0, 2 if dtype == "bool" else 3, shape) if whole else rng.normal(size=shape)
    values = np.asarray(values if fill is None else np.full(shape, fill)).astype(wanted)
    made = ampkit.tensor(_laid_out(values, layout), dtype=wanted)
    return made.requires_grad_() if grad else made


def _laid_out(values: Any, layout: str) -> Any:
    if layout == "transposed":
        return np.ascontiguousarray(values.T).T
    if layout == "sliced" and values.ndim:
        return np.repeat(values, 2, -1)[..., ::2]
    if layout == "expanded" and values.shape:
        return np.broadcast_to(values[:1], values.shape)
    return values


def parameter(*shape: int) -> Any:
    """A Parameter with a gradient."""
    made = nn.Parameter(t(*shape))
    made.grad = t(*shape)
    return made


def optimizer(count: int = 1) -> Any:
    """An SGD optimizer with momentum, of `count` groups."""
    return optim.SGD([{"params": [parameter(2, 3)]} for _ in range(count)], lr=0.1, momentum=0.9)


def subclass(*shape: int) -> Any:
    """An array of a class of the caller's."""
    return np.ones(shape).view(Subclass)


def saved(obj: Any) -> Any:
    """A file in memory of `obj`, at its beginning."""
    file = io.BytesIO()
    ampkit.save(obj, file)
    file.seek(0)
    return file


@contextmanager
def default(dtype: str) -> Iterator[None]:
    """Within the block, the default dtype is this one."""
    before = ampkit.get_default_dtype()
    ampkit.set_default_dtype(getattr(ampkit, dtype))
    try:
        yield
    finally:
        ampkit.set_default_dtype(before)


def stepped(made: Any) -> Any:
    """An optimizer or a scheduler after two steps."""
    closure = (lambda: ampkit.tensor(1.0)) if isinstance(made, optim.LBFGS) else None
    for _ in range(2):
        if isinstance(made, optim.Optimizer):
            made.step(closure)
        else:
            made.optimizer.step()
            made.step(*((0.5,) if isinstance(made, optim.lr_scheduler.ReduceLROnPlateau) else ()))
    return made


def drained(loader: Any) -> Any:
    """The first three items of an iterable."""
    return [item for item, _ in zip(loader, range(3), strict=False)]


def tensor_text(rng: Random, shape: Any = None, dtype: str | None = None) -> str:
    """The source text of a tensor, mostly of floats that require grad."""
    shape = rng.choice(SHAPES) if shape is None else shape
    dtype = dtype or (rng.choice(OTHER_DTYPES) if rng.random() < 0.1 else rng.choice(DTYPES))
    words = [str(n) for n in shape] + ([f"dtype={dtype!r}"] if dtype != "float32" else [])
    if dtype not in OTHER_DTYPES and rng.random() < 0.6:
        words.append("grad=True")
    if rng.random() < 0.15:
        words.append(f"layout={rng.choice(('transposed', 'sliced', 'expanded'))!r}")
    return f"t({', '.join(words)})"


# Valid values by the name of a parameter; else they go by its annotation and its default.
_NAMED = {
    "dtype": "None ampkit.float32 ampkit.float16 ampkit.bfloat16 ampkit.float64 ampkit.int64 'float32' ampkit.bool",
    "device": "None 'cpu'", "dim": "0 -1 1 (0,) (0,1) None 2 -2", "dims": "0 -1 (0,1) (1,0)", "_dims": "0 1 (1,0)",
    "reduction": "'mean' 'sum' 'none'",
    "mode": "'constant' 'reflect' 'replicate' 'circular' 'nearest' 'linear' 'bilinear' 'bicubic' 'sum' 'mean' 'max'",
    "size": "2 (2,3) 4 (4,)", "_size": "2 3 (2,3)", "shape": "(2,3) 6 (-1,)", "_shape": "(6,) (-1,) 3",
    "output_size": "2 (2,2) 1 (1,2,2)", "kernel_size": "1 2 3 (2,2) (1,2,2) (2,)", "stride": "1 2 None (1,2)",
    "padding": "0 1 (1,1) 'same' 'valid' (1,0,1,0)", "dilation": "1 2", "output_padding": "0", "groups": "1 2 4",
    "padding_mode": "'zeros' 'reflect' 'border' 'circular'", "normalized_shape": "4 6 (6,) (6,6) (4,)",
    "repeats": "2 (1,2)", "_repeats": "1 2", "indices": "1 2 (1,2)", "split_size_or_sections": "1 2 (1,2)",
    "generator": "None ampkit.Generator()", "nonlinearity": "'tanh' 'relu' 'leaky_relu'",
    "activation": "'relu' 'gelu'", "equation": "'ij,jk->ik' 'ii' 'i->'", "approximate": "'none' 'tanh'",
    "ord": "None 2 1 'fro' 'nuc' inf", "betas": "(0.9,0.99) (0.5,0.5)", "eps": "1e-5 1e-3 None", "lr": "0.1 1e-3 t()",
    "weight_decay": "0 0.1", "p": "0.5 1 2 0.0 1.0 2.0", "norm_type": "2.0 1.0 inf", "axis": "0 1",
    "scale_factor": "2 0.5 (2,2)", "lr_lambda": "(lambda epoch: 0.9) [lambda epoch: 0.9]", "milestones": "[1,2] [2]",
    "optimizer": "optimizer() optimizer(2)", "schedulers": "[optim.lr_scheduler.StepLR(optimizer(),1)]",
    "params": "[parameter(2,3)] [{'params':[parameter(3)]}]", "parameters": "[parameter(2,3)] parameter(3)",
    "dataset": "utils.data.TensorDataset(t(4,2),t(4)) [1,2,3]", "datasets": "[[1,2],[3]]", "data_source": "[1,2,3]",
    "weights": "[0.5,0.5] t(3,fill=1.0)", "lengths": "[1,2] [0.5,0.5]", "batch_size": "1 2 None",
    "sampler": "[0,1] utils.data.SequentialSampler([1,2,3])", "num_workers": "0", "batch": "[1,2] [t(2),t(2)]",
    "policy": "None ampkit.Policy('float16')", "device_type": "None 'cpu'", "enabled": "True False",
    "tensors": "[t(2,3),t(2,3)]", "distance_function": "None", "modules": "None [nn.ReLU()]",
    "module": "nn.Linear(3,4)", "encoder_layer": "nn.TransformerEncoderLayer(4,2,8)",
    "decoder_layer": "nn.TransformerDecoderLayer(4,2,8)", "num_heads": "1 2 4", "nhead": "2",
    "d_model": "4", "dim_feedforward": "8",
    "num_layers": "1 2", "num_groups": "1 2 4", "upscale_factor": "2", "downscale_factor": "2",
    "init_scale": "2.0 1024.0", "outputs": "t(2,grad=True).sum()", "num_encoder_layers": "1",
    "num_decoder_layers": "1", "target": "t(2,3) t(3,dtype='int64') t(2,dtype='int64')", "name": "'weight' 'bias'",
    "new_state": "(0,0) (1,2)", "seed": "0 1", "num_embeddings": "4", "model": "nn.Linear(3,4)",
    "func": "(lambda*x:x[0]*2) (lambda*x:x[0].sum()) nn.ReLU()", "v": "t(2,3) t(3) None t()",
    "inputs": "t(2,3,grad=True) (t(3,grad=True),t(3)) t(3)", "state_dict": "nn.Linear(3,4).state_dict() {}",
    "parameter_and_buffer_dicts": "{'weight':t(4,3)} {}", "kwargs": "None {}", "obj": "t(2) {'a':t(2)} [1,t()] None",
    "f": "saved(t(2)) saved({'a':[t(2),1]}) saved(nn.ReLU())", "map_location": "None 'cpu'", "hook": "print",
    "closure": "None (lambda:ampkit.tensor(1.0))", "loc": "t(2) 0.0", "scale": "t(2).exp() 1.0",
    "probs": "t(3).exp() None 0.5",
    "logits": "t(3) None t(2,3)", "low": "0.0 t(2)", "high": "3.0 t(2)", "value": "t(2) t(2,3) 0.5",
    "sample_shape": "() (2,)",
    "base_distribution": "distributions.Normal(t(2,3),1.0)", "reinterpreted_batch_ndims": "0 1 2",
    "step": "(lambda:None) 1",
    "hidden": "8 (4,4) ()", "depth": "1 2", "image_size": "8", "patch_size": "4 2", "num_classes": "3",
    "preset": "'nano' 'tiny'",
    "hidden_dim": "8", "mlp_dim": "8", "kind": "'cpu'", "loader": "[t(2,3)] [(t(2,3),1)]", "tensor1": "t(2,3)",
    "t1": "t(2)", "t2": "t(3)",
    "actual": "t(2,3)", "expected": "t(2,3)", "edge": "None", "pack_hook": "(lambda*x:x[0])",
    "unpack_hook": "(lambda*x:x[0])",
}  # fmt: skip
NAMED = {name: tuple(text.split()) if "lambda epoch" not in text else (text,) for name, text in _NAMED.items()}
NAMED["lr_lambda"] = ("lambda epoch: 0.9", "[lambda epoch: 0.9]")


def valid(rng: Random, name: str, annotation: Any, default: Any, shape: Any) -> str:
    """The source text of a plausible value for a parameter, by its name, annotation and default."""
    kind = annotation if isinstance(annotation, str) else ""
    if name in NAMED:
        return rng.choice(NAMED[name])
    if kind.startswith("Index") or name in ("index", "indices", "labels"):
        return tensor_text(rng, shape, "int64")
    if kind.startswith(("Tensor", "Array")):
        return "None" if "None" in kind and rng.random() < 0.4 else tensor_text(rng, shape)
    if kind.startswith("bool") or isinstance(default, bool):
        return rng.choice(("True", "False"))
    if name.endswith(("features", "channels", "size", "_dim")) or name == "num_parameters":
        return "4"
    if kind.startswith("int") or type(default) is int:
        return rng.choice(("0", "1", "2", "3", "-1", "1", "2"))
    if kind.startswith("float") or type(default) is float:
        return rng.choice(("0.0", "0.5", "1.0", "2.0", "-1.0", "1e-5", "1"))
    if isinstance(default, str):
        return repr(default)
    return rng.choice((tensor_text(rng, shape), "1", "2", "(1, 2)", "0.5"))
