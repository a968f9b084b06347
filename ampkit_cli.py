"""The command `ampkit`: says on a terminal that the library loads, loads it, and runs the command line.

It is no part of the package, since importing a module of a package imports the package first: all of the library.
"""

import sys
from contextlib import suppress

_LOADING = "loading ampkit ..."
_INTERRUPTED = 130  # 128 + SIGINT, as in shells


def main() -> int:
    """Run the command line; returns the exit status."""
    _show(_LOADING)
    try:
        from ampkit.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("ampkit: interrupted\n")
        return _INTERRUPTED
    finally:
        _show(" " * len(_LOADING))
    return run()


def _show(text: str) -> None:
    # What a terminal shows in its present line, until something else is written there; elsewhere nothing.
    with suppress(OSError):  # a terminal that was closed
        if sys.stdout is not None and sys.stdout.isatty():
            sys.stdout.write(f"{text}\r")
            sys.stdout.flush()
