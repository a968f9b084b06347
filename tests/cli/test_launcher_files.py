"""The files in recipes/launchers/: whether Kubeflow Trainer and SkyPilot take them, and the batch script's signal."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ampkit.cli import launch, main
from ampkit.distributed.environment import Machines, launched, machines, meeting_point
from ampkit.distributed.sockets.launcher import Ranks, free_port
from ampkit_cli.arguments import parser

pytestmark = pytest.mark.cpu
ROOT = Path(__file__).parents[2]
FILES = ROOT / "recipes/launchers"
SCHEMAS = json.loads((ROOT / "tests/golden/launcher_schemas.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}


def documents(name):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    return list(yaml.safe_load_all((FILES / name).read_text()))


def faults(schema, value, place=""):
    """What a JSON Schema has against a value."""
    if "anyOf" in schema:
        if all(list(faults(each, value)) for each in schema["anyOf"]):
            yield f"{place}: {value!r}"
        return
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if kinds and not any(value is None if kind == "null" else isinstance(value, TYPES[kind]) for kind in kinds):
        yield f"{place}: {value!r}, not {kinds}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r}, not one of {schema['enum']}"
    if isinstance(value, dict):
        yield from (f"{place}: no {name}" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            inside = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inside is not None:
                yield from faults(inside, each, f"{place}.{name}")
            elif "properties" in schema:
                yield f"{place}: {name!r}, not one of {sorted(schema['properties'])}"
    for number, each in enumerate(value if isinstance(value, list) else ()):
        yield from faults(schema.get("items", {}), each, f"{place}[{number}]")


def test_skypilot_takes_its_task():
    (task,) = documents("skypilot.yaml")
    assert list(faults(SCHEMAS["SkyPilot"], task)) == []
    assert list(faults(SCHEMAS["SkyPilot"], task | {"nodes": 2}))  # num_nodes
    assert list(faults(SCHEMAS["SkyPilot"], task | {"resources": {"cpu": 8}}))  # cpus


def test_kubeflow_trainer_takes_its_runtime_and_its_job():
    found = documents("kubeflow.yaml")
    assert [each["kind"] for each in found] == ["ClusterTrainingRuntime", "TrainJob"]
    for each in found:
        assert list(faults(SCHEMAS[each["kind"]], each)) == []
    runtime, job = found
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "node"  # which Trainer gives the variables and arguments
    assert list(faults(SCHEMAS["TrainJob"], {**job, "spec": {**job["spec"], "runtimeRef": {}}}))
    container["commands"] = []
    assert list(faults(SCHEMAS["ClusterTrainingRuntime"], runtime))


def test_the_commands_in_the_files_are_ones_of_ampkit():
    (task,) = documents("skypilot.yaml")
    _, job = documents("kubeflow.yaml")
    script = re.search(r"srun (ampkit .*) &", (FILES / "slurm.sbatch").read_text())[1]
    launches = [shlex.split(task["run"].replace("$RANKS", task["envs"]["RANKS"]))[1:], job["spec"]["trainer"]["args"]]
    for words in launches:
        options = parser().parse_args(words)
        assert options.n == 8 and options.words[0] == "train"
        assert parser().parse_args(options.words).resume
    assert parser().parse_args(shlex.split(script.replace('"$@"', "recipe.toml"))[1:]).resume


# the batch script


@pytest.fixture
def batch(tmp_path):
    """Starts the batch script with commands in place of SLURM's: `srun` runs a text of the shell."""
    programs = tmp_path / "bin"
    programs.mkdir()
    started = []

    def begin(srun):
        for name, text in (("srun", srun), ("scontrol", f'echo "$@" > {tmp_path}/requeued')):
            (programs / name).write_text(f"#!/bin/bash\n{text}\n")
            (programs / name).chmod(0o755)
        variables = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        command = ["bash", str(FILES / "slurm.sbatch"), "recipe.toml"]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=os.environ | variables))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def begun(path):
    for _ in range(500):
        if path.exists():
            return True
        time.sleep(0.02)
    return False


STOPS = 'trap "echo saved > saved; exit 143" TERM; touch begun; while :; do sleep 0.05; done'


def test_a_batch_job_saves_and_enters_the_queue_again_at_its_signal(batch, tmp_path):
    job = batch(STOPS)
    assert begun(tmp_path / "begun")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(120) == 0
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_a_batch_job_stops_at_a_signal_that_comes_with_the_start_of_its_ranks(batch, tmp_path):
    job = batch(STOPS.replace("touch begun", "kill -USR1 $PPID"))
    assert job.wait(120) == 0
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


@pytest.mark.parametrize(("srun", "status"), [("exit 0", 0), ("exit 3", 3)])
def test_a_batch_job_that_ends_by_itself_does_not_enter_the_queue(batch, tmp_path, srun, status):
    assert batch(srun).wait(120) == status
    assert not (tmp_path / "requeued").exists()


def test_a_batch_job_whose_run_was_done_when_the_signal_came_does_not_enter_the_queue(batch, tmp_path):
    job = batch('trap "exit 0" TERM; touch begun; while :; do sleep 0.05; done')
    assert begun(tmp_path / "begun")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(120) == 0
    assert not (tmp_path / "requeued").exists()


# what the launchers announce

SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
KUBEFLOW = {"PET_NODE_RANK": "1", "PET_NNODES": "3", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "digits-node-0-0",
            "PET_MASTER_PORT": "29500"}  # fmt: skip


def test_machines_are_those_that_the_launcher_announces():
    assert launched(SKYPILOT) == ("SkyPilot", 1, 2, 0)
    host, port = meeting_point(SKYPILOT)
    assert host == "10.0.0.1" and 20000 <= port < 30000
    assert meeting_point(SKYPILOT | {"SKYPILOT_TASK_ID": "a"}) != meeting_point(SKYPILOT | {"SKYPILOT_TASK_ID": "b"})
    assert machines(SKYPILOT) == Machines(1, 2, host, port)
    assert machines(KUBEFLOW) == Machines(1, 3, "digits-node-0-0", 29500)
    assert machines(KUBEFLOW | {"RANK": "0", "WORLD_SIZE": "4"}) is None  # torchrun has started this one
    assert machines(SKYPILOT | {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}) is None
    assert machines({}) is None


def test_launch_starts_the_ranks_of_its_machine(monkeypatch, capsys):
    for name, value in KUBEFLOW.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["launch", "-n", "0", "script.py"]) == 2  # and not that it is one of several processes
    assert "-n from 1" in capsys.readouterr().err
    command = launch._launcher(parser().parse_args(["launch", "-n", "4", "script.py"]), "4")
    assert command[-2:] == ["--machine", "1,3,digits-node-0-0,29500"]


def test_the_launchers_of_two_machines_start_one_job(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, ampkit, ampkit.distributed as dist\n"
        "dist.init_process_group('sockets')\n"
        "x = ampkit.tensor([float(dist.get_rank())])\n"
        "dist.all_reduce(x)\n"
        "open(f'{sys.argv[1]}/{dist.get_rank()}', 'w').write(f'{x.item()} {dist.get_world_size()}')\n"
    )
    port, command = free_port(), [sys.executable, str(script), str(tmp_path)]
    jobs = [Ranks(1, command, (place, 2, "127.0.0.1", port)) for place in range(2)]
    assert [job.wait() for job in jobs] == [0, 0]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["1.0 2", "1.0 2"]
