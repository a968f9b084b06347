"""Columns of Parquet and Arrow files: rows from anywhere, and clear errors for what is no number."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from ampkit import config
from ampkit.base.errors import AmpkitError, ArgumentError, FileError
from ampkit.data.parquet import Columns, Table
from ampkit.data.tables import parquet_files
from ampkit.run.loop import EvalRow, fit
from ampkit.utils.data import DataLoader

arrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra arrow, is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = 23
DRAW = np.random.RandomState(0)
HEIGHT = DRAW.standard_normal(ROWS).astype(np.float32)
PLACE = DRAW.standard_normal((ROWS, 3))
LABEL = DRAW.randint(0, 2, ROWS)


def table(**more):
    place = arrow.FixedSizeListArray.from_arrays(arrow.array(PLACE.ravel()), 3)
    return arrow.table({"height": HEIGHT, "place": place, "label": LABEL, **more})


def write(path, made, group=5):
    if path.suffix == ".parquet":
        parquet.write_table(made, path, row_group_size=group)
    else:
        with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_file(file, made.schema) as writer:
            writer.write_table(made, max_chunksize=group)
    return path


@pytest.fixture(params=[".parquet", ".arrow"])
def path(request, tmp_path):
    return write(tmp_path / f"table{request.param}", table())


def test_rows_from_anywhere_come_in_the_order_that_was_asked_for(path):
    rows, order = Columns(path, ["height", "place", "label"], kept=1), [22, 3, 3, 11, 0, 12, 4]
    height, place, label = (tensor.numpy() for tensor in rows.batch(order))
    assert len(rows) == ROWS
    assert (height.dtype, place.dtype, label.dtype) == (np.float32, np.float64, np.int64)
    np.testing.assert_array_equal(height, HEIGHT[order])
    np.testing.assert_array_equal(place, PLACE[order])
    np.testing.assert_array_equal(label, LABEL[order])
    assert rows[-1][1].numpy().tolist() == PLACE[-1].tolist()


def test_a_batch_that_is_written_to_leaves_the_rows_as_they_are(path):
    rows = Columns(path, ["height"])
    rows.batch([0])[0].array[...] = 9
    assert rows[0][0].item() == HEIGHT[0]


def test_several_files_follow_each_other_by_name_whatever_their_row_groups(tmp_path):
    made = table()
    write(tmp_path / "b.parquet", made.slice(10), group=3)
    write(tmp_path / "a.parquet", made.slice(0, 10), group=10)
    rows = Columns(tmp_path / "*.parquet", ["label", "height"])
    np.testing.assert_array_equal(rows.batch(range(ROWS))[1].numpy(), HEIGHT)


def test_a_parquet_file_is_read_a_row_group_at_a_time_and_some_of_them_stay(tmp_path, monkeypatch):
    rows = Columns(write(tmp_path / "t.parquet", table()), ["height"], kept=2)
    read, file = [], rows._files[0]
    monkeypatch.setattr(
        file, "read", lambda group, columns, read_=file.read: read.append(group) or read_(group, columns)
    )
    for indices in ([7, 8], [0], [9, 6], [20], [1]):
        rows.batch(indices)
    assert read == [1, 0, 4, 0]


def test_lists_of_one_length_are_rows_even_if_the_file_does_not_say_so(path, tmp_path):
    made = table(list=arrow.array(PLACE.tolist()))
    rows = Columns(write(tmp_path / f"lists{path.suffix}", made), ["list"])
    np.testing.assert_array_equal(rows.batch([4, 17])[0].numpy(), PLACE[[4, 17]])


def test_the_rows_of_a_loader_do_not_depend_on_its_workers(path):
    def batches(count):
        rows = Columns(path, ["place", "label"], kept=1)
        return [place.numpy().tobytes() for place, _ in DataLoader(rows, 4, shuffle=False, num_workers=count)]

    assert batches(3) == batches(0)


def test_another_process_opens_the_files_itself(path):
    rows = Columns(path, ["place"], kept=3)
    again = pickle.loads(pickle.dumps(rows))
    assert again.kept == 3
    np.testing.assert_array_equal(again.batch([5])[0].numpy(), rows.batch([5])[0].numpy())


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("word", ["a"] * ROWS, "needs numbers in column 'word', got string"),
        (
            "gap",
            [None] + [1] * (ROWS - 1),
            "needs a value in every place of column 'gap', got 1 null, the first in row 0",
        ),
        ("holes", [[1, None]] * ROWS, "needs a value in every place of column 'holes', got 5 nulls"),
        ("ragged", [[1, 2], [3]] * 11 + [[4]], "needs lists of one length in column 'ragged', got several"),
        ("even", [[1, 2, 3], [4]] * 11 + [[4, 4]], "needs lists of one length in column 'even', got several"),
        ("words", [["a"]] * ROWS, "needs numbers in column 'words', got list<"),
    ],
)
def test_what_is_no_number_is_refused_by_the_name_of_its_column(path, column, values, message):
    write(path, table(**{column: arrow.array(values)}))
    with pytest.raises(FileError) as caught:
        Columns(path, ["height", column]).batch([0])
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: Columns(p, ["heigth"]), FileError, "needs a column 'heigth', got only height, place, label"),
        (lambda p: Columns(p, []), ArgumentError, "needs the names of columns"),
        (lambda p: Columns(p, "height"), ArgumentError, "needs the names of columns"),
        (lambda p: Columns(p.parent / "no*", ["height"]), FileError, "no*', where there are none"),
        (lambda p: Columns(p.parent / "no.csv", ["height"]), FileError, "no.csv', which does not exist"),
        (lambda p: Columns(p.rename(p.with_suffix(".csv")), ["height"]), FileError, "ends in .parquet, .arrow"),
        (lambda p: p.write_bytes(b"PAR1?") and Columns(p, ["height"]), FileError, "file, got one that breaks"),
        (lambda p: Columns(write(p, table().slice(0, 0)), ["height"]), FileError, "at least one row, got none"),
        (lambda p: Table(Columns(p, ["label", "height"]), [1])[0], FileError, "target 'height', got float32"),
        (lambda p: Table(Columns(p, ["label", "place"]), [1])[0], FileError, "target 'place', got float64 lists"),
        (
            lambda p: Table(Columns(p, ["place", "label"]), [2, 2])[0],
            FileError,
            "2 x 2 values in a row of place, as data.shape says, got 3",
        ),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(path, make, error, message):
    with pytest.raises(error) as caught:
        make(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("files", ["", "/", "a**b", "a\0b", "../" * 3000])
def test_a_pattern_that_names_no_file_is_one_clear_line(files):
    with pytest.raises(FileError, match=r"^columns: needs .*, got '[^\n]*$"):
        Columns(files, ["height"])


def test_a_fifo_and_a_folder_of_a_fitting_name_are_refused(tmp_path):
    os.mkfifo(tmp_path / "a.parquet")
    (tmp_path / "b.arrow").mkdir()
    for pattern, kind in (("*.parquet", "a FIFO"), ("*.arrow", "a directory")):
        with pytest.raises(FileError, match=f"columns: needs a regular file, got .*, which is {kind}"):
            Columns(tmp_path / pattern, ["height"])


def test_a_name_that_is_no_text_is_one_clear_line(path):
    path.write_bytes(path.read_bytes().replace(b"label", b"\xfaabel"))
    with pytest.raises(FileError, match="^columns: [^\n]*$"):
        Columns(path, ["height"])[0]


def test_names_of_columns_are_shown_in_one_line(tmp_path):
    made = arrow.table({name: arrow.array([1.0]) for name in ("x\ny", *(f"c{i}" for i in range(99)))})
    with pytest.raises(FileError, match=r"a column 'x', got only 'x\\ny', c0, c1, .*, c18$"):
        Columns(write(tmp_path / "a.arrow", made), ["x"])


def test_two_columns_of_one_name_are_refused(tmp_path):
    twice = arrow.Table.from_arrays([arrow.array([1.0]), arrow.array([2.0])], ["height", "height"])
    with pytest.raises(FileError, match="a.arrow: needs one column 'height', got 2 of this name"):
        Columns(write(tmp_path / "a.arrow", twice), ["height"])


def test_a_file_that_breaks_after_it_was_opened_is_one_clear_line(path):
    rows, whole = Columns(path, ["height", "place"]), path.read_bytes()
    path.write_bytes(bytes(len(whole) - 1000) + whole[-1000:])
    with pytest.raises(FileError, match=f"{path.name}: needs a whole (Parquet|Arrow) file, got one that breaks: "):
        rows.batch([0])


def test_places_of_lists_outside_the_file_are_refused(tmp_path):
    lists = arrow.array([[1, 2], [3, 4]])
    path = write(tmp_path / "a.arrow", arrow.table({"x": lists}))
    offsets = np.array([0, 2, 4], np.int32)
    assert path.read_bytes().count(offsets.tobytes()) == 1
    moved = path.read_bytes().replace(offsets.tobytes(), (offsets + 2**20).tobytes())
    path.write_bytes(moved)
    with pytest.raises(FileError, match="a.arrow: needs a whole Arrow file, got one that breaks: "):
        Columns(path, ["x"]).batch([0])


@pytest.mark.parametrize("claimed", [-1, 2**60])
def test_rows_that_the_file_cannot_hold_are_refused(path, monkeypatch, claimed):
    monkeypatch.setattr(parquet_files.Parquet, "rows", lambda self, group: claimed)
    monkeypatch.setattr(parquet_files.Arrow, "rows", lambda self, group: claimed)
    with pytest.raises(FileError, match="needs as many rows as [0-9]+ bytes can hold, got "):
        Columns(path, ["height"])


def test_rows_that_are_missing_are_told(path, monkeypatch):
    rows, file = Columns(path, ["height"]), parquet_files.Parquet if path.suffix == ".parquet" else parquet_files.Arrow
    monkeypatch.setattr(file, "rows", lambda self, group: 7)
    with pytest.raises(FileError, match="needs 7 rows in column 'height', got 5"):
        rows.batch([0])


def test_values_beyond_float32_are_told_with_their_row(path):
    write(path, table(large=np.where(np.arange(ROWS) == 4, 1e300, 1.0)))
    with pytest.raises(FileError, match="row 4: needs finite values in 'large', got inf in float32"):
        Table(Columns(path, ["large", "label"]), [1]).batch(range(ROWS))


def test_lists_of_another_length_in_another_file_are_named(tmp_path):
    for name, length in (("a", 2), ("b", 3)):
        write(tmp_path / f"{name}.parquet", arrow.table({"x": arrow.array([[0.0] * length] * 4)}))
    with pytest.raises(FileError, match="columns: x: needs lists of one length, got lengths 2, 3 in different parts"):
        Columns(tmp_path / "*.parquet", ["x"]).batch([0, 5])


def test_a_gap_of_nan_is_named_with_its_row(path):
    made = table().set_column(0, "height", arrow.array([*HEIGHT[:6], np.nan, *HEIGHT[7:]]))
    rows = Table(Columns(write(path, made), ["height", "label"]), [1, 1, 1])
    with pytest.raises(FileError, match=r"row 6: needs finite values in 'height', got nan\nhelp: fill"):
        rows.batch([2, 6])


def test_a_null_and_a_label_of_no_class_are_named_with_their_row_in_their_file(tmp_path):
    whole = arrow.table({"a": [1.0] * 6, "v": [[1.0, 2.0]] * 6, "y": [0, 1] * 3})
    gaps = arrow.table({"a": [1.0] * 5 + [None], "v": [[1.0, 2.0]] * 4 + [[1.0, None]] * 2, "y": [0, 1] * 2 + [2, 0]})
    parquet.write_table(whole, tmp_path / "1.parquet")
    parquet.write_table(gaps, tmp_path / "2.parquet", row_group_size=3)
    for column, row in (("a", 5), ("v", 4)):
        with pytest.raises(FileError, match=f"2.parquet: .* column '{column}', got . nulls?, the first in row {row}"):
            Columns(tmp_path, [column]).batch([9])
    rows = Columns([tmp_path / "1.parquet", tmp_path / "2.parquet"], ["y", "y"])
    with pytest.raises(FileError, match=r"2.parquet, row 4: needs a class from 0 to 1 in 'y', got 2\nhelp: data.class"):
        Table(rows, [1, 1, 1], 2).batch([0, 10])


RECIPE = '[model]\nname = "mlp"\nhidden = [8]\n[data]\nname = "parquet"\nbatch_size = 4\n[train]\nsteps = 3\n'


def recipe(tmp_path, data):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, "utf-8")
    return config.load(path, [f"data.files={tmp_path}/*.parquet", "data.target=label", "data.classes=2", *data])


@pytest.mark.parametrize("inputs", ["['height']", "['height', 'place']"])
def test_a_recipe_learns_from_columns(tmp_path, inputs):
    write(tmp_path / "t.parquet", table())
    found = recipe(tmp_path, [f"data.inputs={inputs}"])
    assert found.data.shape == (1, 1, 1 if inputs == "['height']" else 4)  # of the first row
    assert isinstance(list(fit(found))[-1], EvalRow)


def test_a_recipe_whose_columns_do_not_fit_says_what_to_change(tmp_path):
    write(tmp_path / "t.parquet", table())
    with pytest.raises(
        AmpkitError, match=r"needs 1 x 1 x 4 values in a row of place, .* got 3\nhelp: data.shape=\[1,1,3\]"
    ):
        list(fit(recipe(tmp_path, ["data.inputs=['place']", "data.shape=[1, 1, 4]"])))
    with pytest.raises(AmpkitError, match="data.inputs: needs a value, got nothing"):
        recipe(tmp_path, [])
