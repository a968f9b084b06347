"""A MkDocs hook that appends to `command-line.md` what each command of `ampkit` prints with `--help`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Put the page with the sections in place of the one without."""
    page = files.get_file_from_path("command-line.md")
    if page is not None:
        files.remove(page)
        files.append(File.generated(config, page.src_uri, content=f"{page.content_string}\n{command_line()}"))
    return files


def command_line() -> str:
    """A section for each command."""
    first = _help()
    commands = re.findall(r"^    (\w+) +\S", first.partition("commands:")[2], re.MULTILINE)
    parts = ["## Every command", f"```\n{first}```"]
    for command in commands:
        parts.append(f"### {command}\n\n```\n{_help(command)}```")
    return "\n\n".join(parts) + "\n"


def _help(*command: str) -> str:
    environment = os.environ | {"COLUMNS": "88", "NO_COLOR": "1"}
    line = [sys.executable, "-m", "ampkit", *command, "--help"]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout
