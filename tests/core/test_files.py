"""Foreign files: regular ones alone are opened, reads are bounded, and what a library raises becomes a FileError."""

from __future__ import annotations

import gzip
import io
import os
import socket

import pytest
from traced_memory import memory_below

from ampkit.base.errors import FileError, ShapeError
from ampkit.base.files import Stream, content, foreign, opened, read

pytestmark = pytest.mark.cpu


def test_a_regular_file_is_opened_also_through_a_link(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with opened(tmp_path / "b", "test") as file:
        assert file.read() == b"content"


def test_a_fifo_a_device_a_socket_and_a_directory_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        kinds = {"fifo": "a FIFO", "link": "a FIFO", "socket": "a socket", "": "a directory"}
        for name, kind in kinds.items():
            with pytest.raises(FileError, match=f"^test: needs a regular file, got '.*', which is {kind}$"):
                opened(tmp_path / name, "test")
    with pytest.raises(FileError, match="got '/dev/zero', which is a device"):
        opened("/dev/zero", "test")


@pytest.mark.parametrize(("name", "why"), [("none", "No such file"), ("a\0b", "null "), ("a" * 5000, "too long")])
def test_a_path_that_names_no_file_is_one_clear_line(tmp_path, name, why):
    with pytest.raises(FileError, match=f"^test: needs a file that can be read, got .*: .*{why}.*$"):
        opened(tmp_path / name, "test")


def test_memory_grows_with_what_a_file_holds_and_not_with_what_is_asked_for(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with memory_below(2**20), opened(tmp_path / "sparse", "test") as file:
        assert len(read(file, 1000)) == 1000
    with memory_below(2**20):
        assert read(io.BytesIO(b"four"), 2**60) == b"four"


def test_a_file_of_more_bytes_than_its_kind_may_have_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert content(tmp_path / "a", "test", 5) == content(tmp_path / "a", "test") == b"12345"
    with pytest.raises(FileError, match="test: needs at most 4 bytes, got more in '.*a'"):
        content(tmp_path / "a", "test", 4)


def test_a_bounded_stream_ends_in_an_error_where_it_holds_more():
    assert Stream(io.BytesIO(b"1234"), "test", "a file", most=4).read(9) == b"1234"
    with pytest.raises(FileError, match="test: needs at most 3 bytes when it is unpacked, got more"):
        Stream(io.BytesIO(b"1234"), "test", "a file", most=3).read(9)


def test_what_a_stream_raises_is_one_line_with_the_cure():
    with pytest.raises(
        FileError, match="^test: needs a file, got one that breaks: Not a gzipped file .*\nhelp: get it$"
    ):
        Stream(gzip.GzipFile(fileobj=io.BytesIO(b"1234")), "test", "a file", "get it").read(9)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad byte\nat 4"), "bad byte"),
        (MemoryError(), "it asks for more memory than there is"),
        (RecursionError("maximum depth"), "it is nested too deeply"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (KeyError(), "KeyError"),
        (OverflowError("x" * 1000), "x" * 200),
    ],
)
def test_what_a_library_raises_is_one_line_that_keeps_its_cause(error, said):
    with pytest.raises(FileError) as caught, foreign("a.zip", "a whole archive"):
        raise error
    assert str(caught.value) == f"a.zip: needs a whole archive, got one that breaks: {said}"
    assert caught.value.__cause__ is error


def test_a_panic_of_rust_is_an_error_of_a_library_too():
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(FileError, match="one that breaks: index out of bounds"), foreign("a", "a file"):
        raise panic("index out of bounds")


def test_errors_of_ampkit_and_interrupts_pass_as_they_are():
    for kind in (ShapeError, KeyboardInterrupt):
        with pytest.raises(kind), foreign("a.zip", "a whole archive"):
            raise kind("said")
