"""What is run first on a GPU goes on where it stopped, and says in a line each what failed."""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_on_cpu import emulator, memory

from ampkit import set_default_device

pytest_plugins = ["pytester"]
BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of tests/bench, which no test before has imported, or after finds."""
    monkeypatch.syspath_prepend(str(BENCH))
    _forget()
    yield importlib.import_module
    _forget()


def _forget():
    for name, module in list(sys.modules.items()):
        if "." not in name and Path(getattr(module, "__file__", None) or "/").parent == BENCH:
            del sys.modules[name]


# tests that go on


def run_tests(pytester, monkeypatch, **files):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(**files)
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--device', default='cpu')")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester.runpytest_inprocess("-p", "resumable", "-p", "no:cacheprovider", "--outcomes", "found.jsonl")


def test_tests_that_have_an_outcome_are_not_run_again(bench, pytester, monkeypatch):
    resumable = bench("resumable")
    source = "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\ndef test_c(): pytest.skip('no')\n"
    run_tests(pytester, monkeypatch, test_it=source).assert_outcomes(passed=1, failed=1, skipped=1)
    found, begun = resumable.read(pytester.path / "found.jsonl")
    outcomes = {name.partition("::")[2]: row["outcome"] for name, row in found.items()}
    assert (outcomes, begun) == ({"test_a": "passed", "test_b": "failed", "test_c": "skipped"}, None)
    assert next(row["said"] for row in found.values() if row["outcome"] == "failed") == "assert 1 == 2"
    again = run_tests(pytester, monkeypatch, test_it=source + "def test_new(): pass\n")
    again.assert_outcomes(passed=1, deselected=3)


def test_a_failure_after_which_the_gpu_is_dead_ends_the_process(bench, pytester, monkeypatch):
    resumable, ended = bench("resumable"), []

    def dead():
        raise RuntimeError("cudaErrorIllegalAddress")

    runtime = SimpleNamespace(deviceSynchronize=dead)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(resumable.os, "_exit", ended.append)
    run_tests(pytester, monkeypatch, test_it="def test_a(): pass\ndef test_b(): assert False\n")
    assert ended == [resumable.BROKEN]


def test_the_test_that_was_under_way_is_known(bench, tmp_path):
    resumable = bench("resumable")
    resumable.add(tmp_path / "f", begun="a")
    resumable.add(tmp_path / "f", test="a", outcome="failed", said="in the test")
    resumable.add(tmp_path / "f", test="a", outcome="passed", said="")
    resumable.add(tmp_path / "f", begun="b")
    found, begun = resumable.read(tmp_path / "f")
    assert begun == "b"
    assert found["a"]["outcome"] == "failed"


class Played:
    """Stands for a process of pytest: each start writes the next of `plays`, and ends with its code."""

    plays: list = []  # noqa: RUF012
    pid = 2**30

    def __init__(self, command, **options):
        file, (tests, begun, self.code) = Path(command[command.index("--outcomes") + 1]), self.plays.pop(0)
        rows = [{"test": name, "outcome": outcome, "said": outcome} for name, outcome in tests.items()]
        rows += [{"begun": begun}] if begun else []
        with file.open("a") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)

    def poll(self):
        return self.code

    def wait(self):
        return 0


@pytest.fixture
def queue(bench, tmp_path, monkeypatch):
    suite = bench("suite")
    monkeypatch.setattr(suite, "start", Played)
    monkeypatch.setattr(suite, "kill", lambda process: None)
    monkeypatch.setattr(suite.time, "sleep", lambda seconds: None)
    return suite.Queue(tmp_path, [suite.ROOT / "tests" / "test_grad_scaler.py"], [], patience=0.0)


def run(queue, *plays, seconds=60.0):
    Played.plays = list(plays)
    done = queue.run(time.monotonic() + seconds)
    return done, queue.counts(), queue.failures()


def test_a_test_that_ends_its_process_or_hangs_fails_alone(queue):
    crashed, hung = ({"a": "passed"}, "b", -11), ({}, "c", None)
    done, counts, failures = run(queue, crashed, hung, ({"d": "passed"}, "", 0))
    assert done
    assert counts == {"passed": 2, "failed": 2, "skipped": 0}
    assert failures == ["b: ended its process (-11)", "c: no output for 0 s"]


def test_a_file_that_is_done_is_not_started_again_until_its_failures_are_forgotten(queue):
    run(queue, ({"a": "passed", "b": "failed"}, "", 1))
    assert run(queue)[0]  # there is nothing to play
    queue.forget_failures()
    done, counts, failures = run(queue, ({"b": "passed"}, "", 0))
    assert done and not failures
    assert counts == {"passed": 2, "failed": 0, "skipped": 0}


def test_a_file_whose_tests_cannot_be_collected_fails_and_is_not_started_forever(queue):
    done, counts, failures = run(queue, ({}, "", 2))
    assert done
    assert counts["failed"] == 1
    assert failures == ["test_grad_scaler.py: pytest ended with 2 before a test: see test_grad_scaler.log"]


def test_of_many_failures_in_a_file_the_first_are_shown_and_the_others_counted(queue):
    _, counts, failures = run(queue, ({f"test {i}": "failed" for i in range(40)}, "", 1))
    assert counts["failed"] == 40
    assert failures[0] == "test 0: failed"
    assert failures[-1] == "test_grad_scaler.py: and 34 more"
    assert len(failures) == 7


def test_without_time_nothing_is_started(queue):
    assert run(queue, seconds=-1.0) == (False, {"passed": 0, "failed": 0, "skipped": 0}, [])


def test_the_kernels_files_come_first_and_those_of_the_host_last(bench):
    suite = bench("suite")
    names = ["/".join(path.parts[-2:]) for path in suite.files()]
    assert names[0].startswith("cuda/test_")
    assert names.index("core/test_capture.py") < names.index("cuda/test_compiles.py")
    kernels = {path.name for path in suite.kernels()}
    assert kernels >= {"test_softmax.py", "test_cublaslt.py", "test_cudnn.py", "test_references_on_device.py"}
    assert not kernels & {"test_capture.py", "test_compiles.py"}


# parts


def test_a_part_that_is_not_done_gets_a_turn_again_and_the_summary_has_its_failures(bench, tmp_path, monkeypatch):
    first_run = bench("first_run")
    turns = []

    def part(name, count):
        def step(run, until):
            turns.append(name)
            return first_run.State(turns.count(name) == count, f"{name} {turns.count(name)}", [f"{name} broke"])

        return first_run.Part(step, 1)

    monkeypatch.setattr(first_run, "PARTS", {"a": part("a", 2), "b": part("b", 1), "c": part("c", 1)})
    states = first_run.turns(first_run.Run(tmp_path), ["a", "b"], time.monotonic() + 60)
    assert turns == ["a", "b", "a"]
    assert all(state.done for state in states.values())
    lines = (tmp_path / "summary.txt").read_text().splitlines()
    assert lines == ["a: done, a 2", "b: done, b 1", "c never ran", "FAILED a: a broke", "FAILED b: b broke"]


class Answers:
    """Stands for Process: a row of a model, or how it failed."""

    rows: dict = {}  # noqa: RUF012
    asked: list = []  # noqa: RUF012

    def __init__(self, arguments, limit, log=None):
        self.name, self.limit = " ".join(arguments[1:3]), limit
        self.timed_out, self.error, self.code = False, "", 0

    def lines(self):
        self.asked.append(self.name)
        row = self.rows.get(self.name, {"wrong": []})
        if isinstance(row, str):
            self.code, self.error = 1, row
            return
        yield json.dumps(row)


def test_models_that_were_measured_are_not_measured_again_unless_they_failed_and_it_is_said(
    bench, tmp_path, monkeypatch
):
    first_run = bench("first_run")
    monkeypatch.setattr(first_run, "Process", Answers)
    asked, run = [], first_run.Run(tmp_path, "emulated", tiny=True)
    monkeypatch.setattr(Answers, "asked", asked)
    monkeypatch.setattr(Answers, "rows", {"mlp float16": {"wrong": ["other bits"]}, "mlp bfloat16": "a\nno memory"})
    state = first_run.steps(run, time.monotonic() + 60)
    assert state == (True, "3 of 3 models and precisions", ["mlp bfloat16: no memory", "mlp float16: other bits"])
    assert first_run.steps(run, time.monotonic() + 60).done
    assert asked == ["mlp float32", "mlp bfloat16", "mlp float16"]
    monkeypatch.setattr(Answers, "rows", {})
    assert not first_run.steps(run._replace(again=True), time.monotonic() + 60).failed
    assert asked[3:] == ["mlp bfloat16", "mlp float16"]


def test_rows_of_the_comparison_without_time_are_left_for_later_and_those_that_failed_are_said(bench):
    first_run = bench("first_run")
    rows = {"a": {"ms": 1}, "b": {"error": "x\nno memory"}}
    found = {"steps": {"mlp": rows}, "kernels": {"copy": {"error": "no time left"}}, "products": {}}
    assert first_run._measured(found) == (False, "1 of 3 rows: bench/gpu.md", ["mlp b: no memory"])
    found["kernels"] = {}
    assert first_run._measured(found).done


def test_what_is_missing_is_said_with_what_needs_it(bench, monkeypatch):
    requirements = bench("requirements")
    monkeypatch.setattr(requirements.util, "find_spec", lambda name: None if name == "cudnn" else object())
    monkeypatch.setattr(requirements, "_version", lambda name: " 1.0")
    monkeypatch.setattr(requirements, "_runs", lambda what, arguments: f"ok {what}")
    lines = list(requirements.check())
    assert any(line.startswith("missing cudnn: install nvidia-cudnn-frontend") for line in lines)
    assert any(line.startswith("ok      numpy 1.0; for ampkit") for line in lines)


def test_errors_of_compute_sanitizer_are_found_with_their_kernel_and_no_others(bench, tmp_path):
    sanitizer = bench("sanitizer")
    (tmp_path / "found").mkdir()
    lines = ["COMPUTE-SANITIZER", "Invalid __global__ read of size 4 bytes", "    at softmax_forward+0x10",
             "    by thread (0,0,0)", "ERROR SUMMARY: 3 errors"]  # fmt: skip
    (tmp_path / "found" / "bad.12.txt").write_text("".join(f"========= {line}\n" for line in lines))
    lines = ["COMPUTE-SANITIZER", "Error: process didn't terminate successfully", "", "ERROR SUMMARY: 0 errors"]
    (tmp_path / "found" / "good.13.txt").write_text("".join(f"========= {line}\n" for line in lines))
    said = "bad: 3 errors: Invalid __global__ read of size 4 bytes at softmax_forward+0x10"
    assert list(sanitizer.found(tmp_path)) == [said]
    (tmp_path / "found" / "none.14.txt").write_text(
        "========= COMPUTE-SANITIZER\n========= No attachable process found\n"
    )
    assert list(sanitizer.unchecked(tmp_path, ["bad", "good", "none", "absent"])) == [
        "none: the tool did not check it: ========= No attachable process found",
        "absent: the tool did not check it: no log",
    ]


@pytest.mark.parametrize("tiny", [True, False])
def test_compute_sanitizer_has_files_to_run_and_each_of_them_exists(bench, tmp_path, tiny):
    sanitizer, suite = bench("sanitizer"), bench("suite")
    run = SimpleNamespace(only=[], tiny=tiny, out=tmp_path, device="emulated", jobs=1)
    queue = sanitizer._queue(run, "memcheck", [])
    assert queue.paths
    assert [path for path in queue.paths if not path.is_file()] == []
    assert any(re.search("^def test_", path.read_text(), re.MULTILINE) for path in queue.paths)
    assert tiny or {path.parent.name for path in queue.paths} >= {"cuda"}
    folders = [start for start in suite.FIRST if not list((suite.ROOT / "tests").glob(f"{start}*"))]
    assert folders == []  # a folder that was renamed would run last, and not under the sanitizer
    hosts = [part for part in suite.HOST_ONLY if not list((suite.ROOT / "tests").rglob(f"{part}*"))]
    assert hosts == []
    run.only = ["no_such_test"]
    with pytest.raises(SystemExit, match="no test file of kernels matches no_such_test"):
        sanitizer._queue(run, "memcheck", [])


# steps of models


@pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
def test_steps_of_a_model_are_the_cpus_and_recorded_ones_have_the_bits_of_eager_ones(bench, device):
    steps = bench("device_steps")
    found = steps.measure("mlp", "float16")
    set_default_device("cpu")
    memory.hooks.clear()
    assert found["wrong"] == []
    assert found["recorded"] and not found["references"]
    assert 0 < found["memory"]["eager"]["allocated"] <= found["memory"]["recorded"]["allocated"]


def test_the_table_of_models_shows_distances_memory_and_what_is_wrong(bench):
    steps = bench("device_steps")
    distances = {"loss": 1e-7, "loss of the CPU": 2e-7, "gradient": [2e-6, "w"], "gradient of the CPU": 1e-6}
    row = {**distances, "recorded": True, "differs": "", "wrong": [],
           "memory": {"eager": {"allocated": 10**6}, "recorded": None}}  # fmt: skip
    lines = steps.table({"mlp float32": row, "gpt float16": {"wrong": ["no memory"]}}).splitlines()
    assert lines[2:] == [
        "| mlp float32 | 1.0e-07, 2.0e-07 | 2.0e-06, 1.0e-06 | bit-identical | 1.0, none |  |",
        "| gpt float16 | | | | | no memory |",
    ]


def test_what_is_wrong_with_a_models_steps_is_said(bench):
    steps = bench("device_steps")
    result = steps.Result([1.0, 2.0], {"w": steps.np.ones(2)}, True)
    assert steps._differs(result, result) == ""
    assert steps._differs(result, result._replace(losses=[1.0, 3.0])) == "the loss of step 1: 2.0 and 3.0"
    assert steps._differs(result, result._replace(state={"w": -steps.np.ones(2)})) == "w"
    cpu = {"loss of the CPU": 0.1, "gradient of the CPU": 0.2, "recorded": True, "differs": ""}
    found = {**cpu, "loss": float("inf"), "gradient": (2.0, "w"), "recorded": False, "differs": "w"}
    assert steps._wrong(found, "float32") == [
        "losses are inf from float64's, the CPU's 1.0e-01",
        "the gradient of w is 2.0e+00 from float64's, the CPU's 2.0e-01",
        "its step was not recorded",
        "recorded steps differ from eager ones in w",
    ]
    assert steps._wrong({**cpu, "loss": 0.29, "gradient": (0.59, "w")}, "float32") == []
