"""Compare quantized matrices, code by code and scale by scale, with Transformer Engine's references and torchao.

    python -m tests.peers.quantization [--transformer-engine GIT_DIR] [--matrices N] [--seed N]

Needs the extra `peers`. GIT_DIR: a clone of Transformer Engine, whose references in Python are run from its HEAD; they
need no GPU. Without it, torchao alone is compared. Exit status 1 if a bit differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import torch

from ampkit.core.policy.recipe import E4M3, E5M2, Operands, Quantization, recipe
from ampkit.ops.linalg.quantization import quantize, unpacked

Peer = Callable[[torch.Tensor], Sequence[Any]]  # a matrix -> (its codes, the scales of its blocks), as bytes


class Comparison(NamedTuple):
    """One way to quantize, and the peer's.

    multiple: of which a matrix has its extents. without: kinds of matrices left out. prepare: what is made of each one.
    """

    name: str
    how: Quantization
    peer: Peer
    multiple: int = 1
    without: Sequence[str] = ()
    prepare: Callable[[np.ndarray], np.ndarray] = np.asarray
    signed_zeros: bool = True  # whether the peer has the code of -0


def matrices(count: int, seed: int, multiple: int) -> Iterator[tuple[str, np.ndarray]]:
    """float32 matrices of every kind of magnitude, whose extents are multiples of `multiple`."""
    random = np.random.default_rng(seed)
    for number in range(count):
        rows, columns = random.integers(1, 5, 2) * multiple if multiple > 1 else random.integers(1, 300, 2)
        normal = random.standard_normal((rows, columns))
        spread = normal * np.exp2(random.uniform(-40, 40, (rows, columns)))
        tiny, huge = normal * 2.0**-140, normal * 2.0**124
        some = np.where(random.random((rows, columns)) < 0.9, 0, normal)
        outliers = np.where(random.random((rows, columns)) < 0.01, 1000, 1) * normal
        kinds = {"normal": normal, "log-uniform": spread, "tiny": tiny, "huge": huge, "mostly 0": some}
        kinds |= {"0": np.zeros_like(normal), "outliers": outliers, "near a tie": np.rint(normal * 16) / 16}
        kind = list(kinds)[number % len(kinds)]
        with np.errstate(over="ignore"):
            yield kind, kinds[kind].astype(np.float32)


def differences(of: Comparison, count: int, seed: int) -> list[str]:
    """What of the peer differs."""
    found = []
    for kind, matrix in matrices(count, seed, of.multiple):
        if kind in of.without:
            continue
        matrix = of.prepare(matrix)
        mine, (codes, scales) = quantize(matrix, of.how)[0], of.peer(torch.from_numpy(matrix))
        own = np.ascontiguousarray(unpacked(mine))
        own = own if of.signed_zeros else np.where(own == 8, 0, own).astype(np.uint8)
        codes = codes if of.signed_zeros else np.where(codes == 8, 0, codes)
        for name, ours, theirs in (("codes", own, codes), ("scales", mine.scales, scales)):
            theirs = np.ascontiguousarray(theirs).view(ours.dtype).reshape(ours.shape)
            if wrong := int((ours != theirs).sum()):
                found.append(f"{wrong} of {ours.size} {name}, {kind}, {list(matrix.shape)}")
    return found


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy() if tensor.element_size() == 1 else tensor.numpy()


# torchao


def _torchao(how: Quantization) -> Peer:
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic

    dtype = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}[how.format]
    by_row = how.block == (1, None)

    def peer(matrix: torch.Tensor) -> Sequence[Any]:
        found = hp_tensor_to_float8_dynamic(
            matrix, dtype, None, scaling_granularity=ScalingGranularity.AXISWISE if by_row else
            ScalingGranularity.TENSORWISE, axiswise_dim=-1 if by_row else None, round_scales_to_power_of_2=True,
        )  # fmt: skip
        return _bytes(found._data), 1 / found._scale.numpy()

    return peer


def _torchao_mx(matrix: torch.Tensor) -> Sequence[Any]:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    scales, codes = to_mx(matrix, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    return _bytes(codes), _bytes(scales)


def _torchao_int8(matrix: torch.Tensor) -> Sequence[Any]:
    from torchao.prototype.quantized_training.int8 import quantize_int8_rowwise

    codes, scales = quantize_int8_rowwise(matrix)
    return codes.numpy(), scales.numpy()


# Transformer Engine


class Sources:
    """Modules made of the files of a clone of Transformer Engine, with stand-ins for what only a GPU has."""

    def __init__(self, git_dir: str):
        self.git_dir = git_dir
        base = SimpleNamespace(QuantizedTensorStorage=object, Quantizer=_Quantizer)
        package = "transformer_engine.pytorch"
        for name, parts in {
            "transformer_engine": {}, package: {"DType": SimpleNamespace(kFloat8E4M3=0)},
            f"{package}.quantized_tensor": vars(base), f"{package}.custom_recipes": {"gemm": Mock()},
        }.items():  # fmt: skip
            sys.modules[name] = module = ModuleType(name)
            vars(module).update(parts)
        utilities = self.load("transformer_engine/pytorch/custom_recipes/reference_utils.py")
        vars(sys.modules[f"{package}.custom_recipes"])["reference_utils"] = utilities
        sys.modules["references"] = ModuleType("references")
        self.load("tests/pytorch/references/quantize_scale_calc.py", "references.quantize_scale_calc")

    def load(self, path: str, name: str = "") -> Any:
        """The module made of the file at `path`."""
        command = ["git", "--git-dir", self.git_dir, "show", f"HEAD:{path}"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        name = name or path.removesuffix(".py").replace("/", ".")
        sys.modules[name] = module = ModuleType(name)
        exec(compile(text, path, "exec"), vars(module))
        return module


class _Quantizer:
    def __init__(self, rowwise: bool = True, columnwise: bool = True):
        self.rowwise_usage, self.columnwise_usage = rowwise, columnwise


def _engine_peers(git_dir: str) -> Iterator[Comparison]:
    sources = Sources(git_dir)
    folder = "transformer_engine/pytorch/custom_recipes"
    whole = sources.load(f"{folder}/reference_current_scaling.py").CurrentScalingQuantizerRef
    for format, dtype in ((E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)):
        current = whole(dtype, columnwise=False)

        def per_matrix(x: torch.Tensor, quantizer: Any = current) -> Sequence[Any]:
            return [_bytes(part) for part in quantizer._quantize(x)[:2]]

        yield Comparison(f"current, {format}", Quantization(format), per_matrix)
    blocks = sources.load("tests/pytorch/references/blockwise_quantizer_reference.py").BlockwiseQuantizerReference()
    for block in ((1, 128), (128, 128)):

        def blockwise(x: torch.Tensor, block: Any = block) -> Sequence[Any]:
            found = blocks.quantize(
                x, torch.float8_e4m3fn, pow_2_scales=True, quant_tile_shape=block, munge_scale_shapes=False
            )
            return _bytes(found.data), _bytes(found.scale)

        yield Comparison(f"blockwise, {block}", Quantization(E4M3, block, "power_of_2"), blockwise)
    nvfp4 = sources.load(f"{folder}/reference_nvfp4.py")
    make, e2m1 = nvfp4.NVFP4QuantizerRef, nvfp4.reference_utils.Fp4Formats.E2M1
    for block in ((1, 16), (16, 16)):
        quantizer = make(e2m1, columnwise=False, quant_tile_shape=block)

        def four_bits(x: torch.Tensor, q: Any = quantizer, block: Any = block) -> Sequence[Any]:
            codes, scales = q._quantize(x)[:2]
            scales = scales[:: block[0]]
            return _nibbles(codes.numpy()), _bytes(scales)

        how = Quantization("float4_e2m1fn", block, "float8_e4m3fn")
        yield Comparison(f"nvfp4, {block}", how, four_bits, 16, signed_zeros=False)
    turned = make(e2m1, rowwise=False, quant_tile_shape=(1, 16), with_rht=True)

    def spread(x: torch.Tensor) -> Sequence[Any]:
        _, _, codes, scales, *_ = turned._quantize(x.T.contiguous())
        return _nibbles(codes.numpy()), _bytes(scales)

    how = _operands("nvfp4", "weight_gradient").second
    yield Comparison("nvfp4, transformed", how, spread, 16, ("log-uniform",), _exact_sums, signed_zeros=False)


def _exact_sums(matrix: np.ndarray) -> np.ndarray:
    # The values in so few bits that the sums of a Hadamard transform are exact, in any order.
    step = np.float32(2.0) ** (np.frexp(np.abs(matrix).max())[1] - 10)
    return np.asarray(np.rint(matrix / step) * step)


def _operands(name: str, product: str) -> Operands:
    found: Operands = getattr(recipe(name), product)
    return found


def _nibbles(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], 2).reshape(len(packed), -1)


def _torchao_peers() -> Iterator[Comparison]:
    for name in ("rowwise", "rowwise_with_gw_hp"):
        how = _operands(name, "input_gradient").second
        yield Comparison(f"{name}, {how.block}", how, _torchao(how))
    mx, integers = _operands("mxfp8", "forward").first, _operands("int8", "forward").first
    yield Comparison("mxfp8", mx, _torchao_mx, 32)
    # torchao keeps the scale of a row below its epsilon as it is, though the codes were made with that epsilon.
    yield Comparison("int8", integers, _torchao_int8, 1, ("tiny", "0", "mostly 0"))


def main(given: Sequence[str] | None = None) -> int:
    """Compare, and print a line for each way to quantize."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--transformer-engine", metavar="GIT_DIR")
    parser.add_argument("--matrices", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    engine = [] if options.transformer_engine is None else _engine_peers(options.transformer_engine)
    failed = False
    for library, peers in (("torchao", _torchao_peers()), ("Transformer Engine", engine)):
        for each in peers:
            found = differences(each, options.matrices, options.seed)
            print(f"{library}, {each.name}: {'every bit is equal' if not found else '; '.join(found[:8])}")
            failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
