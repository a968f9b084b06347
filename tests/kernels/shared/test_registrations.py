"""What has kernels on both backends is registered once, in kernels/shared, by closures over functions of a backend."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import ampkit.kernels
from ampkit.backends.launch_queue import queue
from ampkit.core.dispatch import Kernel, Primitive

FOLDER = Path(ampkit.kernels.__file__).parent
BACKEND_FOLDER = FOLDER.parent / "backends"
BACKENDS = "cpu", "cuda"
REGISTER = {"on", "on_backward", "on_small_backward"}  # the functions that pass a registration on

# Of these the kernel is a loop, called as the primitive is: it saves nothing, and what surrounds it is a predicate.
LOOPS = {
    *("count_exponents", "count_lost_updates", "unscale", "narrow", "power_sum", "scale_gradients", "quantize"),
    *("lstm_step", "lstm_step_backward", "gru_step", "gru_step_backward", "column_sums", "update_running_statistics"),
    *("encode", "decode"),  # of formats; of moments in 8 bits they look up a table
    *("layer_norm_backward", "rms_norm_backward", "group_norm_backward"),
}
# Of these CUDA has a kernel of its own in front of the shared one: updates that compute the scalars, and a product that
# cublasLt fuses with GELU.
FUSED_ON_CUDA = {"update", "linear_gelu_linear", "linear_gelu_linear_backward"}


def folder_of(path: str, root: Path = FOLDER) -> str | None:
    """`shared`, `cpu` or `cuda` of a file below `root`, else None."""
    found = Path(path)
    return found.relative_to(root).parts[0] if found.is_relative_to(root) else None


def home_of(run) -> str | None:
    """The backend whose file defines a kernel's function, or else None or `shared`."""
    code = getattr(run, "__code__", None)
    if code is None:  # a function of the CPU's compiled library
        return "cpu"
    return folder_of(code.co_filename) or folder_of(code.co_filename, BACKEND_FOLDER)


def caller() -> str:
    """The folder of the file that registers a kernel by what is running."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in REGISTER or folder_of(frame.f_code.co_filename) is None:
        frame = frame.f_back
    return folder_of(frame.f_code.co_filename)


@pytest.fixture
def registered(monkeypatch):
    """By primitive and backend: where each kernel is registered, and where its function stands.

    The files of kernels are imported anew, beside the modules that dispatch has loaded, which stay as they are.
    """
    found = defaultdict(lambda: defaultdict(list))

    def on(self, backend, *args, **options):
        site = caller()

        def record(run):
            found[self][backend].append((site, home_of(run)))
            return Kernel(run, None)

        return record

    monkeypatch.setattr(Primitive, "on", on)
    monkeypatch.setattr(queue, "cpu", queue.cpu)
    for name in [each for each in sys.modules if each.startswith("ampkit.kernels.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("shared", *BACKENDS):
        monkeypatch.setattr(ampkit.kernels, name, None, raising=False)
    for backend in BACKENDS:
        for path in sorted((FOLDER / backend).rglob("*.py")):
            importlib.import_module(".".join(["ampkit.kernels", *path.relative_to(FOLDER).with_suffix("").parts]))
    for name in [each for each in sys.modules if each.startswith("ampkit.kernels.")]:
        del sys.modules[name]
    return {primitive: kernels for primitive, kernels in found.items() if set(BACKENDS) <= kernels.keys()}


def test_nothing_is_registered_in_a_file_of_each_backend(registered):
    def has_own(kernels):
        return all(any(site == backend for site, _ in kernels[backend]) for backend in BACKENDS)

    assert [primitive.name for primitive, kernels in registered.items() if has_own(kernels)] == []
    assert len(registered) > 60


def test_what_surrounds_a_loop_stands_once(registered):
    def are_loops(kernels):
        return all(any(home == backend for _, home in kernels[backend]) for backend in BACKENDS)

    found = {primitive.name for primitive, kernels in registered.items() if are_loops(kernels)}
    assert found == LOOPS


def test_kernels_of_cuda_alone_in_front_of_the_shared_ones(registered):
    own = {p.name: [site for site, _ in kernels["cuda"]] for p, kernels in registered.items()}
    assert {name for name, sites in own.items() if {"shared", "cuda"} <= set(sites)} == FUSED_ON_CUDA
    assert all(sites[-1] == "shared" for sites in own.values())
