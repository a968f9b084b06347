"""The known word that a mistaken one is nearest to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def did_you_mean(word: Any, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The nearest of the words `known` as a question, the same one in other case first; None if none is near.

    cutoff: how alike a word must be, from 0 to 1.
    """
    import difflib  # where a mistake is to be explained, not with ampkit

    words = list(known)
    same = [each for each in words if each.lower() == str(word).lower()]
    close = same or difflib.get_close_matches(str(word), words, n=1, cutoff=cutoff)
    return f"did you mean {close[0]!r}?" if close else None
