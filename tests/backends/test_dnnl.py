"""A library that cannot be used is named in one line, and everything runs without it."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest

from ampkit.backends.cpu import dnnl


@pytest.fixture
def places(monkeypatch):
    """Look for oneDNN in these places alone."""
    found = []
    monkeypatch.setattr(dnnl, "_places", lambda: iter(found))
    dnnl._load.cache_clear()
    yield found
    dnnl._load.cache_clear()


@pytest.mark.skipif(dnnl.sys.platform != "linux", reason="oneDNN is used on Linux alone")
@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/nowhere/libdnnl.so.3", "libdnnl.so.3 was not found: pip install 'ampkit[cpu]'"),
        (__file__, "oneDNN could not be loaded: "),
        (ctypes.util.find_library("m"), "dnnl_version"),
    ],
    ids=["missing", "no library", "another library"],
)
def test_what_is_no_onednn_is_not_used_and_said_so_in_a_line(places, path, line):
    places.append(path)
    assert dnnl.library() is None
    assert line in dnnl.trouble()
    assert "\n" not in dnnl.trouble()


class Function:
    """A function of oneDNN 2.7 that ctypes would have found."""

    def __call__(self):
        return ctypes.pointer(dnnl._Version(2, 7, 0))


class Old:
    """As much of oneDNN 2.7 as is asked before it is refused."""

    def __getattr__(self, name):
        setattr(self, name, Function())
        return getattr(self, name)


def test_another_major_version_is_refused():
    found, line = dnnl._opened(Old(), Old())
    assert found is None
    assert line == "needs oneDNN 3, got 2.7.0"
