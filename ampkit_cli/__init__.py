"""The command `ampkit`: answers --help and --version, else loads the library and runs the command line.

It is no part of the package, since importing a module of a package imports the package first: all of the library. On a
terminal it says that the library loads.
"""

import sys
from contextlib import suppress

_LOADING = "loading ampkit ..."
_INTERRUPTED = 130  # 128 + SIGINT, as in shells


def main() -> int:
    """Run the command line; returns the exit status."""
    try:
        _answer_help()
        _show(_LOADING)
        try:
            from ampkit.cli import main as run
        finally:
            _show(" " * len(_LOADING))
    except KeyboardInterrupt:
        sys.stderr.write("ampkit: interrupted\n")
        return _INTERRUPTED
    return run()


def _answer_help() -> None:
    # Exits where the command line asks for help or the version. A mistake is left to `run`, which says what was meant.
    if {"-h", "--help", "--version"} & set(sys.argv[1:]):
        from .arguments import parser
        from .parser import MistakeError

        with suppress(MistakeError):
            parser().parse_known_args()


def _show(text: str) -> None:
    # What a terminal shows in its present line, until something else is written there; elsewhere nothing.
    with suppress(OSError):  # a terminal that was closed
        if sys.stdout is not None and sys.stdout.isatty():
            sys.stdout.write(f"{text}\r")
            sys.stdout.flush()
