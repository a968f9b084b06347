"""Gradients that a chain stores in leaves, each once, are those of an eager backward, in memory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting_launches import let_all_wait, same

import ampkit
from ampkit import ops
from ampkit.backends.cpu.native.arrays import available

pytestmark = [pytest.mark.no_gpu, pytest.mark.skipif(not available(), reason="without compiled kernels nothing waits")]
DTYPES = {"float32": ampkit.float32, "bfloat16": ampkit.bfloat16}


@pytest.fixture(autouse=True)
def _all_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from let_all_wait(monkeypatch)


def leaves(dtype: Any) -> list[Any]:
    """Three leaves, so large that kernels run, with infinities and NaN of several bits among their elements."""
    random = np.random.default_rng(0)
    found = random.normal(size=(3, 300, 256)).astype(np.float32)
    found.view(np.uint32)[:, 3, :6] = 0x7FC10000, 0xFFD20000, 0x7F800000, 0xFF800000, 0x80000000, 0x7FE30000
    return [ampkit.tensor(one).to(dtype).detach().requires_grad_() for one in found]


def out_of(x: Any, y: Any, z: Any) -> Any:
    return (ops.silu(x) * y + z).clamp(-4.0, 4.0).mul(0.5) - x


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_backward_of_elementwise_ops_is_one_chain_that_stores_what_leaves_keep(dtype):
    def step(x: Any, y: Any, z: Any) -> Any:
        out_of(x, y, z).backward(x.detach())
        return [x.grad, y.grad, z.grad]

    report = same(step, lambda: leaves(DTYPES[dtype]))
    of_backward = [chain for chain in report.chains if "Clamp backward" in chain.names]
    assert [chain.stored for chain in of_backward] == [3]
    assert {"Copy", "Add", "Silu backward"} < set(of_backward[0].names)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_several_backwards_add_up(dtype):
    def step(x: Any, y: Any, z: Any) -> Any:
        out = out_of(x, y, z)
        out.backward(y.detach(), retain_graph=True)
        held, first = x.grad, x.grad.detach()
        out.backward(z.detach())
        (x * y * x + x).backward(z.detach())
        return [x.grad, y.grad, z.grad, held, first]

    same(step, lambda: leaves(DTYPES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_that_others_have_seen_keeps_its_memory(dtype):
    def step(x: Any, y: Any, z: Any) -> Any:
        seen: list[Any] = []
        product = x * y
        product.register_hook(lambda _: seen.append(None if x.grad is None else x.grad.detach()))
        (product - x + z).backward(z.detach())
        return [x.grad, y.grad, z.grad, *[one for one in seen if one is not None]]

    same(step, lambda: leaves(DTYPES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_leaves_of_one_gradient_and_the_one_given_have_memory_of_their_own(dtype):
    def step(x: Any, y: Any, z: Any) -> Any:
        given = z.detach().clone()
        (x + y).backward(given)
        given.fill_(7.0)
        x.grad.mul_(2.0)
        y.grad.add_(1.0)
        return [x.grad, y.grad, given]

    same(step, lambda: leaves(DTYPES[dtype]), 0)


def test_scaled_gradients_and_those_of_another_scale_are_combined_as_eagerly():
    def step(x: Any, y: Any, z: Any) -> Any:
        scaler = ampkit.GradScaler(init_scale=4.0)
        scaler.scale((x * y - x).sum()).backward()
        first = x.grad * 1.0
        scaler.scale((x * z - x).sum()).backward()
        return [first, x.grad, y.grad, z.grad]

    same(step, lambda: leaves(ampkit.float32))


def test_leaves_with_hooks_receive_the_sum():
    def step(x: Any, y: Any, z: Any) -> Any:
        seen: list[Any] = []
        x.register_hook(lambda gradient: seen.append(gradient * 2.0))
        y.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad * 3.0))
        (x * y - x + y * z).backward(z.detach())
        return [x.grad, y.grad, z.grad, *seen]

    same(step, lambda: leaves(ampkit.bfloat16))


def test_gradients_in_another_order_of_axes_or_dtype_are_copied():
    def step(x: Any, y: Any, z: Any) -> Any:
        turned = y.detach().T.contiguous().T.requires_grad_()
        wide = z.detach().float().requires_grad_()
        ((x + turned) * x + wide).backward(wide.detach())
        return [x.grad, turned.grad, wide.grad]

    same(step, lambda: leaves(ampkit.bfloat16), 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_that_are_recorded_can_be_differentiated_again(dtype):
    def step(x: Any, y: Any, z: Any) -> Any:
        (x * x * y + x + z).backward(z.detach(), create_graph=True)
        first = [x.grad, y.grad, z.grad]
        x.grad.float().square().sum().backward()
        return [*first, x.grad, y.grad, z.grad]

    same(step, lambda: leaves(DTYPES[dtype]), 0)


def test_parameters_without_an_optimizer_keep_their_gradients():
    def step(x: Any, y: Any, z: Any) -> Any:
        weight = ampkit.nn.Parameter(z.detach().clone())
        ((x * weight + y) * weight - weight).backward(y.detach())
        first = weight.grad.detach().clone()
        (weight * x).backward(y.detach())
        return [first, weight.grad, x.grad, y.grad]

    same(step, lambda: leaves(ampkit.float32))
