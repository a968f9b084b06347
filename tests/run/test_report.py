"""Reports: what is read of a run directory, and the page in a browser: no errors, marks in every chart, accessible."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from browser import CHROMIUM, open_page

from ampkit import cli
from ampkit.base.errors import FileError
from ampkit.debug import Ledger
from ampkit.run.report import RunData, page, read_run, report
from ampkit.run.report.findings import findings

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


def run_directory(path: Path, dtype: str = "float16", steps: int = 60, model: str = "mlp") -> Path:
    """A run of `steps` steps, of which the 5th was skipped, with two evaluations."""
    path.mkdir()
    (path / "config.toml").write_text(f'[model]\nname = "{model}"\n[data]\nname = "digits"\n[amp]\ndtype = "{dtype}"\n')
    scaled = dtype == "float16"
    rows = [
        {"step": i, "loss": 2 / i, "lr": 0.1, "scale": 65536.0 / (1 + (i > 4)) if scaled else 1.0,
         "skipped": int(scaled and i > 4), "grad_norm": None if i == 5 and scaled else 3 / i, "seconds": 0.01 * i,
         "memory": 1_000_000 * i}
        for i in range(1, steps + 1)
    ]  # fmt: skip
    scores = [{"step": i, "val_loss": 3 / i, "accuracy": 0.9} for i in (steps // 2, steps)]
    lines = [json.dumps(row) for row in (*rows, *scores)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return path


def numbers(html: str) -> dict:
    return json.loads(re.search(r'id="numbers">(.*?)</script>', html, re.DOTALL)[1])


def browse(html: Path, script: str = "", *options: str) -> tuple[str, list[str]]:
    """The document after it ran in a headless browser with `script` at its end, and the lines of its console."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html.read_text()) if script else None
    if text is not None:
        html = html.with_suffix(".tested.html")
        html.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    found = open_page(html, "--virtual-time-budget=5000", *options, "--dump-dom")
    return found.stdout, [line for line in found.stderr.splitlines() if "CONSOLE" in line]


# what is read


def test_a_run_is_read_as_columns_of_its_steps_and_evaluations(tmp_path):
    run = read_run(run_directory(tmp_path / "a", steps=6))
    assert run.steps["step"] == [1, 2, 3, 4, 5, 6]
    assert run.steps["loss"][2] == 0.6666667
    assert run.steps["grad_norm"][4] is None
    assert run.evaluations == {"step": [3, 6], "val_loss": [1.0, 0.5], "accuracy": [0.9, 0.9]}
    assert run.settings["amp"]["dtype"] == "float16"
    assert not run.notes


def test_lines_that_are_no_rows_are_counted_and_left_out(tmp_path):
    path = run_directory(tmp_path / "a", steps=2)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('no row\n[1]\n{"step": 3, "lo')
    run = read_run(path)
    assert run.steps["step"] == [1, 2]
    assert run.notes == ["metrics.jsonl: 3 of 7 lines cannot be read and are left out"]


def test_a_run_without_metrics_is_a_partial_report_that_says_so(tmp_path):
    path = run_directory(tmp_path / "a")
    (path / "metrics.jsonl").unlink()
    assert report([path], tmp_path / "out.html")[0].notes == ["metrics.jsonl is missing: no step was logged"]
    assert "metrics.jsonl is missing" in (tmp_path / "out.html").read_text()


def test_a_recipe_that_cannot_be_read_is_a_note(tmp_path):
    path = run_directory(tmp_path / "a")
    (path / "config.toml").write_bytes(b"[model\xff")
    assert read_run(path).notes == ["config.toml cannot be read: the recipe is not known"]


def test_a_key_of_thousands_of_parts_is_a_note_at_once(tmp_path):
    (tmp_path / "config.toml").write_text("a." * 200_000 + "b = 1\n")  # the parser takes the square of it
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    assert "config.toml cannot be read: the recipe is not known" in read_run(tmp_path).notes


@pytest.mark.parametrize("what", ["missing", "a file", "empty"])
def test_what_is_no_run_is_refused_by_name(tmp_path, what):
    path = tmp_path / "there"
    if what == "a file":
        path.write_text("")
    elif what == "empty":
        path.mkdir()
    with pytest.raises(FileError, match=f"needs the directory of a run, got '{re.escape(str(path))}', which"):
        report([path], tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_runs_of_the_same_name_are_numbered(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        run_directory(tmp_path / folder / "run")
    found = report([tmp_path / "a" / "run", tmp_path / "b" / "run"], tmp_path / "out.html")
    assert [run.name for run in found] == ["run (1)", "run (2)"]


def test_text_of_a_run_cannot_end_the_page_s_script(tmp_path):
    path = run_directory(tmp_path / "a")
    (path / "config.toml").write_text('x = "</script><script>alert(1)</script>"\n')
    html = page([read_run(path)])
    assert numbers(html)["runs"][0]["settings"]["x"] == "</script><script>alert(1)</script>"
    assert "alert(1)</script>" not in html


def test_the_page_needs_no_network(tmp_path):
    html = page([read_run(run_directory(tmp_path / "a"))])
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "default-src 'none'" in html


def test_ten_thousand_steps_fit_in_five_megabytes(tmp_path):
    assert len(page([read_run(run_directory(tmp_path / "a", steps=10_000))])) < 5e6


# what 16 bits lose


def ranges(path: Path, samples: int = 3, layers: int = 2) -> Path:
    """Add samples of some layers to a run: gradients that float16 flushes more and more of."""

    def layer(step, i):
        what = {"of": "gradient", "path": f"layer.{i}", "op": "linear", "dtype": "float32", "scale": 1024.0}
        counts = {"count": 100, "zero": 2, "exponent": -30, "counts": [step, 0, 98 - step]}
        return what | counts | {"largest": 0.5, "float16": [0, 10, step]}

    rows = [
        {"step": step, "ranges": [layer(step, i) for i in range(layers)],
         "updates": [{"path": "layer.0.weight", "size": 100, "changed": 50, "float16": step, "bfloat16": 2 * step}]}
        for step in range(1, samples + 1)
    ]  # fmt: skip
    (path / "ranges.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_shares_are_those_of_the_samples_and_histograms_those_of_quarters(tmp_path):
    found = read_run(ranges(run_directory(tmp_path / "a"))).precision
    assert found["steps"] == [1, 2, 3]
    layer = found["layers"][0]
    assert (layer["path"], layer["op"], layer["scale"], layer["stored"]) == ("layer.0", "linear", 1024.0, "float32")
    assert layer["lost"] == {"float16 subnormal": [0.1, 0.1, 0.1], "float16 flushed": [0.01, 0.02, 0.03]}
    assert layer["histograms"][1] == {"exponent": -30, "counts": [2, 0, 96], "zero": 2, "inf": 0, "nan": 0}
    (update,) = found["updates"]
    assert update == {"path": "layer.0.weight", "float16": [0.02, 0.04, 0.06], "bfloat16": [0.04, 0.08, 0.12]}


def test_many_samples_are_added_up_to_a_few_columns(tmp_path):
    found = read_run(ranges(run_directory(tmp_path / "a"), 128)).precision
    assert found["steps"] == list(range(2, 130, 2))
    assert found["layers"][0]["lost"]["float16 flushed"][:2] == [0.015, 0.035]
    assert found["layers"][0]["histograms"][0]["counts"] == [sum(range(1, 33)), 0, sum(98 - i for i in range(1, 33))]


def test_ten_thousand_steps_of_a_hundred_layers_fit_in_five_megabytes(tmp_path):
    path = ranges(run_directory(tmp_path / "a", steps=10_000), 500, 100)
    assert len(page([read_run(path)])) < 5e6


def test_damaged_samples_are_left_out_with_a_note(tmp_path):
    path = ranges(run_directory(tmp_path / "a"))
    with (path / "ranges.jsonl").open("a") as file:
        file.write('{"step": 4, "ra')
    run = read_run(path)
    assert run.precision["steps"] == [1, 2, 3]
    assert run.notes == ["ranges.jsonl: 1 of 4 lines cannot be read and are left out"]


def test_the_machines_of_a_run_are_read_and_shown(tmp_path):
    path = run_directory(tmp_path / "a")
    row = {"started": "2026-01-01T00:00:00", "step": 4, "ampkit": "0.1.0", "found": {"CPU": "a CPU with <units>"}}
    (path / "environment.jsonl").write_text(json.dumps(row) + "\n")
    assert read_run(path).environment == [row]
    assert "a CPU with \\u003cunits>" in page([read_run(path)])


# plan and ledger


def test_report_measures_the_steps_of_a_run_and_shows_plan_and_ledger(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipe = str(Path(__file__).parents[2] / "recipes" / "digits_mlp.toml")
    short = ["model.hidden=[16]", "train.epochs=", "train.steps=3", 'schedule={name="constant"}', "amp.dtype=bfloat16"]
    assert cli.main(["train", recipe, *short, "--run-dir", "run"]) == 0
    assert cli.main(["report", "run", "--measure"]) == 0
    (run,) = numbers(Path("run/report.html").read_text())["runs"]
    assert run["measured"]["plan"]["policy"] == 'Policy("bfloat16")'
    assert "bf16" in next(row[3] for row in run["measured"]["plan"]["rows"] if row[1] == "linear")
    assert {"products", "optimizer"} <= run["measured"]["ledger"]["times"].keys()
    assert run["environment"][0]["ranks"] == 1
    assert (
        run["environment"][0]["precisions"]["activations"] == 'bfloat16 where the policy says low, Policy("bfloat16")'
    )
    assert run["steps"]["memory"][-1] > 1e6
    assert capsys.readouterr().err == ""


def test_steps_that_cannot_run_here_are_a_line_and_a_report_without_them(tmp_path, capsys):
    path = run_directory(tmp_path / "a", model="no such model")
    assert cli.main(["report", str(path), "--measure"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("a: its steps cannot be measured here: ")
    assert (path / "report.html").exists()
    assert err == ""


@pytest.mark.parametrize("text", ["{", "[]", '{"plan": {}}', '{"plan": {}, "ledger": {"seconds": 1, "x": 2}}'])
def test_a_damaged_measurement_is_left_out_with_a_note(tmp_path, text):
    path = run_directory(tmp_path / "a")
    (path / "measured.json").write_text(text)
    run = read_run(path)
    assert (run.measured, run.notes) == (None, ["measured.json cannot be read: plan and ledger are left out"])


# in a browser

PIXELS = """
const painted = (canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const pixels = new Uint32Array(data.buffer).filter((pixel) => pixel >>> 24);
  return new Set(pixels).size;
};
addEventListener("load", () => setTimeout(() => {
  for (const figure of document.querySelectorAll("figure")) {
    figure.dataset.colors = Math.min(...[...figure.querySelectorAll("canvas")].map(painted));
  }
}, 500));
"""


@needs_browser
@pytest.mark.parametrize("options", [[], ["--blink-settings=preferredColorScheme=0"], ["--window-size=400,900"]])
def test_every_chart_has_marks_and_the_console_has_no_line(tmp_path, options):
    runs = [run_directory(tmp_path / dtype, dtype) for dtype in ("float32", "float16")]
    report(runs, tmp_path / "out.html")
    document, console = browse(tmp_path / "out.html", PIXELS, *options)
    figures = re.findall(r"<figure[^>]*>", document)
    assert not console
    assert len(figures) == 7
    assert all(int(re.search(r'data-marks="(\d+)"', figure)[1]) >= 4 for figure in figures)
    assert all(int(re.search(r'data-colors="(\d+)"', figure)[1]) > 3 for figure in figures)


@needs_browser
def test_the_map_starts_where_most_is_lost_and_the_keyboard_reads_it(tmp_path):
    script = """addEventListener("load", () => setTimeout(() => {
      const plot = document.querySelector(".map"), selects = [...document.querySelectorAll("figure select")];
      document.body.dataset.start = selects.map((select) => select.value).join();
      plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
      plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
      document.body.dataset.read = document.getElementById("reading").textContent;
    }, 500));"""
    report([ranges(run_directory(tmp_path / "a"))], tmp_path / "out.html")
    document, console = browse(tmp_path / "out.html", PIXELS + script)
    assert not console
    assert 'data-start="subnormal,gradient,float16"' in document
    assert 'data-read="layer.1 · linear, step 2: 10 % subnormal in float16, largest 0.5000"' in document
    (figure,) = re.findall(r'<figure class="wide"[^>]*>', document)
    assert 'data-marks="6"' in figure
    assert int(re.search(r'data-colors="(\d+)"', figure)[1]) > 3
    assert "Green: normal numbers of float16 at a loss scale of 1024" in document


@needs_browser
def test_runs_of_different_recipes_are_shown_with_a_warning(tmp_path):
    runs = [run_directory(tmp_path / model, model=model) for model in ("mlp", "cnn")]
    report(runs, tmp_path / "out.html")
    document, console = browse(tmp_path / "out.html")
    assert not console
    assert "of different models or data" in document


# in words


def test_the_findings_count_skips_and_compare_runs_with_float32(tmp_path):
    runs = [read_run(run_directory(tmp_path / dtype, dtype)) for dtype in ("float16", "float32")]
    assert findings(runs) == [
        "float16: 1 of 60 steps were skipped, because their gradients overflowed float16 at the loss scale of the "
        "moment.",
        "float16 is as fast as float32; its validation loss is the same",
        "  why is not known: `ampkit report --measure` finds out",
    ]


def test_runs_of_other_models_are_not_compared_in_words(tmp_path):
    runs = [run_directory(tmp_path / "a", "float32"), run_directory(tmp_path / "b", "bfloat16", model="cnn")]
    assert findings([read_run(path) for path in runs]) == []


def test_two_runs_in_float32_are_compared_in_a_line(tmp_path):
    runs = [read_run(run_directory(tmp_path / name, "float32")) for name in ("a", "b")]
    assert findings(runs) == ["b is as fast as a; its validation loss is the same"]


def test_the_findings_say_why_and_what_is_lost():
    def run(dtype, seconds, precision=None):
        steps, settings = {"step": [1, 2], "seconds": [1.0, 1.0 + seconds]}, {"amp": {"dtype": dtype}}
        found = {"ledger": asdict(Ledger(seconds, {"products": seconds}))}
        return RunData(dtype, settings=settings, steps=steps, precision=precision, measured=found)

    lost = {"recommendations": ["layer.0 loses much: bfloat16"]}
    assert findings([run("float32", 0.01), run("float16", 0.005, lost)]) == [
        "float16 is faster: 2.00 times the speed of float32",
        "  less time: products 10 -> 5 ms",
        "float16, what 16 bits lose:",
        "  layer.0 loses much: bfloat16",
    ]


@needs_browser
def test_plan_and_ledger_are_tables_of_the_runs_side_by_side(tmp_path):
    plan = {
        "policy": "a policy",
        "head": ["op"],
        "rows": [["linear"]],
        "sentences": ["5 of 5 run in 16 bits."],
        "notes": [],
    }
    paths = [run_directory(tmp_path / dtype, dtype) for dtype in ("float32", "float16")]
    for path, seconds in zip(paths, (0.02, 0.01), strict=True):
        steps = Ledger(seconds, {"products": seconds}, {"moments": 2_000_000})
        (path / "measured.json").write_text(json.dumps({"plan": plan, "ledger": asdict(steps)}))
    report(paths, tmp_path / "out.html")
    document, console = browse(tmp_path / "out.html")
    assert not console
    assert re.search(
        r'products</th><td><span class="amount">20 ms, 100 %.*?<span class="amount">10 ms, 100 %', document
    )
    assert "width: 50.0%" in document
    assert "2 MB" in document
    assert "5 of 5 run in 16 bits." in document


@needs_browser
def test_the_keyboard_reads_values_and_zooms(tmp_path):
    script = """addEventListener("load", () => setTimeout(() => {
      const plot = document.querySelector(".plot");
      const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
      press("End");
      document.body.dataset.read = document.getElementById("reading").textContent;
      press("+");
      setTimeout(() => { document.body.dataset.zoomed = all.map((chart) => chart.drawn.scales.x.min).join(); }, 100);
    }, 500));"""
    report([run_directory(tmp_path / "a")], tmp_path / "out.html")
    document, console = browse(tmp_path / "out.html", script)
    assert not console
    assert re.search(r'data-read="step 60: a 0.03333', document)
    zoomed = re.search(r'data-zoomed="([^"]*)"', document)[1].split(",")
    assert len(set(zoomed)) == 1
    assert float(zoomed[0]) > 1


@needs_browser
@pytest.mark.parametrize("scheme", ["0", "1"])
def test_axe_finds_nothing_serious(tmp_path, scheme):
    axe = pytest.importorskip("axe_core_python", reason="axe-core is not here: pip install axe-core-python")
    source = (Path(axe.__file__).parent / "axe.min.js").read_text().replace("</script>", "<\\/script>")
    script = (
        source
        + """;axe.run().then((found) => {
      const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
      document.body.dataset.axe = serious.map((one) => one.id).join() || "none";
    });"""
    )
    report([ranges(run_directory(tmp_path / "a")), run_directory(tmp_path / "b", "float32")], tmp_path / "out.html")
    document, _ = browse(
        tmp_path / "out.html", script, f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=20000"
    )
    assert re.search(r'data-axe="([^"]*)"', document)[1] == "none"
