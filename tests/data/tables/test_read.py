"""Tables from files: which cells, of which kind, and what is refused, with its file and line."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

import numpy as np
import pytest

from ampkit.base.errors import ConfigError, FileError
from ampkit.data.tables.column import kind_of, values_of
from ampkit.data.tables.read import Format, read

pytestmark = pytest.mark.cpu
CSV = "height,city,tall,born\n1.5,Bern,true,2024-01-01\n,Oslo,FALSE,1970-01-02 12:00\n2e0, Rom ,,\n"
ROWS = [
    {"height": 1.5, "city": "Bern", "tall": True, "born": "2024-01-01"},
    {"height": None, "city": "Oslo", "tall": False, "born": "1970-01-02 12:00"},
    {"height": 2.0, "city": "Rom", "tall": None},
]


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def write_rows(folder, kind):
    """ROWS in a file of a kind."""
    if kind == ".csv":
        return write(folder / "t.csv", CSV)
    if kind == ".tsv":
        return write(folder / "t.tsv", CSV.replace(",", "\t"))
    if kind == ".jsonl":
        return write(folder / "t.jsonl", "".join(json.dumps(row) + "\n\n" for row in ROWS))
    arrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra arrow, is not installed")
    from pyarrow import feather, parquet

    born = [datetime(2024, 1, 1), datetime(1970, 1, 2, 12), None]
    made = arrow.table({name: [row.get(name) for row in ROWS] for name in ("height", "city", "tall")} | {"born": born})
    write_file = parquet.write_table if kind == ".parquet" else feather.write_feather
    write_file(made, folder / f"t{kind}", compression="none" if kind == ".parquet" else "uncompressed")
    return folder / f"t{kind}"


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet", ".feather"])
def test_every_format_gives_the_same_columns(kind, tmp_path):
    table = read(write_rows(tmp_path, kind))
    kinds = {name: kind_of(table, name) for name in table.names}
    assert kinds == {"height": "number", "city": "text", "tall": "boolean", "born": "date"}
    found = {name: values_of(table, name, kind) for name, kind in kinds.items()}
    np.testing.assert_array_equal(found["height"], [1.5, np.nan, 2])
    assert found["city"].tolist() == ["Bern", "Oslo", "Rom"]
    np.testing.assert_array_equal(found["tall"], [1, 0, np.nan])
    np.testing.assert_array_equal(found["born"], [(date(2024, 1, 1) - date(1970, 1, 1)).days, 1.5, np.nan])


def test_dates_with_a_time_zone_are_days_in_utc(tmp_path):
    table = read(write(tmp_path / "t.csv", "when\n2024-05-01T00:30:00+02:00\n2024-05-01T00:30:00Z\n"))
    days = values_of(table, "when", kind_of(table, "when"))
    expected = [datetime(2024, 4, 30, 22, 30, tzinfo=UTC), datetime(2024, 5, 1, 0, 30, tzinfo=UTC)]
    assert (days * 86400).tolist() == [each.timestamp() for each in expected]


def test_a_folder_and_a_pattern_are_all_their_tables_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b").mkdir()
    for name, value in (("c.csv", 3), ("a.csv", 1), ("b/x.csv", 2), (".hidden.csv", 9), ("notes.txt", 9)):
        write(tmp_path / name, f"n\n{value}\n")
    assert read(tmp_path).cells("n") == ["1", "2", "3"]
    assert read(tmp_path / "*.csv").cells("n")[:2] == ["9", "1"]
    assert read([tmp_path / "c.csv", tmp_path / "a.csv"]).cells("n") == ["3", "1"]


def test_the_columns_of_several_files_may_stand_in_another_order(tmp_path):
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "y,x\n4,3\n")
    table = read(tmp_path)
    assert (table.cells("x"), table.cells("y")) == (["1", "3"], ["2", "4"])
    assert [table.where(row) for row in range(2)] == [f"{tmp_path}/{name}.csv, line 2" for name in "ab"]


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-8-sig", "utf-8"), ("utf-16", "utf-8"), ("latin-1", "latin-1"), ("utf-8", "utf-8")]
)
def test_marks_say_the_encoding_and_others_the_key(encoding, said, tmp_path):
    path = write(tmp_path / "t.csv", "name\nZürich\n", encoding)
    assert read(path, Format(encoding=said)).cells("name") == ["Zürich"]


def test_quotes_hold_delimiters_and_lines(tmp_path):
    table = read(write(tmp_path / "t.csv", 'a,b\r\n"1,5","two\nlines ""so"""\r\n\r\n2,x\r\n'))
    assert (table.cells("a"), table.cells("b")) == (["1,5", "2"], ['two\nlines "so"', "x"])
    assert table.where(1).endswith("line 5")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "t.csv: needs a line with the names of the columns, and rows, got an empty file"),
        ("t.csv", "a,b\n", "t.csv: needs at least one row, got none"),
        ("t.csv", "a,b\n1,2\n\n1\n", "t.csv, line 4: needs 2 values, as in the header, got 1\nhelp: leave the place"),
        ("t.csv", "a,b\n1,2,3\n", "t.csv, line 2: needs 2 values, as in the header, got 3"),
        ("t.csv", "a,a\n1,2\n", "t.csv: needs one column 'a', got 2 of this name\nhelp: give each"),
        ("t.csv", "1.5,2\n1,2\n", "t.csv, line 1: needs the names of the columns, got numbers, 1.5, 2"),
        ("t.csv", 'a,b\n1,"2\n', "t.csv, line 2: needs CSV, got unexpected end of data"),
        ("t.csv", "a\n\0\n", "t.csv: needs a text file, got a binary file"),
        ("t.jsonl", '{"a": 1}\n{"a": 1\n', "t.jsonl, line 2: needs one JSON object in a line, got one that breaks"),
        ("t.jsonl", "[1]\n", "t.jsonl, line 1: needs a JSON object"),
        ("t.jsonl", '{"a": 1, "a": 2}\n', "line 1: needs one JSON object in a line, got one that breaks: a key that"),
        ("t.jsonl", "\n", "t.jsonl: needs at least one row, got none"),
        ("t.xlsx", "a", "needs a name that ends in .csv, .tsv"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(name, text, message, tmp_path):
    with pytest.raises(FileError) as caught:
        read(write(tmp_path / name, text))
    assert message in str(caught.value)


def test_text_in_another_encoding_names_the_line_and_the_cure(tmp_path):
    path = write(tmp_path / "t.csv", "name\nBern\nZürich\n", "latin-1")
    with pytest.raises(FileError) as caught:
        read(path)
    assert f"{path}: needs text in utf-8, got the byte 0xfc in line 3\nhelp: " in str(caught.value)
    assert 'data.encoding="latin-1"' in str(caught.value)
    with pytest.raises(ConfigError, match=r"data.encoding: needs an encoding that Python knows, got 'latin9000'"):
        read(path, Format(encoding="latin9000"))
    with pytest.raises(ConfigError, match=r"data.delimiter: needs one character, got ';;'"):
        read(write(path, "a\n1\n"), Format(";;"))


def test_a_missing_column_names_the_nearest_and_another_delimiter(tmp_path):
    with pytest.raises(FileError, match="needs a column 'heigth', got only height, w\nhelp: did you mean 'height'"):
        read(write(tmp_path / "t.csv", "height,w\n1,2\n")).cells("heigth")
    with pytest.raises(FileError, match=r'separated by \';\': data.delimiter=";"'):
        read(write(tmp_path / "t.csv", "a;b\n1;2\n")).cells("a")
    write(tmp_path / "u.csv", "a;c\n1;2\n")
    with pytest.raises(FileError, match=r"u.csv: needs a column 'a;b'"):
        read(tmp_path).cells("a;b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n1\n2\nx\n", "t.csv, line 4: needs a number in column 'a', as in its other rows, got 'x'\nhelp: mend it"),
        ("a\n2024-01-01\n2024-01-02\nsoon\n", "line 4: needs a date such as 2024-12-31 in column 'a', as in"),
        ("a,b\n,1\nNA,2\n", "t.csv: needs a value in column 'a', got nulls alone\nhelp: leave it out: data.exclude"),
        ("a\n1\ninf\n", "t.csv, line 3: needs finite numbers in column 'a', got 'inf'"),
        ("a\n1e400\n1\n", "t.csv, line 2: needs finite numbers in column 'a', got '1e400'"),
        ("a\n2024-02-30\n2024-01-01\n", "line 2: needs a date such as 2024-12-31 in column 'a', got '2024-02-30'"),
    ],
)
def test_a_cell_unlike_the_others_is_named_with_its_line(text, message, tmp_path):
    table = read(write(tmp_path / "t.csv", text))
    with pytest.raises(FileError) as caught:
        values_of(table, "a", kind_of(table, "a"))
    assert message in str(caught.value)


@pytest.mark.parametrize("cells", ["[1, 2]", '{"b": 1}'])
def test_nested_values_are_refused(cells, tmp_path):
    table = read(write(tmp_path / "t.jsonl", f'{{"a": 1}}\n{{"a": 2}}\n{{"a": {cells}}}\n'))
    with pytest.raises(FileError, match="line 3: needs a number in column 'a'"):
        values_of(table, "a", kind_of(table, "a"))
    table = read(write(tmp_path / "t.jsonl", f'{{"a": "x"}}\n{{"a": {cells}}}\n'))
    with pytest.raises(FileError, match="line 2: needs text in column 'a'"):
        kind_of(table, "a")
