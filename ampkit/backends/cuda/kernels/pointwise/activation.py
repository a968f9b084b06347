"""Kernels of the activations: maps, see elementwise.cu."""

from __future__ import annotations

from ampkit.ops.pointwise import activation as ops

from .registration import mapped

for name, op in {
    "LeakyRelu": ops.leaky_relu,
    "Elu": ops.elu,
    "LogSigmoid": ops.logsigmoid,
    "Silu": ops.silu,
    "Softplus": ops.softplus,
    "Mish": ops.mish,
}.items():
    mapped(op, name, "input")
mapped(ops.relu, "Relu", "out")
mapped(ops.sigmoid, "Sigmoid", "out")
mapped(ops.gelu, lambda approximate: ("Gelu" if approximate == "none" else "GeluTanh", ()), "input")
