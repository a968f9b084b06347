"""The scripts of docs/trainer.md: at most 30 lines each, and killed and started again they end with the same bits."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ampkit

PAGE = (Path(__file__).parents[3] / "docs" / "trainer.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(TRAINER,) = [block for block in BLOCKS if "ampkit.Trainer(" in block]
(OWN_LOOP,) = [block for block in BLOCKS if "ampkit.setup(" in block]
KILLED = """
import os, signal, sys
from ampkit import ops
calls, plain = [], ops.cross_entropy
def counted(*arguments):
    calls.append(1)
    if len(calls) == 70:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments)
ops.cross_entropy = counted
exec(compile(open(sys.argv[1]).read(), "page", "exec"), {"__name__": "page"})
"""


def bits(source, folder, monkeypatch):
    """Run a script in a folder -> the weights that it ends with, and the random state."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    names = {"__name__": "page"}
    exec(compile(source, "page", "exec"), names)
    trained, digest = names.get("run") or names["trainer"], hashlib.sha256()
    for module in (trained.model, trained.average.module):
        for value in module.state_dict().values():
            digest.update(value.numpy(force=True).tobytes())
    return digest.hexdigest(), trained.done, ampkit.get_rng_state()


def rows(folder):
    (path,) = folder.glob("runs/*/metrics.jsonl")
    found = map(json.loads, path.read_text().splitlines())
    return [{name: value for name, value in row.items() if name not in ("seconds", "memory")} for row in found]


@pytest.mark.parametrize("source", [TRAINER, OWN_LOOP], ids=["trainer", "own loop"])
def test_a_script_with_all_of_it_has_at_most_30_lines(source):
    lines = [line for line in source.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 30, len(lines)


@pytest.mark.cpu
@pytest.mark.parametrize("source", [TRAINER, OWN_LOOP], ids=["trainer", "own loop"])
def test_a_script_that_is_killed_and_started_again_ends_with_the_same_bits(source, tmp_path, monkeypatch):
    killed = tmp_path / "killed"
    killed.mkdir()
    (tmp_path / "page.py").write_text(source)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "page.py")]
    ended = subprocess.run(command, cwd=killed, capture_output=True, check=False, timeout=120)
    assert ended.returncode == -9, ended.stderr
    assert list(killed.rglob("*.safetensors"))
    assert bits(source, killed, monkeypatch) == bits(source, tmp_path / "whole", monkeypatch)
    assert rows(killed) == rows(tmp_path / "whole")
