"""Downloads against a server of our own: whole or not at all, taken up again, checked by size and SHA-256."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace

import pytest

from ampkit.base.errors import FileError
from ampkit.data.download import Source, fetch

CONTENT = bytes(range(256)) * 40
NAME = "numbers.bin"
pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def _numbers(server):
    server.files[NAME] = CONTENT
    server.source(NAME)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_once(server, tmp_path):
    for _ in range(2):
        path = fetch(server.source(NAME), tmp_path / "new" / "folder")
        assert path.read_bytes() == CONTENT
    assert server.asked == [None]
    assert names(path.parent) == ["numbers.bin"]


def test_what_broke_off_has_no_name_and_is_taken_up_where_it_ended(server, tmp_path):
    server.break_after = 1000
    for n in (1000, 2000):
        with pytest.raises(FileError, match=f"needs 10240 bytes .* got {n}, then the end\nhelp: call again"):
            fetch(server.source(NAME), tmp_path)
        assert names(tmp_path) == ["numbers.bin.part"]
    server.break_after = None
    assert fetch(server.source(NAME), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000-", "bytes=2000-"]
    assert names(tmp_path) == ["numbers.bin"]


def test_a_server_without_ranges_is_heard_from_the_start(server, tmp_path):
    (tmp_path / "numbers.bin.part").write_bytes(CONTENT[:77])
    server.ranges = False
    assert fetch(server.source(NAME), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_whole_needs_no_server(server, tmp_path):
    (tmp_path / "numbers.bin.part").write_bytes(CONTENT)
    assert fetch(server.source(NAME), tmp_path).read_bytes() == CONTENT
    assert server.asked == []


def test_a_part_that_is_too_long_is_begun_anew(server, tmp_path):
    (tmp_path / "numbers.bin.part").write_bytes(CONTENT * 2)
    assert fetch(server.source(NAME), tmp_path).read_bytes() == CONTENT


def test_wrong_bytes_are_thrown_away_and_the_next_call_begins_anew(server, tmp_path):
    server.files[NAME] = CONTENT[::-1]
    with pytest.raises(FileError, match="numbers.bin with SHA-256 [0-9a-f]{64}, got [0-9a-f]{64}"):
        fetch(server.source(NAME), tmp_path)
    assert names(tmp_path) == []
    server.files[NAME] = CONTENT
    assert fetch(server.source(NAME), tmp_path).read_bytes() == CONTENT


def test_a_part_of_another_file_is_found_out_by_the_sum(server, tmp_path):
    (tmp_path / "numbers.bin.part").write_bytes(b"x" * 100)
    with pytest.raises(FileError, match="SHA-256"):
        fetch(server.source(NAME), tmp_path)
    assert fetch(server.source(NAME), tmp_path).read_bytes() == CONTENT


def test_more_bytes_than_announced_are_refused(server, tmp_path):
    with pytest.raises(FileError, match="needs 10239 bytes from http.*, got more"):
        fetch(replace(server.source(NAME), size=len(CONTENT) - 1), tmp_path)
    assert names(tmp_path) == ["numbers.bin.part"]
    assert (tmp_path / "numbers.bin.part").stat().st_size == 0


@pytest.mark.parametrize(
    ("content", "message"), [(CONTENT[:-1], "of 10240 bytes, got 10239"), (CONTENT[::-1], "SHA-256")]
)
def test_another_file_of_that_name_is_left_as_it_is(server, tmp_path, content, message):
    (tmp_path / "numbers.bin").write_bytes(content)
    with pytest.raises(FileError, match=f"(?s){message}.*help: move .*numbers.bin away"):
        fetch(server.source(NAME), tmp_path)
    assert (tmp_path / "numbers.bin").read_bytes() == content
    assert server.asked == []


def test_a_server_that_has_no_such_file_is_named_with_a_way_around_it(server, tmp_path):
    server.status = 404
    with pytest.raises(
        FileError, match="a response of http.*numbers.bin, got 404 .*\nhelp: call again, or download it by hand"
    ):
        fetch(server.source(NAME), tmp_path)


def test_no_server_at_all_is_one_clear_error(tmp_path):
    with pytest.raises(FileError, match="a response of http.*refused"):
        fetch(Source("http://127.0.0.1:1/numbers.bin", 1, "0"), tmp_path, timeout=5)


@pytest.mark.parametrize("drip", ["head", "content"])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up_and_the_lock_released(server, tmp_path, drip):
    server.drip = drip
    with pytest.raises(FileError, match=r"a response of http.*(fewer than 1024 bytes a second for 0\.1 s|timed out)"):
        fetch(server.source(NAME), tmp_path, timeout=0.1)
    server.drip = None
    assert fetch(server.source(NAME), tmp_path, timeout=5).read_bytes() == CONTENT


def test_a_range_that_the_server_refuses_is_asked_for_once_and_then_the_whole_file(server, tmp_path):
    (tmp_path / "numbers.bin.part").write_bytes(CONTENT[:100])
    server.refused_ranges = 416
    assert fetch(server.source(NAME), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=100-", None]


def test_a_server_that_refuses_everything_leaves_no_part_to_ask_for_again(server, tmp_path):
    (tmp_path / "numbers.bin.part").write_bytes(CONTENT[:100])
    server.status = 416
    for _ in range(2):
        with pytest.raises(FileError, match="a response of http.*, got 416"):
            fetch(server.source(NAME), tmp_path)
    assert server.asked == ["bytes=100-", None, None]


@pytest.mark.parametrize("kind", ["link", "dangling", "name", "fifo", "folder"])
def test_a_part_that_is_a_link_or_no_file_is_refused_and_its_target_left_as_it_is(server, tmp_path, kind):
    part, other = tmp_path / "numbers.bin.part", tmp_path / "other"
    other.write_bytes(b"precious")
    make = {
        "link": lambda: part.symlink_to(other),
        "dangling": lambda: part.symlink_to(tmp_path / "none"),
        "name": lambda: part.hardlink_to(other),
        "fifo": lambda: os.mkfifo(part),
        "folder": part.mkdir,
    }
    make[kind]()
    with pytest.raises(FileError, match="numbers.bin.part for itself, got a link or no regular file\nhelp: remove it"):
        fetch(server.source(NAME), tmp_path)
    assert other.read_bytes() == b"precious"
    assert names(tmp_path) == ["numbers.bin.part", "other"]


def test_two_processes_do_not_write_one_file(server, tmp_path):
    with (tmp_path / "numbers.bin.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(FileError, match="got another process that downloads it"):
            fetch(server.source(NAME), tmp_path)
    assert fetch(server.source(NAME), tmp_path).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_made_is_one_clear_error(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="download: needs to write .*file/numbers.bin, got"):
        fetch(server.source(NAME), tmp_path / "file")
