"""`python -m ampkit.as_torch`: programs for PyTorch run on ampkit, as Python runs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu


def run(*arguments, cwd=None):
    command = [sys.executable, "-m", "ampkit.as_torch", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


SCRIPT = """
import sys, torch, torch.nn as nn, torch.nn.functional as F
from torch.amp import GradScaler
from torch.optim.lr_scheduler import StepLR

torch.backends.cudnn.benchmark = True
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = GradScaler("cpu", init_scale=4.0)
with torch.autocast("cpu"):
    loss = F.cross_entropy(model(torch.ones(3, 2)), torch.tensor([0, 1, 1]))
scaler.scale(loss).backward()
scaler.step(optimizer)
print(__name__, sys.argv[1:], __file__, sys.path[0], torch.__version__)
raise SystemExit(3)
"""


def test_a_script_runs_as_python_runs_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run("train.py", "--lr", "0.1", cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 3)
    assert done.stdout == f"__main__ ['--lr', '0.1'] {script} {tmp_path} 2.13.0\n"


def test_a_traceback_shows_the_script_alone(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("def f():\n    raise ValueError('no')\nf()\n")
    done = run(script)
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == (plain.stderr, 1)
