"""The lowest version of each dependency that pyproject.toml admits, one a line, as requirements for pip.

    python -m tests.api.lower_bounds > lowest.txt && pip install -r lowest.txt

Those of the library and of the extras EXTRAS; the others need a GPU, a network or a screen.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

EXTRAS = ("test", "cpu", "images", "arrow", "onnx", "tune", "mpi", "store")
_BOUND = re.compile(r"(?P<name>[\w.-]+)>=(?P<version>[\d.]+)(,!=[\d.]+)?(?P<marker> *;.*)?")


def requirements() -> list[str]:
    """The requirements of the library and of EXTRAS, as pyproject.toml has them."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra])]


def lowest(requirement: str) -> str:
    """`name>=version; marker` as `name==version; marker`. Raises ValueError where there is no lower bound."""
    found = _BOUND.fullmatch(requirement)
    if found is None:
        raise ValueError(f"needs name>=version, got {requirement!r}")
    return f"{found['name']}=={found['version']}{found['marker'] or ''}"


if __name__ == "__main__":
    print("\n".join(map(lowest, requirements())))
