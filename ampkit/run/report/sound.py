"""Whether a row of a run's files is one that a report can show: files of other programs, and damaged ones, have any."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from ...amp.exponents import FORMATS

LARGEST = 2**53  # of the integers that a browser tells apart
_EXPONENTS = 1200  # beyond those of float64
Check = Callable[[Any], bool]


def parsed(text: bytes | str) -> Any:
    """JSON, without NaN and infinity, which become None. Raises ValueError or RecursionError for anything else."""
    return plain(json.loads(text))


def plain(value: Any) -> Any:
    """`value` with what JSON and browsers cannot hold replaced: by None for numbers, by text for dates and others."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= LARGEST else None
    return value if value is None or isinstance(value, (str, bool)) else str(value)


def is_text(value: Any) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no boolean."""
    return type(value) in (int, float) and math.isfinite(value)


def is_amount(value: Any) -> bool:
    """Whether it is a number from 0."""
    return is_number(value) and value >= 0


def is_step(value: Any) -> bool:
    """Whether it is the number of a step."""
    return type(value) is int and 0 <= value <= LARGEST


def list_of(check: Check, size: int | None = None) -> Check:
    """A check for a list of such values, of `size` if that is given."""
    return lambda value: isinstance(value, list) and size in (None, len(value)) and all(map(check, value))


def table_of(check: Check) -> Check:
    """A check for a dict with such values."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def with_keys(needed: Mapping[str, Check], others: Mapping[str, Check]) -> Check:
    """A check for a dict that has the keys `needed`, and may have others, each as its check wants it."""
    known = {**needed, **others}

    def check(value: Any) -> bool:
        return isinstance(value, dict) and needed.keys() <= value.keys() and all(
            known[key](item) for key, item in value.items() if key in known
        )  # fmt: skip

    return check


_RANGE = with_keys(
    dict.fromkeys(("of", "path", "dtype"), is_text),
    {
        **dict.fromkeys(("op", "stored"), is_text),
        **dict.fromkeys(("count", "largest", "scale", "zero", "inf", "nan"), is_amount),
        **dict.fromkeys(("present", *FORMATS), list_of(is_amount, 3)),
        "exponent": lambda value: type(value) is int and abs(value) <= _EXPONENTS,
        "counts": lambda value: list_of(is_number)(value) and len(value) <= 2 * _EXPONENTS,
    },
)  # fmt: skip
_UPDATE = with_keys(
    {"path": is_text, "changed": is_amount, "float16": is_amount, "bfloat16": is_amount}, {}
)  # fmt: skip
_SHAPE = with_keys({"step": is_step}, {"ranges": list_of(_RANGE), "updates": list_of(_UPDATE)})


def is_ranges_row(row: Any) -> bool:
    """Whether it is a row of ranges.jsonl."""
    histograms = (each for each in row.get("ranges", ()) if each.get("counts")) if _SHAPE(row) else ()
    return _SHAPE(row) and all("exponent" in each for each in histograms)


is_logged = with_keys({"step": is_step}, {})
is_environment = with_keys(
    {"step": is_step}, {"found": table_of(is_text), "precisions": table_of(is_text), "dtype": is_text}
)
is_measured = with_keys(
    {
        "ledger": with_keys(
            {"seconds": lambda value: is_amount(value) and value > 0},
            dict.fromkeys(("times", "memory", "wide", "peak"), table_of(is_amount)),
        ),
        "plan": with_keys(
            {
                "policy": is_text, "sentences": list_of(is_text), "notes": list_of(is_text),
                "head": list_of(is_text), "rows": list_of(list_of(is_text)),
            },
            {},
        ),
    },
    {"made": is_text, "where": is_text},
)  # fmt: skip


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


_ERROR = _or_none(is_amount)
_PRODUCT = with_keys({"error": _ERROR, "flushed": list_of(is_amount, 2)}, {"saturated": list_of(is_amount, 2)})
_LAB_LAYER = with_keys({"layer": is_text, "recipe": is_text, "error": _ERROR, "products": table_of(_PRODUCT)}, {})
_LAB_FORMAT = with_keys(
    {"recipe": is_text, "error": _ERROR, "products": table_of(_ERROR)}, {"inner": _ERROR, "kept": is_amount}
)  # fmt: skip
_CARD = with_keys({"name": is_text, "figures": list_of(is_text), "source": is_text}, {})
_TRAINED = with_keys(
    {"name": is_text, "loss": _or_none(is_number), "val_loss": _or_none(is_number)}, {"failure": _or_none(is_text)}
)  # fmt: skip
is_lab = with_keys(
    {
        "dtype": is_text, "policy": is_text, "budget": is_amount,
        "layers": list_of(_LAB_LAYER), "formats": list_of(_LAB_FORMAT), "trained": list_of(_TRAINED),
    },
    {"output": _or_none(is_text), "note": is_text, "kept": is_amount, "cards": list_of(_CARD)},
)  # fmt: skip
