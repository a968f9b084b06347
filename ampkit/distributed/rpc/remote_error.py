"""Exceptions of other processes: as texts on the way, and as exceptions with the other traceback as a note."""

from __future__ import annotations

import builtins
import inspect
import traceback
from pathlib import Path
from typing import Any

from ...base import errors
from ...base.errors import AmpkitError, error_with_text
from ..transport import DistError

FOLDER = str(Path(__file__).parent)


class RemoteError(DistError):
    """An exception of another process, of a class that this one does not have by that name."""


_KNOWN: dict[str, type[Exception]] = {
    name: kind
    for module in (builtins, errors)
    for name, kind in vars(module).items()
    if inspect.isclass(kind) and issubclass(kind, Exception)
}
_KNOWN |= {"DistError": DistError, "RemoteError": RemoteError}


def described(error: BaseException) -> list[str]:
    """Class, text and traceback of an exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(FOLDER):
        trace = trace.tb_next  # the frames that only lead to the function
    return [type(error).__name__, str(error), "".join(traceback.format_exception(type(error), error, trace))]


def made(worker: str, says: str, found: Any) -> Exception:
    """The exception of what `described` said on a worker: of the same class, if it is Python's or ampkit's own."""
    name, text, trace = found
    kind, where = _KNOWN.get(name), f"{says} on {worker}: "
    if kind is None or kind in (StopIteration, StopAsyncIteration):
        error: Exception = error_with_text(RemoteError, f"{where}{name}: {text}" if text else f"{where}{name}")
    elif issubclass(kind, AmpkitError):
        error = error_with_text(kind, where + text)
    else:
        try:
            error = kind(where + text)
        except TypeError:  # of several arguments, as UnicodeDecodeError
            error = error_with_text(RemoteError, f"{where}{name}: {text}")
    error.add_note(f"On {worker}:\n{trace.rstrip()}")
    return error
