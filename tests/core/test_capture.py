"""ampkit.compile: a launch of a recorded step is bit-identical to an eager step."""

from __future__ import annotations

import gc
import io
import queue
import time
from pathlib import Path

import garbage
import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, memory

import ampkit
from ampkit import nn, ops, optim
from ampkit.backends.cuda import graph
from ampkit.base.errors import ArgumentError, NonFiniteError, StateError
from ampkit.config import load
from ampkit.run.loop import StepRow, fit

MLP = Path(__file__).parents[2] / "recipes" / "digits_mlp.toml"


@pytest.fixture
def device(gpu):
    """A GPU as the backend "cuda"."""
    yield gpu
    memory.hooks.clear()


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))


def cnn():
    layers = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (2, 2, 2)), *layers, nn.Linear(4, 3))


def gpt():
    return nn.Sequential(nn.Linear(8, 8), _Attend(), nn.LayerNorm(8), nn.Linear(8, 3))


def spatial():
    first = nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), _Warp()
    deep = nn.Unflatten(1, (2, 2)), nn.Conv3d(2, 2, 2), nn.ConvTranspose3d(2, 1, 2), nn.AdaptiveAvgPool3d((1, 2, 2))
    return nn.Sequential(*first, *deep, nn.Flatten(), nn.Linear(4, 3))


class _Warp(nn.Module):
    def __init__(self):
        super().__init__()
        self.where = nn.Linear(4, 6)

    def forward(self, x):
        x = ops.interpolate(x, (3, 3), mode="bicubic")
        theta = self.where(ops.adaptive_max_pool2d(x, 1).flatten(1)).reshape(-1, 2, 3)
        return ops.grid_sample(x, ops.affine_grid(theta, x.shape), padding_mode="reflection")


class _Attend(nn.Module):
    def forward(self, x):
        y = x.reshape(1, 1, *x.shape) * ampkit.arange(1, x.shape[-1] + 1, device=x.device)
        return x + ops.scaled_dot_product_attention(y, y, y, is_causal=True).reshape(x.shape)


def batches(count, rows=5, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        x, y = rng.normal(size=(rows, 8)).astype("f"), rng.integers(0, 3, rows)
        yield ampkit.tensor(x, device="cuda"), ampkit.tensor(y, device="cuda")


class Training:
    """A model, its optimizer and scaler, and one step of them, eager or compiled."""

    def __init__(self, build, dtype=ampkit.float32, compiled=False, kind=optim.AdamW, scale=2.0**10, **options):
        ampkit.manual_seed(0)
        self.model = build().to("cuda")
        self.optimizer = kind(self.model.parameters(), lr=1e-2, **options)
        self.scaler = ampkit.GradScaler(init_scale=scale, growth_interval=3, enabled=dtype == ampkit.float16)
        self.region = ampkit.autocast("cuda", dtype=dtype, enabled=dtype != ampkit.float32)
        self.step = ampkit.compile(self._step) if compiled else self._step

    def _step(self, x, y):
        with self.region:
            loss = ops.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        optim.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss

    def state(self):
        numbers = [p.numpy(force=True).copy() for p in (*self.model.parameters(), *self.model.buffers())]
        return [*numbers, np.array(self.scaler.get_scale())]


def _all(step, given):
    return [step(*batch) for batch in given]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("build", "dtype"),
    [*((build, ampkit.float16) for build in (mlp, cnn, gpt)), (gpt, ampkit.bfloat16), (mlp, ampkit.float32)],
)
def test_a_compiled_step_gives_the_bits_of_eager_ones(build, dtype, device):
    eager, compiled = Training(build, dtype), Training(build, dtype, compiled=True)
    losses = [[float(t.step(x, y)) for x, y in batches(8)] for t in (eager, compiled)]
    assert losses[0] == losses[1]
    assert_same(eager.state(), compiled.state())
    assert len(set(losses[0])) == 8


@pytest.mark.parametrize(
    "kind", [optim.AdamW, optim.SGD, optim.Lion, optim.NAdam, optim.RMSprop, optim.LAMB, optim.ASGD]
)
def test_parameters_in_16_bits_are_rounded_by_the_draws_of_eager_steps(kind, device):
    def low():
        return mlp().to(ampkit.bfloat16)

    runs = [Training(low, ampkit.bfloat16, c, kind, stochastic_rounding=True) for c in (False, True)]
    for run in runs:
        ampkit.manual_seed(7)
        for batch in batches(7):
            run.step(*batch)
    assert_same(*(run.state() for run in runs))


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")  # as biases have no optimizer
@pytest.mark.parametrize("state_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["AdamW", "Muon"])
def test_moments_in_fewer_bits_are_rounded_by_the_draws_of_eager_steps(kind, state_dtype, device):
    def made(parameters, **options):
        return getattr(optim, kind)([p for p in parameters if p.ndim > 1], state_dtype=state_dtype, **options)

    runs = [Training(mlp, ampkit.bfloat16, c, made) for c in (False, True)]
    for run in runs:
        ampkit.manual_seed(7)
        for batch in batches(7):
            run.step(*batch)
    assert_same(*(run.state() for run in runs))


def test_grid_samples_and_volumes_give_the_bits_of_eager_steps(device):
    runs = [Training(spatial, ampkit.float16, c) for c in (False, True)]
    losses = [[float(run.step(x, y)) for x, y in batches(4, rows=2)] for run in runs]
    assert losses[0] == losses[1]
    assert_same(*(run.state() for run in runs))


@pytest.mark.parametrize("options", [{"momentum": 0.9, "nesterov": True}, {}])
def test_sgd_gives_the_bits_of_eager_steps(options, device):
    runs = [Training(mlp, ampkit.float16, c, optim.SGD, **options) for c in (False, True)]
    for run in runs:
        for batch in batches(6):
            run.step(*batch)
    assert_same(*(run.state() for run in runs))


def muon(parameters, **options):
    every = list(parameters)
    parts = [([p for p in every if (p.ndim > 1) is big], big) for big in (True, False)]
    return optim.MuonWithAuxAdam([{"params": found, "use_muon": big} for found, big in parts], **options)


def test_a_step_with_soap_which_reads_the_step_count_runs_eagerly(device):
    runs = [Training(mlp, compiled=c, kind=optim.SOAP) for c in (False, True)]
    _all(runs[0].step, batches(5))
    with pytest.warns(RuntimeWarning, match="^compile: runs eagerly: the step reads values on the host at test_cap"):
        _all(runs[1].step, batches(5))
    assert_same(*(run.state() for run in runs))


@pytest.mark.parametrize("kind", [optim.LAMB, optim.Adafactor, optim.ASGD, muon])
def test_optimizers_that_reduce_over_whole_parameters_give_the_bits_of_eager_steps(kind, device):
    runs = [Training(mlp, ampkit.float16, c, kind) for c in (False, True)]
    for run in runs:
        for number, (x, y) in enumerate(batches(8)):
            run.step(x * (float("inf") if number == 5 else 1.0), y)
    assert_same(*(run.state() for run in runs))


def test_values_for_one_index_are_written_in_the_order_of_eager_calls(device):
    def step(x, index, source):
        return x.index_copy(0, index, source)

    compiled, rng = ampkit.compile(step), np.random.default_rng(0)
    for _ in range(5):
        index, source = rng.integers(0, 3, 40), rng.normal(size=(40, 2)).astype("f")
        want = np.zeros((3, 2), "f")
        want[index] = source
        given = [ampkit.tensor(a, device="cuda") for a in (np.zeros((3, 2), "f"), index, source)]
        np.testing.assert_array_equal(compiled(*given).numpy(), want)
    assert next(iter(compiled._variants.values())).graph.recording is not None


def test_a_launch_reads_nothing_on_the_host(emulation, device):
    run = Training(mlp, ampkit.float16, compiled=True)
    for batch in batches(5):
        run.step(*batch)
    given, before = list(batches(3)), emulated_cupy.waits[0]
    for batch in given:
        run.step(*batch)
    assert emulated_cupy.waits[0] == before


def test_an_overflow_within_a_recording_skips_the_step_and_halves_the_scale(device):
    runs = [Training(mlp, ampkit.float16, c) for c in (False, True)]
    for run in runs:
        for number, (x, y) in enumerate(batches(8)):
            run.step(x * (float("inf") if number in (5, 6) else 1.0), y)
    assert_same(*(run.state() for run in runs))
    assert runs[1].scaler.get_scale() < 2.0**11


def test_a_scale_that_collapses_raises_in_a_later_launch(device):
    run = Training(mlp, ampkit.float16, compiled=True)
    with pytest.raises(ampkit.ScaleCollapseError, match="50 steps in a row"):
        _all(run.step, ((x * float("inf"), y) for x, y in batches(60)))
    device.synchronize()  # steps that were queued before the error was known do not raise it again


def test_an_error_of_one_check_leaves_the_pending_checks_of_others(device, monkeypatch):
    def fail(value):
        raise ampkit.StateError("a check", "0", str(value))

    seen, values = [], ampkit.ones(3, device="cuda").array
    with monkeypatch.context() as patch:
        patch.setattr(device, "call_ready", lambda: None)
        for number in range(3):
            device.call_when_ready([values[number]], fail)
            device.call_when_ready([values[number]], seen.append)
    with pytest.raises(ampkit.StateError, match="a check"):
        device.synchronize()
    device.synchronize()
    assert len(seen) == 3


def test_a_schedule_outside_the_step_changes_the_learning_rate(device):
    runs = [Training(mlp, ampkit.float32, c) for c in (False, True)]
    for run in runs:
        schedule = optim.lr_scheduler.CosineAnnealingLR(run.optimizer, T_max=8)
        for batch in batches(8):
            run.step(*batch)
            schedule.step()
    assert_same(*(run.state() for run in runs))


def test_a_step_that_a_recorded_scaler_skips_does_not_advance_the_schedule_outside(device):
    runs = [Training(mlp, ampkit.float16, c) for c in (False, True)]
    epochs = []
    for run in runs:
        schedule = optim.lr_scheduler.StepLR(run.optimizer, 1, gamma=0.5)
        for number, (x, y) in enumerate(batches(8)):
            run.step(x * (float("inf") if number in (5, 6) else 1.0), y)
            schedule.step()
        epochs.append(schedule.last_epoch)
    assert_same(*(run.state() for run in runs))
    assert epochs == [6, 6]
    assert runs[1].optimizer.recorded


def test_other_shapes_get_recordings_of_their_own(device):
    runs = [Training(mlp, ampkit.float32, c) for c in (False, True)]
    for run in runs:
        for few, many in zip(batches(6), batches(6, rows=7), strict=True):
            run.step(*few)
            run.step(*many)
    assert_same(*(run.state() for run in runs))
    assert len(runs[1].step._variants) == 2


@pytest.mark.parametrize(
    ("choose", "other", "usual"),
    [(ampkit.set_float32_matmul_precision, "high", "highest"), (ampkit.use_deterministic_algorithms, False, True)],
    ids=["precision", "determinism"],
)
def test_a_setting_that_chooses_algorithms_gets_a_recording_of_its_own(choose, other, usual, device):
    run = Training(mlp, ampkit.float32, True)
    for batch in batches(2):
        run.step(*batch)
    choose(other)
    try:
        run.step(*next(batches(1)))
    finally:
        choose(usual)
    assert len(run.step._variants) == 2


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")
def test_a_call_of_a_ninth_signature_runs_eagerly(device):
    runs = [Training(mlp, ampkit.float32, c) for c in (False, True)]
    for run in runs:
        for rows in range(1, 11):
            for batch in batches(2, rows):
                run.step(*batch)
    assert_same(*(run.state() for run in runs))
    assert len(runs[1].step._variants) == 8
    assert runs[1].step.eager_because == ["there were 8 kinds of calls before"]


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float16], ids=lambda d: d.name)
def test_weights_that_are_loaded_between_launches_are_used(dtype, device):
    runs = [Training(mlp, dtype, c) for c in (False, True)]
    for run in runs:
        state = {k: v.detach().clone() for k, v in run.model.state_dict().items()}
        for number, batch in enumerate(batches(8)):
            if number == 6:
                run.model.load_state_dict(state)
            run.step(*batch)
    assert_same(*(run.state() for run in runs))


def test_a_frozen_weight_that_changes_between_launches_is_used(device):
    runs = [Training(mlp, ampkit.float16, c) for c in (False, True)]
    for run in runs:
        frozen = run.model[0].weight
        frozen.requires_grad = False
        for number, batch in enumerate(batches(8)):
            if number == 6:
                with ampkit.no_grad():
                    frozen.mul_(2.0)
            run.step(*batch)
    assert_same(*(run.state() for run in runs))


def test_a_backward_through_weights_that_a_launch_changed_raises(device):
    run = Training(mlp, compiled=True)
    given = list(batches(6))
    for batch in given[:5]:
        run.step(*batch)
    loss = ops.cross_entropy(run.model(given[5][0]), given[5][1])
    run.step(*given[5])
    with pytest.raises(StateError, match="changed in place"):
        loss.backward()


def test_attention_in_float32_runs_its_reference_on_products_that_can_be_recorded(device):
    q = ampkit.randn(2, 3, 9, 8, device="cuda")
    attend = ampkit.compile(lambda q: ops.scaled_dot_product_attention(q, q, q, is_causal=True))
    with ampkit.no_grad():
        found = [attend(q).numpy() for _ in range(5)]
    assert all(np.array_equal(found[0], each) for each in found)
    assert len({each.dtype for each in found}) == 1


def test_gates_losses_and_reductions_are_recorded_with_their_gradients(device):
    def gradients(x, weight):
        gated = ops.prelu(ops.glu(x), weight)
        logits, target = ops.cumsum(gated, 1), ops.logical_and(ops.isfinite(gated), gated > 0).to(ampkit.float32)
        loss = ops.binary_cross_entropy_with_logits(logits, target, pos_weight=weight.detach().abs())
        loss = loss + ops.huber_loss(logits, target) + ops.logsumexp(logits, 1).mean() + ops.remainder(x, 0.7).sum()
        return [loss, *ampkit.autograd.grad(loss, [x, weight])]

    compiled = ampkit.compile(gradients)
    for seed in range(6):
        values = np.random.default_rng(seed).normal(size=(5, 16)).astype(np.float32)
        given = [ampkit.tensor(v, device="cuda", requires_grad=True) for v in (values, values[0, :8])]
        for got, want in zip(compiled(*given), gradients(*given), strict=True):
            np.testing.assert_array_equal(got.numpy(force=True), want.numpy(force=True))
    assert next(iter(compiled._variants.values())).graph.recording is not None


def test_random_numbers_of_the_host_run_eagerly(device):
    def step(x):
        return x + ampkit.randn(3, device="cuda")

    given, compiled = [(ampkit.ones(3, device="cuda"),)] * 6, ampkit.compile(step)
    ampkit.manual_seed(0)
    wanted = [out.tolist() for out in _all(step, given)]
    ampkit.manual_seed(0)
    with pytest.warns(RuntimeWarning, match="the step brings values from the host at test_capture.py:") as told:
        assert [out.tolist() for out in _all(compiled, given)] == wanted
    assert len(told) == 1


def test_a_result_is_new_memory_at_every_call(device):
    run = Training(mlp, compiled=True)
    found = [run.step(*batch) for batch in batches(6)]
    values = [float(f) for f in found]
    assert len(set(values)) == 6


def test_constants_that_a_step_changes_are_new_in_every_launch(device):
    def step(x):
        sums, variance = ampkit.ones(4, device="cuda"), ampkit.full((4,), 2.0, device="cuda")
        counts = ampkit.arange(4.0, device="cuda")
        sums.add_(x[0])
        counts.mul_(2.0)
        return ops.batch_norm(x, sums, variance, training=True), sums * 1.0, variance * 1.0, counts + sums

    x = ampkit.tensor(np.random.default_rng(0).normal(size=(6, 4)).astype("f"), device="cuda")
    expected, compiled = [one.numpy() for one in step(x)], ampkit.compile(step, warmup=1)
    for _ in range(4):
        for found, want in zip(compiled(x), expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), want)
    assert compiled.report().graphs


def test_constants_are_copied_by_a_launch_only_where_something_may_change_them(device, monkeypatch):
    kept, recordings, begin_at = queue.SimpleQueue(), [], graph.Recording.begin_at
    monkeypatch.setattr(
        graph.Recording, "begin_at", lambda self, *numbers: (recordings.append(self), begin_at(self, *numbers))
    )

    def step(x):
        places = ampkit.arange(4, device="cuda")
        shift, mask, seen, copied = (ampkit.full((4,), value, device="cuda") for value in (2.0, 3.0, 4.0, 5.0))
        kept.put(mask)  # where no guard looks
        view = seen.reshape(2, 2)[1]
        view.mul_(3.0)
        x.__class__(copied.exposed())
        return x[places] + shift + mask + seen + copied, places * 1

    x = ampkit.tensor(np.arange(4.0, dtype="f"), device="cuda")
    expected, compiled = [one.numpy() for one in step(x)], ampkit.compile(step, warmup=1)
    for _ in range(4):
        for found, want in zip(compiled(x), expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), want)
        while not kept.empty():
            held = kept.get()
        held.mul_(7.0)  # in the memory that the next launch reads
    assert compiled.report().graphs
    assert sorted(float(values.get().max()) for _, values in recordings[-1].restored) == [3.0, 4.0, 5.0]


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")
def test_a_forward_that_is_compiled_alone_stays_on_the_tape(device):
    model = mlp().to("cuda")
    forward = ampkit.compile(model)
    for x, _ in batches(5):
        model.zero_grad()
        forward(x).sum().backward()
        assert model[0].weight.grad is not None
    assert forward.eager_because == ["its result is still on the tape"]


def test_a_call_without_the_tape_is_recorded(device):
    model = mlp().to("cuda")
    forward = ampkit.compile(model)
    with ampkit.no_grad():
        for x, _ in batches(6):
            np.testing.assert_array_equal(forward(x).numpy(), model(x).numpy())
    assert next(iter(forward._variants.values())).graph.recording is not None


def reads_a_value(x):
    return -x if x.sum().item() > 2 else x * 2


def branches(x):
    return -x if x.sum() > 2 else x * 2


def prints(x):
    print(x.shape)  # noqa: T201 - it is what the step does
    return x * 2


def reads_the_time(x):
    return x * 2 if time.perf_counter() else x


def writes(x):
    with io.StringIO() as text:
        text.write("a line")
    return x * 2


def brings_a_batch(x):
    return x * ampkit.ones(3).to("cuda")


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (reads_a_value, "reads values on the host"), (branches, "reads values on the host"), (prints, "prints"),
        (reads_the_time, "reads the time"), (writes, "writes to a file"),
        (brings_a_batch, "brings values from the host"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)  # fmt: skip
def test_a_step_that_a_launch_cannot_repeat_runs_eagerly_and_says_so_once(step, reason, device, capsys):
    given = [(ampkit.tensor([number, 0.0, 1.0], device="cuda"),) for number in range(6)]
    wanted, compiled = [step(*one).tolist() for one in given], ampkit.compile(step)
    printed = capsys.readouterr().out
    line = step.__code__.co_firstlineno
    with pytest.warns(RuntimeWarning, match=f"^compile: runs eagerly: the step {reason} at test_capture.py:") as told:
        assert [out.tolist() for out in _all(compiled, given)] == wanted
    assert len(told) == 1
    assert line < int(str(told[0].message).partition("test_capture.py:")[2].partition(",")[0]) < line + 4
    assert capsys.readouterr().out == printed
    assert f"eager: the step {reason}" in str(compiled.report())


@pytest.mark.parametrize("held", [2.0, 0.0])  # 0: none
def test_a_recording_that_fails_leaves_the_gradients_as_they_were_and_the_step_runs_eagerly(held, device):
    weight, reads = nn.Parameter(ampkit.ones(3, device="cuda")), []
    optimizer = optim.SGD([weight], lr=1.0)

    def step(x):
        loss = (weight * x).sum()
        loss.backward()
        if reads:
            loss.item()
        return loss.detach()

    compiled, x = ampkit.compile(step, warmup=1), ampkit.ones(3, device="cuda")
    step(x), compiled(x)
    if not held:
        optimizer.zero_grad()
    reads.append(True)  # a change that leads to a recording of its own, which the first call does not foresee
    compiled.warmup = 0
    with pytest.warns(RuntimeWarning, match="runs eagerly: needs a step that the device can do alone"):
        compiled(x)
    assert weight.grad.tolist() == [held + 1.0] * 3
    compiled(x)
    assert weight.grad.tolist() == [held + 2.0] * 3
    optimizer.step()
    assert weight.tolist() == [-1.0 - held] * 3


# memory that runs out


@pytest.fixture
def room(emulation, device):
    """A function that limits how many more bytes the device has; without a number it removes the limit."""
    everything = memory.DEVICE_BYTES

    def leave(more=None):
        gc.collect()
        memory.pool.free_all_blocks()
        memory.DEVICE_BYTES = everything if more is None else memory.used() + more

    yield leave
    memory.DEVICE_BYTES = everything


def dropping():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3))


def test_out_of_memory_in_a_recording_is_one_error_and_the_next_call_succeeds(room):
    eager, given = Training(dropping, ampkit.bfloat16), list(batches(9))
    losses = [float(eager.step(*batch)) for batch in given]
    compiled = Training(dropping, ampkit.bfloat16, compiled=True)
    found = [float(compiled.step(*batch)) for batch in given[:3]]
    for more in (512, 4096):  # in its arguments, then well into the step
        room(more)
        with pytest.raises(ampkit.OutOfMemoryError, match="cuda:0: needs .* more, got .* free of"):
            compiled.step(*given[3])
        room()
        compiled.optimizer.zero_grad()
    found += [float(compiled.step(*batch)) for batch in given[3:]]
    assert found == losses
    assert_same(eager.state(), compiled.state())
    assert next(iter(compiled.step._variants.values())).graph.recording is not None


@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize("status", [2, 900])  # out of memory, and another of the driver's
def test_a_graph_that_the_driver_does_not_make_leaves_the_next_call(device, status, monkeypatch):
    add = ampkit.compile(lambda x: x + 1)
    x, stream = ampkit.ones(64, device="cuda"), device.xp.cuda.Stream
    ends, told = stream.end_capture, RuntimeError("what the driver says")
    told.status = status

    def without_memory(self):
        ends(self)
        raise told

    with ampkit.no_grad():
        _all(add, [(x,)] * 3)
        monkeypatch.setattr(stream, "end_capture", without_memory)
        if status == 2:
            with pytest.raises(ampkit.OutOfMemoryError):
                add(x)
        else:
            with pytest.warns(RuntimeWarning, match="runs eagerly: .* what the driver says"):
                assert add(x).numpy()[0] == 2
        monkeypatch.setattr(stream, "end_capture", ends)
        assert add(x).numpy()[0] == 2


def test_a_weight_that_a_failed_recording_should_have_rounded_is_rounded_by_the_next_call(device):
    model, fails = mlp().to("cuda"), []

    @ampkit.compile
    def forward(x):
        with ampkit.autocast("cuda", dtype=ampkit.bfloat16):
            y = model(x)
        if fails:
            raise MemoryError(fails.pop())
        return y

    (x, _), *_ = batches(1)
    with ampkit.no_grad():
        _all(forward, [(x,)] * 3)
        model[0].weight.mul_(2.0)
        fails.append("of the host")
        with pytest.raises(MemoryError, match="of the host"):
            forward(x)
        with ampkit.autocast("cuda", dtype=ampkit.bfloat16):
            wanted = model(x)
        np.testing.assert_array_equal(forward(x).numpy(), wanted.numpy())
        assert np.isfinite(wanted.numpy().astype("f")).all()


def test_out_of_memory_in_a_launch_is_one_error(room):
    add = ampkit.compile(lambda x: x + 1)
    x = ampkit.ones(2**16, device="cuda")
    with ampkit.no_grad():
        _all(add, [(x,)] * 5)
        room(1024)
        with pytest.raises(ampkit.OutOfMemoryError):
            add(x), [add(x) for _ in range(9)]
        room()
        assert add(x).numpy()[0] == 2


def test_the_memory_of_a_compiled_step_counts_once(device):
    gc.collect()
    ampkit.cuda.empty_cache()
    ampkit.cuda.reset_peak_memory_stats()
    before, n = ampkit.cuda.memory_allocated(), 2**16
    step = ampkit.compile(lambda x: ((x + 1.0) * 2.0).sum())
    with ampkit.no_grad():
        _all(step, [(ampkit.ones(n, device="cuda"),)] * 5)
        held, most = (ask() - before for ask in (ampkit.cuda.memory_allocated, ampkit.cuda.max_memory_allocated))
        assert 3 * 4 * n <= held <= 4 * 4 * n  # what it reads, two results: the recording keeps them
        assert held <= most <= held + 4 * n + 4096
        other = ampkit.compile(lambda x: x + 1.0)
        other(ampkit.ones(n, device="cuda"))  # in the memory of what is not recorded yet
        ampkit.cuda.reset_peak_memory_stats()
        held = ampkit.cuda.memory_allocated()
        spike = ampkit.ones(4 * n, device="cuda")
        del spike
        assert held + 4 * 4 * n <= ampkit.cuda.max_memory_allocated() <= held + 4 * 4 * n + 4096
        del step, other
        gc.collect()
        ampkit.cuda.empty_cache()
        ampkit.cuda.reset_peak_memory_stats()
        assert ampkit.cuda.max_memory_allocated() - before < n


def test_work_before_an_error_is_ordered_before_later_work(emulation, device, monkeypatch):
    waited, stream = [], emulated_cupy.cuda.get_current_stream()
    monkeypatch.setattr(type(stream), "wait_event", lambda self, event: waited.append(self))
    pool = device.graph_pool()
    with pytest.raises(MemoryError), pool.use():
        raise MemoryError
    assert waited == [pool.stream, stream]


def test_on_a_cpu_a_compiled_function_gives_what_an_eager_call_gives():
    model = mlp()
    forward = ampkit.compile(model)
    x = ampkit.ones(2, 8)
    for _ in range(5):
        np.testing.assert_array_equal(forward(x).numpy(force=True), model(x).numpy(force=True))
    assert forward(x).requires_grad


def test_compile_refuses_what_is_not_callable():
    with pytest.raises(ArgumentError, match="compile: needs a function or a module"):
        ampkit.compile(3)
    with pytest.raises(ArgumentError, match="warmup from 1"):
        ampkit.compile(mlp(), warmup=0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_recipe_trains_compiled_as_it_does_eagerly(dtype, device):
    small = ["train.epochs=", "train.steps=9", "train.log_every=3", "train.eval_every=", "model.hidden=[16]"]
    overrides = [*small, "train.device=cuda", f"amp.dtype={dtype}", "train.ema=0.5"]
    runs, rows = [], []
    for more in ("train.compile=false", "train.compile=true"):
        runs.append(fit(load(MLP, [*overrides, more])))
        logged = [row for row in runs[-1] if type(row) is StepRow]
        rows.append([(r.loss, r.lr, r.scale, r.skipped, r.grad_norm) for r in logged])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 4
    assert_same(*([p.numpy(force=True) for p in run.average.state_dict().values()] for run in runs))


def test_a_recipe_on_the_device_reads_it_only_where_it_logs(emulation, device):
    overrides = ["train.epochs=", "train.steps=40", "train.log_every=20", "model.hidden=[16]", "train.device=cuda"]
    run = fit(load(MLP, [*overrides, "amp.dtype=float16"]))
    next(iter(run))
    before = emulated_cupy.waits[0]
    for number in range(2, 19):
        run._step(number)
    assert emulated_cupy.waits[0] == before


@pytest.mark.parametrize(("compiled", "dtype"), [("false", "float32"), ("true", "bfloat16")])
def test_a_step_that_is_not_finite_changes_no_weight_before_the_host_learns_of_it(compiled, dtype, device):
    small = ["train.epochs=", "train.steps=40", "train.log_every=1", "model.hidden=[16]", "train.device=cuda"]
    run = fit(load(MLP, [*small, f"amp.dtype={dtype}", f"train.compile={compiled}"]))

    rows = iter(run)
    for _ in range(10):
        next(rows)
    for parameter in run.model.parameters():
        parameter.array[...] = 1e38
        parameter.changed()
    with pytest.raises(NonFiniteError, match=r"needs a finite loss, got (nan|inf)\n.* linear in \d, forward"):
        list(rows)
    assert all((parameter.numpy(force=True) == np.float32(1e38)).all() for parameter in run.model.parameters())


SPEECH = Path(__file__).parents[2] / "recipes" / "synthetic" / "wav2letter.toml"


def speech(*more):
    small = "width=4, wide=4, input_type='mfcc', num_features=2"
    words = [f"model={{name='wav2letter', {small}}}", "data.length=32", "data.classes=4", "data.count=12"]
    words += ["data.batch_size=2", "train.steps=5", "train.log_every=1", "train.device=cuda", "schedule.warmup=0"]
    return fit(load(SPEECH, [*words, *more]))


def test_a_recipe_of_sequences_trains_compiled_as_it_does_eagerly_and_reads_the_device_where_it_logs(emulation, device):
    eager, compiled = (speech("amp.dtype=bfloat16", f"train.compile={word}") for word in ("false", "true"))
    rows = [[(r.loss, r.grad_norm) for r in run if type(r) is StepRow] for run in (eager, compiled)]
    assert rows[0] == rows[1]
    assert [kind.graph.recording is not None for kind in compiled._update._variants.values()] == [True]
    quiet = speech("train.log_every=100")
    next(iter(quiet))
    before = emulated_cupy.waits[0]
    quiet._step(2)
    assert emulated_cupy.waits[0] == before


def test_a_recording_is_freed_with_what_it_uses(device):
    def train():
        model, x = mlp().to("cuda"), ampkit.ones(4, 8, device="cuda")
        optimizer, scaler = optim.AdamW(model.parameters()), ampkit.GradScaler()

        @ampkit.compile
        def step(x):
            with ampkit.autocast("cuda", dtype=ampkit.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        for _ in range(5):
            step(x)

    works = {"a step": train, "a run": lambda: list(speech("amp.dtype=bfloat16", "train.compile=true"))}
    assert not garbage.left_behind(works)
