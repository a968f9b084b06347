"""Compiles the C++ kernels in `kernels/cpu` into one shared library per instruction set, beside this file in `lib/`.

    python ampkit/backends/cpu/native/build.py               again, where a source has changed
    python ampkit/backends/cpu/native/build.py x86-64-v4     for one instruction set, while working on a kernel

`pip install` and `python -m build` run it too, through the setuptools commands below. So this file imports nothing of
ampkit. The compiler is $CXX if set, with the further flags $CXXFLAGS, else Clang: that of the wheel `ziglang`, a build
requirement, or the system's, 16 or later. Without one, nothing is built and the NumPy references run.
AMPKIT_BUILD_KERNELS=0 builds nothing.

What is compiled is kept in $XDG_CACHE_HOME/ampkit/kernels (or ~/.cache) for other environments, by the digest of
the sources, flags and compiler, except with $CXX or $CXXFLAGS. A line on stderr says which library is done, which pip
shows with -v only.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[2] / "kernels"
SOURCES, SHARED = KERNELS / "cpu", KERNELS / "shared"  # shared: what CUDA's kernels include too
LIBRARIES = HERE / "lib"
MANIFEST = "manifest.json"  # the digest of the sources, and of each library by its file's name
_INSTRUCTION_SETS = {
    "x86_64": ("x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4-bf16"),
    "aarch64": ("armv8-a",),
    "arm64": ("armv8-a",),
}
_FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fopenmp-simd"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wall", "-Wextra", "-Werror", "-s"),
    *("-lm", "-pthread"),
]
# A loop marked to vectorize that does not fails the build. No C++ runtime library is linked. Pragmas may forbid fused
# multiply-adds, which -ffp-contract=fast ignores.
_CLANG_FLAGS = ["-Werror=pass-failed", "-nostdlib++", "-Xclang", "-ffp-contract=fast-honor-pragmas"]


def instruction_sets() -> tuple[str, ...]:
    """What is built on this machine, from the plainest; empty for a machine that the kernels do not know."""
    known = sys.platform == "linux" or (sys.platform == "darwin" and platform.machine() == "arm64")
    return _INSTRUCTION_SETS.get(platform.machine(), ()) if known else ()


def sources() -> list[Path]:
    """The C++ files that are compiled, in a fixed order."""
    return sorted(SOURCES.rglob("*.cpp"))


def digest() -> str:
    """SHA-256 of all that the libraries are compiled from."""
    found = hashlib.sha256(" ".join(_FLAGS + _CLANG_FLAGS).encode())
    for path in sorted([*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h"), *SHARED.glob("*.h")]):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def read_manifest(folder: Path = LIBRARIES) -> dict[str, str]:
    """What was built into `folder`: {} for nothing, or for a file that cannot be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def compiler() -> list[str] | None:
    """The command of the C++ compiler, or None where there is none."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    clang = shutil.which("clang++")
    return [clang] if clang else None


def library_name(instruction_set: str) -> str:
    """The file's name of the library for an instruction set."""
    return f"libampkit-{instruction_set}.so"


def command(compile_with: list[str], instruction_set: str, target: Path) -> list[str]:
    """The command that compiles all sources into the library `target`, with the further flags of $CXXFLAGS."""
    flags = [*_flags(compile_with, instruction_set), *shlex.split(os.environ.get("CXXFLAGS", ""))]
    return [*compile_with, *flags, *map(str, sources()), "-o", str(target)]


def _flags(compile_with: list[str], instruction_set: str) -> list[str]:
    zig = "ziglang" in compile_with
    level = instruction_set.removesuffix("-bf16")
    march = level.replace("x86-64", "x86_64").replace("-v", "_v") if zig else level
    machine = [f"-mcpu={march}" if zig else f"-march={march}"]
    if level != instruction_set:
        machine.append("-mavx512bf16")
    if zig and instruction_set == "armv8-a":
        machine = ["-mcpu=generic"]
    if zig and sys.platform == "linux":  # symbols of glibc 2.17 only, so that the library loads on old systems
        machine += ["-target", f"{platform.machine()}-linux-gnu.2.17"]
    if level == "x86-64-v4":
        machine.append("-mprefer-vector-width=512")
    clang = [] if "g++" in Path(compile_with[-1]).name and "clang" not in compile_with[-1] else _CLANG_FLAGS
    return [*_FLAGS, *clang, *machine]


def build(folder: Path = LIBRARIES, only: str = "", quiet: bool = False) -> bool:
    """Compile the libraries into `folder`, unless they are up to date. -> whether they are there.

    only: one of `instruction_sets()`; "" for all of them. Raises RuntimeError with the compiler's messages where it
    fails.
    """
    wanted, current = digest(), read_manifest(folder)
    chosen = [each for each in instruction_sets() if only in ("", each)]
    names = [library_name(each) for each in chosen]
    current = current if current.get("sources") == wanted else {"sources": wanted}
    asked = os.environ.get("CXX") or os.environ.get("CXXFLAGS")
    if names and not asked and all(name in current and (folder / name).is_file() for name in names):
        return True
    compile_with = compiler()
    if os.environ.get("AMPKIT_BUILD_KERNELS") == "0" or compile_with is None or not names:
        if not quiet:
            _say("ampkit: no compiled CPU kernels: no Clang was found, the NumPy references run")
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        cache = None if asked else Cache.of(compile_with)
        left = [each for each in chosen if cache is None or not cache.restore(each, Path(scratch))]
        if cache is not None and len(left) < len(chosen) and not quiet:
            _say(f"ampkit: {len(chosen) - len(left)} of {len(chosen)} CPU kernel libraries come from {cache.folder}")
        _compile(compile_with, left, Path(scratch), quiet)
        if cache is not None:
            for each in left:
                cache.store(each, Path(scratch))
        for name in names:
            current[name] = hashlib.sha256((Path(scratch) / name).read_bytes()).hexdigest()
            (Path(scratch) / name).replace(folder / name)
        (Path(scratch) / MANIFEST).write_text(json.dumps(current, indent=1))
        (Path(scratch) / MANIFEST).replace(folder / MANIFEST)
    return True


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _compile(compile_with: list[str], chosen: list[str], folder: Path, quiet: bool) -> None:
    """Compile all at once, with a line on stderr for each that is done. Raises RuntimeError where one fails."""
    started = time.monotonic()
    if chosen and not quiet:
        _say(f"ampkit: compiling the CPU kernels for {', '.join(chosen)}: this takes minutes")
    with ThreadPoolExecutor(max(1, len(chosen))) as pool:
        running = {pool.submit(_compile_one, compile_with, each, folder): each for each in chosen}
        for count, done in enumerate(as_completed(running), 1):
            done.result()
            if not quiet:
                took = f"after {time.monotonic() - started:.0f} s"
                _say(f"ampkit: compiled {count} of {len(chosen)}, {running[done]}, {took}")


def _compile_one(compile_with: list[str], instruction_set: str, folder: Path) -> None:
    line = command(compile_with, instruction_set, folder / library_name(instruction_set))
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        how = f"the compiler ended with status {done.returncode}"  # negative: a signal, as where memory is short
        raise RuntimeError(f"the CPU kernels do not compile, {how}: {shlex.join(line)}\n{done.stdout}")


class Cache:
    """Libraries that were compiled before: files `<key>-<digest of the file>.so` in `folder`.

    The key is a digest of sources, flags and compiler. A file appears whole, under its name, or not at all, and is used
    only if its bytes have the digest in its name; another is deleted. A folder that cannot be written keeps nothing.
    """

    KEPT = 16  # files, of four builds for x86-64

    def __init__(self, folder: Path, compile_with: list[str], version: str):
        self.folder, self._compile_with, self._version = folder, compile_with, version

    @classmethod
    def of(cls, compile_with: list[str]) -> Cache | None:
        """The user's; None for a compiler that does not say its version."""
        try:
            said = subprocess.run([*compile_with, "--version"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(root / "ampkit" / "kernels", compile_with, said.partition("\n")[0])  # then: where it is installed

    def _key(self, instruction_set: str) -> str:
        about = [digest(), *_flags(self._compile_with, instruction_set), self._version, *platform.libc_ver()]
        return hashlib.sha256("\0".join(about).encode()).hexdigest()[:32]

    def restore(self, instruction_set: str, folder: Path) -> bool:
        """Copy a library into `folder`. -> whether there was one."""
        for path in self.folder.glob(f"{self._key(instruction_set)}-*.so"):
            with suppress(OSError):
                data = path.read_bytes()
                if path.stem.partition("-")[2] == hashlib.sha256(data).hexdigest():
                    (folder / library_name(instruction_set)).write_bytes(data)
                    path.touch()  # used now
                    return True
                path.unlink(missing_ok=True)
        return False

    def store(self, instruction_set: str, folder: Path) -> None:
        """Keep a library of `folder`, and delete those that were not used for the longest time."""
        data = (folder / library_name(instruction_set)).read_bytes()
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                file.write(data)
            name = f"{self._key(instruction_set)}-{hashlib.sha256(data).hexdigest()}.so"
            Path(file.name).replace(self.folder / name)
            for path in sorted(self.folder.glob("*.so"), key=lambda path: path.stat().st_mtime)[: -self.KEPT]:
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    if only not in ("", *instruction_sets()):
        sys.exit(f"needs one of {', '.join(instruction_sets()) or 'no instruction sets'}, got {only}")
    sys.exit(0 if build(only=only) else 1)
