"""The entries of a `.cu` file: the template instances that the comments at its end list, in the form that
include/storage.cuh explains. The tests compile and run exactly those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path

from ampkit.backends.cuda.nvrtc import KERNELS
from ampkit.kernels.shared.headers import functions, functions_without_gradient, rules

SETS: dict[str, list[tuple[str, ...]]] = {  # named sets of template arguments
    "TYPES": [("float",), ("__half",), ("__nv_bfloat16",)],
    "PAIRS": [
        ("float", "float"),
        ("__half", "__half"),
        ("__nv_bfloat16", "__nv_bfloat16"),
        ("__half", "float"),
        ("__nv_bfloat16", "float"),
    ],
}


def entries(source: str, folder: Path = KERNELS) -> list[str]:
    """The entries that `<source>.cu` names at its end, as `typed` spells them."""
    text = re.sub(r"\n//    +", " ", (folder / f"{source}.cu").read_text())
    defined = {"FUNCTIONS": functions, "FUNCTIONS_NO_GRAD": functions_without_gradient, "RULES": rules}
    sets = SETS | {name: [(each,) for each in names()] for name, names in defined.items()}
    for name, items in re.findall(r"^// set (\w+) = (.+)$", text, re.M):
        sets[name] = _set(items, sets)
    return [name for line in re.findall(r"^// entries: (.+)$", text, re.M) for name in _named(line, sets)]


def _named(line: str, sets: dict[str, list[tuple[str, ...]]]) -> Iterator[str]:
    """The names that one line stands for: `pattern for name in set, (name, name) in set`."""
    pattern, _, bound = line.partition(" for ")
    loops = [part.partition(" in ") for part in _split(bound)]
    names = [name for variables, _, _ in loops for name in re.findall(r"\w+", variables)]
    for members in product(*(_set(items, sets) for _, _, items in loops)):
        given = dict(zip(names, chain(*members), strict=True))
        yield re.sub(r"\w+", partial(_given, given), pattern.strip())


def _given(names: dict[str, str], word: re.Match[str]) -> str:
    return names.get(word[0], word[0])


def _set(text: str, sets: dict[str, list[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """The members of a set: a name, or `(a, b)`, or `((a, b), (c, d))`, or several of them joined by +."""
    members: list[tuple[str, ...]] = []
    for part in text.split("+"):
        part = part.strip()
        members += (
            sets[part] if part in sets else [_member(m) for m in _split(part.removeprefix("(").removesuffix(")"))]
        )
    return members


def _member(text: str) -> tuple[str, ...]:
    return tuple(_split(text[1:-1])) if text.startswith("(") else (text,)


def _split(text: str) -> list[str]:
    """`text` at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
