"""What an exception says of the library: a proper answer, or a finding."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import ampkit
from ampkit import AmpkitError

ROOT = str(Path(ampkit.__file__).parent)
_OF_PYTHON = re.compile(
    r"[\w.<>]+\(\) (missing|takes|got an unexpected|got multiple|got some|argument after)|.*missing the argument"
)
# Names of the library's functions that call what the caller gave: their TypeErrors are of the caller's function.
_CALLERS = {"factor_of"}
# Those through which NumPy computes what the caller asked of it, by its own rules, with its own warnings.
_OF_NUMPY = {"array_ufunc", "array_function"}


# What Python and the standard library expect of these methods.
_PROTOCOL: dict[str, tuple[type[Exception], ...]] = {
    "__getattr__": (AttributeError,),
    "__delattr__": (AttributeError,),
    "__getitem__": (KeyError,),
    "__delitem__": (KeyError,),
}


class Hang(BaseException):
    """A call exceeded its time limit."""


def frames_inside(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an error's traceback that are in the library."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(ROOT)]


def _is_of_caller(error: BaseException) -> bool:
    # Whether the call's own text raised it, such as None + 1 or a lambda in it, or another library that it names.
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_expression = last.filename == "<string>" and last.name in ("<module>", "<lambda>", "<listcomp>")
    return is_expression or (isinstance(error, TypeError) and ("<lambda>()" in str(error) or not frames_inside(error)))


def kind(error: BaseException) -> str | None:
    """The kind of finding that an exception is, or None if it is a proper answer."""
    if isinstance(error, AmpkitError):
        return "wrapped" if "Python says" in str(error) else None
    frames = [frame for frame in frames_inside(error) if frame.name != "_first_call"]  # of an op, then its own
    if (
        isinstance(error, TypeError)
        and (
            len(frames) <= 2
            or ".forward()" in str(error)
            or "__init__() missing" in str(error)
            or frames[-1].name == "_raise_missing"
        )
        and _OF_PYTHON.match(str(error))
    ):
        return None
    if isinstance(error, (KeyError, IndexError)) and frames and "dataset[" in str(frames[-1].line):
        return None  # raised by the caller's dataset
    if isinstance(error, TypeError) and any(frame.name in _CALLERS for frame in frames):
        return None
    if not isinstance(error, (Warning, Hang)) and _is_of_caller(error):
        return None
    if frames and frames[-1].name in _OF_NUMPY:
        return None
    if len(frames) == 1 and isinstance(error, _PROTOCOL.get(frames[0].name, ())):
        return None
    return "warning" if isinstance(error, Warning) else "hang" if isinstance(error, Hang) else "raw"
