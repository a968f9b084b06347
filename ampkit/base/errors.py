"""Errors: one line that names what was needed and what came, and a second line with the cure where it is known.

Every error is an `AmpkitError`, a `RuntimeError`, which PyTorch raises for most of them, and also the built-in that a
caller of Python would expect (`ShapeError` is a `ValueError`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


class UnsupportedError(Exception):
    """Raised by a kernel that has no implementation for a call; the reference runs in its place (see core/dispatch)."""


class AmpkitError(RuntimeError):
    """An error of ampkit: `where: needs X, got Y`, then `help: ...`."""

    def __init__(self, where: str, needs: str | None = None, got: str | None = None, cure: str | None = None):
        line = where if needs is None else f"{where}: needs {needs}" + ("" if got is None else f", got {got}")
        super().__init__(line if cure is None else f"{line}\nhelp: {cure}")

    def __reduce__(self) -> tuple[Callable[..., AmpkitError], tuple[type[AmpkitError], str]]:
        return error_with_text, (type(self), str(self))


def error_with_text(kind: type[AmpkitError], text: str) -> AmpkitError:
    """An error of a kind whose whole text is known, as that of another process."""
    base = OSError if issubclass(kind, OSError) else Exception  # the one whose memory layout it has
    error: AmpkitError = base.__new__(kind)
    Exception.__init__(error, text)
    return error


def switch(where: str, name: str, value: Any) -> bool:
    """`value` as True or False. Raises ArgumentError for text: "no" and "False", say, would be true."""
    if value is True or value is False:
        return value
    if isinstance(value, (str, bytes)) or value is NotImplemented:  # whose truth Python deprecates
        raise ArgumentError(where, f"{name} True or False", repr(value), unquoted(name, value))
    try:
        return bool(value)
    except (TypeError, ValueError):  # an array of several
        raise ArgumentError(where, f"{name} True or False", f"a {type(value).__name__}") from None


def check_choice(where: str, name: str, value: Any, *allowed: Any) -> None:
    """Raise ArgumentError unless `value` is one of `allowed`, which are two or more."""
    try:
        known = value in allowed
    except ValueError:  # an array of several
        known = False
    if not known:
        raise ArgumentError(where, f"{name} {one_of(allowed)}", repr(value))


def one_of(values: Iterable[Any]) -> str:
    """The values in words: `'a', 'b' or 'c'`."""
    *others, last = map(repr, values)
    return f"{', '.join(others)} or {last}" if others else last


def some_of(names: Sequence[str], most: int = 5) -> str:
    """The first names, separated by commas, and how many more there are: "a, b and 7 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def unquoted(name: str, value: Any) -> str | None:
    """The cure for True, False or None in quotation marks; None for all else."""
    said = value.capitalize() if isinstance(value, str) else ""
    return f"write {name}={said}, without quotes" if said in ("True", "False", "None") else None


class ShapeError(AmpkitError, ValueError):
    """Shapes that do not fit together."""


class NoLengthError(ShapeError, TypeError):
    """`len` of, or a loop over, a tensor without axes: a TypeError, by which callers tell a number from a sequence."""


class DTypeError(AmpkitError, TypeError):
    """A dtype, or a type, that an operation does not take."""


class NoTensorError(DTypeError, ValueError):
    """An argument is no Tensor: a TypeError as everywhere, and the ValueError that PyTorch's distributions raise."""


class DeviceError(AmpkitError):
    """A device that is missing, or tensors on different devices."""


class OutOfMemoryError(AmpkitError, MemoryError):
    """Memory that is not enough; on a GPU says what was asked for, who holds how much, and three ways down."""


class RangeError(AmpkitError, IndexError):
    """A label, an index or an axis outside its range."""


class ArgumentError(AmpkitError, ValueError):
    """A value that an argument does not take."""


class ConfigError(AmpkitError, ValueError):
    """A recipe, a policy or a command line that says something unknown."""


class StateError(AmpkitError):
    """A call in the wrong order: a graph used twice, a weight changed before its backward, a step without gradients."""


class UndefinedError(StateError, NotImplementedError):
    """A method or a formula that a class does not define."""


class NonFiniteError(AmpkitError, ArithmeticError):
    """A value that had to be finite was not; a RuntimeError too, as PyTorch's anomaly detection raises.

    finding: an ampkit.debug.Finding of where it came from, if that was followed.
    """

    finding: Any = None


class ScaleCollapseError(NonFiniteError):
    """The loss scale fell so far that training cannot go on; names the parameter, the scale's history and the cure."""


class FileError(AmpkitError, OSError):
    """A file that is missing, cannot be written, or does not hold what it should."""
