"""The setuptools commands that compile the CPU kernels into the package and name its wheel after the platform."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

# By its path: while ampkit is being built, neither it nor what it imports is installed.
_spec = spec_from_file_location("build", Path(__file__).with_name("build.py"))
assert _spec is not None
assert _spec.loader is not None
build = module_from_spec(_spec)
_spec.loader.exec_module(build)


class BuildKernels(build_py):
    """build_py, which then compiles the kernels: into the source tree for an editable installation.

    The recipes, which lie beside the package, are copied into it otherwise.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode and Path("recipes").is_dir():
            copies = Path(self.build_lib, "ampkit", "recipes")
            shutil.copytree("recipes", copies, ignore=shutil.ignore_patterns("*.py", "__pycache__"), dirs_exist_ok=True)
        package = build.LIBRARIES.relative_to(Path.cwd())
        build.build(build.LIBRARIES if self.editable_mode else Path(self.build_lib) / package)


class PlatformWheel(bdist_wheel):
    """bdist_wheel for any Python 3 on this platform, where kernels are compiled; else for any platform."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = not (build.instruction_sets() and build.compiler())

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, system = super().get_tag()
        if self.root_is_pure:
            return python, abi, system
        if sys.platform == "linux" and "ziglang" in build.compiler():
            system = f"manylinux_2_17_{platform.machine()}"  # the glibc that build.py compiles for
        return "py3", "none", system
