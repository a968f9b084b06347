"""Chains of a recorded step read views of what waits and join pieces, with the bits of eager calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulator, streams
from kernels.cuda.test_chains import names, same, tensors

import ampkit
from ampkit import ops
from ampkit.backends.cuda.launch import chains, mapped_chains

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """A rotary embedding of heads x [batch, heads, tokens, width]."""
    first, second = x.chunk(2, -1)
    return x * cos + ops.cat([-second, first], -1) * sin


@pytest.mark.parametrize(("width", "dtype"), [(16, "bfloat16"), (8, "float32"), (10, "float16")], ids=str)
def test_a_rotary_embedding_and_its_gradient_are_a_kernel_each(width, dtype, device):
    def step(x: Any, cos: Any, sin: Any, dy: Any) -> Any:
        heads = x.reshape(2, 6, 3, width).transpose(1, 2)
        out = turned(heads, cos, sin).to(ampkit.bfloat16)
        return out.detach(), ampkit.grad(out, (x,), dy)[0]

    angles = [one.detach() for one in tensors(2, ampkit.float32, (6, width))]
    x = tensors(1, getattr(ampkit, dtype), (2, 6, 3 * width))[0]
    report = same(step, [x, *angles, tensors(1, ampkit.bfloat16, (2, 3, 6, width))[0].detach()])
    assert [each.count("Cat") for each in names(report)] == [1, 1]
    assert not report.alone
    assert next(iter(report.chains)).stored == 1


def test_views_of_what_waits_are_computed_where_they_are_read(device):
    def step(x: Any, y: Any) -> Any:
        first = ops.silu(x) * y
        halves = first[:, 1::2] + first[:, ::2]
        turned = first.T[4:20].exp()
        heads = first.reshape(24, 5, 8).transpose(0, 1)[1:4] * 2.0
        wide = first[3:4].expand(24, 40) - y
        merged = first.reshape(6, 160)[:, 5:45] + 1.0
        return halves, turned, heads, wide, merged, first[..., None, 7] * 3.0

    with ampkit.no_grad():
        same(step, tensors(2))


def test_a_slice_is_computed_without_the_rest(device):
    def step(x: Any, y: Any) -> Any:
        return (x * y)[4:12] + 1.0

    with ampkit.no_grad():
        (chain,) = same(step, tensors(2, ampkit.float32)).chains
    assert (chain.names, chain.stored) == (("Mul", "Add"), 1)
    assert chain.after == 3 * 4 * 8 * 40


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float32])
def test_concatenations_of_pieces_that_wait_are_stored_by_pieces(axis, dtype, device):
    def step(x: Any, y: Any, z: Any) -> Any:
        joined = ops.cat([x * 2.0, ops.silu(y), (z - x)], axis)
        again = ops.cat([joined.narrow(axis, 2, 5), joined.narrow(axis, 0, 2).exp()], axis)
        return joined, again, ops.stack([x + y, y * z], axis) - 1.0, ops.cat([x > y, z < y], axis)

    with ampkit.no_grad():
        report = same(step, tensors(3, dtype, (4, 6, 8)))
    assert any("Cat" in each for each in names(report))


def test_gradients_of_pieces_and_of_slices_are_those_of_eager_calls(device):
    def step(x: Any, y: Any) -> Any:
        a, b, c = (x * y).split([3, 16, 5])
        rows = ops.stack([row.exp() for row in (y * 0.5).unbind(1)[:3]], 1)
        out = ops.cat([b * 2.0, c - a[:1], a]) * x
        loss = out.float().sum() + (rows * x[:, :3]).float().sum()
        return ampkit.grad(loss, (x, y))

    same(step, tensors(2))


class Views:
    """Random operations on tensors of one shape, with views and concatenations between them."""

    def __init__(self, seed: int):
        random = np.random.default_rng(seed)
        self.plan = [tuple(random.integers(1 << 30, size=4)) for _ in range(16)]

    def __call__(self, *given: Any) -> list[Any]:
        pool = list(given)
        for what, *choices in self.plan:
            x, y, _ = (pool[choice % len(pool)] for choice in choices)
            pool.append(self._made(int(what) % 9, x, y.to(x.dtype), int(choices[2])))
            if choices[0] % 3 == 0:
                del pool[choices[1] % len(pool)]
        out = pool[-1].float()
        grads = ampkit.grad(out, given, ampkit.ones_like(out), allow_unused=True)
        return [*[one.detach() for one in pool[3:]], *[one for one in grads if one is not None]]

    def _made(self, what: int, x: Any, y: Any, choice: int) -> Any:
        axis, cut = choice % 2, 1 + choice % 15
        if what == 0:
            first, second = x.chunk(2, axis)
            return ops.cat([-second, first], axis)
        if what == 1:
            return ops.cat([x.narrow(axis, 0, cut), y.narrow(axis, cut, x.shape[axis] - cut).sin()], axis)
        if what == 2:
            return x.transpose(0, 1).exp().clamp(0, 4).transpose(0, 1)
        if what == 3:
            return ops.stack(list((x * 0.5).reshape(12, 2, 40).unbind(1)), 1).reshape(24, 40)
        if what == 4:
            return ops.cat([part * scale for part, scale in zip(x.split([8, 5, 11]), (0.5, 2.0, 1.0), strict=True)])
        if what == 5:
            return x.to([ampkit.float32, ampkit.bfloat16, ampkit.float16][choice % 3])
        if what == 6:
            return x * y[3 : 3 + 1] + x[:, 2:3]
        return x * y if what == 7 else ops.tanh(x) + y


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_with_views_have_the_bits_of_eager_ones(seed, device):
    same(Views(seed), [tensors(1, dtype)[0] for dtype in (ampkit.bfloat16, ampkit.float32, ampkit.float16)])


def test_nan_of_an_array_that_is_joined_to_results_keep_their_bits(device):
    values = np.array([np.nan, -np.nan, 1.0, 2.0] * 16, np.float32).reshape(2, 32)
    values.view(np.uint32)[0, 0] |= 0x1234567
    x = ampkit.tensor(values, device="cuda")
    low = [x.to(dtype).detach() for dtype in (ampkit.bfloat16, ampkit.float16)]

    def step(x: Any, *low: Any) -> Any:
        return [ops.cat([one, one.exp()]) for one in (x, *low)], [ops.cat([-one, one]) * 2.0 for one in low]

    def listed(*given: Any) -> Any:
        first, second = step(*given)
        return [*first, *second]

    with ampkit.no_grad():
        same(listed, [x, *low])


def test_what_changes_in_place_is_read_through_views_as_it_was(device):
    def step(x: Any, y: Any) -> Any:
        memory = x * 1.0
        part = (memory * y)[2:9]
        joined = ops.cat([memory[:4] + 1.0, part])
        memory[1:3] = 5.0
        second = joined * 2.0
        memory.zero_()
        return part, second, memory, joined

    with ampkit.no_grad():
        same(step, tensors(2, ampkit.float32))


def test_a_chain_that_would_be_too_long_reads_stored_pieces(device, monkeypatch):
    monkeypatch.setattr(mapped_chains, "MAX_STEPS", 5)

    def step(x: Any, y: Any) -> Any:
        for _ in range(3):
            x = ops.cat([ops.sin(x[12:]) * y[:12], x[:12] - 0.5])
        return x

    with ampkit.no_grad():
        assert max(map(len, names(same(step, tensors(2, ampkit.float32))))) <= 5


def test_a_kernel_that_does_not_compile_leaves_its_launches_apart(device, monkeypatch):
    entry = device.kernels.entry

    def refusing(source: str, name: str) -> Any:
        if "_Cat" in name:
            raise RuntimeError("error: no such type")
        return entry(source, name)

    monkeypatch.setattr(device.kernels, "entry", refusing)
    monkeypatch.setattr(chains, "_told", set())

    def step(x: Any, y: Any) -> Any:
        return ops.cat([x + 1.0, y * x], 1) * 2.0

    with ampkit.no_grad(), pytest.warns(RuntimeWarning, match="runs launch by launch"), streams.races() as found:
        assert not any("Cat" in each for each in names(same(step, tensors(2))))
    assert not found


CUTS = [
    np.s_[..., :7],
    np.s_[3:],
    np.s_[:, 2:5],
    np.s_[:, 0],
    np.s_[-1],
    np.s_[None, 1:3, ..., None],
    np.s_[..., -2, None],
]


@pytest.mark.parametrize("index", CUTS, ids=str)
@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float32])
def test_a_gradient_of_a_slice_is_part_of_its_chain(index, dtype, device):
    def step(x: Any, y: Any) -> Any:
        first = x * y
        loss = (first[index] * 3.0).exp() + ops.silu(y)[index]
        return ampkit.grad(loss, (x, y), ampkit.ones_like(loss))

    report = same(step, tensors(2, dtype, (6, 5, 8)))
    assert any(each.count("Cat") == 2 for each in names(report))
    assert not report.ended_by


def test_gradients_of_slices_have_zeros_around(device):
    x = tensors(1, ampkit.float32, (4, 6, 8))[0]
    indices = [*CUTS, np.s_[:], np.s_[1:3, 2:], np.s_[::2], np.s_[..., ::-1], np.s_[2:2], np.s_[1:2, 0, 3], 2]
    for index in indices:
        part = x[index]
        (found,) = ampkit.grad(part, x, part.detach())
        expected = np.zeros(x.shape, np.float32)
        expected[index] = part.numpy(force=True)
        np.testing.assert_array_equal(found.numpy(), expected)


def test_a_gradient_of_a_slice_that_is_stored_alone_has_the_bits_of_what_was_sliced(device):
    def step(x: Any, dy: Any) -> Any:
        return ampkit.grad(x[:, 3:7], x, dy)

    x, dy = tensors(1)[0], tensors(1, shape=(24, 4))[0].detach()
    dy[0, 0] = float("nan")
    report = same(step, [x, dy])
    assert not report.chains
