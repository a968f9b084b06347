"""What a compiled step computes anew in its backward has the bits that an eager step keeps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.backends.cpu.native.arrays import available
from ampkit.base.errors import StateError
from ampkit.core.capture import anew
from ampkit.ops.nn import fused

pytestmark = [
    pytest.mark.no_gpu,
    pytest.mark.skipif(not available(), reason="without compiled kernels nothing is computed anew"),
]
ROWS, WIDTH = 96, 64


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(anew, "MIN_BYTES", 1 << 12)  # above the parameters of norms, below all else
    yield
    assert not anew.steps


class Block(nn.Module):
    """Norms and activations before products, one of them before two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second, self.rms = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        y = ops.gelu(self.a(h)) + self.b(h)
        total, normed = ops.add_layer_norm(x, y, WIDTH, self.second.weight, self.second.bias, dtype=h.dtype)
        z = self.c(ops.silu(self.d(normed)))
        return total + self.e(self.rms(z.float()))


def made() -> tuple[Any, Any]:
    ampkit.manual_seed(0)
    model = Block()
    with ampkit.no_grad():
        for parameter in model.parameters():
            parameter.add_(ampkit.randn(*parameter.shape) * 0.1)
    return model, ampkit.randn(ROWS, WIDTH)


def gradients(run: Callable[[Any, Any], Any], compiled: bool) -> tuple[list[bytes], Any]:
    """The bits of what a step of a model returns and of the gradients that it leaves, and its report."""
    model, x = made()
    step = ampkit.compile(lambda: run(model, x)) if compiled else lambda: run(model, x)
    out = step()
    found = [one.numpy(force=True).tobytes() for one in (out if isinstance(out, tuple) else (out,))]
    found += [p.grad.numpy().tobytes() for p in model.parameters() if p.grad is not None]
    return found, step.report() if compiled else None


def same(run: Callable[[Any, Any], Any], *ops_: str) -> None:
    expected, _ = gradients(run, compiled=False)
    found, report = gradients(run, compiled=True)
    assert expected == found
    assert set(ops_) <= set(report.anew), report


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradients_have_the_bits_of_an_eager_step(dtype):
    def run(model: Any, x: Any) -> Any:
        with ampkit.autocast("cpu", dtype=getattr(ampkit, dtype), enabled=dtype != "float32"):
            loss = (model(x).float() ** 2).mean()
        loss.backward()
        return loss.detach()

    norms = ("layer_norm", "add_layer_norm", "rms_norm") if dtype == "float32" else ()
    same(run, "silu", *norms)


def test_the_feed_forward_layer_of_a_transformer_keeps_its_hidden_layer_once():
    def run(model: Any, x: Any) -> Any:
        layer = model.a, model.b
        out = ops.linear_gelu_linear(x, layer[0].weight, layer[0].bias, layer[1].weight, layer[1].bias)
        out.square().mean().backward()
        return out.detach()

    same(run, "gelu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("frozen", [(), ("a",), ("b",), ("b.weight",), ("a", "b.bias")])
def test_the_gradient_of_a_hidden_layer_takes_the_place_of_the_one_before(dtype, frozen, monkeypatch):
    monkeypatch.setattr(fused, "_PIECE", 1 << 11)  # so that there are several, and a longer last one
    overwritten: list[bool] = []
    in_pieces = fused._gelu_gradient_in_pieces

    def noted(grad: Any, *more: Any) -> Any:
        overwritten.append((out := in_pieces(grad, *more)) is grad)
        return out

    monkeypatch.setattr(fused, "_gelu_gradient_in_pieces", noted)

    def run(model: Any, x: Any) -> Any:
        for name in frozen:
            operator.attrgetter(name)(model).requires_grad_(False)
        with ampkit.autocast("cpu", dtype=getattr(ampkit, dtype), enabled=dtype != "float32"):
            layer = model.a, model.b
            out = ops.linear_gelu_linear(
                model.c(x[:-1]), layer[0].weight, layer[0].bias, layer[1].weight, layer[1].bias
            )
        out.float().square().mean().backward()
        return out.detach()

    same(run, "gelu")
    assert overwritten == [True]


def test_graphs_that_are_retained_and_second_derivatives():
    def run(model: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        loss = (model(x) ** 2).mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        (dx,) = ampkit.grad(loss, [x], create_graph=True)
        (ddx,) = ampkit.grad(dx.square().sum(), [x])
        return dx, ddx

    same(run, "layer_norm", "silu")


def test_one_gradient_alone_and_frozen_weights():
    def run(model: Any, x: Any) -> Any:
        model.norm.requires_grad_(False)
        model.c.weight.requires_grad_(False)
        out = (model(x) ** 2).mean()
        return ampkit.grad(out, [model.a.weight, model.e.weight])

    same(run)


def test_a_bias_that_changes_before_the_backward_has_its_former_value():
    def run(model: Any, x: Any) -> Any:
        loss = (model.a(model.norm(x)) ** 2).mean()
        with ampkit.no_grad():
            model.norm.bias.add_(1.0)
        loss.backward()
        return loss.detach()

    same(run, "layer_norm")


def test_an_input_that_changes_before_the_backward_raises_as_eagerly():
    model, x = made()
    for wrap in (lambda f: f, ampkit.compile):

        @wrap
        def step() -> None:
            y = x.detach().requires_grad_() * 1.0
            loss = (model.a(model.norm(y)) ** 2).mean()
            y.zero_()
            loss.backward()

        with pytest.raises(StateError, match="`input` of layer_norm"):
            step()


def test_hooks_that_pack_saved_tensors_get_all_of_them():
    packed: list[int] = []

    def run(model: Any, x: Any) -> Any:
        with ampkit.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.numel()) or t.clone(), lambda t: t):
            loss = (model(x) ** 2).mean()
        loss.backward()
        return loss.detach()

    gradients(run, compiled=False)
    eager = list(packed)
    packed.clear()
    gradients(run, compiled=True)
    assert packed == eager


def test_results_that_outlive_the_step_have_an_ordinary_backward():
    model, x = made()
    outs = [call(x) for call in (model, ampkit.compile(model))]
    found = []
    for out in outs:
        out.square().sum().backward()
        found.append([p.grad.numpy().tobytes() for p in model.parameters()])
        optim.SGD(model.parameters(), lr=0.0).zero_grad()
    assert found[0] == found[1]


def test_a_forward_mode_derivative_within_a_step():
    def run(model: Any, x: Any) -> Any:
        _, tangent = ampkit.func.jvp(lambda x: model.a(model.norm(x)), (x,), (ampkit.ones_like(x),))
        return tangent

    same(run)


def test_a_graph_that_is_dropped_is_freed_at_once():
    model, x = made()
    node = ref(ampkit.compile(lambda: model.a(model.norm(x)))()._tape_node.edges[0][0])
    assert node() is None


def test_memory_at_the_peak_is_less_and_reported():
    def step(model: Any, x: Any) -> Any:
        y = x
        for _ in range(8):
            y = model.a(ops.gelu(model.b(model.norm(y))))
        y.square().mean().backward()
        return y.detach()

    ampkit.manual_seed(0)
    model, x = Block(), ampkit.randn(1 << 12, WIDTH)
    peaks = []
    for run in (step, compiled := ampkit.compile(step)):
        run(model, x)
        ampkit.cpu.reset_peak_memory_stats()
        held = ampkit.cpu.memory_allocated()
        run(model, x)
        peaks.append(ampkit.cpu.max_memory_allocated() - held)
    assert peaks[1] < 0.7 * peaks[0]
    report = compiled.report()
    assert report.peak_bytes == peaks[1] + held
    assert report.anew["gelu"] == report.anew["layer_norm"] == 8 * x.nbytes
    assert "computed anew in backward rather than kept: " in str(report)
    assert "memory at the peak: " in str(report)
    assert np.isfinite(model.a.weight.grad.numpy()).all()
