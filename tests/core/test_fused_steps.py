"""A compiled step on a CPU has the bits of an eager one, whatever reads or writes memory while launches wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting_launches import bits, let_all_wait, same

import ampkit
from ampkit import nn, ops
from ampkit.backends.cpu.native.arrays import available
from ampkit.base import observe
from ampkit.base.errors import ArgumentError, ShapeError

pytestmark = pytest.mark.no_gpu
needs_kernels = pytest.mark.skipif(not available(), reason="without compiled kernels nothing waits")
SHAPE = (64, 80)  # elements for which kernels run, not NumPy


@pytest.fixture(autouse=True)
def _all_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from let_all_wait(monkeypatch)


def tensors(count: int = 3, dtype: Any = ampkit.bfloat16, requires_grad: bool = False, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    made = [ampkit.tensor(random.normal(size=SHAPE).astype(np.float32)).to(dtype).detach() for _ in range(count)]
    return [one.requires_grad_(requires_grad) for one in made]


# what reads or writes memory while launches wait


def test_an_input_that_changes_in_place_has_its_former_values_in_what_waits():
    def step(x: Any, y: Any, z: Any) -> Any:
        first = ops.silu(x) * y
        x.add_(1.0)
        second = ops.silu(x) * first
        y[3:5] = 7.0
        z.copy_(x)
        third = first + z
        z.zero_()
        return first, second, third, x, y, z

    same(step, tensors)


def test_an_input_that_an_op_with_out_overwrites_has_its_former_values_in_what_waits():
    def step(x: Any, y: Any, z: Any) -> Any:
        first = ops.silu(x) * y
        ampkit.exp(z, out=x)
        return first, x

    same(step, tensors)


def test_memory_that_numpy_code_has_is_read_at_once():
    def step(x: Any, y: Any, z: Any) -> Any:
        memory = x.numpy()
        first = ops.silu(x) * y
        memory[...] = 1.0
        view = first.numpy()
        second = ops.silu(first) + z
        view[...] = 2.0
        return second, first, x

    same(step, tensors, 0)


def test_results_that_wait_are_read_right_by_whatever_reads_them():
    def step(x: Any, y: Any, z: Any) -> Any:
        def made() -> Any:
            return ops.relu(x * y) + z

        read = [made().numpy(), np.asarray(made()), np.from_dlpack(made().float()), made().float().tolist()]
        read += [made()[3, 4].item(), float(made()[0, 0]), str(made()).encode() == b"", made().untyped_storage()[:]]
        read += [
            np.array(made().flatten().tolist(), np.float32),
            made().clone(),
            made().sum(),
            made().T,
            made()[1:, ::2],
        ]
        read += [made().argmax(), made().to(ampkit.float64), made().reshape(-1), made().data, made().detach()]
        read += [ops.linear(made(), z), made() @ z.T, ops.softmax(made(), -1), ampkit.cat([made(), made()])]
        read += [
            made() + y.double(),
            x.double() * made(),
            bool((made() == made()).all()),
            made().view(ampkit.int16),
            *made().chunk(2),
            made().bool(),
        ]
        return [one if isinstance(one, ampkit.Tensor) else np.asarray(one) for one in read]

    same(step, tensors)


def test_views_of_what_waits_share_its_memory():
    def step(x: Any, y: Any, z: Any) -> Any:
        first = x * y + z
        view, turned = first[2:7], first.T
        second = ops.silu(first) * 2.0
        view.mul_(3.0)
        turned.add_(1.0)
        return first, second, view, turned, first.view(-1) + 1.0

    same(step, tensors, 0)


def test_what_is_kept_is_stored_and_what_is_not_is_none_the_less_right():
    kept: list[Any] = []

    def step(x: Any, y: Any, z: Any) -> Any:
        first = x * y
        kept[:] = [first, [first + z]]
        return ops.silu(kept[1][0]) - first

    same(step, tensors)
    again = bits([kept[0], kept[1][0]])
    step(*tensors())
    assert again == bits([kept[0], kept[1][0]])


def test_a_step_that_raises_leaves_what_it_made():
    left: list[Any] = []

    def step(x: Any, y: Any, z: Any) -> Any:
        left.append(ops.silu(x * y) + z)
        raise KeyError("of the step")

    given = tensors()
    for call in (step, ampkit.compile(step)):
        with pytest.raises(KeyError, match="of the step"):
            call(*given)
    assert bits(left[0]) == bits(left[1])


def test_an_op_that_refuses_its_operands_leaves_what_waits():
    def step(x: Any, y: Any, z: Any) -> Any:
        first = x * y
        with pytest.raises(ShapeError):
            first + z[:3]
        return first + z

    same(step, tensors, 0)


def test_results_on_the_tape_have_an_ordinary_backward_after_the_call():
    model = nn.Sequential(nn.Linear(80, 64), nn.SiLU(), nn.Linear(64, 64), nn.GELU(), nn.Tanh())
    compiled = ampkit.compile(model)
    (x,), found = tensors(1, ampkit.float32), []
    for call in (model, compiled):
        model.zero_grad()
        out = call(x)
        out.backward(out.detach())
        found.append(bits([out, *[p.grad for p in compiled.parameters()]]))
    assert found[0] == found[1]
    assert compiled.training
    assert not compiled.eval().training


@pytest.mark.parametrize("retain", [False, True])
def test_gradients_are_those_of_an_eager_backward(retain):
    def step(x: Any, y: Any, z: Any) -> Any:
        shared = ops.silu(x) * y
        out = ops.tanh(shared) + shared * shared + z * 0.5
        out = ops.gelu(out) - x
        seen: list[Any] = []
        shared.retain_grad()
        out.register_hook(lambda g: g * 2.0)
        shared.register_hook(lambda g: seen.append(g.clone()))
        out.backward(out.detach() * 2.0, retain_graph=retain)
        if retain:
            out.backward(out.detach())
        first = [x.grad, y.grad, z.grad, shared.grad, *seen]
        return [out, *first]

    same(step, lambda: tensors(requires_grad=True), 2)


def test_gradients_that_grad_returns_and_second_derivatives():
    def step(x: Any, y: Any, z: Any) -> Any:
        out = (ops.tanh(x * y) + z).float()
        first = ampkit.grad(out.sum(), [x, y], create_graph=True)
        total = (first[0].float() ** 2).sum() + first[1].float().sum()
        return [*first, *ampkit.grad(total, [x, y])]

    same(step, lambda: tensors(requires_grad=True))


def test_gradients_of_broadcast_operands_and_of_casts():
    def step(x: Any, y: Any, z: Any) -> Any:
        row, column = y[0].detach().requires_grad_(), z[:, :1].detach().requires_grad_()
        out = ops.sigmoid(x * row + column) * x.float()
        out = out.to(ampkit.float16) * 0.5 + row.to(ampkit.float16)
        out.backward(out.detach())
        return [out, x.grad, row.grad, column.grad]

    same(step, lambda: tensors(requires_grad=True))


def test_gradients_accumulate_into_memory_that_launches_read():
    def step(x: Any, y: Any, z: Any) -> Any:
        (x * y).backward(z.detach())
        doubled = x.grad * 2.0
        (ops.silu(x) * y).backward(doubled.detach())
        third = x.grad + doubled
        x.grad.zero_()
        return [doubled, third, x.grad, y.grad]

    same(step, lambda: tensors(requires_grad=True), 0)


def test_gradients_of_changes_in_place_and_of_inputs_that_are_no_leaves():
    def step(x: Any, y: Any, z: Any) -> Any:
        base = x * 1.5
        base[2:5] = y[2:5] * 2.0
        base.mul_(z)
        base[:, 3].add_(1.0)
        out = ops.silu(base) * y
        first = ampkit.grad(ops.tanh(out), [x, y], out.detach(), retain_graph=True)
        base.retain_grad()
        (ops.tanh(out) * 0.5).backward(out.detach(), inputs=[base, z])
        return [out, *first, base.grad, z.grad]

    same(step, lambda: tensors(requires_grad=True))


def test_leaves_that_get_one_gradient_have_memory_of_their_own():
    def step(x: Any, y: Any, z: Any) -> Any:
        ops.silu(x + y).backward(z.detach())
        x.grad.mul_(2.0)
        return [x.grad, y.grad]

    same(step, lambda: tensors(requires_grad=True), 0)


def test_gradients_of_parameters_that_an_optimizer_holds():
    def step(x: Any, y: Any, z: Any) -> Any:
        weight, shift = nn.Parameter(x.float()), nn.Parameter(y.float())
        optimizer = ampkit.optim.SGD([weight, shift], lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            out = ops.silu(weight) * z.float() + ops.mish(shift)
            out.backward(ops.tanh(out.detach() * 2.0))
            optimizer.step()
        return [weight, shift, weight.grad, shift.grad]

    same(step, tensors, 0)


def test_functions_recomputed_segments_and_no_grad_blocks_within_a_step():
    class Cube(ampkit.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            (x,) = ctx.saved_tensors
            return dy * 3.0 * x * x

    def step(x: Any, y: Any, z: Any) -> Any:
        out = Cube.apply(ops.silu(x) * y)
        out = ampkit.recompute(lambda a: ops.tanh(a * z) + a, out)
        with ampkit.no_grad():
            aside = ops.silu(out) * y
        out.backward(aside)
        return [out, aside, x.grad, y.grad, z.grad]

    same(step, lambda: tensors(requires_grad=True), 2)


def test_saved_tensors_that_hooks_pack():
    def step(x: Any, y: Any, z: Any) -> Any:
        with ampkit.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), ampkit.tensor):
            out = ops.silu(x * y) * z
        out.backward(out.detach())
        return [out, x.grad, y.grad, z.grad]

    same(step, lambda: tensors(requires_grad=True), 0)


def test_other_threads_read_and_launch_while_launches_wait():
    def step(x: Any, y: Any, z: Any) -> Any:
        first = ops.silu(x) * y
        found: list[Any] = []

        def other() -> None:
            found.append((ops.silu(first) + z).numpy().copy())

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return [first * z, ampkit.tensor(found[0])]

    same(step, tensors, 0)


@needs_kernels
def test_observers_see_every_op_with_its_values():
    seen: list[bytes] = []

    def step(x: Any, y: Any, z: Any) -> Any:
        first = x * y
        with observe.watch(lambda name, inputs, output: seen.append(np.asarray(output).tobytes())):
            second = ops.silu(first) + z
        return second * first

    x, y, z = tensors()
    same(step, tensors, 0)
    assert seen[-2:] == bits([ops.silu(x * y), ops.silu(x * y) + z])


def test_a_compiled_step_within_another_waits_with_it():
    inner = ampkit.compile(lambda x, y: ops.silu(x) * y)

    def step(x: Any, y: Any, z: Any) -> Any:
        return inner(x, y) + z

    report = same(step, tensors)
    if available():
        assert [chain.names for chain in report.chains] == [("Silu", "Mul", "Add")]


# what users see


def test_words_of_pytorch_are_taken_and_others_refused():
    for mode in ("default", "reduce-overhead", "max-autotune", None):
        same(
            ampkit.compile(lambda x: ops.silu(x) * x + 1.0, mode=mode, dynamic=True, fullgraph=True),
            lambda: tensors(1),
            0,
        )
    with pytest.raises(ArgumentError, match="compile: needs mode 'default', 'reduce-overhead' or 'max-autotune'"):
        ampkit.compile(lambda x: x, mode="fast")
    with pytest.raises(ArgumentError, match="dynamic True or False"):
        ampkit.compile(lambda x: x, dynamic="no")


def reads_a_value(x: Any, y: Any, z: Any) -> Any:
    return (x * y + z) * (x * y).sum().item()


def branches(x: Any, y: Any, z: Any) -> Any:
    return x * y + z if (x * y + z).sum() > 0 else x * z - y


def counts_and_prints(x: Any, y: Any, z: Any) -> Any:
    CALLS.append(len(CALLS))
    print(CALLS, (x * y)[0, 0].item())  # noqa: T201 - it is what the step does
    return (x * y + z) * float(CALLS[-1])


def changes_shape(x: Any, y: Any, z: Any) -> Any:
    CALLS.append(len(CALLS))
    rows = 64 - len(CALLS)
    return (x[:rows] * y[:rows] + z[:rows]).clamp(-1.0, 1.0)


CALLS: list[int] = []


@pytest.mark.parametrize("step", [reads_a_value, branches, counts_and_prints, changes_shape])
def test_what_a_step_reads_decides_prints_and_counts_on_the_host_is_that_of_every_call(step, capsys):
    found = []
    for call in (step, ampkit.compile(step)):
        CALLS.clear()
        outs = [bits(call(*tensors(seed=seed))) for seed in range(5)]
        found.append((outs, list(CALLS), capsys.readouterr().out))
    assert found[0] == found[1]


@needs_kernels
def test_the_report_says_what_was_fused_and_what_was_not():
    def step(x: Any, y: Any, z: Any) -> Any:
        first = ops.silu(x) * y + z
        total = first.sum()
        return total, ops.silu(z.T) + x.T

    compiled = ampkit.compile(step)
    assert "no elementwise launches fused" in str(compiled.report())
    compiled(*tensors())
    report, size = compiled.report(), 64 * 80 * 2
    assert next((chain.names, chain.stored) for chain in report.chains) == (("Silu", "Mul", "Add"), 1)
    assert report.bytes_before - report.bytes_after >= 4 * size
    assert report.ended_by["sum_cpu"] == 1
    assert "Silu, Mul, Add in bfloat16" in str(report)
    assert "chains ended by: sum_cpu (1)" in str(report)
