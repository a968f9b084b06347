"""The comparison on a GPU goes on where it stopped and shows what failed, on an emulated one with tiny sizes."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from cuda_on_cpu import emulator, memory

import ampkit
from ampkit import backends, set_default_device

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
ABOUT = {"card": "c", "date": "2026-01-01T00:00:00", "command": "x", "ampkit": "0, abc", "PyTorch": "2", "driver": "1"}
FIGURES = {"rate": 10.0, "allocated": 10**9, "reserved": 2 * 10**9, "card": 3 * 10**9, "ready": 1.0, "losses": [1.0]}


def loaded(name):
    path = Path(__file__).parents[2] / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gpu_bench():
    before = list(sys.path)
    yield loaded("gpu")
    sys.path[:] = before


@pytest.fixture
def on_device(gpu_bench, device):
    set_default_device("cuda")
    yield gpu_bench
    set_default_device("cpu")
    memory.hooks.clear()


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import then fails as where it is not installed


def test_a_profile_sums_the_kernels_of_a_step_and_counts_overlapping_ones_once(gpu_bench):
    events = [
        {"name": "void gemm<128>(float*)", "ts": 10.0, "dur": 6.0},
        {"name": "void gemm<128>(float*)", "ts": 20.0, "dur": 2.0},
        {"name": "at::native::copy", "ts": 12.0, "dur": 8.0},
        {"name": "at::native::copy", "ts": 30.0, "dur": 10.0},
    ]
    first, *rows = loaded("gpu_profile").table(events, 2).splitlines()
    assert first == "busy 11 us of a step of 15 us"
    assert [line.split() for line in rows] == [
        ["9.0", "us", "1.0", "copy"],
        ["4.0", "us", "1.0", "gemm<128>(float*)"],
    ]


def test_named_variants_are_measured_in_their_order_and_no_others(gpu_bench):
    named = ["torch mixed compile", "ampkit mixed compiled"]
    assert [(t.section, t.name) for t in gpu_bench.plan(["gpt2", "nano"], variants=named)] == [
        ("gpt2", named[0]),
        ("nano", named[0]),
        ("gpt2", named[1]),
        ("nano", named[1]),
    ]


def row(*blocks, rounds=1):
    return FIGURES | {"blocks": list(blocks), "rounds": rounds}


def call(*ours, theirs=None):
    found = {"ours": ours, "seconds": ours[0], "GB/s": 1.0, "TFLOP/s": 1.0}
    return found | ({"theirs": theirs} if theirs else {"why": "no PyTorch"})


def results(**steps):
    return {"about": dict(ABOUT), "tiny": True, "steps": steps, "kernels": {}, "products": {}}


class Fake:
    """Stands for Process: answers by the arguments, and keeps them in `seen`."""

    seen: ClassVar[list[list[str]]] = []
    answers: ClassVar[dict[str, object]] = {}

    def __init__(self, arguments, limit, log=None):
        self.arguments, self.limit = [str(a) for a in arguments], limit
        self.timed_out, self.error, self.code = False, "", 0

    def lines(self):
        self.seen.append(self.arguments[1:3])
        if "--rows" in self.arguments:
            yield from self.rows(self.arguments[self.arguments.index("--rows") + 1 :])
            return
        answer = self.answers.get(self.arguments[2], FIGURES | {"blocks": [2.0]})
        if answer == "slow":
            self.timed_out = True
        elif isinstance(answer, str):
            self.code, self.error = 1, answer
        else:
            yield json.dumps(answer)

    def rows(self, names):
        for name in names:
            yield json.dumps({"section": "kernels", "begun": name})
            if self.answers.get(name) == "crash":
                self.code, self.error = -11, "illegal address"
                return
            if self.answers.get(name) == "hang":
                self.timed_out = True
                return
            yield json.dumps({"section": "kernels", "name": name, "row": call(1.0)})


@pytest.fixture
def fake(gpu_bench, monkeypatch):
    Fake.seen, Fake.answers = [], {}
    monkeypatch.setattr(gpu_bench, "Process", Fake)
    monkeypatch.setattr(gpu_bench.gpu_kernels, "names", lambda tiny: [("kernels", n) for n in ("copy", "bad", "last")])
    return Fake


def run(gpu_bench, held, folder, only, seconds=1000.0):
    bench = gpu_bench.Bench(held, folder, gpu_bench.time.monotonic() + seconds)
    bench.run(only)
    return json.loads((folder / "gpu.json").read_text())


# order and resumption


def test_rows_of_ampkit_come_before_what_pytorch_compiles_and_its_longest_search_comes_last(gpu_bench):
    tasks = gpu_bench.plan([*gpu_bench.WORK, "kernels"])
    names = [task.name for task in tasks]
    compiles = [i for i, name in enumerate(names) if name.startswith("torch") and name != "torch mixed"]
    mixed = [i for i, name in enumerate(names) if name.startswith("ampkit mixed") or not name]
    assert max(mixed) < min(compiles)
    assert set(names[-len(gpu_bench.WORK) :]) == {"torch mixed max-autotune"}
    assert tasks[0][:2] == ("gpt2", "ampkit mixed compiled")
    assert all(0 < task.limit <= 420 for task in tasks)


def test_a_second_run_measures_what_is_missing_then_what_failed_and_nothing_else(gpu_bench, fake, tmp_path):
    fake.answers = {"ampkit mixed": "first\nno memory"}
    held = run(gpu_bench, results(), tmp_path, ["mlp"])
    assert held["steps"]["mlp"]["ampkit mixed"]["error"].endswith("no memory")
    del held["steps"]["mlp"]["torch mixed"]
    fake.seen.clear()
    fake.answers = {}
    again = run(gpu_bench, held, tmp_path, ["mlp"])
    assert fake.seen == [["mlp", "torch mixed"], ["mlp", "ampkit mixed"]]
    assert not [found for found in again["steps"]["mlp"].values() if "error" in found]


def test_what_there_was_no_time_for_says_so_and_is_measured_by_the_next_run(gpu_bench, fake, tmp_path):
    held = run(gpu_bench, results(), tmp_path, ["mlp", "kernels"], seconds=1.0)
    assert {found["error"] for found in held["steps"]["mlp"].values()} == {"no time left"}
    assert held["kernels"]["copy"] == {"error": "no time left"}
    assert "| ampkit mixed compiled | no time left |" in (tmp_path / "gpu.md").read_text()
    again = run(gpu_bench, held, tmp_path, ["mlp", "kernels"])
    assert again["steps"]["mlp"]["ampkit mixed"]["blocks"] == [2.0]
    assert again["kernels"]["copy"]["seconds"] == 1.0


def test_a_row_that_takes_longer_than_its_own_limit_does_not_end_the_others(gpu_bench, fake, tmp_path):
    fake.answers = {"torch mixed": "slow"}
    held = run(gpu_bench, results(), tmp_path, ["mlp"])
    assert held["steps"]["mlp"]["torch mixed"] == {"error": "took longer than 60 s", "rounds": 1}
    assert "error" not in held["steps"]["mlp"]["ampkit mixed"]
    fake.seen.clear()
    run(gpu_bench, held, tmp_path, ["mlp"])
    assert fake.seen == []  # nor is it tried again


def test_a_kernel_that_ends_its_process_fails_alone(gpu_bench, fake, tmp_path):
    fake.answers = {"bad": "crash"}
    held = run(gpu_bench, results(), tmp_path, ["kernels"])
    assert held["kernels"]["bad"] == {"error": "illegal address"}
    assert held["kernels"]["copy"]["seconds"] == held["kernels"]["last"]["seconds"] == 1.0


def test_a_kernel_that_hangs_is_not_tried_again_and_those_after_it_are_measured(gpu_bench, fake, tmp_path, monkeypatch):
    fake.answers = {"bad": "hang"}
    monkeypatch.setattr(gpu_bench, "ROW", -1.0)
    held = run(gpu_bench, results(), tmp_path, ["kernels"])
    assert held["kernels"]["bad"]["error"].startswith("took longer than")
    assert held["kernels"]["last"]["seconds"] == 1.0
    fake.seen.clear()
    run(gpu_bench, held, tmp_path, ["kernels"])
    assert fake.seen == []


def test_further_rounds_are_of_ampkits_compiled_step_and_the_fastest_of_pytorch(gpu_bench, fake, tmp_path):
    rows = {task.name: row(5.0) for task in gpu_bench.plan(["mlp"])}
    held = results(mlp=rows | {"torch mixed graph": row(1.0)}) | {"tiny": False}
    again = run(gpu_bench, held, tmp_path, ["mlp"])["steps"]["mlp"]
    assert fake.seen == [["mlp", "ampkit mixed compiled"], ["mlp", "torch mixed graph"]] * 2
    assert again["torch mixed graph"]["blocks"] == [1.0, 2.0, 2.0]
    assert again["torch mixed graph"]["rounds"] == 3
    fake.seen.clear()
    run(gpu_bench, held, tmp_path, ["mlp"])
    assert fake.seen == []


@pytest.mark.parametrize("change", [{"card": "d"}, {"driver": "2"}, {"date": "2026-01-02T00:00:01"}])
def test_figures_of_another_card_driver_or_day_are_set_aside(change, gpu_bench, tmp_path, capsys):
    (tmp_path / "gpu.json").write_text(json.dumps(results(mlp={"ampkit mixed": row(1.0)})))
    assert gpu_bench.begun(tmp_path, ABOUT | {"ampkit": "1, new"}, False, True)["steps"]
    assert gpu_bench.begun(tmp_path, ABOUT | change, False, True)["steps"] == {}
    assert "begun anew" in capsys.readouterr().out
    (kept,) = tmp_path.glob("gpu-*.json")
    assert json.loads(kept.read_text())["steps"]["mlp"]


def test_a_fresh_run_takes_none_of_the_figures_that_are_there(gpu_bench, tmp_path):
    (tmp_path / "gpu.json").write_text(json.dumps(results(mlp={"ampkit mixed": row(1.0)})))
    assert gpu_bench.begun(tmp_path, ABOUT, True, True)["steps"] == {}


def test_a_process_that_takes_too_long_ends_with_what_it_printed_so_far(gpu_bench):
    code = "import time; print('begun', flush=True); time.sleep(60)"
    process = gpu_bench.Process(["-c", code], 0.3)
    assert list(process.lines()) == ["begun\n"]
    assert process.timed_out


# tables


def test_a_table_shows_medians_with_their_spread_what_failed_and_the_ratios_of_the_rest(gpu_bench):
    found = {"torch mixed": row(3.0, 4.0, 5.0), "ampkit mixed compiled": row(2.0, 2.0, 2.5) | {"refused": ["conv: 15"]},
             "ampkit mixed": {"error": "a\nno memory"}, "torch mixed compile": row(9.0)}  # fmt: skip
    held = results(mlp=found)
    held["kernels"] = {"copy": call(1e-6), "softmax": call(2e-6, theirs=[3e-6]), "bad": {"error": "first\nlast"}}
    shown = gpu_bench.gpu_table.table(held)
    assert "| ampkit mixed compiled | 2.00 (2.00 to 2.50) | 10 | 1.00 | 2.00 | 3.00 |" in shown
    assert "| mlp | eager: 4.00 ms, 1.00 GB | 2.00 ms, 1.00 GB | 2.00 (1.20 to 2.50) |  |" in shown
    assert "| PyTorch's fastest / ampkit compiled | 2.00 (1.20 to 2.50) |" in shown
    assert "| PyTorch eager / ampkit compiled | 2.00 (1.20 to 2.50) |" in shown
    assert "| ampkit mixed | no memory |" in shown
    assert "- no algorithm for conv: 15" in shown
    assert "| softmax | 2 | 1 | 100% | 3 | 1.50 (1.50 to 1.50) |" in shown
    assert "| copy | 1 | 1 | 100% | no PyTorch |" in shown
    assert "| bad | last |" in shown


# what the processes measure


def measured(bench, beside):
    found = {section: {} for section in ("kernels", "products")}
    for section, name, measure in bench.gpu_kernels.cases(True, beside):
        found[section][name] = bench.gpu_kernels.measured(measure)
    return found


def test_without_pytorch_all_kernels_and_products_of_ampkit_are_measured(on_device, no_torch):
    found = measured(on_device, on_device.gpu_kernels.PyTorchSide())
    names = {"copy", "layer_norm_backward float16", "AdamW float32", "cross_entropy bfloat16, labels checked"}
    assert names <= found["kernels"].keys()
    rows = [*found["kernels"].values(), *found["products"].values()]
    assert not [each for each in rows if "error" in each or "theirs" in each]
    assert all(each["why"].startswith("no PyTorch (") for each in rows)


def test_with_pytorch_each_kernel_and_product_is_measured_in_turns(on_device):
    pytest.importorskip("torch")
    found = measured(on_device, on_device.gpu_kernels.PyTorchSide("cpu"))
    rows = [*found["kernels"].values(), *found["products"].values()]
    assert all(len(each["ours"]) == len(each["theirs"]) == 5 for each in rows)


def test_only_the_row_that_says_so_checks_the_labels(on_device, no_torch, monkeypatch):
    gpu = backends.get("cuda")
    looks = []
    monkeypatch.setattr(type(gpu), "raise_if", lambda *given: looks.append(given))
    theirs = on_device.gpu_kernels.PyTorchSide()
    cases = {name: measure for _, name, measure in on_device.gpu_kernels.cases(True, theirs)}
    cases["cross_entropy bfloat16"]()
    assert not looks
    cases["cross_entropy bfloat16, labels checked"]()
    assert looks


def test_the_peak_of_a_step_is_what_arrays_hold_and_what_is_reserved_no_less(on_device):
    steps = loaded("gpu_steps")
    gc.collect()
    held, others = ampkit.cuda.memory_allocated(), memory.allocated(0) - ampkit.cuda.memory_reserved()
    ours = steps.Ours(steps.TINY["mlp"], ["mixed"])
    spare = ampkit.zeros(2**24, device="cuda")
    del spare  # which stays the pool's until the caches are emptied
    found = ours.memory(2)
    assert held < found["allocated"] < held + 2**22
    assert found["allocated"] <= found["reserved"] == found["card"] - others < held + 2**23


@pytest.mark.parametrize(
    ("work", "variant"),
    [("mlp", "float32 compiled"), ("mlp", "tf32 compiled"), ("mlp", "mixed compiled"), ("gpt2", "mixed")],
)
def test_steps_of_every_variant_run(work, variant, on_device):
    steps = loaded("gpu_steps")
    seconds, losses = steps.Ours(steps.TINY[work], variant.split()).time(6, 0)
    assert seconds > 0
    assert len(losses) == 6
    ampkit.set_float32_matmul_precision("highest")


def test_pytorchs_steps_begin_with_the_same_losses(on_device):
    pytest.importorskip("torch")
    steps = loaded("gpu_steps")
    ours = steps.Ours(steps.TINY["gpt2"], ["float32"]).time(3, 0)[1]
    theirs = steps.Theirs(steps.TINY["gpt2"], ["float32"], "cpu").time(3, 0)[1]
    assert ours == pytest.approx(theirs, rel=1e-4)
