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


SPAWNS = """
import torch, torch.multiprocessing as mp

def work(rank, path):
    with open(f"{path}.{rank}", "w") as file:
        file.write(f"{torch.__version__} {__name__}")

if __name__ == "__main__":
    mp.spawn(work, args=(__file__,), nprocs=1)
    print(torch.multiprocessing.current_process().name)
"""


def test_processes_that_a_script_spawns_have_the_alias_too(tmp_path):
    script = tmp_path / "with.dots.py"
    script.write_text(SPAWNS)
    done = run(script)
    assert (done.stderr, done.returncode) == ("", 0)
    assert (tmp_path / "with.dots.py.0").read_text() == "2.13.0 __mp_main__"


def test_a_module_runs_as_python_runs_it(tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text("import torch\nversion = torch.__version__\n")
    (package / "__main__.py").write_text("import sys\nfrom .part import version\nprint(__name__, version, sys.argv)\n")
    done = run("-m", "pack", "--x", cwd=tmp_path)
    assert (done.stderr, done.stdout) == ("", f"__main__ 2.13.0 ['{package / '__main__.py'}', '--x']\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["none.py"], "can't open file"),
        (["-m", "no_such_module"], "No module named no_such_module"),
        ([], "usage: python -m ampkit.as_torch SCRIPT"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_program_that_is_not_there_is_one_line(arguments, line, run_aliased):
    code = f"""
import contextlib, sys
from ampkit.as_torch.run import main
sys.argv = ["ampkit.as_torch", *{arguments}]
with contextlib.redirect_stderr(sys.stdout):
    try:
        main()
    except SystemExit as stop:
        print(stop.code)
"""
    first, *_, status = run_aliased(code)
    assert line in first and status == "2"


def test_a_traceback_shows_the_script_alone(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("def f():\n    raise ValueError('no')\nf()\n")
    done = run(script)
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == (plain.stderr, 1)


@pytest.mark.parametrize(
    ("error", "helped"),
    [
        ("ImportError('libtorch_cuda.so: cannot open shared object file', name='mine._C')", True),
        ("ImportError('/a/_C.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jS2_', name='mine._C')", True),
        ("ImportError('/a/_C.so: undefined symbol: _ZNK2at4Tensor3sumEv', name='mine._C')", True),
        ("ImportError('/a/_C.so: undefined symbol: sqrtf', name='mine._C')", False),
        ("ImportError('mine needs torch>=2.20')", False),
    ],
)
def test_a_library_compiled_for_pytorch_is_named_with_the_cure(error, helped, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"raise {error}\n")
    done = run(script)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("help: mine._C is compiled for PyTorch's C++ libraries") == helped
