"""What is measured: the commands, how to read what they print, what the page says, and when it no longer holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]
DTYPES = ("float32", "bfloat16", "float16")
BOUNDS = ("0.5", "1", "2", "4", "8")


@dataclass(frozen=True)
class Measure:
    """A measured paragraph of the page.

    `zero` names figures that must be 0, `least` counts of what is tried, which may have grown since and not shrunk.
    `worse` compares the figures of a short form with the page's where neither says it.
    """

    name: str
    long: tuple[str, ...]
    short: tuple[str, ...]
    read: Callable[[str], Figures]
    paragraph: Callable[[Figures], str]
    zero: tuple[str, ...] = ()
    least: tuple[str, ...] = ()
    worse: Callable[[Figures, Figures], list[str]] = lambda now, page: []
    needs: tuple[str, ...] = ()

    def says(self, figures: Figures) -> str:
        """The paragraph, with the commands, the date and the commit of its figures."""
        commands = ", ".join(f"`{command}`" for command in self.long)
        return f"{commands}, at {figures['commit']} of {figures['date']}: {self.paragraph(figures)}"

    def contradictions(self, now: Figures, page: Figures) -> list[str]:
        """Which figures of the page do not hold, given those of now."""
        found = [f"{name} is {now[name]}, not 0" for name in self.zero if now[name]]
        found += [f"{name} is {now[name]}, the page says {page[name]}" for name in self.least if now[name] < page[name]]
        return found + self.worse(now, page)


def number(pattern: str, text: str) -> int:
    """The whole number that the group of `pattern` finds in `text`. Raises ValueError where it finds none."""
    return sum_of(pattern, text, least=1)


def sum_of(pattern: str, text: str, least: int = 0) -> int:
    """The sum of the numbers that `pattern` finds in `text`."""
    found = re.findall(pattern, text)
    if len(found) < least:
        raise ValueError(f"needs output with {pattern!r}, got: {text[-500:]}")
    return sum(map(int, found))


def interrupted(text: str) -> Figures:
    """What tests/bench/interrupted_runs.py prints at its end."""
    runs = number(r"of (\d+) results equal", text)
    return {
        "runs": runs,
        "different": runs - number(r"(\d+) of \d+ results equal", text),
        "lost": number(r"(\d+) rows lost", text),
        "twice": number(r"(\d+) twice", text),
    }


def equal_runs(figures: Figures) -> str:
    """The result of interrupted runs in words."""
    same = figures["runs"] - figures["different"]
    return (
        f"{same} of {figures['runs']} final states (metrics, weights, moments, scale, random stream) equal those of "
        f"the uninterrupted run, bit for bit; {figures['lost']} rows were lost, {figures['twice']} duplicated"
    )


def api(text: str) -> Figures:
    """What tests/fuzz/api.py prints of each seed."""
    return {
        "functions": number(r"(\d+) functions", text.split("\n\n")[0]),
        "calls": sum_of(r"(\d+) calls in", text, least=1),
        "refused": sum_of(r"(\d+) refused", text, least=1),
        "findings": sum_of(r"(\d+) findings", text, least=1),
    }


def readers(text: str) -> Figures:
    """What tests/fuzz/readers.py prints of each format, in one run or several."""
    formats = re.findall(r"^(\S+) +(\d+) files: (.*) \(\d+ s\)$", text, flags=re.MULTILINE)
    counts = " ".join(each[2] for each in formats)
    found: Figures = {"formats": len({each[0] for each in formats}), "files": sum(int(each[1]) for each in formats)}
    found |= {"read": sum_of(r"read (\d+)", counts), "refused": sum_of(r"refused (\d+)", counts)}
    return found | {"findings": found["files"] - found["read"] - found["refused"]}


def scaler(text: str) -> Figures:
    """What Hypothesis says of tests/fuzz/test_scaler_machine.py."""
    return {"sequences": number(r"(\d+) passing", text), "different": number(r"(\d+) failing", text)}


def samples(text: str) -> Figures:
    """The table of tests/peers/opinfo.py."""
    rows = re.findall(r"^ *\w+ +\d+ +(\d+) +\d+ +(\d+) +(\d+) +\d+$", text, flags=re.MULTILINE)
    total, listed, differ = (sum(int(row[column]) for row in rows) for column in range(3))
    stale = len(re.findall("^stale: ", text, flags=re.MULTILINE))
    return {
        "names": number(r"(\d+) names in", text),
        "samples": total,
        "listed": listed,
        "differ": differ,
        "stale": stale,
    }


def ulps(text: str) -> Figures:
    """The tables of tests/bench/ulps.py, one a dtype."""
    found: Figures = {"ops": number(r"^(\d+) ops in float32", text)}
    for dtype, table in zip(DTYPES, re.split(r"\d+ ops in \w+", text)[1:], strict=True):
        worst = re.findall(r"^(\S+) +values +([\d.]+) +gradients +([\d.]+)$", table, flags=re.MULTILINE)
        for column, kind in enumerate(("values", "gradients"), start=1):
            within = re.search(rf"^{kind} +(.*)$", table, flags=re.MULTILINE)
            assert within is not None, table
            error, name = max((float(row[column]), row[0]) for row in worst)
            found[f"{dtype}, {kind}"] = [*map(int, within[1].split()[: len(BOUNDS)]), error, name]
    return found


def error_table(figures: Figures) -> str:
    """How many ops stay within each bound, as a table."""
    head = f"| how many of {figures['ops']} ops stay within | {' | '.join(BOUNDS)} | worst |"
    rows = [head, "|---" * (len(BOUNDS) + 2) + "|"]
    for key in (f"{dtype}, {kind}" for dtype in DTYPES for kind in ("values", "gradients")):
        *counts, error, name = figures[key]
        rows.append(f"| {key} | {' | '.join(map(str, counts))} | {error:.3g}, `{name}` |")
    return (
        "the worst error of an element, in units in the last place of the largest element of its result:\n\n"
        + "\n".join(rows)
    )


def larger_errors(now: Figures, page: Figures) -> list[str]:
    """Where the errors are larger than the page says. Last bits depend on the CPU: twice the worst error, and one op in
    fifty beyond a bound, are allowed."""
    found = []
    for key in (key for key in page if key.partition(",")[0] in DTYPES):
        if now[key][-2] > 2 * page[key][-2]:
            found.append(f"{key}: {now[key][-1]} is {now[key][-2]} off, the page says {page[key][-2]} at most")
        few = [bound for bound, a, b in zip(BOUNDS, now[key], page[key], strict=False) if a < b - page["ops"] // 50]
        found += [f"{key}: fewer ops stay within {bound}" for bound in few]
    return found


OUTCOMES: Mapping[str, str] = {
    "equal, reported": "weights, moments, counts and rows of the uninterrupted run, the damaged file named",
    "equal": "the same, without a message: the bytes had no meaning, or were in rows that are written again",
    "other rows, reported": "the same weights, but damaged rows missing, which is reported; the rows are in the copy",
    "refused in one line": "refused in one line: the only checkpoint is damaged",
}


def corrupted(text: str) -> Figures:
    """The counts of tests/bench/corrupted_runs.py by outcome; any that is not in OUTCOMES is a fault."""
    found = {name: int(count) for count, name in re.findall(r"^ *(\d+) (.*)$", text, flags=re.MULTILINE)}
    good = {name: found.pop(name, 0) for name in OUTCOMES}
    return good | {"faults": sum(found.values()), "runs": sum(good.values()) + sum(found.values())}


def outcome_table(figures: Figures) -> str:
    """The outcomes of damaged runs as a table."""
    rows = [f"| outcome | of {figures['runs']:,} |", "|---|---|"]
    rows += [f"| {words} | {figures[name]:,} |" for name, words in OUTCOMES.items()]
    rows.append(f"| wrong weights, or rows lost, without a message; a traceback | {figures['faults']} |")
    return "resumed, these ended so:\n\n" + "\n".join(rows)


_SEEDS = "23001 23002 23003 23004 23005"
_SCALER = "python -m pytest tests/fuzz/test_scaler_machine.py --hypothesis-show-statistics"
_ULPS = tuple(f"python -m tests.bench.ulps --dtype {dtype}" for dtype in DTYPES)

MEASURES: dict[str, Measure] = {
    each.name: each
    for each in (
        Measure(
            "interrupted",
            ("python tests/bench/interrupted_runs.py --endings 60 --steps 30",),
            ("python tests/bench/interrupted_runs.py --endings 6 --steps 20",),
            interrupted,
            lambda f: f"{equal_runs(f)}, and no signal cost a step.",
            zero=("different", "lost", "twice"),
        ),
        Measure(
            "ranks",
            ("python tests/bench/interrupted_runs.py --kinds rank --ranks 2 --endings 12 --steps 30",),
            ("python tests/bench/interrupted_runs.py --kinds rank --ranks 2 --endings 2 --steps 20",),
            interrupted,
            lambda f: f"{equal_runs(f)}.",
            zero=("different", "lost", "twice"),
            needs=("mpi4py",),
        ),
        Measure(
            "api",
            (f"python -m tests.fuzz.api --calls 400000 --seed {_SEEDS} --jobs 2",),
            ("python -m tests.fuzz.api --calls 20000 --seed 1",),
            api,
            lambda f: (
                f"{f['functions']:,} functions, {f['calls']:,} calls, of which {f['refused'] / f['calls']:.0%} were "
                f"refused in one line; {f['findings']} raised anything else, warned, took more than 5 seconds or ended "
                "the process."
            ),
            zero=("findings",),
            least=("functions",),
        ),
        Measure(
            "readers",
            ("python -m tests.fuzz.readers --count 2000 --seed 3",),
            ("python -m tests.fuzz.readers --count 40 --seed 4",),
            readers,
            lambda f: (
                f"of {f['files']:,} files of {f['formats']} formats {f['read']:,} were read and {f['refused']:,} "
                f"refused in one line; {f['findings']} gave another error or different values, took over 5 seconds or "
                "96 MiB, or ended the process."
            ),
            zero=("findings",),
            least=("formats",),
        ),
        Measure(
            "weights",
            ("python -m tests.fuzz.weights --count 100000 --seed 31",),
            ("python -m tests.fuzz.weights --count 200 --seed 8",),
            readers,
            lambda f: (
                f"of {f['files']:,} files of {f['formats']} grammars {f['read']:,} were read and {f['refused']:,} "
                f"refused in one line; {f['findings']} ran code, showed memory that the file did not bring, or led to "
                "another error or a crash."
            ),
            zero=("findings",),
            least=("formats",),
        ),
        Measure(
            "scaler",
            (f"HYPOTHESIS_PROFILE=long {_SCALER}",),
            (_SCALER,),
            scaler,
            lambda f: f"{f['sequences']:,} sequences of up to 50 calls, {f['different']} differ.",
            zero=("different",),
        ),
        Measure(
            "samples",
            ("python -m tests.peers.opinfo --jobs 2",),
            ("python -m tests.peers.opinfo --jobs 2 --samples 2 --part 1/4",),
            samples,
            lambda f: (
                f"of {f['samples']:,} samples of {f['names']} names {f['differ'] or 'none'} "
                f"{'differ' if f['differ'] else 'differs'} without an entry in `tests/peers/differences.py`, which "
                f"gives the reason; {f['listed']:,} differences have one."
            ),
            zero=("differ", "stale"),
            needs=("torch", "expecttest"),
        ),
        Measure("ulps", _ULPS, _ULPS, ulps, error_table, least=("ops",), worse=larger_errors),
        Measure(
            "corrupted",
            ("python -m tests.bench.corrupted_runs --trials 1000",),
            ("python -m tests.bench.corrupted_runs --trials 40",),
            corrupted,
            outcome_table,
            zero=("faults",),
        ),
    )
}  # fmt: skip
