"""What commands print, whatever the terminal can show."""

import io

import pytest

from ampkit import config
from ampkit.cli import display


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
