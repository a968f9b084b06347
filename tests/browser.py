"""Headless Chromium, for tests of reports, and for measurements and pictures of them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]  # no requests of its own


def open_page(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open an HTML file with a new profile; SystemExit without a browser."""
    if CHROMIUM is None:
        raise SystemExit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *_QUIET, f"--user-data-dir={profile}"]
        command += ["--enable-logging=stderr", "--v=0", *options, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
