"""The pointwise ops by the function of functions.h that computes them. An op that is one function is one row of a
table; those that need more follow.
"""

from __future__ import annotations

from math import inf
from typing import Any

from ampkit.base.dtypes import FLOATS, Array, DType, bool_
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import (
    arithmetic,
    comparison,
    error_function,
    gamma_function,
    logit_and_entropy,
    piecewise_activations,
    powers_and_logs,
    selection,
    sign_and_rounding,
    smooth_activations,
    trigonometry,
)

from ..launcher import (
    Launcher,
    grad_dtype,
    gradients,
    register,
    register_backward,
    register_forward,
    supports,
    supports_backward,
    supports_dtypes,
)

_READS_INPUT = {
    "Abs": sign_and_rounding.abs,
    "Square": powers_and_logs.square,
    "Log": powers_and_logs.log,
    "Log2": powers_and_logs.log2,
    "Log10": powers_and_logs.log10,
    "Log1p": powers_and_logs.log1p,
    "Erf": error_function.erf,
    "Erfc": error_function.erfc,
    "Sin": trigonometry.sin,
    "Cos": trigonometry.cos,
    "Asin": trigonometry.asin,
    "Acos": trigonometry.acos,
    "Atan": trigonometry.atan,
    "Sinh": trigonometry.sinh,
    "Cosh": trigonometry.cosh,
    "Asinh": trigonometry.asinh,
    "Acosh": trigonometry.acosh,
    "Atanh": trigonometry.atanh,
    "Sinc": trigonometry.sinc,
    "LeakyRelu": piecewise_activations.leaky_relu,
    "Elu": smooth_activations.elu,
    "LogSigmoid": smooth_activations.logsigmoid,
    "Silu": smooth_activations.silu,
    "Softplus": smooth_activations.softplus,
    "Mish": smooth_activations.mish,
    "HardSigmoid": piecewise_activations.hardsigmoid,
    "HardSwish": piecewise_activations.hardswish,
    "Selu": smooth_activations.selu,
    "Celu": smooth_activations.celu,
    "Softsign": smooth_activations.softsign,
    "TanhShrink": smooth_activations.tanhshrink,
    "HardShrink": piecewise_activations.hardshrink,
    "SoftShrink": piecewise_activations.softshrink,
    "Threshold": piecewise_activations.threshold,
    "RDiv": arithmetic.rdiv,
    "HardTanh": piecewise_activations.hardtanh,
    "Heaviside": sign_and_rounding.heaviside,
}
_READS_BOTH_INPUTS = {
    "Mul": arithmetic.mul,
    "Div": arithmetic.div_,
    "Atan2": trigonometry.atan2,
    "LogAddExp": powers_and_logs.logaddexp,
    "LogAddExp2": powers_and_logs.logaddexp2,
    "XLogY": logit_and_entropy.xlogy,
    "SiluMul": smooth_activations.silu_mul,
    "Maximum": selection.maximum,
    "Minimum": selection.minimum,
    "FMax": selection.fmax,
    "FMin": selection.fmin,
}
_READS_OUTPUT = {
    "Sqrt": powers_and_logs.sqrt,
    "Rsqrt": powers_and_logs.rsqrt,
    "Reciprocal": powers_and_logs.reciprocal,
    "Tanh": trigonometry.tanh,
    "Exp": powers_and_logs.exp,
    "Exp2": powers_and_logs.exp2,
    "Expm1": powers_and_logs.expm1,
    "ErfInv": error_function.erfinv,
    "Tan": trigonometry.tan,
    "Relu": piecewise_activations.relu,
    "Sigmoid": smooth_activations.sigmoid,
}
_WITHOUT_BACKWARD = {
    "Sign": sign_and_rounding.sign,
    "Floor": sign_and_rounding.floor,
    "Ceil": sign_and_rounding.ceil,
    "Trunc": sign_and_rounding.trunc,
    "Frac": sign_and_rounding.frac,
    "FloorDivide": arithmetic.floor_divide,
}
_COMPARISONS = {
    "Equal": comparison.eq,
    "NotEqual": comparison.ne,
    "Less": comparison.lt,
    "LessEqual": comparison.le,
    "Greater": comparison.gt,
    "GreaterEqual": comparison.ge,
    "IsNan": comparison.isnan,
    "IsInf": comparison.isinf,
    "IsFinite": comparison.isfinite,
}


def register_table(launcher: Launcher) -> None:
    """Register these ops on the launcher's backend."""
    for function, op in _READS_INPUT.items():
        register(launcher, op, function, "input")
    for function, op in _READS_BOTH_INPUTS.items():
        register(launcher, op, function, "input", "other")
    for function, op in _READS_OUTPUT.items():
        register(launcher, op, function, "out")
    for function, op in _WITHOUT_BACKWARD.items():
        register_forward(launcher, op, function)
    _register_arithmetic(launcher)
    _register_comparisons(launcher)
    register(launcher, trigonometry.hypot, "Hypot", "input", "other", "out")
    register(launcher, selection.where_, "Where", "condition")
    register(launcher, selection.masked_fill_, "MaskedFill", "mask")
    register(launcher, smooth_activations.gelu, _gelu, "input")
    register(launcher, logit_and_entropy.logit, _logit, "input")
    register_forward(launcher, gamma_function.lgamma, "LogGamma", "input")
    register_forward(launcher, sign_and_rounding.copysign, "CopySign", "input", "out")
    register_backward(launcher, sign_and_rounding.copysign, "CopySign", "input", "out", without_grad=(1,))
    register_forward(launcher, sign_and_rounding.round, lambda decimals: ("Round", ()), when=_to_integers)


def _gelu(approximate: str) -> tuple[str, tuple[Any, ...]]:
    return "Gelu" if approximate == "none" else "GeluTanh", ()


def _logit(eps: float | None) -> tuple[str, tuple[Any, ...]]:
    return "Logit", (-inf, inf) if eps is None else (eps, 1 - eps)


def _to_integers(input: Any, *, decimals: int) -> bool:
    return decimals == 0 and supports(input)


# sums, products and powers


def _register_arithmetic(launcher: Launcher) -> None:
    register(launcher, sign_and_rounding.neg, "Neg")
    register(launcher, arithmetic.lerp, "Lerp", "input", "end", "weight")
    _register_pow(launcher)
    for op, function, saves in (
        (arithmetic.remainder, "Remainder", ("input", "other")),
        (arithmetic.fmod, "FMod", ("input", "other")),
        (arithmetic.addcmul, "AddCMul", ("tensor1", "tensor2")),
        (arithmetic.addcdiv, "AddCDiv", ("tensor1", "tensor2")),
    ):
        register(launcher, op, function, *saves, passthrough=(0,))
    for op, function in ((arithmetic.add, "Add"), (arithmetic.sub, "Sub")):
        register_forward(launcher, op, function)
        _register_sum_backward(launcher, op, function)


def _register_pow(launcher: Launcher) -> None:
    def forward(input: Array, exponent: Any, *, dtype: DType) -> Any:
        function = "Square" if _is_2(exponent) else "Pow"
        out = launcher.forward(function, (input, exponent), dtype)
        return out, Saved(input=input, exponent=exponent, out=out)

    def backward(dy: Array, saved: Any, needs: Any) -> Any:
        if _is_2(exponent := getattr(saved, "exponent", 0.0)):
            return launcher.backward("Square", dy, (saved.input,), needs)
        inputs = getattr(saved, "input", 0.0), exponent
        dtypes = [None if need is None else grad_dtype(need, a, dy) for need, a in zip(needs, inputs, strict=True)]
        return gradients(launcher, powers_and_logs.pow, "Pow", dy, (*inputs, getattr(saved, "out", 0.0)), dtypes)

    launcher.on(powers_and_logs.pow, forward, supports, launches=True)
    launcher.on_backward(powers_and_logs.pow, backward, supports_backward, launches=True)


def _is_2(exponent: Any) -> bool:
    return type(exponent) in (int, float) and exponent == 2


def _register_sum_backward(launcher: Launcher, op: Any, function: str) -> None:
    """Register the backward of a sum or a difference, which returns dy itself wherever dy is the gradient."""

    def kernel(dy: Array, saved: Any, needs: Any, alpha: Any) -> Any:
        if needs[1] is None or (function == "Add" and alpha == 1):
            return dy, dy
        return dy, gradients(launcher, op, function, dy, (alpha,), [None, needs[1]])[1]

    kernel.__name__ = f"{op.name}_backward_{launcher.backend}"
    op.backward_primitive.on(
        launcher.backend,
        when=lambda dy, saved, needs, alpha: dy.dtype in FLOATS,
        launches=True,
    )(kernel)


# comparisons, tests for NaN and infinity, logic


def _register_comparisons(launcher: Launcher) -> None:
    for function, op in _COMPARISONS.items():
        register_forward(launcher, op, function, dtype=bool_)
    register_forward(launcher, comparison.isposinf, lambda: ("Equal", (inf,)), dtype=bool_)
    register_forward(launcher, comparison.isneginf, lambda: ("Equal", (-inf,)), dtype=bool_)
    for op, same_of_bool, function in (
        (comparison.logical_and, comparison.bitwise_and, "And"),
        (comparison.logical_or, comparison.bitwise_or, "Or"),
        (comparison.logical_xor, comparison.bitwise_xor, "Xor"),
    ):
        _register_logic(launcher, op, function, supports_dtypes)
        _register_logic(launcher, same_of_bool, function, _all_bool)
    for op, when in ((comparison.logical_not, supports_dtypes), (comparison.bitwise_not, _all_bool)):
        register_forward(launcher, op, lambda: ("Equal", (0.0,)), dtype=bool_, when=when)


def _all_bool(*operands: Any, **params: Any) -> bool:
    return all(getattr(a, "dtype", type(a)) in (bool_, bool) for a in operands)


def _register_logic(launcher: Launcher, op: Any, function: str, when: Any) -> None:
    """Register a logical op. A Python number is converted to its truth value before it could round to zero."""

    def kernel(input: Any, other: Any, *, dtype: DType) -> Any:
        operands = [a if hasattr(a, "dtype") else float(bool(a)) for a in (input, other)]
        return launcher.forward(function, operands, bool_)

    launcher.on(op, kernel, when, launches=True)
