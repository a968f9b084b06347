"""docs/reliability.md says what tests/golden/reliability.json holds, and the short form notices what changed."""

from __future__ import annotations

import re

import pytest

from . import page
from .measures import MEASURES, error_table, larger_errors

pytestmark = pytest.mark.cpu


def test_the_page_is_written_from_the_figures():
    text = page.PAGE.read_text()
    assert set(re.findall(r"<!-- measured: (\w+) -->", text)) == set(MEASURES)
    assert page.rewritten(text, page.load()) == text, "run `python -m tests.reliability NAME` instead of editing"


def test_readme_has_the_figures_of_the_page():
    samples = page.load()["samples"]["samples"]
    assert f"of {samples:,} samples" in (page.ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", MEASURES)
def test_the_figures_of_the_page_show_no_fault(name):
    figures = page.load()[name]
    assert MEASURES[name].contradictions(figures, figures) == []


@pytest.mark.parametrize(("name", "figure"), [(each.name, zero) for each in MEASURES.values() for zero in each.zero])
def test_a_fault_is_named(name, figure):
    figures = page.load()[name]
    assert MEASURES[name].contradictions(figures | {figure: 1}, figures) == [f"{figure} is 1, not 0"]


@pytest.mark.parametrize(("name", "figure"), [(each.name, least) for each in MEASURES.values() for least in each.least])
def test_more_may_be_tried_than_the_page_says_and_not_less(name, figure):
    figures = page.load()[name]
    assert MEASURES[name].contradictions(figures | {figure: figures[figure] + 1}, figures) == []
    (found,) = MEASURES[name].contradictions(figures | {figure: 0}, figures)
    assert found == f"{figure} is 0, the page says {figures[figure]}"


def test_errors_may_be_twice_as_large_on_another_cpu_and_not_more():
    figures = page.load()["ulps"]
    *counts, error, name = figures["float32, values"]
    assert larger_errors(figures | {"float32, values": [*counts, 1.9 * error, name]}, figures) == []
    (found,) = larger_errors(figures | {"float32, values": [*counts, 2.1 * error, name]}, figures)
    assert found.startswith(f"float32, values: {name} is ")
    (found,) = larger_errors(figures | {"float32, values": [counts[0] // 2, *counts[1:], error, name]}, figures)
    assert found == "float32, values: fewer ops stay within 0.5"


def test_a_table_is_not_wrapped():
    assert page.wrapped("a " * 100 + "\n\n" + "| b " * 100).endswith("\n\n" + "| b " * 100)
    assert error_table(page.load()["ulps"]).count("\n") == 9
