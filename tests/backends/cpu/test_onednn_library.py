"""A library that cannot be used is named in one line, and everything runs without it."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest

from ampkit.backends.cpu.onednn import library
from ampkit.run import doctor


@pytest.fixture
def places(monkeypatch):
    """Look for oneDNN in these places alone."""
    found = []
    monkeypatch.setattr(library, "_candidate_paths", lambda: iter(found))
    library._load.cache_clear()
    yield found
    library._load.cache_clear()


@pytest.mark.skipif(library.sys.platform != "linux", reason="oneDNN is used on Linux alone")
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
    assert library.library() is None
    assert line in library.unavailable_reason()
    assert "\n" not in library.unavailable_reason()


def test_wheels_conda_and_the_system_are_looked_through_in_this_order(monkeypatch):
    monkeypatch.setattr(library.sys, "prefix", "/venv")
    monkeypatch.setattr(library.sys, "base_prefix", "/conda")
    monkeypatch.setattr(library.site, "getuserbase", lambda: "/home/user")
    monkeypatch.setattr(library.site, "ENABLE_USER_SITE", True)
    roots = [f"/{root}/lib/libdnnl.so.3" for root in ("venv", "home/user", "conda")]
    for by_name in ("libdnnl.so.2", "libdnnl.so.3", None):
        monkeypatch.setattr(ctypes.util, "find_library", {"dnnl": by_name}.get)
        last = ["libdnnl.so.2"] if by_name == "libdnnl.so.2" else []
        assert list(library._candidate_paths()) == [*roots, "libdnnl.so.3", *last]
    monkeypatch.setattr(library.sys, "base_prefix", "/venv")
    assert list(library._candidate_paths()) == [*roots[:2], "libdnnl.so.3"]
    for off in (False, None):  # python -I or -s, a virtual environment
        monkeypatch.setattr(library.site, "ENABLE_USER_SITE", off)
        assert list(library._candidate_paths()) == [roots[0], "libdnnl.so.3"]


@pytest.mark.skipif(library.sys.platform != "linux", reason="oneDNN is used on Linux alone")
def test_after_an_old_library_the_next_one_is_tried(places, monkeypatch):
    places += ["old", "new"]
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: path)
    monkeypatch.setattr(library.ctypes, "PyDLL", lambda path: path)
    opened = {"old": (None, "needs oneDNN 3, got 2.7.0"), "new": ("the library", "")}
    monkeypatch.setattr(library, "_initialize", lambda slow, quick: opened[slow])
    assert (library.library(), library.unavailable_reason()) == ("the library", "")
    places.remove("new")
    library._load.cache_clear()
    assert (library.library(), library.unavailable_reason()) == (None, "old: needs oneDNN 3, got 2.7.0")


@pytest.mark.skipif(library.sys.platform != "linux", reason="oneDNN is used on Linux alone")
def test_a_library_whose_openmp_is_missing_says_which(places, monkeypatch):
    # The path that the loader was given may not exist as such: what counts is what it says is missing.
    def load(path):
        missing = "libgomp.so.1" if path == "by name" else path
        raise OSError(f"{missing}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(library.ctypes, "CDLL", load)
    places += ["by name", "/nowhere/libdnnl.so.3"]
    assert library.library() is None
    assert library.unavailable_reason().startswith("oneDNN could not be loaded: libgomp.so.1: cannot open")


@pytest.mark.skipif(library.sys.platform != "linux", reason="oneDNN is used on Linux alone")
def test_doctor_says_what_is_missing_and_that_everything_runs_all_the_same(places):
    places.append("/nowhere/libdnnl.so.3")
    (found,) = doctor._onednn()
    assert (found.topic, found.state) == ("oneDNN", "note")
    assert found.found == "libdnnl.so.3 was not found: pip install 'ampkit[cpu]'"
    assert found.cure.startswith("NumPy runs everything")


class Function:
    """A function of oneDNN 2.7 that ctypes would have found."""

    def __call__(self):
        return ctypes.pointer(library._Version(2, 7, 0))


class Old:
    """As much of oneDNN 2.7 as is asked before it is refused."""

    def __getattr__(self, name):
        setattr(self, name, Function())
        return getattr(self, name)


def test_another_major_version_is_refused():
    found, line = library._initialize(Old(), Old())
    assert found is None
    assert line == "needs oneDNN 3, got 2.7.0"
