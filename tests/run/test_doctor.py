"""The doctor: looks at everything and never fails."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_on_cpu import emulated, emulated_cupy, emulator, memory, streams

import ampkit
from ampkit import backends
from ampkit.backends.cuda import detection as finding
from ampkit.backends.cuda import device, install
from ampkit.backends.cuda.detection import why_not
from ampkit.backends.cuda.install import EXTRAS
from ampkit.run import doctor

CUDA12, CUDA13 = install.command(12), install.command(13)


def test_every_needed_package_is_found_where_the_tests_run():
    found = {finding.topic: finding for finding in doctor.examine()}
    assert {found[name].state for name in ("numpy", "ml_dtypes", "safetensors", "pydantic", "rich")} == {"ok"}


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(doctor, "_NEEDED", ("surely-not-there",))
    wanted = doctor.Finding("surely-not-there", "missing", "not installed", "pip install surely-not-there")
    assert wanted in doctor.examine()


@pytest.mark.parametrize(
    ("used", "load", "state", "cure"),
    [
        (2, 0.5, "ok", None),
        (2, 7.5, "note", "other processes compete for the CPUs: train.threads=1"),
        (1, 7.5, "note", "ampkit.set_num_threads"),
    ],
)
def test_threads_beside_other_work_are_a_note(used, load, state, cure, monkeypatch):
    monkeypatch.setattr(doctor.threads, "get_num_threads", lambda: used)
    monkeypatch.setattr(doctor.threads, "usable_cpus", lambda: 2)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (load, load, load))
    finding = {finding.topic: finding for finding in doctor.examine()}["threads"]
    assert finding.state == state
    assert (finding.cure or "").startswith(cure or "")
    assert ("load of 7.5" in finding.found) == (used > 1 and load > 2)


def test_a_look_that_fails_becomes_a_note_and_the_others_go_on(monkeypatch):
    def _broken():
        raise OSError("no such file")
        yield

    monkeypatch.setattr(doctor, "_EXAMINATIONS", (_broken, *doctor._EXAMINATIONS))
    first, *others = doctor.examine()
    assert first == doctor.Finding("broken", "note", "could not be examined: no such file")
    assert others


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_a_system_that_was_never_tried_is_said_to_be_untried(monkeypatch, system):
    monkeypatch.setattr(doctor.platform, "system", lambda: system)
    found = {finding.topic: finding for finding in doctor.examine()}
    assert "untried" in found["system"].cure
    assert "untried" in found["CPU"].cure


def test_instructions_that_ampkit_does_not_use_are_not_sold_as_speed(monkeypatch):
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(doctor.cpuinfo, "flags", lambda: {"fpu", "amx_bf16", "avx512_fp16"})
    monkeypatch.setattr(doctor.library, "has_fast_matmul", lambda dtype: False)
    found = {finding.topic: finding for finding in doctor._cpu()}
    assert found["bfloat16 on the CPU"].found == "amx_bf16 (AMX)"
    assert found["float16 on the CPU"].found == "avx512_fp16 (AVX-512)"
    assert {found["bfloat16 on the CPU"].state, found["float16 on the CPU"].state} == {"note"}


def test_without_a_driver_there_is_nothing_to_install(monkeypatch):
    monkeypatch.setattr(install, "driver", lambda: None)
    monkeypatch.setattr(doctor, "_cupy", lambda: None)
    found = {finding.topic: finding for finding in doctor._cuda()}
    assert (found["NVIDIA driver"].state, found["CuPy"].state) == ("note", "note")


@pytest.mark.parametrize(
    ("driver", "cure"),
    [
        ("12.8", CUDA12),
        ("13.0", CUDA13),
        ("14.1", CUDA13),
        ("11.4", f"a driver for CUDA 12 or newer, and then {CUDA12}"),
    ],
)
def test_with_a_driver_an_extra_that_there_is_and_that_it_runs_is_named(driver, cure, monkeypatch):
    monkeypatch.setattr(install, "driver", lambda: driver)
    monkeypatch.setattr(doctor, "_cupy", lambda: None)
    found = {finding.topic: finding for finding in doctor._cuda()}
    assert found["CuPy"].cure == cure
    written = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert {f"cuda{major}" for major in EXTRAS} < written["project"]["optional-dependencies"].keys()


def test_what_is_missing_beside_cupy_is_that_of_cupy_s_cuda(monkeypatch):
    undo = backends.install(emulated())
    monkeypatch.setattr(install, "driver", lambda: "13.0")
    monkeypatch.setattr(doctor, "_cupy", lambda: "cupy-cuda12x 14.2.0")
    monkeypatch.setattr(type(backends.get("cuda").cudnn), "unavailable_reason", lambda self: "none", raising=False)
    found = {finding.topic: finding for finding in doctor._cuda()}
    undo()
    assert found["cuDNN"].cure == CUDA12


def test_a_gpu_is_described_with_its_libraries(monkeypatch):
    undo = backends.install(emulated())
    monkeypatch.setattr(doctor, "_cupy", lambda: "cupy 14.2.0")
    found = {finding.topic: finding for finding in doctor._cuda()}
    undo()
    assert found["GPU"].found == "an emulated GPU, compute capability 9.0, 80.0 GiB"
    assert {"cublasLt", "cuDNN"} <= found.keys()
    assert found["products below 16 bits"].found == "int8: int8 units, sums in int32"


@pytest.mark.parametrize(
    ("kernels", "fast", "integers", "said"),
    [
        (
            "x86-64-v4",
            True,
            True,
            "compiled kernels, products in bfloat16, in 16-bit units; int8: products of integers",
        ),
        ("x86-64-v3", False, True, "compiled kernels, products in float32; int8: products of integers, by oneDNN"),
        (None, False, False, "NumPy's references, products in float32; int8: products in float64, by NumPy"),
    ],
)
def test_recipes_below_16_bits_are_told_by_what_runs_them(kernels, fast, integers, said, monkeypatch):
    monkeypatch.setattr(doctor.native, "instruction_set", lambda: kernels)
    monkeypatch.setattr(doctor.library, "has_fast_matmul", lambda dtype: fast)
    monkeypatch.setattr(doctor.library, "has_exact_int8", lambda: integers)
    (found,) = doctor._recipes()
    assert found.state == "ok" and said in found.found


@pytest.mark.parametrize(
    ("driver", "runtime", "devices", "needs", "cure"),
    [
        (0, 13000, 0, "NVIDIA's driver", "train on the CPU"),
        (12080, 13000, 1, "CuPy for the driver's CUDA", f"{CUDA12}, or a newer driver"),
        (11040, 13000, 1, "CuPy for the driver's CUDA", "a driver for CUDA 12 or newer, and then"),
        (13000, 13000, 0, "a GPU", "nvidia-smi"),
    ],
)
def test_why_a_gpu_cannot_be_used_is_one_line_with_its_cure(monkeypatch, driver, runtime, devices, needs, cure):
    for name, value in (("driverGetVersion", driver), ("runtimeGetVersion", runtime)):
        monkeypatch.setattr(emulated_cupy.cuda.runtime, name, lambda value=value: value)
    monkeypatch.setattr(emulated_cupy.cuda, "is_available", lambda: bool(devices))
    found = why_not(emulated_cupy)
    assert found[0] == needs
    assert cure in found[2]


def test_an_old_card_is_refused(monkeypatch):
    monkeypatch.setattr(emulated_cupy.cuda.Device, "compute_capability", "70")
    assert why_not(emulated_cupy)[1] == "one of compute capability 7.0"


class CUDADriverError(RuntimeError):
    """Named as CuPy's."""


NO_HEADER = """/tmp/k.cu(1): warning #1: strange
storage.cuh(16): catastrophic error: cannot open source file "cuda_fp16.h"

1 catastrophic error detected in the compilation of "/tmp/k.cu"."""


@pytest.mark.parametrize(
    ("error", "needs", "said", "cure"),
    [
        (RuntimeError(NO_HEADER), "NVIDIA's run-time compiler", 'cannot open source file "cuda_fp16.h"', "cuda13"),
        (ImportError("libnvrtc.so.13: cannot open"), "NVIDIA's run-time compiler", "libnvrtc.so.13", "cuda13"),
        (CUDADriverError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), "a GPU", "OUT_OF_MEMORY", "nvidia-smi"),
        (CUDADriverError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image"), "a GPU", "NO_BINARY_FOR_GPU", "nvidia-smi"),
    ],
)
def test_a_gpu_that_no_kernel_can_be_compiled_for_says_what_to_install(error, needs, said, cure, monkeypatch):
    def module(**given):
        assert given["code"].startswith('#include "')
        raise error

    monkeypatch.setattr(emulated_cupy, "RawModule", module)
    found = why_not(emulated_cupy)
    assert found[0].startswith(needs)
    assert said in found[1]
    assert "\n" not in found[1]
    assert cure in found[2]


@pytest.mark.parametrize("name", ["driverGetVersion", "runtimeGetVersion", "getDeviceCount"])
def test_a_runtime_that_raises_is_one_line_too(name, monkeypatch):
    def broken():
        raise RuntimeError("CuPy failed to load libcudart.so.13: OSError: libcudart.so.13: cannot open\n\nsee the docs")

    monkeypatch.setattr(emulated_cupy.cuda.runtime, name, broken)
    assert why_not(emulated_cupy)[1].startswith("CuPy failed to load libcudart.so.13")


def test_two_of_cupy_are_one_line_that_names_both(monkeypatch):
    installed = {"cupy-cuda12x": "14.0.0", "cupy-cuda13x": "14.0.0"}
    monkeypatch.setattr(finding, "find_distribution", installed.__contains__)
    needs, found, cure = finding.two_of_cupy()
    assert (needs, found) == ("one CuPy", "cupy-cuda12x and cupy-cuda13x")
    assert cure.startswith(f"pip uninstall cupy-cuda12x cupy-cuda13x, and then {CUDA13}")
    del installed["cupy-cuda12x"]
    assert finding.two_of_cupy() is None


def test_an_old_card_beside_a_new_one_is_refused_by_its_number_alone(monkeypatch):
    with streams.devices(2):
        capability = property(lambda card: "70" if card.id else "90")
        monkeypatch.setattr(emulated_cupy.cuda.Device, "compute_capability", capability)
        undo = backends.install(emulated())
        with pytest.raises(ampkit.DeviceError, match=r"^cuda:1: needs a GPU of compute capability 7.5 or newer"):
            ampkit.zeros(1, device="cuda:1")
        assert ampkit.zeros(1, device="cuda").device == "cuda:0"
        undo()


def test_a_card_whose_memory_others_hold_is_one_line_and_another_can_be_named(monkeypatch):
    monkeypatch.setattr(device.importlib, "import_module", lambda name: emulated_cupy)
    with streams.devices(2):
        streams.full.add(1)
        memory.current.device = 0
        with pytest.raises(ampkit.DeviceError, match=r"a GPU that loads a kernel, got .*of memory\nhelp: .*'cuda:1'"):
            device.connect(1)
        assert device.connect(0).device == device.connect().device == "cuda:0"


def test_a_number_beyond_the_last_card_is_told_before_any_is_asked(monkeypatch):
    monkeypatch.setattr(device.importlib, "import_module", lambda name: emulated_cupy)
    with pytest.raises(ampkit.DeviceError, match=r"^cuda: needs cuda:0, got cuda:3\nhelp: .*CUDA_VISIBLE_DEVICES"):
        device.connect(3)


def test_cupy_that_does_not_import_is_one_line(monkeypatch):
    said = """
================================================================
Failed to import CuPy.

If you installed CuPy via wheels (cupy-cudaXXX), make sure that the package matches with the version of CUDA.

Original error:
  ImportError: libcublas.so.13: cannot open shared object file
================================================================
"""

    def broken(name):
        raise ImportError(said)

    monkeypatch.setattr(device.importlib, "import_module", broken)
    monkeypatch.setattr(install, "driver", lambda: "12.8")
    with pytest.raises(ampkit.DeviceError) as told:
        device.connect()
    assert str(told.value).splitlines() == [
        "cuda: needs CuPy, got none: ImportError: libcublas.so.13: cannot open shared object file",
        f"help: {CUDA12}",
    ]
    monkeypatch.setattr(install, "driver", lambda: None)
    with pytest.raises(ampkit.DeviceError) as told:
        device.connect()
    assert str(told.value).splitlines() == [
        "cuda: needs a GPU with NVIDIA's driver, got a machine without",
        f"help: train on the CPU; on a machine with a GPU: NVIDIA's driver, and {CUDA13}",
    ]


def test_the_command_that_installs_an_extra_is_one_that_exists(monkeypatch, tmp_path):
    root = Path(__file__).parents[2]
    monkeypatch.setattr(install, "source", install.source.__wrapped__)  # asked anew each time
    assert install.command(13) == f"pip install -e '{root}[cuda13]'"
    monkeypatch.setattr(install, "__file__", str(tmp_path / "site-packages/ampkit/backends/cuda/install.py"))
    origin = json.dumps({"url": (root / "no folder").as_uri()})
    monkeypatch.setattr(install.metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: origin))
    assert install.command(12) == "pip install 'ampkit[cuda12]'"
    origin = json.dumps({"url": root.as_uri(), "dir_info": {}})
    assert install.command(12) == f"pip install -e '{root}[cuda12]'"


@pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
@pytest.mark.parametrize("mine", [12080, 13000])  # a driver runs what is for an older CUDA
def test_where_kernels_compile_nothing_is_wrong(mine, monkeypatch):
    monkeypatch.setattr(emulated_cupy.cuda.runtime, "runtimeGetVersion", lambda: mine)
    assert why_not(emulated_cupy) is None
