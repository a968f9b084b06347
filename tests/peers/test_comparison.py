"""When results agree, and how differences are matched with the reviewed list."""

from __future__ import annotations

import numpy as np
import pytest
from peers.comparison import Difference, Leaf, Listed, Tally, faults, review, summary


def leaf(*values, dtype="float32"):
    return Leaf(np.array(values, np.float64 if dtype == "float64" else np.float32), dtype)


def found(got, needed, truth=None):
    return [fault for fault, _ in faults([got], [needed], lambda: truth and [truth])]


def difference(name="exp", **changes):
    return Difference(name, **{**dict.fromkeys(("variant", "detail", "call"), ""), "dtype": "float32", "sample": 0,
                               "kind": "values", "fault": "values", **changes})  # fmt: skip


def test_equal_results_agree_with_nan_and_infinities_at_the_same_places():
    assert found(leaf(1.0, np.nan, np.inf), leaf(1.0, np.nan, np.inf)) == []
    assert found(leaf(np.inf), leaf(-np.inf)) == ["values"]
    assert found(leaf(np.nan), leaf(0.0)) == ["values"]
    assert found(leaf(0.0), leaf(np.nan)) == ["values"]
    assert found(leaf(1e30), leaf(np.inf)) == ["values"]


def test_dtype_shape_and_number_of_results_are_compared():
    assert found(leaf(1.0), leaf(1.0, dtype="float64")) == ["dtype"]
    assert found(leaf(1.0), leaf(1.0, 1.0)) == ["shape"]
    assert [fault for fault, _ in faults([], [leaf(1.0)], lambda: None)] == ["structure"]


def test_a_tolerance_is_that_of_the_dtype():
    assert found(leaf(1.000001), leaf(1.0)) == []
    assert found(leaf(1.000001, dtype="float64"), leaf(1.0, dtype="float64")) == ["values"]
    assert found(leaf(1.0005, dtype="float16"), leaf(1.0, dtype="float16")) == []


def test_the_truth_decides_where_values_differ():
    assert found(leaf(2.0), leaf(1.0), leaf(2.0, dtype="float64")) == []
    assert found(leaf(2.0), leaf(1.0), leaf(1.0, dtype="float64")) == ["values"]
    assert found(leaf(np.inf, dtype="float16"), leaf(6e4, dtype="float16"), leaf(7e4, dtype="float64")) == []


def test_integers_are_equal_or_differ():
    ours, theirs = (Leaf(np.array([n]), "int64") for n in (10**9, 10**9 + 1))
    assert [fault for fault, _ in faults([ours], [theirs], lambda: None)] == ["values"]
    assert faults([ours], [theirs], lambda: None, numbers=False) == []


@pytest.mark.parametrize(
    ("entry", "covered"),
    [
        (Listed("exp", "why"), True),
        (Listed("log exp", "why", kinds="values", faults="dtype,values", dtypes="float32"), True),
        (Listed("log", "why"), False),
        (Listed("*", "why", kinds="grad"), False),
        (Listed("exp", "why", when=lambda one: one.sample == 1), False),
    ],
)
def test_an_entry_covers_a_difference_for_which_all_its_conditions_hold(entry, covered):
    assert entry.covers(difference()) is covered


def test_an_entry_that_covers_nothing_is_stale_if_its_names_ran():
    entries = [Listed("exp", "used"), Listed("log", "unused"), Listed("sin", "did not run")]
    reviewed = review([difference(), difference("cos")], entries, {"exp", "log", "cos"})
    assert [one.name for one in reviewed.listed] == ["exp"]
    assert [one.name for one in reviewed.unlisted] == ["cos"]
    assert [entry.reason for entry in reviewed.stale] == ["unused"]
    assert [entry.reason for entry in review([], [Listed("*", "all")], None).stale] == ["all"]


def test_a_summary_counts_a_sample_once():
    tally = Tally({"exp"}, 3, [difference(), difference(fault="dtype")])
    row = summary({"values": tally}, review(tally.differences, [], None)).splitlines()[1]
    assert row.split() == ["values", "1", "4", "3", "0", "2", "0"]
