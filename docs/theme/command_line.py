"""A MkDocs hook that makes `command-line.md`: what each command of `ampkit` prints with `--help`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Add the page."""
    files.append(File.generated(config, "command-line.md", content=command_line()))
    return files


def command_line() -> str:
    """A section for each command."""
    first = _help()
    commands = re.findall(r"^    (\w+) +\S", first.partition("commands:")[2], re.MULTILINE)
    parts = [
        "# Command line",
        "Exit status: 0 done, 1 the run failed, 2 the input is wrong (one line that says what, no traceback).",
        f"```\n{first}```",
    ]
    for command in commands:
        parts.append(f"## {command}\n\n```\n{_help(command)}```")
    return "\n\n".join(parts) + "\n"


def _help(*command: str) -> str:
    environment = os.environ | {"COLUMNS": "88", "NO_COLOR": "1"}
    line = [sys.executable, "-m", "ampkit", *command, "--help"]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout
