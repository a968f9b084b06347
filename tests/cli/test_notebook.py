"""What a notebook shows: one display for a run that trains, a report in its cell, objects as HTML without scripts."""

from __future__ import annotations

import math
import os
import pty
import re
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

import ampkit
from ampkit import cli, config, debug, nn
from ampkit.core.policy.recipe import recipe
from ampkit.run.loop import fit

SHORT = ["train.epochs=", "train.steps=6", "train.log_every=1", "train.eval_every=3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "<run>"
    assert cli.main(["train", "digits_mlp", *SHORT, "--device", "cpu", "--run-dir", str(path)]) == 0
    return path


@pytest.fixture
def displays(monkeypatch):
    """Stands for IPython in a notebook -> the contents of each display, the first and its updates."""
    found = []

    def display(content, display_id):
        found.append([content])
        return SimpleNamespace(update=found[-1].append)

    class ZMQInteractiveShell:
        """The shell of a notebook's kernel has this name."""

    module = SimpleNamespace(get_ipython=ZMQInteractiveShell, display=SimpleNamespace(display=display, HTML=str))
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    return found


class Tags(HTMLParser):
    """Checks that tags are closed, and collects their names."""

    def __init__(self, html):
        super().__init__()
        self.open, self.names = [], set()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.cpu
def test_a_run_in_a_notebook_is_one_display_that_is_updated(displays, capsys):
    rows = list(ampkit.progress(fit(config.load("digits_mlp", SHORT))))
    assert [row.step for row in rows] == [1, 2, 3, 3, 4, 5, 6, 6]
    (contents,) = displays
    assert 'value="6" max="6"' in contents[-1] and f"loss {rows[-2].loss:.4f}" in contents[-1]
    assert "step 3  val loss" in contents[-1] and "step 6  val loss" in contents[-1]
    assert Tags(contents[-1]).names == {"div", "progress", "br"}
    assert capsys.readouterr().out == ""


@pytest.mark.cpu
def test_a_run_elsewhere_prints_its_rows(capsys):
    rows = list(ampkit.progress(fit(config.load("digits_mlp", SHORT))))
    assert len(rows) == 8
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("float32  step 6/6  val loss")


@pytest.mark.cpu
def test_a_command_in_a_cell_prints_lines_and_moves_no_cursor(tmp_path, monkeypatch):
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setenv("TERM", "xterm-color")
    reader, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert cli.main(["train", "digits_mlp", *SHORT, "--run-dir", str(tmp_path / "run")]) == 0
        out.flush()
        text = os.read(reader, 100_000).decode()
    os.close(reader)
    assert "step 6/6  val loss" in text and "\x1b[1A" not in text


@pytest.mark.cpu
def test_a_report_is_shown_in_its_cell_and_can_be_saved(run, tmp_path):
    found = ampkit.report(run)
    shown = found._repr_html_()
    assert shown.startswith('<iframe srcdoc="') and "<script" not in shown  # those of the page run inside the frame
    assert Tags(shown).names == {"iframe"}
    found.save(tmp_path / "report.html")
    assert "<script" in (tmp_path / "report.html").read_text()
    assert repr(found) == "Report(<run>): .save('report.html') writes it"
    with pytest.raises(ampkit.FileError, match="needs the directory of a run"):
        ampkit.report(tmp_path / "none")


@pytest.mark.cpu
def test_objects_show_escaped_html_without_scripts(run):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plan = debug.plan(model, (ampkit.randn(2, 4),), "float16", lambda model, batch: model(batch[0]).sum())
    ledger = debug.Ledger(0.5, {"<casts>": 0.1})
    ranges, known = debug.Ranges(model, 1), {"b", "details", "div", "pre", "summary"}
    with ranges.step(1):
        model(ampkit.randn(2, 4)).sum().backward()
    known |= {"br", "table", "tbody", "td", "th", "thead", "tr"}
    tensor = ampkit.tensor([float("nan"), 1e-7], dtype=ampkit.float16)
    recipes = [config.load("digits_mlp", ["train.seed=7"]), recipe("mxfp8"), recipe("current")]
    rows = [plan, plan.diff(plan), ledger, ranges, ampkit.Policy("float16"), ampkit.load_run(run), tensor, model]
    for shown in (*rows, *recipes, ampkit.GradScaler(), ampkit.GradScaler(enabled=False)):
        html = shown._repr_html_()
        assert Tags(html).names <= known
        assert "<tr></tr>" not in html  # which would draw the line of an empty head
        assert "<casts>" not in html and "<run>" not in html
        assert len(html) < 6000
        assert "color" not in html  # that of the page, light or dark
    assert "<td" in plan._repr_html_() and "linear" in plan._repr_html_()
    assert ranges._repr_html_().count("<tr>") == len(ranges.ranges()) + 1
    assert "&lt;casts&gt;" in ledger._repr_html_()
    assert "seed = 7" in recipes[0]._repr_html_() and "e4m3 1 x 32, scales float8" in recipes[1]._repr_html_()


def test_a_difference_of_plans_is_text_that_shows_as_it_is_printed():
    model = nn.Linear(4, 4)
    one, other = (debug.plan(model, (ampkit.randn(2, 4),), dtype) for dtype in ("float16", "bfloat16"))
    found = one.diff(other)
    assert isinstance(found, str) and repr(found) == str(found) == f"{found}"
    assert found._repr_html_().startswith("<pre") and "&quot;float16&quot;" in found._repr_html_()


def test_a_scaler_shows_its_scale_and_its_rule():
    scaler, weight = ampkit.GradScaler(init_scale=8.0, growth_interval=3), nn.Parameter(ampkit.ones(1))
    optimizer = ampkit.optim.SGD([weight], lr=0.1)
    assert repr(scaler) == "GradScaler(scale=8, growth_factor=2, backoff_factor=0.5, growth_interval=3)"
    for factor, scale, finite in ((1.0, 8, 1), (float("inf"), 4, 0)):
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        shown = scaler._repr_html_()
        assert f">{scale}<" in shown and f"times 2 after 3 finite steps in a row; {finite} so far" in shown
    assert repr(ampkit.GradScaler(enabled=False)) == "GradScaler(enabled=False)"


@pytest.mark.cpu
def test_an_error_names_the_cell_of_a_notebook_and_its_line(monkeypatch):
    named = {"/tmp/ipykernel_7/42.py": "In[2]", "<ipython-input-3>": "In[3]"}
    shell = SimpleNamespace(
        compile=SimpleNamespace(format_code_name=lambda file: ("Cell", named[file]) if file in named else None)
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    source = "\nwith debug.detect_nonfinite():\n    ampkit.zeros(1).log() * 0\n"
    for file, cell in named.items():
        with pytest.raises(ampkit.NonFiniteError, match=re.escape(f"(cell {cell}, line 3)")):
            exec(compile(source, file, "exec"), {"debug": debug, "ampkit": ampkit})


@pytest.mark.parametrize(
    ("values", "dtype", "words"),
    [
        ([1.0, math.nan, math.inf, 2.0**-24], "float16", "5.96e-08 to 1, mean 0.5, 1 NaN, 1 infinite, 1 below"),
        ([1.0, 2.0**-24], "bfloat16", "5.96e-08 to 1, mean 0.5<"),
        ([3, -4], "int8", "2 B, -4 to 3<"),
        ([0.5, -2.0], "float8_e4m3fn", "2 B, -2 to 0.5, mean -0.75<"),
        ([math.nan], "float32", "4 B, 1 NaN<"),
        ([True], "bool", "1 B<"),
        ([], "float32", "no elements<"),
    ],
)
def test_a_tensor_shows_what_its_values_range_over(values, dtype, words):
    shown = ampkit.tensor(values).to(getattr(ampkit, dtype))._repr_html_()
    assert f"{words}" in shown and f"[{len(values)}] {dtype} on" in shown


@pytest.mark.cpu
def test_a_model_shows_its_parameters_by_dtype_and_child():
    model = nn.Sequential(nn.Linear(2, 3), nn.ModuleList(), nn.Linear(3, 1).half())
    html = model._repr_html_()
    assert "<b>Sequential, parameters: 9 in float32 and 4 in float16 (44 B)</b>" in html
    assert ">2</td>" in html and ">ModuleList</td>" in html and ">4 in float16 (8 B)</td>" in html
    lazy = nn.Sequential(nn.LazyLinear(3))
    assert "Sequential, parameters: 2 without a shape yet<" in lazy._repr_html_()
    assert lazy[0].weight._repr_html_ is None
    assert "ReLU, parameters: none" in nn.ReLU()._repr_html_()


@pytest.mark.cpu
def test_objects_of_debug_print_as_tables_at_the_end_of_a_cell():
    plan = debug.plan(nn.Linear(4, 4), (ampkit.randn(2, 4),), "float16", lambda model, batch: model(batch[0]).sum())
    assert repr(plan) == str(plan) and repr(plan).startswith('Policy("float16")\n\nmodule ')
    ledger = debug.Ledger(0.5, {"casts": 0.1})
    assert repr(ledger) == str(ledger) and re.match(r"a step +500.00 ms\n", repr(ledger))


@pytest.mark.cpu
def test_a_run_says_what_it_trains_and_how_far_it_is():
    found = fit(config.load("digits_mlp", SHORT))
    next(iter(found))
    assert repr(found) == "Run(mlp on digits, float32, 1 of 6 steps)"
