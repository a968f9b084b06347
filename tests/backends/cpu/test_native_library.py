"""The compiled kernels: what is loaded on which CPU, what is refused, and the threads that they run on."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ampkit.backends.cpu.native import build, library, numpy_arrays

pytestmark = pytest.mark.cpu
needs_library = pytest.mark.skipif(library.library() is None, reason=library.unavailable_reason())
ROOT = Path(__file__).parents[3]


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A copy of the built libraries that a test may damage."""
    folder = tmp_path / "lib"
    shutil.copytree(build.LIBRARIES, folder)
    monkeypatch.setattr(build, "LIBRARIES", folder)
    monkeypatch.setattr(build.read_manifest, "__defaults__", (folder,))
    monkeypatch.setenv("AMPKIT_CPU_ISA", library.instruction_set())
    return folder


def reason() -> str:
    """Why a library would not be loaded now; nothing that is cached."""
    return library._load.__wrapped__()[2]


@needs_library
def test_a_whole_library_is_loaded(built):
    assert reason() == ""


@needs_library
@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_truncated_library_is_not_loaded(built, length):
    name = build.library_name(library.instruction_set())
    (built / name).write_bytes((built / name).read_bytes()[:length])
    assert f"{name} is damaged" in reason()


@needs_library
def test_a_library_of_other_sources_is_not_loaded(built, monkeypatch):
    monkeypatch.setattr(build, "digest", lambda: "another")
    assert "built from other sources" in reason()


@needs_library
@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"sources": 1}'])
def test_a_damaged_manifest_counts_as_not_built(built, manifest):
    (built / build.MANIFEST).write_text(manifest)
    assert "they are not built" in reason()


@needs_library
def test_without_a_folder_nothing_is_loaded_and_the_cure_is_named(built):
    shutil.rmtree(built)
    assert re.search(r"not built: `python .*build.py`, with Clang", reason())


@needs_library
def test_an_instruction_set_can_be_chosen(built, monkeypatch):
    monkeypatch.setenv("AMPKIT_CPU_ISA", "none")
    assert reason() == "switched off by AMPKIT_CPU_ISA=none"
    monkeypatch.setenv("AMPKIT_CPU_ISA", "avx9")
    assert re.search(r"AMPKIT_CPU_ISA: needs one of .* or none, got avx9", reason())


@needs_library
def test_a_cpu_without_avx_gets_the_plain_library(built, monkeypatch):
    monkeypatch.delenv("AMPKIT_CPU_ISA")
    monkeypatch.setattr(library.cpuinfo, "flags", lambda: {"sse2"})
    plain = build.instruction_sets()[0]
    found = library._load.__wrapped__()
    assert found[1] == plain or f"{build.library_name(plain)}" not in build.read_manifest()


def test_nothing_is_built_without_a_compiler(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "compiler", lambda: None)
    assert not build.build(tmp_path / "lib")
    assert "no Clang was found" in capsys.readouterr().err
    assert not (tmp_path / "lib").exists()


@pytest.mark.skipif(not build.instruction_sets(), reason="no kernels for this machine")
def test_the_compilers_messages_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "compiler", lambda: [sys.executable, "-c", "import sys; sys.exit('no such option')"])
    with pytest.raises(RuntimeError, match="do not compile, the compiler ended with status 1: .*\nno such option"):
        build.build(tmp_path / "lib", quiet=True)


_LETTERS = {
    "Array": "a",
    "const NumpyArray*": "a",
    "const PythonTuple*": "t",
    "int64": "i",
    "uint64_t": "u",
    "float": "f",
    "double": "d",
}


def test_python_declares_each_function_as_the_source_defines_it():
    defined = {}
    for path in build.sources():
        for how, name, parameters in re.findall(r"(EXPORT|static) \w+\*? (\w+)\(([^)]*)\)", text := path.read_text()):
            if how == "EXPORT" or f"\nKERNEL({name})\n" in text:
                kinds = [parameter.strip().rpartition(" ")[0] for parameter in parameters.split(",")]
                defined[name] = "".join(_LETTERS.get(kind, "p") for kind in kinds)
    declared = {}
    for path in (ROOT / "ampkit" / "backends" / "cpu").rglob("*.py"):
        declared |= dict(re.findall(r'Function\(\s*"(\w+)",\s*"(\w*)"', path.read_text()))
    assert len(declared) >= 3
    assert {name: defined.get(name) for name in declared} == declared


def read_by_the_library(array):
    read, fields = numpy_arrays.entry(library.library(), "read_array"), (ctypes.c_int64 * 8)()
    read.argtypes, read.restype = [ctypes.py_object, ctypes.c_void_p], None
    read(array, fields)
    return [*fields]


@needs_library
def test_a_kernel_reads_the_data_the_dtype_the_sizes_and_the_strides_of_an_array():
    for dtype, kind in numpy_arrays.KINDS.items():
        view = np.zeros((4, 6, 8), dtype)[:, ::2].transpose(2, 0, 1)
        assert read_by_the_library(view) == [view.ctypes.data, kind, 8, 4, 3, 1, 48, 16]
        row = np.zeros(5, dtype)
        assert read_by_the_library(row) == [row.ctypes.data, kind, 1, 1, 5, 0, 0, 1]
        assert read_by_the_library(np.broadcast_to(row[:1], (7,)))[2:] == [1, 1, 7, 0, 0, 0]
        number = np.zeros((), dtype)
        assert read_by_the_library(number) == [number.ctypes.data, kind, 1, 1, 1, 0, 0, 0]
    assert read_by_the_library(None) == [0, 0, 1, 1, 1, 0, 0, 0]
    assert read_by_the_library(np.zeros(2, np.longlong))[1] == numpy_arrays.KINDS[np.dtype(np.int64)]
    mapped = np.zeros(3, np.float32).view(np.memmap)
    assert read_by_the_library(mapped)[0] == mapped.ctypes.data


@needs_library
def test_a_library_that_reads_arrays_otherwise_is_not_used(built, monkeypatch):
    monkeypatch.setattr(numpy_arrays, "expected_fields", lambda array: [0] * 8)
    assert reason() == "they cannot read the arrays of this NumPy"


PROGRAM = """
import os, hashlib
import numpy as np
import ampkit
from ampkit.backends.cpu import threads
def result():
    x = ampkit.tensor(np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32))
    y = ampkit.ops.log_softmax(x, -1)
    values = [y, y.sum(), y.std(), ampkit.ops.layer_norm(x, 1000), x.sum(0), ampkit.ops.gelu(x.t())]
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in values)).hexdigest()
found = set()
for count in (1, 2, 5, 2):
    threads.set_num_threads(count)
    found.add(result())
child = os.fork()
if child == 0:
    os._exit(0 if {result()} == found else 1)
assert os.waitpid(child, 0)[1] == 0
assert {result()} == found and len(found) == 1, found
"""


@needs_library
@pytest.mark.parametrize("without_onednn", [False, True], ids=["OpenMP", "own threads"])
def test_bits_do_not_depend_on_threads_nor_on_a_fork(without_onednn):
    hide = "from ampkit.backends.cpu.onednn import library\nlibrary._load = lambda: (None, 'hidden')\n"
    program = (hide if without_onednn else "") + PROGRAM
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], timeout=60, capture_output=True, env={**os.environ}, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr.decode()


SHORT_OF_MEMORY = """
import resource
import numpy as np
from ampkit.kernels.cpu.reduction.sorting import _sort_rows
row = np.arange(4_000_000, dtype=np.float32)[None, None, ::-1]
values, places = np.zeros(row.shape, np.float32), np.zeros(row.shape, np.int64)
_sort_rows(values[..., :2000], places[..., :2000], row[..., -2000:], 0)
pages, limits = int(open("/proc/self/statm").read().split()[0]), resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (8 << 20), limits[1]))
try:
    _sort_rows(values, places, row, 0)
except MemoryError as error:
    assert "sort_rows: needs memory" in str(error), error
else:
    raise AssertionError("64 MB were there")
resource.setrlimit(resource.RLIMIT_AS, limits)
_sort_rows(values, places, row, 0)
assert (values == row[..., ::-1]).all()
"""


@needs_library
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are Linux's")
def test_a_kernel_that_finds_no_memory_raises_and_works_again_when_there_is_some():
    environment = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1"}
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY], timeout=60, capture_output=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture
def compiles(tmp_path, monkeypatch):
    """Lets a small program stand for the compiler, with a cache in tmp_path -> the sets that it compiled, in order."""
    log = tmp_path / "compiled.txt"
    program = "import sys; a = sys.argv[1:]\nif a == ['--version']: print('compiler 1'); sys.exit()\n" + (
        f"open({str(log)!r}, 'a').write(a[-1] + '\\n'); open(a[-1], 'w').write('code of ' + a[-1][-12:])"
    )
    monkeypatch.setattr(build, "compiler", lambda: [sys.executable, "-c", program])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CXX", "CXXFLAGS", "AMPKIT_BUILD_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    return lambda: sorted(Path(line).name for line in log.read_text().splitlines()) if log.exists() else []


NAMES = sorted(map(build.library_name, build.instruction_sets()))


@pytest.mark.skipif(not build.instruction_sets(), reason="no kernels for this machine")
def test_another_environment_takes_the_libraries_from_the_cache(tmp_path, compiles, capsys):
    assert build.build(tmp_path / "one")
    said = capsys.readouterr().err
    assert all(f"compiled {i} of {len(NAMES)}, " in said for i in range(1, len(NAMES) + 1))
    assert build.build(tmp_path / "two")
    assert compiles() == NAMES
    assert (
        f"{len(NAMES)} of {len(NAMES)} CPU kernel libraries come from {tmp_path / 'cache'}" in capsys.readouterr().err
    )
    for name in (*NAMES, build.MANIFEST):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.skipif(not build.instruction_sets(), reason="no kernels for this machine")
@pytest.mark.parametrize("harm", ["damage", "other sources", "other flags"])
def test_a_cached_library_of_other_bytes_sources_or_flags_is_compiled_anew(tmp_path, compiles, monkeypatch, harm):
    build.build(tmp_path / "one", quiet=True)
    if harm == "damage":
        for path in (tmp_path / "cache/ampkit/kernels").iterdir():
            path.write_bytes(b"half")
    elif harm == "other sources":
        monkeypatch.setattr(build, "digest", lambda: "another")
    else:
        monkeypatch.setattr(build, "_FLAGS", [*build._FLAGS, "-g"])
    build.build(tmp_path / "two", quiet=True)
    assert compiles() == sorted(NAMES * 2)
    assert all((tmp_path / "two" / name).read_text().startswith("code of") for name in NAMES)
    build.build(tmp_path / "three", quiet=True)
    assert compiles() == sorted(NAMES * 2)


@pytest.mark.skipif(not build.instruction_sets(), reason="no kernels for this machine")
def test_a_cache_that_cannot_be_written_and_further_flags_change_nothing(tmp_path, compiles, monkeypatch):
    (tmp_path / "cache").touch()
    assert build.build(tmp_path / "one", quiet=True)
    (tmp_path / "cache").unlink()
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    assert build.build(tmp_path / "two", quiet=True)
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(not build.instruction_sets(), reason="no kernels for this machine")
def test_the_cache_keeps_the_libraries_used_last(tmp_path, compiles, monkeypatch):
    cached = tmp_path / "cache/ampkit/kernels"
    for number in range(2 + build.Cache.KEPT // len(NAMES)):
        monkeypatch.setattr(build, "digest", lambda number=number: str(number))
        build.build(tmp_path / str(number), quiet=True)
    assert len(list(cached.iterdir())) == build.Cache.KEPT
    build.build(tmp_path / "again", quiet=True)
    assert len(compiles()) == len(NAMES) * (2 + build.Cache.KEPT // len(NAMES))
