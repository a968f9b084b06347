"""Writing a file: at once, with the mode of the old one, through links."""

from __future__ import annotations

import os
import stat

import pytest

import ampkit
from ampkit.base import atomic_file
from ampkit.base.errors import FileError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("old", [0o600, 0o640, 0o664])
@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_a_file_keeps_its_mode(tmp_path, old, name):
    path = tmp_path / name
    path.touch()
    path.chmod(old)
    ampkit.save({"w": ampkit.ones(2)}, path)
    assert mode(path) == old
    assert ampkit.load(path)["w"].tolist() == [1, 1]


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        atomic_file.write("test", tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == 0o640


def test_the_umask_is_never_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", None)
    ampkit.save({"w": ampkit.ones(2)}, tmp_path / "a.pt")


def test_a_link_stays_and_the_file_that_it_names_is_written(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to("deep/target")
    (tmp_path / "over").symlink_to("link")
    for data in (b"new", b"newer"):
        atomic_file.write("test", tmp_path / "over", data)
        assert (tmp_path / "over").is_symlink()
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "deep" / "target").read_bytes() == data
    assert len(list(tmp_path.rglob("*"))) == 4


def test_a_link_to_itself_and_a_folder_are_one_clear_error(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path, tmp_path / "none" / "a", f"{tmp_path}/a\0b"):
        with pytest.raises(FileError, match="test: needs a file that can be written, got "):
            atomic_file.write("test", path, b"x")


def test_a_device_is_written_to_and_stays_one():
    atomic_file.write("test", "/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116


def test_a_name_as_long_as_a_file_system_takes_can_be_written(tmp_path):
    atomic_file.write("test", tmp_path / ("é" * 127), b"x")
    assert len(list(tmp_path.iterdir())) == 1
