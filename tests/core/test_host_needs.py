"""What counts as done by a step on the host, and what the library does for its arrays."""

from types import SimpleNamespace

import pytest

from ampkit.core.capture.host_needs import HostNeeds

WRITE = "def write(path):\n    with open(path, 'w') as file:\n        file.write('x')\n"


@pytest.mark.cpu
@pytest.mark.parametrize(("module", "counts"), [("train", True), ("ampkit.backends.cuda.nvrtc", False)])
def test_a_kernel_that_is_compiled_may_write_its_cache(module, counts, tmp_path):
    names = {"__name__": module}
    exec(compile(WRITE, f"{module}.py", "exec"), names)
    with HostNeeds(SimpleNamespace(), transfers=False) as needs:
        names["write"](tmp_path / "cache")
    assert bool(needs.reason) == counts
