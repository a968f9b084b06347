"""The ledger of a step: kinds of work that add up to the whole, memory by holder, and what 16 bits change, in words."""

import sys

import numpy as np
import pytest

import ampkit
from ampkit import Policy, autocast, backends, debug, nn, ops, optim
from ampkit.base import observe
from ampkit.base.errors import ArgumentError
from ampkit.core.op import ops as known_ops
from ampkit.debug.ledger import DATA, KINDS, OPTIMIZER, REST, Ledger, kind_of
from ampkit.debug.profiler import Row
from ampkit.run.bench import Result
from ampkit.run.report.findings import in_words


def training(dtype=None):
    """A step of a small model, and its optimizer."""
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
    optimizer = optim.Adam(model.parameters())
    x = ampkit.randn(16, 64)

    def step():
        with autocast(dtype=dtype or ampkit.bfloat16, enabled=dtype is not None):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def test_the_kinds_of_work_add_up_to_the_step():
    found = debug.ledger(*training(ampkit.float16))
    assert sum(found.times.values()) == pytest.approx(found.seconds)
    assert {"products", "normalization", "elementwise", "casts", OPTIMIZER, REST} <= set(found.times)
    assert all(seconds >= 0 for seconds in found.times.values())


def test_memory_is_that_of_the_optimizer_and_what_is_kept_for_backward_by_dtype():
    step, optimizer = training(ampkit.float16)
    memory = debug.ledger(step, optimizer, steps=1).memory
    arena = optimizer.param_groups[0].arenas[0]
    assert memory["parameters"] == arena.master.nbytes
    assert memory["moments"] == 2 * arena.master.nbytes
    assert memory["16-bit copies of weights"] == arena.master.nbytes // 2
    assert memory["kept for backward, 16 bits"] > 0
    assert debug.ledger(*training(), steps=1).memory.get("kept for backward, 16 bits", 0) == 0


def test_buffers_and_the_peak_are_memory_too():
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32))
    found = debug.ledger(lambda: model(ampkit.randn(4, 8)).sum().backward(), steps=1)
    assert found.memory["buffers"] == sum(buffer.array.nbytes for buffer in model.buffers()) == 2 * 32 * 4 + 8
    assert all(peak > found.memory["buffers"] for peak in found.peak.values())
    if "cpu" in found.peak:
        assert str(found).splitlines()[-1].startswith("peak memory of the process ")


def measured(dtype, seconds, ledger):
    return Result(dtype, step_seconds=seconds, measured={"ledger": vars(ledger)})


def test_a_recorded_step_is_explained_by_one_that_is_not_recorded():
    results = [measured(dtype, 1.0, Ledger(1.0, {"products": 1.0})) for dtype in ("float32", "float16")]
    said = [[line for line in in_words(results, {}, "", on) if "train.compile" in line] for on in (False, True)]
    assert [len(lines) for lines in said] == [0, 1]


def test_every_op_of_the_library_has_a_kind():
    without = [name for name, op in known_ops.items() if op.builtin and kind_of(name) == "others"]
    assert not without, f"name the folder or file of these ops in KINDS of ampkit/debug/ledger.py: {without}"
    assert {kind_of("linear_backward"), kind_of("conv2d"), kind_of("scaled_dot_product_attention")} == {"products"}
    assert kind_of("layer_norm") == kind_of("batch_norm_backward") == "normalization"
    assert kind_of("relu") == "elementwise"
    assert kind_of("cast") == "casts"
    assert kind_of("adam_update") == kind_of("unscale") == OPTIMIZER
    assert kind_of("somebody_s_op") == "others"
    assert len(set(KINDS.values())) == 6


def test_the_table_names_the_largest_part_first():
    text = str(Ledger(0.004, {"casts": 0.001, "products": 0.003}, {"parameters": 2_000_000, "moments": 0}))
    assert text.splitlines() == [
        f"{'a step':44}      4.00 ms",
        f"  {'products':42}      3.00 ms   75.0%",
        f"  {'casts':42}      1.00 ms   25.0%",
        f"{'memory':44}         2 MB",
        f"  {'parameters':42}         2 MB",
    ]


def test_a_comparison_says_what_became_faster_and_slower_and_what_16_bits_cannot_speed_up():
    wide = Ledger(0.010, {"products": 0.006, "normalization": 0.004}, {"kept for backward, float32": 4_000_000})
    times = {"products": 0.002, "normalization": 0.004, "casts": 0.001}
    low = Ledger(0.007, times, {"kept for backward, 16 bits": 2_000_000})
    assert low.compare(wide).splitlines()[0] == "16 bits save 30% of a step's time: 10 -> 7 ms"
    assert wide.compare(low).splitlines()[0] == "16 bits cost 43% more time: 7 -> 10 ms"
    assert low.compare(wide).splitlines()[1:] == [f"  {line}" for line in low.reasons(wide)]
    assert low.reasons(wide) == [
        "less time: products 6 -> 2 ms",
        "more time: casts 0 -> 1 ms",
        "products, which 16-bit units speed up, are 29% of the step; normalization takes 57%",
        "kept for backward: 4 MB -> 2 MB (-50%)",
    ]


def test_a_comparison_names_the_ops_that_only_the_fast_policy_stores_in_16_bits():
    def norm(policy):
        x, weight = ampkit.randn(8, 16), nn.Parameter(ampkit.randn(16, 16))

        def step():
            with autocast(policy=policy, enabled=policy is not None):
                y = ops.layer_norm(ops.linear(x, weight), (16,)).softmax(-1)
            ops.sum(y * y).backward()

        return debug.ledger(step, steps=1, warmup=0)

    assert norm(Policy("bfloat16")).wide == {"layer_norm": 8 * 16 * 4, "softmax": 8 * 16 * 4}
    assert norm(Policy("bfloat16", softmax="low")).wide == {"layer_norm": 8 * 16 * 4}
    assert norm(Policy.fast("bfloat16")).wide == norm(None).wide == {}
    low, wide = Ledger(1.0, {"products": 1.0}, {}, {"softmax": 2_000_000, "layer_norm": 6_000_000}), Ledger(1.0)
    last = "float32 by the policy: layer_norm, softmax; Policy.fast would store 4 MB less of their outputs"
    assert low.reasons(wide)[-1] == last


def test_waiting_for_data_is_a_kind_of_its_own():
    def step():
        with observe.timed("next_batch"):
            ampkit.randn(4).square()
        ampkit.randn(4).exp()

    found = debug.ledger(step, steps=1)
    assert found.times[DATA] > 0
    assert sum(found.times.values()) == pytest.approx(found.seconds)


def test_a_step_is_waited_for_on_the_devices_that_it_runs_on(monkeypatch):
    x, waits = ampkit.randn(4, device="cpu"), []
    monkeypatch.setattr(type(backends.cpu), "synchronize", lambda self: waits.append(self.name))
    monkeypatch.setattr(backends, "_default", "cuda:7")
    debug.ledger(x.square, steps=2)
    assert waits == ["cpu"] * 4


@pytest.mark.parametrize(("plain", "rest"), [([0.4, 9.0], 0.1), ([9.0, 8.0], 0.2), ([0.2, 0.25], 0.0)])
def test_the_rest_of_a_step_is_the_smaller_of_two_measurements(monkeypatch, plain, rest):
    """0.3 s in ops; with a profile, what lies between them is 0.2 s in the step where it is least."""

    class Profile:
        rows = [Row("linear", "", 1, 0.3, 0)]  # noqa: RUF012

        def __enter__(self):
            self.seconds = next(wholes)
            return self

        def __exit__(self, *error):
            pass

    wholes, plains = iter([0.9, 0.5]), iter(plain)
    module = sys.modules[Ledger.__module__]
    monkeypatch.setattr(module, "profile", Profile)
    monkeypatch.setattr(module, "_timed", lambda step, devices: next(plains))
    found = debug.ledger(lambda: None, steps=2)
    assert found.times == pytest.approx({"products": 0.3, REST: rest})
    assert found.seconds == pytest.approx(0.3 + rest)


def test_bench_says_faster_or_slower_and_why():
    wide = measured("float32", 0.010, Ledger(0.01, {"products": 0.01}))
    faster = measured("bfloat16", 0.005, Ledger(0.005, {"products": 0.005}))
    slower = measured("float16", 0.020, Ledger(0.02, {"products": 0.02}))
    same = measured("float16", 0.0101, Ledger(0.0101, {"products": 0.0101}))
    failed = Result("float16", error="it failed")
    assert list(in_words([wide, faster], {}, "the steps failed")) == [
        "bfloat16 is faster: 2.00 times the speed of float32",
        "  less time: products 10 -> 5 ms",
    ]
    assert next(in_words([wide, slower], {}, "the steps failed")) == "float16 is slower: 2.00 times the time of float32"
    assert list(in_words([wide, same], {}, "the steps failed")) == ["float16 is as fast as float32"]
    assert not list(in_words([wide, failed], {}, "the steps failed"))
    noisy = measured("float16", 0.02, Ledger(0.005, {"products": 0.005}))
    said = list(in_words([wide, noisy], {}, "the steps failed"))
    assert said[0] == "float16: no verdict, since two measurements of its speed disagree"
    assert said[1].endswith(
        "float32, in the steps that are explained here it is faster: 2.00 times the speed of float32"
    )
    unknown = Result("float16", step_seconds=0.01)
    assert list(in_words([wide, unknown], {}, "the steps failed"))[1] == "  why is not known: the steps failed"


def test_bench_says_what_units_would_make_of_a_step_where_the_cpu_has_none():
    wide = measured("float32", 0.010, Ledger(0.01, {"products": 0.008}))
    same = measured("bfloat16", 0.010, Ledger(0.01, {"products": 0.008}))
    *_, cpu, products = in_words([wide, same], {"bfloat16": "no instructions for it; half the memory"}, "")
    assert cpu == "  its dtype on this CPU: no instructions for it; half the memory"
    assert products == (
        "  products are 80% of the float32 step: a CPU or GPU that multiplies 16 bits twice as fast would make the "
        "step 1.67 times as fast, one that multiplies them at no cost 5.0 times"
    )
    assert "would" not in "".join(in_words([wide, same], {"bfloat16": "AVX-512"}, ""))


def test_steps_really_train_and_what_they_raise_comes_out():
    step, optimizer = training()
    before = optimizer.param_groups[0].arenas[0].master.copy()
    debug.ledger(step, optimizer, steps=1, warmup=0)
    assert not np.array_equal(before, optimizer.param_groups[0].arenas[0].master)
    with pytest.raises(ZeroDivisionError):
        debug.ledger(lambda: 1 / 0)


def test_wrong_arguments_are_refused():
    with pytest.raises(ArgumentError, match="ledger: needs a function that runs a training step, got a float"):
        debug.ledger(2.0)
    with pytest.raises(ArgumentError, match="ledger: needs steps from 1, got 0"):
        debug.ledger(lambda: None, steps=0)
