"""The known word that a mistaken one is nearest to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_LEAST = 3  # letters of an abbreviation
_ALMOST = 0.87  # what only a letter or two set apart
_FLOATS = {"fp": "float", "f": "float", "bf": "bfloat"}  # fp16, f32, bf16


def did_you_mean(word: Any, known: Iterable[str], cutoff: float = 0.65) -> str | None:
    """The nearest of the words `known` as a question; None if none is near.

    The same one in other case or without underscores comes first, then one that differs in a letter, one that begins
    with `word`, one that is a whole part of it (cosine of cosine_annealing), and the most alike one. cutoff: how alike
    it must be, from 0 to 1, as difflib measures it. The keys of recipes, commands and ops with a letter dropped,
    doubled, mistyped or swapped are all found by 0.65; of words that mean something else, such as age, it takes a fifth
    as many for near as 0.5.
    """
    found = _nearest(str(word), list(known), cutoff)
    return None if found is None else f"did you mean {found!r}?"


def _nearest(word: str, words: Sequence[str], cutoff: float) -> str | None:
    import difflib  # where a mistake is to be explained, not with ampkit

    small = re.sub(r"^(fp|f|bf)(?=\d+$)", lambda match: _FLOATS[match[1]], word.lower())
    parts = re.split(r"[_\W]+", small)
    same = [each for each in words if each.lower() == small]
    same = same or [each for each in words if _letters(each) == _letters(small)]
    longer = [each for each in words if len(small) >= _LEAST and each.lower().startswith(small)]
    within = [each for each in words if len(each) > _LEAST and each.lower() in parts]
    close, almost = (difflib.get_close_matches(word, words, 1, bound) for bound in (cutoff, _ALMOST))
    return next((min(found, key=len) for found in (same, almost, longer, within, close) if found), None)


def _letters(word: str) -> str:
    return re.sub(r"[_\W]", "", word.lower())
