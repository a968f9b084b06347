"""What commands print, whatever the terminal can show."""

import io

import pytest
from rich.console import Console

from ampkit import config
from ampkit.cli import display
from ampkit.run.loop import StepRow


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_output_s_encoding_lacks_are_written_as_escapes(encoding):
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding) as stream:
        console = display.console(stream, width=60)
        display.print_line(console, "report: /tmp/\u00e9 \u2192 \udce9")
        console.print(display.summary(config.load("recipes/digits_mlp.toml"), [], 1, "samples", "/tmp/\u0416"))
        stream.flush()
        shown = written.getvalue().decode(encoding)
    assert "report: /tmp/" in shown and "\\udce9" in shown
    assert ("\\u2192" in shown) == (encoding != "utf-8") and ("\\u0416" in shown) == (encoding != "utf-8")


def test_the_training_loss_at_the_end_is_a_mean_of_the_last_rows_and_the_size_is_said():
    rows = [StepRow(step, float(step), 0.1, 1.0, 0, 1.0, 1.0) for step in range(1, 41)]
    written = io.StringIO()
    recipe = config.load("recipes/digits_mlp.toml")
    Console(file=written, width=90).print(display.summary(recipe, rows, 1, "samples", "runs/one", 3_090_000))
    assert "35.5000, mean of the last 10 rows" in written.getvalue()
    assert "runs/one, 3.09 MB" in written.getvalue()
