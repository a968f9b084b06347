"""CUDA kernels of pointwise ops. An op that is one function of `elementwise.cu` is one row of the table below; the
modules beside this one hold the ops that need more.
"""

from __future__ import annotations

from math import inf
from typing import Any

from ampkit.ops.pointwise import (
    arithmetic,
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

from .registration import register, register_backward, register_forward, supports

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

for _function, _op in _READS_INPUT.items():
    register(_op, _function, "input")
for _function, _op in _READS_BOTH_INPUTS.items():
    register(_op, _function, "input", "other")
for _function, _op in _READS_OUTPUT.items():
    register(_op, _function, "out")
for _function, _op in _WITHOUT_BACKWARD.items():
    register_forward(_op, _function)

register(sign_and_rounding.neg, "Neg")
register(powers_and_logs.pow, "Pow", "input", "exponent", "out")
register(arithmetic.lerp, "Lerp", "input", "end", "weight")
register(trigonometry.hypot, "Hypot", "input", "other", "out")
register(selection.where_, "Where", "condition")
register(selection.masked_fill_, "MaskedFill", "mask")
register(smooth_activations.gelu, lambda approximate: ("Gelu" if approximate == "none" else "GeluTanh", ()), "input")
register(logit_and_entropy.logit, lambda eps: ("Logit", (-inf, inf) if eps is None else (eps, 1 - eps)), "input")

register_forward(gamma_function.lgamma, "LogGamma", "input")
register_forward(sign_and_rounding.copysign, "CopySign", "input", "out")
register_backward(sign_and_rounding.copysign, "CopySign", "input", "out", without_grad=(1,))


def _to_integers(input: Any, *, decimals: int) -> bool:
    return decimals == 0 and supports(input)


register_forward(sign_and_rounding.round, lambda decimals: ("Round", ()), when=_to_integers)
