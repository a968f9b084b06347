"""The memory of recorded steps: whose addresses a launch uses, what short memory does, and how much there is of it."""

from __future__ import annotations

import gc
import os
import weakref
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from cuda_on_cpu import emulator, memory, streams

import ampkit
from ampkit import nn, ops, optim, profile
from ampkit.backends.cuda.graph_pool import Footprint
from ampkit.base.errors import DeviceError, OutOfMemoryError
from ampkit.config import load
from ampkit.core.capture.guards import Guards
from ampkit.run.loop import fit

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


def on_gpu(values):
    return ampkit.tensor(np.asarray(values, "f"), device="cuda")


def recorded(step, *args, calls=4):
    """`step`, compiled and recorded."""
    compiled = ampkit.compile(step)
    with ampkit.no_grad():
        for _ in range(calls):
            compiled(*args)
    assert [kind.graph.recording is not None for kind in compiled._variants.values()] == [True]
    return compiled


def overwrite(device):
    """Fill what the pools have to give."""
    gc.collect()
    kept = [device.xp.empty((size,), np.uint8) for size in (512, 1024, 2048, 4096) * 8]
    for array in kept:
        array.fill(0x7F)
    return kept


# lifetimes


def test_a_closed_over_tensor_is_kept_for_the_recording_that_uses_it(device):
    weight = first = on_gpu(np.full(64, 2.0))
    x = on_gpu(np.ones(64))
    step = recorded(lambda x: x * weight, x)
    values = []
    with ampkit.no_grad():
        for new in (on_gpu(np.full(64, 3.0)), first) * 5:
            weight = new
            overwrite(device)
            values.append(step(x).tolist())
    assert values == [[3.0] * 64, [2.0] * 64] * 5
    assert [kind.graph.recording is not None for kind in step._variants.values()] == [True, True]


class Training:
    """A model and all that trains it, and a step of them, which finds them in `parts`."""

    def __init__(self, kind=optim.AdamW, dropout=0.1):
        ampkit.manual_seed(0)
        layers = nn.Linear(8, 16), nn.LayerNorm(16), nn.Dropout(dropout), nn.Linear(16, 3)
        model = nn.Sequential(*layers).to("cuda")
        optimizer, average = kind(model.parameters(), lr=1e-3), optim.swa_utils.AveragedModel(model)
        self.parts = {"model": model, "optimizer": optimizer, "average": average}
        self.parts["scaler"] = ampkit.GradScaler(init_scale=2.0**10)

    def step(self, x, y):
        model, optimizer, average, scaler = self.parts.values()
        with ampkit.autocast("cuda", dtype=ampkit.float16):
            loss = ops.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        optimizer.zero_grad()
        return loss

    def state(self):
        model, optimizer, _, scaler = self.parts.values()
        return [*(p.numpy(force=True) for p in model.parameters()), scaler.get_scale(), int(optimizer.steps)]


def batch():
    x = np.random.default_rng(0).normal(size=(5, 8))
    return on_gpu(x), ampkit.tensor(np.arange(5) % 3, device="cuda")


KINDS = [optim.AdamW, optim.SGD, optim.Lion, optim.LAMB, optim.Adafactor, optim.ASGD, optim.NAdam, optim.RMSprop]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_launch_uses_is_kept_when_all_else_lets_it_go(kind, device):
    training = Training(kind)
    step, given = ampkit.compile(training.step), batch()
    for _ in range(5):
        step(*given)
    (kind,) = step._variants.values()
    kind.guards, training.parts = Guards("cuda", print), {}  # the old ones hold the parts, too
    kept = overwrite(device)
    for _ in range(3):
        assert np.isfinite(float(kind(given, {}, list(given))))
    assert all((array.get() == 0x7F).all() for array in kept)


def allocations_of(run):
    """How often `run` asks a pool for memory."""
    count, malloc = [0], memory._DevicePool.malloc

    def counted(self, nbytes):
        count[0] += 1
        return malloc(self, nbytes)

    memory._DevicePool.malloc = counted
    try:
        run()
    finally:
        memory._DevicePool.malloc = malloc
    return count[0]


@contextmanager
def failing_at(number):
    """The allocation of this number finds no memory, in whichever pool."""
    count, malloc = iter(range(1, 1 << 30)), memory._DevicePool.malloc

    def failing(self, nbytes):
        if next(count) == number:
            raise memory.OutOfMemoryError(nbytes, 0)
        return malloc(self, nbytes)

    memory._DevicePool.malloc = failing
    try:
        yield
    finally:
        memory._DevicePool.malloc = malloc


@pytest.mark.parametrize("at", [1, 3, 4], ids=["eager", "recording", "launch"])
def test_an_allocation_that_fails_anywhere_is_one_error_and_the_next_step_is_right(at, device):
    def trained(failing=None):
        training, given = Training(optim.AdamW, dropout=0.0), batch()
        step, told = ampkit.compile(training.step), None
        for number in range(6):
            if number == at and failing is not None:
                with failing_at(failing):
                    try:
                        step(*given)
                        continue
                    except OutOfMemoryError as error:
                        told = error
                training.parts["optimizer"].zero_grad()
                if int(training.parts["optimizer"].steps) > number:
                    continue  # it failed after the update
            step(*given)
        return training.state(), told

    def counted():
        training, given = Training(optim.AdamW, dropout=0.0), batch()
        step = ampkit.compile(training.step)
        for _ in range(at):
            step(*given)
        return allocations_of(lambda: step(*given))

    (wanted, _), count = trained(), counted()
    every = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 11
    for failing in range(1, count + 1, every):
        found, told = trained(failing)
        assert told is None or str(told).startswith("cuda:0: needs "), told
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"allocation {failing} of {count}: {told}")


def test_the_emulation_finds_a_launch_of_memory_that_nobody_holds(device):
    weight, x = on_gpu(np.ones(64)), on_gpu(np.ones(64))
    step = recorded(partial(ops.mul, weight), x)
    kind = next(iter(step._variants.values()))
    kind.graph.recording.kept.clear()
    kind.used.clear()
    kind.step = kind.guards = None
    del weight, step
    gc.collect()
    with pytest.raises(streams.StaleMemoryError, match="nobody holds"):
        kind.graph.launch(0, 0)


def test_a_model_that_moved_is_recorded_anew_and_misses_its_input_in_one_line(device):
    model, x = nn.Linear(4, 4).to("cuda"), on_gpu(np.ones((2, 4)))
    step = recorded(model, x)
    model.to("cpu")
    with ampkit.no_grad(), pytest.raises(DeviceError, match="cpu"):
        step(x)
    model.to("cuda").to(ampkit.float64)
    with ampkit.no_grad():
        for _ in range(5):
            np.testing.assert_array_equal(step(x.to(ampkit.float64)).numpy(), model(x.to(ampkit.float64)).numpy())


def test_a_profile_shows_the_ops_of_a_recorded_step(device):
    x = on_gpu(np.ones(64))
    step = recorded(lambda x: x * 2.0, x)
    with ampkit.no_grad(), profile() as found:
        for _ in range(6):
            step(x)
    assert [(row.name, row.calls) for row in found.rows] == [("mul", 6)]


# one pool for all


def test_recordings_share_their_temporaries(device):
    pool, n = device.graph_pool(), 2**16
    x = on_gpu(np.ones(n))
    recorded(lambda x: ((x + 1.0) * 2.0 - x).sum(), x)
    first = pool.pool.total_bytes()
    steps = [recorded(lambda x, i=i: ((x + 1.0 + i) * 2.0 - x).sum(), x) for i in range(3)]
    assert pool.pool.total_bytes() == first >= 4 * n
    with ampkit.no_grad():
        assert [float(step(x)) for step in steps] == [n * ((2.0 + i) * 2 - 1) for i in range(3)]


def test_what_outlives_the_work_that_made_it_moves_the_recordings_whose_temporaries_lie_there(device):
    x, holder = on_gpu(np.ones(2**14)), nn.Identity()
    one = recorded(lambda x: ((x + 1.0) * 2.0).sum(), x)

    hidden = weakref.ref(holder)  # guards do not look through it: a step whose changes they see would run eagerly

    def leaves(x):
        hidden().kept = x * 5.0  # in the memory where `one` has temporaries
        return hidden().kept.sum()

    other = ampkit.compile(leaves)
    with ampkit.no_grad():
        for _ in range(8):
            assert float(other(x)) == 2**14 * 5.0
            assert float(one(x)) == 2**14 * 4.0
            assert float(holder.kept.sum()) == 2**14 * 5.0
    assert all(kind.graph.recording is not None for step in (one, other) for kind in step._variants.values())


def test_a_step_that_others_move_again_and_again_gets_memory_of_its_own(device):
    x, kept = on_gpu(np.ones(2**14)), []
    step = recorded(lambda x: ((x + 1.0) * 2.0).sum(), x)
    with ampkit.no_grad():
        for number in range(6):
            with device.graph_pool().use():
                kept.append(x * float(number))
            assert float(step(x)) == 2**14 * 4.0
    (kind,) = step._variants.values()
    assert kind.graph.pool is not device.graph_pool()
    assert [k.tolist()[0] for k in kept] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_footprint_knows_what_lies_in_it():
    footprint = Footprint([(512, 1024), (2048, 4096), (1024, 1536)])
    assert [footprint.overlaps(a, b) for a, b in ((0, 512), (0, 513), (1535, 1536), (1536, 2048), (4095, 9000))] == [
        False, True, True, False, True
    ]  # fmt: skip


@contextmanager
def most_allocated():
    """The most bytes that the driver had given out at once."""
    found, take = [memory.allocated(0)], memory.Memory.__init__

    def init(self, size):
        take(self, size)
        found.append(memory.allocated(0))

    memory.Memory.__init__ = init
    try:
        yield found
    finally:
        memory.Memory.__init__ = take


@pytest.mark.cpu  # the default device: the run's is the GPU
def test_a_recorded_run_with_evaluation_and_logging_takes_the_memory_of_an_eager_one(device):
    small = ["train.steps=12", "train.epochs=", "train.log_every=3", "train.eval_every=4", "train.device=cuda"]
    words = [*small, "model.hidden=[256, 256]", "data.batch_size=479", "amp.dtype=float16", "optimizer={name='sgd'}"]
    peaks = []
    for compiled in ("false", "true"):
        gc.collect()
        ampkit.cuda.empty_cache()
        before = memory.allocated(0)
        with most_allocated() as found:
            run = fit(load("recipes/digits_mlp.toml", [*words, f"train.compile={compiled}"]))
            for _ in run:
                pass
        peaks.append(max(found) - before)
        if compiled == "true":
            assert any(kind.graph.recording is not None for kind in run._update._variants.values())
        del run
    assert peaks[1] <= 1.1 * peaks[0], peaks


# memory that is short


@contextmanager
def driver_has(more):
    """The driver gives out so many bytes more than now, and no more."""
    everything, memory.DEVICE_BYTES = memory.DEVICE_BYTES, memory.allocated(0) + more
    try:
        yield
    finally:
        memory.DEVICE_BYTES = everything


def test_a_recording_that_finds_no_memory_is_one_error_and_is_made_later(device):
    def step(x):
        kept = [x + float(i) for i in range(8)]
        return sum(kept[1:], kept[0]).sum()

    x, compiled = on_gpu(np.ones(2**14)), ampkit.compile(step)
    wanted = float(step(x))
    with ampkit.no_grad():
        found = [float(compiled(x)) for _ in range(3)]
        device.graph_pool().release()
        ampkit.cuda.empty_cache()
        (kind,) = compiled._variants.values()
        fails = iter([True])
        segment = device.graph_pool()._segment
        for pool in device.graph_pool().pool._pools.values():
            pool.allocator = lambda size: _refused(size) if device.recording and next(fails, False) else segment(size)
        with pytest.raises(OutOfMemoryError):
            compiled(x)
        found += [float(compiled(x)) for _ in range(5)]
    assert kind.graph.recording is not None
    assert found == [wanted] * 8


def test_a_shortage_while_recording_frees_nothing_that_the_recording_uses(device):
    x = on_gpu(np.ones(2**18))
    step = ampkit.compile(lambda x: (x + 1.0).sum() + ops.cat([x, x, x, x]).sum())
    with ampkit.no_grad():
        for _ in range(3):
            step(x)
        device.graph_pool().release()
        ampkit.cuda.empty_cache()
        with driver_has(2**20 + 2**22 + 2**19), pytest.raises(OutOfMemoryError):  # its input, and not both at once
            step(x)
        assert [float(step(x)) for _ in range(5)] == [2**18 * 6.0] * 5


def _refused(size):
    raise memory.OutOfMemoryError(size, 0)


def test_free_blocks_of_the_default_pool_are_given_back_before_a_recorded_step_runs_out(device):
    x = on_gpu(np.ones(2**14))
    idle = device.xp.empty((2**20,), np.uint8)
    del idle  # free, in the default pool
    with driver_has(2**18), ampkit.no_grad():
        step = recorded(lambda x: ((x + 1.0) * 2.0 - x).sum(), x)
        assert float(step(x)) == 2**14 * 3.0


def test_recorded_steps_give_their_memory_back_before_eager_work_runs_out(device):
    x = on_gpu(np.ones(2**18))
    step = recorded(lambda x: ((x + 1.0) * 2.0 - x).sum(), x)
    with driver_has(2**16), ampkit.no_grad():
        ampkit.cuda.empty_cache()
        kept = x * 3.0
        with pytest.raises(OutOfMemoryError):
            ampkit.zeros(2**24, device="cuda")
        assert float(kept.sum()) == 2**18 * 3.0
        del kept
        assert float(step(x)) == 2**18 * 3.0
