"""Text as bytes: which files, which windows, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from traced_memory import memory_below

from ampkit import config
from ampkit.base.errors import ArgumentError, ConfigError, FileError
from ampkit.data import text
from ampkit.data.text import files as text_files
from ampkit.run import input_pipeline

RECIPES = Path(__file__).parents[2] / "recipes"


def test_the_default_corpus_is_python_and_always_the_same():
    first, again = text.corpus(limit=300_000), text.corpus(limit=300_000)
    assert first.dtype == np.uint8
    assert len(first) == 300_000
    assert np.array_equal(first, again)
    assert b"import " in first.tobytes()


def test_the_default_corpus_holds_no_tests_and_no_installed_packages():
    files = {"/".join(file.parts[-2:]) for file in text_files._standard_library()}
    assert any(name.endswith("/argparse.py") for name in files)
    folders = {part for file in text_files._standard_library() for part in file.relative_to(file.anchor).parts[:-1]}
    assert not folders & {"site-packages", "test", "tests", "idlelib"}


def test_a_file_is_its_bytes(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc\xff\0")
    assert text.corpus(tmp_path / "a.txt", encoding="bytes").tobytes() == b"abc\xff\0"


@pytest.mark.parametrize(
    ("stored", "key"),
    [("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("utf-16", "utf-8"), ("utf-32", "utf-8"), ("latin-1", "latin-1")],
)
@pytest.mark.parametrize("limit", [1000, 13, 8, 7])
def test_any_encoding_becomes_utf8(stored, key, limit, tmp_path):
    words = "Zürich, Besançon\n"
    (tmp_path / "a.txt").write_bytes(words.encode(stored))
    assert text.corpus(tmp_path / "a.txt", limit, key).tobytes() == words.encode()[:limit]


def test_what_was_taken_and_left_out_is_said(tmp_path):
    for name, content in (("a", b"abc"), ("b", "ü".encode("utf-16")), ("c.png", b"\x89PNG\0"), ("d", b"xy")):
        (tmp_path / name).write_bytes(content)
    splits = text.load_splits(tmp_path)
    assert splits.notes == ("text: 7 bytes of 2 files in utf-8, 1 file in utf-16; skipped as binary: c.png",)
    assert text.load_splits().notes == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\ntwo \xe9\n", "needs text in utf-8, got the byte 0xe9 in line 2\nhelp: say how it is stored, data.enc"),
        (b"\x89PNG\0\0", "needs text in utf-8, got the byte 0x89 in line 1, of a binary file"),
        (b"ELF\0\0", "needs a text file, got a binary file, with zero bytes"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_its_name(content, message, tmp_path):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(FileError) as caught:
        text.corpus(tmp_path / "a.bin")
    assert f"{tmp_path / 'a.bin'}: {message}" in str(caught.value)


@pytest.mark.parametrize("encoding", ["latin9000", "hex"])
def test_an_unknown_encoding_is_refused(encoding, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ab")
    with pytest.raises(ConfigError, match="data.encoding: needs an encoding that Python knows, got"):
        text.corpus(tmp_path / "a.txt", encoding=encoding)


def test_a_pattern_is_its_files_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b").mkdir()
    for name, content in (("b/c.txt", b"2"), ("a.txt", b"1"), ("a.md", b"9")):
        (tmp_path / name).write_bytes(content)
    assert text.corpus(tmp_path / "**" / "*.txt").tobytes() == b"12"


def test_text_is_read_from_a_column_of_tables(tmp_path):
    rows = [{"text": "first", "n": 1}, {"text": None}, {"text": "zwölf\nmore", "n": 2}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = text.load_splits(tmp_path / "a.jsonl", column="text")
    assert b"".join(part.tobytes() for part in splits[:2]) == "first\nzwölf\nmore".encode()
    assert splits.notes == ("text: 17 bytes of column 'text' in 3 rows",)
    with pytest.raises(FileError, match="needs a column 'txt', got only text, n\nhelp: did you mean 'text'"):
        text.load_splits(tmp_path / "a.jsonl", column="txt")
    with pytest.raises(ConfigError, match=r"data.path: needs a table, for data.column, got none"):
        text.load_splits(column="text")


def test_a_folder_is_its_text_files_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "__pycache__").mkdir()
    files = {"c.txt": b"3", "a.md": b"1", "b/z.py": b"2", "binary": b"9\0", ".hidden": b"9", "__pycache__/x": b"9"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert text.corpus(tmp_path).tobytes() == b"123"


def test_the_limit_cuts_across_files(tmp_path):
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 4)
    assert text.corpus(tmp_path, limit=6).tobytes() == b"aaaabb"
    assert text.corpus(tmp_path, limit=4).tobytes() == b"aaaa"


def test_no_more_of_a_file_is_read_than_the_limit(tmp_path):
    with (tmp_path / "sparse.txt").open("wb") as file:
        file.write(b"a" * 1000)
        file.truncate(2**32)
    with memory_below(2**20):
        assert text.corpus(tmp_path / "sparse.txt", limit=1000).shape == (1000,)


def test_files_behind_the_limit_are_not_opened(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_bytes(b"12345")
    asked, opened = [], text_files.opened
    monkeypatch.setattr(text_files, "opened", lambda path, where: asked.append(path.name) or opened(path, where))
    assert bytes(text.corpus(tmp_path, limit=5)) == b"12345"
    assert set(asked) == {"a"}


def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileError, match="^text: needs a regular file, got '.*fifo', which is a FIFO$"):
        text.corpus(tmp_path / "fifo")


def test_a_missing_path_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="a file or a folder that exists, got .*missing"):
        text.corpus(tmp_path / "missing")


def test_an_empty_file_or_folder_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    for path in (tmp_path, tmp_path / "empty"):
        with pytest.raises(ConfigError, match="which holds none"):
            text.corpus(path)


def test_a_limit_below_one_byte_is_refused():
    with pytest.raises(ArgumentError, match="limit of at least 1 byte"):
        text.corpus(limit=0)


def test_the_split_keeps_the_end_for_validation():
    train, validation = text.split(np.arange(100, dtype=np.uint8), 0.25)
    assert train.tolist() == list(range(75))
    assert validation.tolist() == list(range(75, 100))


def test_a_long_text_is_validated_on_every_stretch_of_it():
    data = (np.arange(3 * text.STRETCH) // text.STRETCH).astype(np.uint8)
    train, validation = text.split(data, 0.25)
    assert len(train) + len(validation) == len(data)
    assert np.bincount(validation).tolist() == [text.STRETCH // 4] * 3


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_split_that_leaves_a_part_empty_is_refused(fraction):
    with pytest.raises(ArgumentError, match="fraction between 0 and 1"):
        text.split(np.arange(10, dtype=np.uint8), fraction)


def test_targets_are_the_inputs_one_byte_ahead():
    inputs, targets = text.windows(np.arange(50, dtype=np.uint8), np.array([0, 7]), context=4)
    assert inputs.tolist() == [[0, 1, 2, 3], [7, 8, 9, 10]]
    assert targets.tolist() == [[1, 2, 3, 4], [8, 9, 10, 11]]
    assert inputs.dtype == targets.dtype == np.int64


def test_random_starts_reach_every_window_and_no_further():
    data = np.arange(10, dtype=np.uint8)
    starts = text.random_starts(data, context=6, count=1000, draw=np.random.default_rng(0))
    assert set(starts.tolist()) == {0, 1, 2, 3}
    assert text.windows(data, starts, 6)[1].max() == 9


def test_random_starts_are_the_same_for_the_same_draw():
    data = np.zeros(1000, np.uint8)
    one, two = (text.random_starts(data, 8, 5, np.random.default_rng(3)) for _ in range(2))
    assert one.tolist() == two.tolist()


def test_even_starts_span_the_data():
    data = np.zeros(101, np.uint8)
    assert text.even_starts(data, context=10, count=3).tolist() == [0, 45, 90]


@pytest.mark.parametrize("length", [11, 20, 21, 101, 109])
def test_without_a_count_the_windows_stand_side_by_side(length):
    starts = text.even_starts(np.zeros(length, np.uint8), context=10)
    assert len(starts) == (length - 1) // 10
    assert starts[0] == 0
    assert (np.diff(starts) >= 10).all()
    assert starts[-1] + 11 <= length


def test_an_evaluation_takes_no_more_windows_than_there_are_bytes(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some words " * 100)
    large = ["train.eval_batches=2147483647", "data.batch_size=2147483647", f"data.path={tmp_path / 'a.txt'}"]
    recipe = config.load(RECIPES / "text_gpt.toml", ["model.block_size=8", "data.limit=1000", *large])
    ((inputs, _),) = input_pipeline.input_pipeline(recipe).held_out()
    assert inputs.shape == (100, 8)


def test_text_as_short_as_the_context_is_refused():
    data = np.zeros(8, np.uint8)
    assert text.even_starts(data, context=7).tolist() == [0]
    for starts in (lambda: text.even_starts(data, 8), lambda: text.random_starts(data, 8, 1, np.random.default_rng(0))):
        with pytest.raises(ConfigError, match="more than 8 bytes, a window and its next byte, got 8 bytes"):
            starts()
