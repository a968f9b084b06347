"""Compare ampkit with PyTorch on PyTorch's own samples: OpInfo, ModuleInfo and OptimizerInfo.

    python -m tests.peers.opinfo [--only NAME ...] [--dtype NAME ...] [--kind KIND ...] [--samples N] [--jobs N]
                                 [--part I/N] [--report FILE.json] [--seed N] [--extended]

Needs the extra `peers`. Exit status 1 if a difference is not in differences.py, or an entry there covers none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from . import modules, names, ops, optimizers, transforms
from .comparison import Tally, as_json, review, summary
from .differences import LISTED
from .ops import Settings

OF_OPS = (*ops.KINDS, *transforms.KINDS)
KINDS = (*ops.KINDS, "modules", "optimizers")  # without --kind


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.opinfo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", help="names of ops (OpInfo's), modules and optimizers")
    parser.add_argument("--dtype", nargs="+", choices=ops.DTYPES, default=ops.DTYPES)
    parser.add_argument("--kind", nargs="+", choices=(*KINDS, *transforms.KINDS), default=KINDS)
    parser.add_argument("--samples", type=int, help="at most so many of one op and dtype")
    parser.add_argument("--extended", action="store_true", help="OpInfo's reference inputs: extremal values and more")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="2/3: the second third of the names")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(given)


def all_names() -> list[str]:
    """Names of ops, modules and optimizers that both libraries have."""
    return [*names.infos(), *modules.infos(), *optimizers.infos()]


def compare(settings: Settings, name: str) -> dict[str, Tally]:
    """The tallies of one name, by kind."""
    torch.set_num_threads(1)
    found: dict[str, Tally] = {}
    for info in names.infos().get(name, []):
        _merge(found, ops.compare(info, settings._replace(kinds=tuple(k for k in settings.kinds if k in OF_OPS))))
    for kind, part in (("modules", modules), ("optimizers", optimizers)):
        if kind in settings.kinds and name in part.infos():
            _merge(found, {kind: part.compare(part.infos()[name], settings)})
    return found


def _merge(into: dict[str, Tally], found: dict[str, Tally]) -> None:
    for kind, tally in found.items():
        into.setdefault(kind, Tally()).add(tally)


def selected(only: Iterable[str] | None, part: str) -> list[str]:
    """The names to compare. Exits for an unknown name."""
    everything = all_names()
    if only is not None and (unknown := set(only) - set(everything)):
        sys.exit(f"not in both libraries: {', '.join(sorted(unknown))}")
    first, _, of = part.partition("/")
    return [name for name in everything if only is None or name in set(only)][int(first) - 1 :: int(of)]


def main(given: Sequence[str] | None = None) -> int:
    """Compare, print the table and the unlisted differences, write the report; return the exit status."""
    options = arguments(given)
    settings = Settings(tuple(options.kind), tuple(options.dtype), options.samples, options.seed, options.extended)
    chosen = selected(options.only, options.part)
    started = time.monotonic()
    tallies: dict[str, Tally] = {kind: Tally() for kind in settings.kinds}
    for found in _run(partial(compare, settings), chosen, options.jobs):
        _merge(tallies, found)
    asked = [entry for entry in LISTED if not entry.kinds or set(entry.kinds.split()) & set(settings.kinds)]
    reviewed = review([d for t in tallies.values() for d in t.differences], asked, _in_full(options, chosen))
    for one in reviewed.unlisted:
        print(one.line())
    for entry in reviewed.stale:
        print(f"stale: {entry.names}: {entry.reason}")
    print(summary(tallies, reviewed))
    for kind, tally in tallies.items():
        differing = {one.name for one in reviewed.unlisted if one.kind == kind}
        agreeing = len(tally.names - differing)
        share = 100 * agreeing / max(len(tally.names), 1)
        print(f"{kind}: {agreeing} of {len(tally.names)} names without an unlisted difference, {share:.1f} %")
        for rule, count in tally.out_of_scope.most_common():
            print(f"out of scope, {kind}: {rule}: {count}")
    print(f"{len(chosen)} names in {time.monotonic() - started:.0f} s")
    if options.report:
        options.report.write_text(json.dumps(as_json(tallies, reviewed), indent=1))
    return 1 if reviewed.unlisted or reviewed.stale else 0


def _run(work: partial[dict[str, Tally]], chosen: list[str], jobs: int) -> Iterator[dict[str, Tally]]:
    if jobs == 1:
        yield from map(work, chosen)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, chosen)


def _in_full(options: argparse.Namespace, chosen: list[str]) -> set[str] | None:
    # The names of which nothing was left out; None for a whole run.
    if (
        options.extended
        or options.samples is not None
        or set(options.kind) != set(KINDS)
        or set(options.dtype) != set(ops.DTYPES)
    ):
        return set()
    return None if len(chosen) == len(all_names()) else set(chosen)


if __name__ == "__main__":
    sys.exit(main())
