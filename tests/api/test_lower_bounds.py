"""The lower bounds of dependencies, which a phase of .ci/run installs and tests."""

from __future__ import annotations

import pytest

from .lower_bounds import lowest, requirements


def test_each_dependency_has_a_lower_bound():
    assert {"numpy", "pydantic", "pytest", "scipy"} <= {lowest(each).partition("==")[0] for each in requirements()}


def test_a_lower_bound_becomes_the_one_version():
    assert lowest("mpich>=4.2.3; sys_platform == 'linux'") == "mpich==4.2.3; sys_platform == 'linux'"
    with pytest.raises(ValueError, match="needs name>=version, got 'rich'"):
        lowest("rich")
