"""Every op that has a mapping to ONNX nodes: its cases in ONNX Runtime beside ampkit, a family of ops in a file."""

from __future__ import annotations

import importlib.util
import io
from functools import cache
from pathlib import Path

import pytest

import ampkit
from ampkit import Tensor, nn, testing
from ampkit.base import observe
from ampkit.base.dtypes import float16, float32
from ampkit.base.errors import ArgumentError, StateError
from ampkit.core.op import ops as registry
from ampkit.serialization.onnx.registry import MAPPINGS

pytest.importorskip("onnx", reason="needs onnx, of the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime, of the extra dev")
from ampkit.serialization.onnx import ops  # noqa: E402, F401  # the mappings

FAMILIES = sorted(path.stem for path in Path(__file__).parents[2].joinpath("cases").glob("*.py"))

# Cases of ops that have a mapping, but not for these arguments, by what the error says.
REFUSED = {
    "sequences of one length": {
        "rnn_tanh(6x3, 3x2, 2x3, 2x2, 2, 2, sizes=(3, 2, 1), reverse=True)",
        "rnn_relu(6x3, 3x2, 2x3, 2x2, 2, 2, sizes=(3, 2, 1), reverse=False)",
        "gru(7x3, 3x2, 6x3, 6x2, None, None, sizes=(3, 3, 1), reverse=False)",
        "gru(6x3, 3x2, 6x3, 6x2, 6, 6, sizes=(3, 2, 1), reverse=True)",
        "lstm(7x3, 3x2, 3x2, 8x3, 8x2, None, None, None, sizes=(3, 3, 1), reverse=False)",
        "lstm(6x3, 3x2, 3x2, 8x3, 8x2, 8, 8, None, sizes=(3, 2, 1), reverse=True)",
    },
    "an LSTM without proj_size": {
        "lstm(6x3, 3x1, 3x2, 8x3, 8x1, 8, 8, 1x2, sizes=(3, 2, 1), reverse=False)",
        "lstm(6x3, None, None, 8x3, 8x1, None, None, 1x2, sizes=(3, 2, 1), reverse=True)",
    },
    "layers without dropout": {
        "add_layer_norm(2x6, 2x6, (6,), dropout_p=1.0)",
        "layer_norm_of_sum(2x6, 2x6, (6,), 6, dropout_p=1.0)",
    },
    "with include_self=True": {
        "scatter_reduce(4x5, 0, 3x5, 3x5, 'sum', include_self=False)",
        "scatter_reduce(4x5, 1, 2x7, 3x9, 'mean')",
        "scatter_reduce(4, 0, 9, 9, 'prod', include_self=False)",
        "scatter_reduce(4, 0, 9, 9, 'amin', include_self=False)",
        "scatter_reduce(4, 0, 9, 9, 'mean')",
        "index_reduce(4x3, 0, 6, 6x3, 'mean')",
    },
    "computes all that depends on its inputs by ops": {  # these count or compare in NumPy
        "histc(40, 7, -2.0, 2.0)",
        "histogram(40, 7, range=(-2.0, 2.0), density=True)",
        "masked_scatter(3x4, 3x4, 12)",
        "take_along_dim(4x5, 1x2, 1)",
    },
    "results whose shape does not depend on values": {"masked_select(3x4, 3x4)"},
    "a graph that onnx.checker accepts": {"group_norm(0x4x5, 2, 4, 4)"},
}

# A new op has a function in ampkit/serialization/onnx/ops, or stands here.
WITHOUT = """
    affine_grid alpha_masked binary_cross_entropy binary_cross_entropy_with_logits bitwise_left_shift
    bitwise_right_shift cast_to cholesky conv2d_int8 cross_entropy cross_entropy_probabilities ctc_loss cummax
    cummin cumprod dropout eigh embedding_bag erfinv gammainc gammaincc gaussian_nll_loss gcd hinge_embedding_loss
    huber_loss i0 i0e i1 i1e index_put inverse isreal kl_div l1_loss lcm lgamma linear_int8 log_ndtr logcumsumexp
    lp_pool2d lp_pool3d lu margin_ranking_loss matrix_exp mse_loss multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss ndtri nextafter nll_loss pad_from_input_transpose pinv place_in_order place_of_mode
    poisson_nll_loss polygamma put_into_zeros qr quantize_per_tensor renorm singular_norm slogdet smooth_l1_loss
    soft_margin_loss solve sparse_mm sum_rows svd
"""


@cache
def cases_of(family: str) -> list[testing.Case]:
    path = Path(__file__).parents[2] / "cases" / f"{family}.py"
    spec = importlib.util.spec_from_file_location(f"cases_{family}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [case for case in module.CASES if case.arrays() and exportable(case)]


def exportable(case: testing.Case) -> bool:
    ran = set()
    with observe.watch(lambda name, inputs, output: ran.add(name)), ampkit.no_grad():
        case(*case.tensors(float32))
    return ran - {"cast"} <= MAPPINGS.keys()


class Calls(nn.Module):
    """The outputs of several cases, whose inputs are the arguments in order."""

    def __init__(self, cases):
        super().__init__()
        self.cases = cases

    def forward(self, *tensors):
        left, found = iter(tensors), []
        for case in self.cases:
            found += case(*(next(left) for _ in case.arrays()))
        return found


def tensors_of(case, dtype):
    return [Tensor(tensor.array.copy()) for tensor in case.tensors(dtype)]


def in_onnx_runtime(model, tensors, **options):
    """The outputs of the model's file, by their names."""
    file = io.BytesIO()
    ampkit.onnx.export(model, tuple(tensors), file, input_names=[f"x{i}" for i in range(len(tensors))], **options)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(file.getvalue(), settings, providers=["CPUExecutionProvider"])
    feed = {f"x{i}": tensor.numpy() for i, tensor in enumerate(tensors)}
    return session.run(None, {info.name: feed[info.name] for info in session.get_inputs()})


def need_equal(family, dtype, tolerance=None, **options):
    refused = set().union(*REFUSED.values())
    cases = [case for case in cases_of(family) if repr(case) not in refused]
    if not cases:
        return
    inputs = [tensors_of(case, dtype) for case in cases]
    found = iter(in_onnx_runtime(Calls(cases), [t for each in inputs for t in each], **options))
    for case, tensors in zip(cases, inputs, strict=True):
        for wanted in case(*tensors):
            bound = tolerance if wanted.is_floating_point() else None
            testing.assert_close(next(found), wanted, bound, what=repr(case))


@pytest.mark.parametrize("family", FAMILIES)
def test_ops_in_a_file_compute_what_they_compute_here(family):
    need_equal(family, float32)


@pytest.mark.parametrize("family", ["attention", "conv", "normalize", "pointwise", "pool", "softmax"])
def test_ops_of_float16_tensors_compute_what_they_compute_here(family):
    need_equal(family, float16, (4e-3, 2e-3))


@pytest.mark.parametrize("family", ["pool", "normalize"])
def test_the_oldest_operators_that_a_file_can_have_are_enough(family):
    need_equal(family, float32, opset_version=18)


def refused_case(text):
    return next(case for family in FAMILIES for case in cases_of(family) if repr(case) == text)


@pytest.mark.parametrize("needs", REFUSED)
def test_what_onnx_has_no_nodes_for_is_refused_by_name(needs):
    for text in sorted(REFUSED[needs])[:1]:
        case = refused_case(text)
        with pytest.raises((ArgumentError, StateError), match=f"onnx.export: needs .*{needs}"):
            in_onnx_runtime(Calls([case]), tensors_of(case, float32))


def test_only_these_ops_have_no_mapping():
    found = {name for name, op in registry.items() if op.builtin} - MAPPINGS.keys()
    new, mapped = sorted(found - set(WITHOUT.split())), sorted(set(WITHOUT.split()) - found)
    assert not new, f"map them in ampkit/serialization/onnx/ops, or list them in WITHOUT: {new}"
    assert not mapped, f"no longer in WITHOUT: {mapped}"
