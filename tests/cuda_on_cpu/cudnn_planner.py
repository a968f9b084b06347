"""cuDNN's plans for an H100 on a machine without a GPU.

`plan` runs this file in a process of its own, with the library of no_driver.c in LD_LIBRARY_PATH. The properties of the
device (h100.json) are those of a card, from `cudnn.create_device_properties(0).serialize()` of cuDNN 9.19, and three
that only later versions list. Needs nvidia-cudnn-frontend, and NVIDIA's wheels of cuDNN and NVRTC; `missing` says what
is not there.

What a card would choose may be another engine: some ask the driver for its processors, and are not for this.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import pickle
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

HERE = Path(__file__).parent


def folders() -> list[Path]:
    """The folders of NVIDIA's libraries that this environment has."""
    spec = importlib.util.find_spec("nvidia")
    roots = (spec.submodule_search_locations or []) if spec else []
    return [folder for root in roots for folder in Path(root).glob("*/lib")]


def missing() -> str:
    """Why nothing can be planned here; "" if it can."""
    if importlib.util.find_spec("cudnn") is None:
        return "no nvidia-cudnn-frontend"
    if shutil.which("gcc") is None:
        return "no gcc, for the stand-in of the driver"
    for name in ("libcudnn.so.9", "libnvrtc.so.13"):
        if not any((folder / name).exists() for folder in folders()):
            return f"no {name} among {[str(f) for f in folders()]}"
    return ""


def plan(signatures: list[Any], folder: Path, compiles: bool = False) -> list[dict[str, Any]]:
    """Per signature of `backends.cuda.plans`: engines, how many, or the one that was compiled; or why it is refused.

    compiles: whether plans are made ready to run, which takes a second or two each for some.
    """
    return _run("engines" if not compiles else "compiled", signatures, folder)


def workspaces(signatures: list[Any], folder: Path) -> list[list[int]]:
    """Per AttentionBackward: the bytes of workspace of each call that its gradients are computed by."""
    return [found["calls"] for found in _run("calls", signatures, folder)]


def _run(what: str, signatures: list[Any], folder: Path) -> list[dict[str, Any]]:
    _build_driver(folder)
    packages = [HERE.parents[1], *filter(None, [os.environ.get("PYTHONPATH")])]
    paths = {"LD_LIBRARY_PATH": [folder, *folders()], "PYTHONPATH": packages}
    run = subprocess.run(
        [sys.executable, __file__],
        input=pickle.dumps((what, signatures)),
        capture_output=True,
        check=False,
        timeout=300,
        env={**os.environ, **{name: ":".join(map(str, found)) for name, found in paths.items()}},
    )
    assert run.returncode == 0, run.stderr.decode()[-4000:]
    return [json.loads(line) for line in run.stdout.decode().splitlines() if line.startswith("{")]


def _build_driver(folder: Path) -> None:
    """Compile libcuda.so.1 into `folder`: no_driver.c, and an alias of its no_device per other driver function."""
    source = HERE / "no_driver.c"
    defined = set(re.findall(r"^int (cu\w+)\(", source.read_text(), re.MULTILINE))
    absent = [f"-Wl,--defsym={name}=no_device" for name in sorted(driver_functions() - defined)]
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", source, *absent], check=True)


@cache
def driver_functions() -> set[str]:
    """The names of the driver's functions in the installed cuDNN: those it is linked to, and those it looks up by name.

    They are read from the libraries, since no list can know those of the next release. Others do no harm.
    """
    names: set[bytes] = set()
    for path in (path for folder in folders() for path in folder.glob("libcudnn*.so.*")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            names.update(re.findall(rb"(cu[A-Z]\w{3,})\0", held))
    return {name.decode() for name in names}


def _main() -> None:
    import cudnn

    from ampkit.backends.cuda.libs.cudnn_graphs import Planner

    device = cudnn.create_device_properties((HERE / "h100.json").read_text())
    planner = Planner(cudnn, device_property=device, sm_version=90, sm_count=132)
    what, signatures = pickle.load(sys.stdin.buffer)
    for signature in signatures:
        sys.stdout.write(json.dumps(_ASKED[what](planner, signature)) + "\n")


def _engines(planner: Any, what: Any) -> dict[str, Any]:
    try:
        return {"engines": planner.graph(what).get_execution_plan_count()}
    except (planner.cudnn.cudnnGraphNotSupportedError, RuntimeError) as refusal:
        return {"refused": str(refusal)[:400]}


def _compiled(planner: Any, what: Any) -> dict[str, Any]:
    try:
        made = planner.plan(what)
        return {"engine": made.graph.get_plan_name_at_index(0), "workspace": made.workspace}
    except (planner.cudnn.cudnnGraphNotSupportedError, RuntimeError) as refusal:
        return {"refused": str(refusal)[:400]}


def _calls(planner: Any, what: Any) -> dict[str, Any]:
    """The calls that `slices` makes of `Cudnn`, which plans them and starts none."""
    from ampkit import use_deterministic_algorithms
    from ampkit.backends.cuda.libs import attention_slices, cudnn

    found: list[int] = []
    runtime = SimpleNamespace(getDevice=lambda: 0)
    library: Any = cudnn.Cudnn(SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    library._planner = lambda device: planner
    library._execute = lambda device, plan, addresses: found.append(plan.workspace)
    use_deterministic_algorithms(what.deterministic)
    a, placed = what.forward, Placed.of
    call = cudnn.AttentionArrays(
        *map(placed, (a.query, a.key, a.value)), a.bias and placed(a.bias), None, placed(a.out), placed(a.lse),
        a.causal, a.scale, placed(what.dout), tuple(map(placed, what.gradients)),
    )  # fmt: skip
    assert attention_slices.attention_backward(library, call), library.refused
    return {"calls": found}


class Placed:
    """An array of a device that is not there: its layout and an address."""

    def __init__(self, held: Any):
        self._numpy, self.shape, self.strides, self.dtype = held, held.shape, held.strides, held.dtype
        self.data = SimpleNamespace(ptr=held.ctypes.data & -16, device_id=0)

    @classmethod
    def of(cls, layout: Any) -> Placed:
        steps = [step * layout.dtype.itemsize for step in layout.strides]
        held = np.empty(sum((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True)) + 1, layout.dtype)
        return cls(np.lib.stride_tricks.as_strided(held, layout.shape, steps))

    def __getitem__(self, index: Any) -> Placed:
        return Placed(self._numpy[index])


_ASKED = {"engines": _engines, "compiled": _compiled, "calls": _calls}


if __name__ == "__main__":
    _main()
