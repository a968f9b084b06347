"""Modules and parameters of a model by patterns: a path with `*` for any one part, and all that lies below."""

from __future__ import annotations

from collections.abc import Iterable

from ampkit.base.errors import ConfigError
from ampkit.base.near_names import did_you_mean
from ampkit.core.module_path import matches

_SHOWN = 6  # names, by an error


def is_below(pattern: str, name: str) -> bool:
    """Whether `pattern` matches the path `name` or one above it: `layer1` and `*.0` match `layer1.0.conv1.weight`."""
    parts = name.split(".")
    return any(matches(pattern, ".".join(parts[:count])) for count in range(1, len(parts) + 1))


def need_matches(where: str, needs: str, patterns: Iterable[str], names: Iterable[str]) -> None:
    """Raise ConfigError, with the nearest names, for a pattern that matches none of `names`, nor what lies above."""
    known = list(names)
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(is_below(pattern, name) for name in known):
            raise no_match(where, needs, pattern, known)


def no_match(where: str, needs: str, pattern: str, known: Iterable[str]) -> ConfigError:
    """The error for a pattern that matches none of the paths `known`."""
    paths = list(dict.fromkeys(path for name in known for path in _above(name)))
    more = ", ..." if len(paths) > _SHOWN else ""
    cure = did_you_mean(pattern, paths) or f"the model has {', '.join(paths[:_SHOWN])}{more}"
    return ConfigError(where, needs, repr(pattern), cure)


def _above(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))
