"""Several GPUs: work runs on the device of its tensors, whichever device is current."""

from __future__ import annotations

import ast
import copy
import gc
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, installed, memory, streams

import ampkit
from ampkit import backends, nn, ops, optim
from ampkit.backends.cuda.nvrtc import launch
from ampkit.config import load
from ampkit.data import prefetch
from ampkit.data.loader import DataLoader
from ampkit.distributed.transport import Call
from ampkit.distributed.watchdog import Watchdog
from ampkit.run.loop import fit

MLP = Path(__file__).parents[2] / "recipes" / "digits_mlp.toml"
pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("emulation")]


@pytest.fixture
def two():
    """Two emulated GPUs; the first is current."""
    with streams.devices(2), installed():
        yield backends.gpus


@pytest.fixture
def second(two):
    """Two emulated GPUs; the test must allocate nothing on the first."""
    gc.collect()
    memory.pool.free_all_blocks()
    before = memory.allocated(0)
    yield "cuda:1"
    assert memory.allocated(0) == before
    assert memory.current.device == 0


class Run:
    """A training of a small network in float16, a step at a time."""

    def __init__(self, device, compiled=False, optimizer=optim.AdamW):
        weights = np.random.default_rng(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
        for p in self.model.parameters():
            p.data = weights.normal(size=p.shape).astype(np.float32) * 0.3
        self.model.to(device)
        self.device, self.optimizer = device, optimizer(self.model.parameters(), lr=0.01)
        self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        self.scaler = ampkit.GradScaler(init_scale=2.0**30, growth_interval=2)
        self.average = optim.swa_utils.AveragedModel(self.model)
        self.batches = np.random.default_rng(1)
        self._step = ampkit.compile(self.step) if compiled else self.step

    def step(self, x, y):
        self.optimizer.zero_grad()
        with ampkit.autocast(dtype=ampkit.float16):
            loss = ops.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.average.update_parameters(self.model)
        return loss.detach()

    def go(self, count):
        for _ in range(count):
            x = ampkit.tensor(self.batches.normal(size=(5, 6)).astype(np.float32), device=self.device)
            y = ampkit.tensor(self.batches.integers(0, 3, 5), device=self.device)
            self.loss = self._step(x, y)
            self.schedule.step()
        return self

    def values(self):
        kept = [self.loss, *self.model.parameters(), *self.average.parameters()]
        moments = [t for entry in self.optimizer.state.values() for t in entry.values() if isinstance(t, ampkit.Tensor)]
        return [t.detach().numpy(force=True) for t in (*kept, *moments)], self.scaler.get_scale()


def same(one, other):
    (values, scale), (others, other_scale) = one.values(), other.values()
    return scale == other_scale and all(np.array_equal(a, b) for a, b in zip(values, others, strict=True))


@pytest.mark.parametrize("compiled", [False, True])
def test_models_trained_alternately_on_two_gpus_give_the_bits_of_one_alone(two, compiled):
    alone = Run("cuda:0").go(6)
    here, there = Run("cuda:0", compiled), Run("cuda:1", compiled)
    for _ in range(3):
        there.go(2)
        here.go(2)
    assert same(here, alone)
    assert same(there, alone)
    assert {p.device for p in there.model.parameters()} == {"cuda:1"}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_on_the_second_gpu_allocates_nothing_on_the_first(second, compiled):
    Run(second, compiled).go(6)


@pytest.mark.parametrize("make", [optim.SGD, optim.LAMB, optim.Adafactor, optim.RMSprop, optim.NAdam])
def test_every_kind_of_optimizer_works_on_its_parameters_device(second, make):
    Run(second, optimizer=make).go(2)


def test_the_first_gpu_gets_no_context_if_the_second_is_set_first(two):
    ampkit.cuda.set_device(1)
    streams.contexts.clear()
    Run("cuda").go(2)
    assert streams.contexts == {1}
    assert ampkit.zeros(1, device="cuda").device == "cuda:1"


def test_a_full_gpu_does_not_disturb_a_training_on_another(two):
    streams.full.add(0)
    run = Run("cuda:1").go(2)
    assert np.isfinite(run.loss.item())


# operands


def test_operands_on_two_gpus_are_one_error_that_names_both(two):
    here, there = ampkit.ones(2, 2, device="cuda:0"), ampkit.ones(2, 2, device="cuda:1")
    index = ampkit.tensor([0, 1], device="cuda:1")
    calls = [
        lambda: here + there, lambda: here @ there, lambda: ops.cat([here, there]), lambda: here.add_(there),
        lambda: here[index], lambda: ops.where(here > 0, there, 1.0), lambda: ops.allclose(here, there),
        lambda: ops.linear(here, there), lambda: nn.GRU(2, 2).to("cuda:0")(here, there[:1]),
        lambda: here.__setitem__(index, 1.0), lambda: here.__setitem__(0, there[0]),
    ]  # fmt: skip
    line = r"needs tensors on one device, got cuda:0, cuda:1\nhelp: move them"
    for call in calls:
        with pytest.raises(ampkit.DeviceError, match=line):
            call()
    assert (here + 1).sum().item() == 8  # and goes on
    assert memory.current.device == 0


def test_a_kernel_runs_on_the_device_of_its_arrays_and_refuses_those_of_two(two):
    here, there = (two.at(i).asarray(np.ones(4, np.float32)) for i in range(2))
    assert two.at(1).cast(there, ampkit.float16).device.id == 1
    with pytest.raises(ampkit.DeviceError, match=r"unscale<float>: needs tensors on one device, got cuda:0, cuda:1"):
        launch("amp/found_inf", "unscale<float>", 1, 256, here, there)


def test_a_gradient_of_another_device_is_one_error(two):
    p = nn.Parameter(ampkit.ones(2, device="cuda:0"))
    with pytest.raises(ampkit.DeviceError, match="grad: needs a Tensor on cuda:0, got one on cuda:1"):
        p.grad = ampkit.ones(2, device="cuda:1")


def test_a_parameter_group_is_on_one_device(two):
    both = [nn.Parameter(ampkit.ones(2, device=d)) for d in ("cuda:0", "cuda:1")]
    with pytest.raises(ampkit.DeviceError, match="SGD, parameter group: needs parameters on one device"):
        optim.SGD(both, lr=1.0)


def test_one_optimizer_and_one_scaler_serve_a_network_on_two_gpus(two):
    first, last = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 1).to("cuda:1")
    whole = nn.Sequential(copy.deepcopy(first), copy.deepcopy(last)).to("cuda:0")
    parted = optim.Adam([{"params": first.parameters()}, {"params": last.parameters()}], lr=0.1)
    scalers = [ampkit.GradScaler(init_scale=256.0) for _ in range(2)]
    one = optim.Adam([{"params": whole[0].parameters()}, {"params": whole[1].parameters()}], lr=0.1)
    for factor in (1.0, np.inf, 2.0):  # the second overflows
        x = ampkit.full((3, 4), factor, device="cuda:0")
        losses = last(first(x).to("cuda:1")).sum(), whole(x).sum()
        for scaler, optimizer, loss in zip(scalers, (parted, one), losses, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.5)
            scaler.step(optimizer)
            scaler.update()
    for a, b in zip([*first.parameters(), *last.parameters()], whole.parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(force=True), b.numpy(force=True))
    assert scalers[0].get_scale() == scalers[1].get_scale() == 128.0


# moving


@pytest.mark.parametrize("go", [
    lambda x: x.to("cuda:1"), lambda x: x.to(1), lambda x: x.to(device=1), lambda x: x.cuda(1),
    lambda x: x.to(ampkit.zeros(1, device="cuda:1")),
])  # fmt: skip
def test_tensors_move_between_gpus_and_gradients_back(two, go):
    x = ampkit.tensor([1.0, 2.0], device="cuda:0", requires_grad=True)
    moved = go(x)
    assert (moved.device, moved.tolist()) == ("cuda:1", [1.0, 2.0])
    (moved * moved).sum().backward()
    assert (x.grad.device, x.grad.tolist()) == ("cuda:0", [2.0, 4.0])


def test_a_copy_between_gpus_is_asynchronous_and_ordered_with_both_streams(two):
    x = ampkit.tensor(np.arange(12.0).reshape(3, 4), device="cuda:0").t()
    before = streams.waits[0]
    with streams.races() as found, two.at(0).here():
        source = x * 2
        moved = source.to("cuda:1")
        del source
        reused = x * 3  # in the memory that was copied from
        again = moved + 1
    assert streams.waits[0] == before
    assert found == []
    np.testing.assert_array_equal(again.numpy(force=True), np.arange(12.0).reshape(3, 4).T * 2 + 1)
    assert moved.array.strides == x.array.strides
    assert reused.device == "cuda:0"


def test_a_model_and_its_gradients_move_between_gpus(two):
    layer = nn.Linear(2, 2).to("cuda:0")
    layer(ampkit.ones(1, 2, device="cuda:0")).sum().backward()
    grads = [p.grad.tolist() for p in layer.parameters()]
    layer.to(1)
    assert {t.device for p in layer.parameters() for t in (p, p.grad)} == {"cuda:1"}
    assert [p.grad.tolist() for p in layer.parameters()] == grads
    layer.to("cuda")  # the current one
    assert layer.weight.device == "cuda:0"


def test_a_loaded_state_moves_to_the_device_of_its_owner(two, tmp_path):
    run = Run("cuda:0").go(4)
    parts = ("model", "optimizer", "scaler", "schedule", "average")
    states = {name: getattr(run, name).state_dict() for name in parts}
    ampkit.save(states, tmp_path / "all")
    for found in (states, ampkit.load(tmp_path / "all")):
        other = Run("cuda:1")
        for name, state in found.items():
            getattr(other, name).load_state_dict(state)
        other.batches = copy.deepcopy(run.batches)
        assert {t.device for t in (*other.model.parameters(), *other.average.parameters())} == {"cuda:1"}
        assert same(other.go(2), copy.deepcopy(run).go(2))


def test_a_pickled_tensor_is_restored_on_its_device(second):
    x = ampkit.ones(2, device=second)
    assert pickle.loads(pickle.dumps(x)).device == copy.deepcopy(x).device == second


def test_an_average_on_another_gpu_follows_the_model(two):
    run = Run("cuda:0")
    average = optim.swa_utils.AveragedModel(run.model, device="cuda:1")
    run.go(1)
    average.update_parameters(run.model)
    assert {p.device for p in average.parameters()} == {"cuda:1"}
    for mine, theirs in zip(average.parameters(), run.model.parameters(), strict=True):
        np.testing.assert_array_equal(mine.numpy(force=True), theirs.numpy(force=True))


def test_batches_are_prefetched_to_the_named_gpu(second):
    given = [ampkit.full((2, 3), float(i)) for i in range(4)]
    with streams.races() as found:
        sums = [(batch + 1).sum() for batch in prefetch(given, second)]
    assert [s.device for s in sums] == [second] * 4
    assert [s.item() for s in sums] == [6.0, 12.0, 18.0, 24.0]
    assert found == []


def test_a_recipe_trains_resumes_and_compiles_on_the_second_gpu(second, tmp_path):
    overrides = ["train.epochs=", "train.steps=5", "train.eval_every=", "model.hidden=[8]", "train.ema=0.5"]
    overrides += [f"train.device={second}", "amp.dtype=float16", "train.compile=true", "data.batch_size=16"]
    recipe = load(MLP, [*overrides, "train.log_every=1", "train.checkpoint_every=2"])
    whole = fit(recipe)
    list(whole)
    cut = fit(recipe, tmp_path)
    for _ in cut:
        cut.stopping = cut.done == 2
    resumed = fit(recipe, tmp_path, resume=True)
    assert resumed.done == 2
    list(resumed)
    weights = [[t.numpy(force=True) for t in run.average.state_dict().values()] for run in (whole, resumed)]
    assert all(np.array_equal(one, other) for one, other in zip(*weights, strict=True))
    assert {p.device for p in resumed.model.parameters()} == {second}


# the current device


def test_cuda_means_the_current_device_of_the_thread(two):
    assert (ampkit.cuda.device_count(), ampkit.cuda.current_device()) == (2, 0)
    with ampkit.cuda.device(1):
        assert ampkit.cuda.current_device() == 1
        assert ampkit.zeros(1, device="cuda").device == nn.Linear(1, 1).cuda().weight.device == "cuda:1"
        with ampkit.cuda.device("cuda:0"), ampkit.cuda.device(None), ampkit.cuda.device(-1):
            assert ampkit.cuda.current_device() == 0
        seen = []
        thread = threading.Thread(target=lambda: seen.append(ampkit.cuda.current_device()))
        thread.start()
        thread.join()
        assert seen == [0]
    ampkit.cuda.set_device(1)
    assert ampkit.zeros(1).cuda().device == "cuda:1"


@pytest.mark.parametrize("device", ["cuda:1", 1, ampkit.device(1), ampkit.device("cuda", 1)])
def test_the_default_device_may_have_an_index(second, device):
    ampkit.set_default_device(device)
    assert ampkit.get_default_device() == "cuda:1"
    assert {t.device for t in (ampkit.zeros(2), ampkit.tensor([1.0]), nn.Linear(2, 2).weight)} == {"cuda:1"}


def test_memory_is_counted_by_device(two):
    gc.collect()
    ampkit.cuda.empty_cache()
    ampkit.cuda.reset_peak_memory_stats(1)
    before = [ampkit.cuda.memory_allocated(i) for i in range(2)]
    kept = ampkit.zeros(1000, device="cuda:1")
    ampkit.zeros(100_000, device="cuda:1")
    held = [ampkit.cuda.memory_allocated(i) - was for i, was in enumerate(before)]
    assert held[0] == 0
    assert 4000 <= held[1] < 8000
    assert ampkit.cuda.max_memory_allocated("cuda:1") - before[1] >= 404_000
    ampkit.cuda.empty_cache()
    assert ampkit.cuda.memory_reserved(1) - before[1] < 404_000
    memory.hooks.clear()
    del kept


def test_a_label_out_of_range_is_reported_by_its_device(two):
    ops.embedding(ampkit.tensor([1, 9], device="cuda:1"), ampkit.zeros(4, 2, device="cuda:1"))
    ampkit.cuda.synchronize()
    with pytest.raises(ampkit.RangeError, match="9 at position 1"):
        ampkit.cuda.synchronize(1)


def test_a_step_that_works_on_another_device_runs_eagerly(two):
    layer = nn.Linear(2, 2).to("cuda:1")
    step = ampkit.compile(lambda x: (x + 1, layer(x.to("cuda:1")).detach())[0], warmup=1)
    x = ampkit.ones(1, 2, device="cuda:0")
    step(x)
    with pytest.warns(RuntimeWarning, match="needs a step on one device, cuda:0, got work on cuda:1"):
        assert step(x).tolist() == [[2.0, 2.0]]
    assert layer(ampkit.ones(1, 2, device="cuda:1")).device == "cuda:1"  # and goes on


@pytest.mark.parametrize("number", [2, 17, -1])
def test_an_invalid_index_is_one_error_and_the_next_call_succeeds(two, number):
    asks = [
        ampkit.cuda.set_device, ampkit.cuda.synchronize, ampkit.cuda.memory_allocated, ampkit.zeros(1).to,
        ampkit.zeros(1).cuda, nn.Linear(1, 1).cuda, ampkit.set_default_device, lambda d: ampkit.zeros(1, device=d),
        ampkit.cuda.get_device_name, lambda d: prefetch([], d), lambda d: ampkit.GradScaler(device=d),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(ampkit.DeviceError, match=rf"^device: needs .+, got '?cuda:{number}'?$"):
            ask(number)
    assert ampkit.ones(2, device="cuda:1").sum().item() == 2
    assert ampkit.get_default_device() == "cpu"


# threads


class Silent:
    """The part of a group's transport that a watchdog without errors asks."""

    timeout, rank, size = 0.04, 1, 2

    def heard(self, kind, source=None):
        return None


def test_a_watchdog_asks_for_events_on_its_ranks_gpu_alone(two):
    with ampkit.cuda.device(1):
        end = emulated_cupy.cuda.get_current_stream().record()
        streams.contexts.clear()
        watchdog = Watchdog(Silent(), lambda: None, print)
        watchdog.begin(Call("a collective", "here")).end = end
        deadline = time.monotonic() + 5
        while watchdog._under_way and time.monotonic() < deadline:
            time.sleep(0.01)
        watchdog.close()
        assert not watchdog._under_way
        assert streams.contexts == {1}


def test_threads_of_a_loader_work_on_the_gpu_that_is_current_where_they_begin(two):
    class Devices:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return emulated_cupy.cuda.runtime.getDevice()

    with ampkit.cuda.device(1):
        found = list(DataLoader(Devices(), batch_size=2, num_workers=2))
    assert [batch.tolist() for batch in found] == [[1, 1], [1, 1]]


def test_every_thread_of_the_library_sets_its_device_first():
    kinds, found, bare = {"Thread", "ThreadPoolExecutor", "_Threads"}, 0, []
    folder = Path(ampkit.__file__).parent
    for path in sorted({*folder.rglob("*.py")} - {folder / "backends/cpu/native/build.py"}):  # which knows no device
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            called = [each.func for each in ast.walk(function) if isinstance(each, ast.Call)]
            names = {getattr(each, "attr", getattr(each, "id", "")) for each in called}
            if names & kinds:
                found += 1
                bare += [] if "on_this_device" in names else [f"{path.name}: {function.name}"]
    assert found >= 6
    assert not bare
