"""Format gpu.json as Markdown tables; for `gpu.py`."""

from __future__ import annotations

import statistics
from typing import Any

from gpu_steps import WORK

_THEIRS = ("torch mixed compile", "torch mixed reduce-overhead", "torch mixed max-autotune", "torch mixed graph",
           "torch mixed compile graph")  # fmt: skip
FASTEST = ("torch mixed", *_THEIRS)
RATIOS = [
    ("PyTorch's fastest / ampkit compiled", FASTEST, ("ampkit mixed compiled",), "blocks"),
    ("PyTorch eager / ampkit eager", ("torch mixed",), ("ampkit mixed",), "blocks"),
    ("PyTorch eager / ampkit compiled", ("torch mixed",), ("ampkit mixed compiled",), "blocks"),
    *((f"{v.replace('torch mixed', 'PyTorch')} / ampkit compiled", (v,), ("ampkit mixed compiled",), "blocks")
      for v in _THEIRS),
    ("float32: PyTorch compile / ampkit compiled", ("torch float32 compile",), ("ampkit float32 compiled",), "blocks"),
    ("TF32: PyTorch compile / ampkit compiled", ("torch tf32 compile",), ("ampkit tf32 compiled",), "blocks"),
    ("ampkit compiled: float32 / mixed", ("ampkit float32 compiled",), ("ampkit mixed compiled",), "blocks"),
    ("allocated: ampkit mixed / float32", ("ampkit mixed compiled",), ("ampkit float32 compiled",), "allocated"),
    ("allocated: PyTorch compile / ampkit compiled", ("torch mixed compile",), ("ampkit mixed compiled",), "allocated"),
]  # fmt: skip
NOTES = """\
A step's time is the median over blocks of steps, of all rounds, each in a process of its own; in brackets the least
and the greatest. Memory, in GB, of steps after the caches were emptied: *allocated* is the peak of what live arrays
hold, with the private pools of CUDA graphs counted whole; *reserved* the peak of what the allocator holds; *card* what
the driver counts as used at the end. *ready* is seconds until the sixth step is done, with compilation and recording.
Both libraries: the same weights and batches, no TF32 unless a row says so, no sums of products in 16 bits. PyTorch has
fused AdamW, channels-last images, cudnn.benchmark, and model and loss compiled together. Kernels and products take
turns in one process; in brackets the least and the greatest ratio of a turn. Rows of cross_entropy leave out ampkit's
check of the labels unless they say so; PyTorch asserts inside its kernel."""


def table(results: dict[str, Any]) -> str:
    """The text of gpu.md."""
    about = results["about"]
    lines = [f"# {about['card']}", "", f"{about['date']}, `{about['command']}`", ""]
    lines += [f"- {name}: {said}" for name, said in about.items() if name not in ("card", "date", "command")]
    lines += ["", *_summary(results["steps"]), NOTES, ""]
    for name, found in results["steps"].items():
        lines += _steps(name, found)
    for section, unit, scale, speed in (("kernels", "us", 1e6, "GB/s"), ("products", "ms", 1e3, "TFLOP/s")):
        if results.get(section):
            lines += _calls(section, results[section], unit, scale, speed)
    return "\n".join(lines)


def _summary(steps: dict[str, Any]) -> list[str]:
    # Per model: PyTorch's fastest step and ampkit's compiled one.
    lines = ["| step, mixed precision | PyTorch's fastest | ampkit compiled | PyTorch / ampkit | ampkit eager |",
             "|---|---|---|---|---|"]  # fmt: skip
    for name, found in steps.items():
        fastest = min((v for v in FASTEST if "blocks" in found.get(v, {})), key=lambda v: _median(found[v]), default="")
        said = f"{fastest.removeprefix('torch mixed').strip() or 'eager'}: {_brief(found[fastest])}" if fastest else ""
        ours, ratio = found.get("ampkit mixed compiled", {}), _ratio(found, *RATIOS[0][1:])
        lines.append(f"| {name} | {said} | {_brief(ours)} | {ratio} | {_brief(found.get('ampkit mixed', {}))} |")
    return [*lines, ""]


def _median(row: dict[str, Any]) -> float:
    return float(statistics.median(row["blocks"]))


def _brief(row: dict[str, Any]) -> str:
    return f"{_median(row):.2f} ms, {row['allocated'] / 1e9:.2f} GB" if "blocks" in row else ""


# steps


def _steps(name: str, found: dict[str, Any]) -> list[str]:
    work = WORK[name]
    size = "x".join(map(str, work.batch))
    lines = [f"## {name}, {size}, mixed: {work.dtype}", ""]
    lines += [f"| variant | ms per step | {work.unit}/s | allocated | reserved | card | ready s | first losses |"]
    lines += ["|---|---|---|---|---|---|---|---|", *(_step(variant, row) for variant, row in found.items())]
    ratios = [f"| {ratio[0]} | {said} |" for ratio in RATIOS if (said := _ratio(found, *ratio[1:]))]
    refused = sorted({what for row in found.values() for what in row.get("refused", ())})
    without = ["", *(f"- no algorithm for {what}" for what in refused)] if refused else []
    return [*lines, *without, "", "| ratio | |", "|---|---|", *ratios, ""]


def _step(variant: str, row: dict[str, Any]) -> str:
    if "error" in row:
        return f"| {variant} | {_last(row['error'])} | | | | | | |"
    bytes_of = " | ".join(f"{row[key] / 1e9:.2f}" for key in ("allocated", "reserved", "card"))
    losses, blocks = " ".join(f"{loss:.4f}" for loss in row["losses"]), row["blocks"]
    time = f"{statistics.median(blocks):.2f} ({min(blocks):.2f} to {max(blocks):.2f})"
    return f"| {variant} | {time} | {row['rate']:,.0f} | {bytes_of} | {row['ready']:.0f} | {losses} |"


def _last(error: str) -> str:
    return (error.strip().splitlines() or ["failed"])[-1][:200].replace("|", "/")


def _ratio(found: dict[str, Any], above: tuple[str, ...], below: tuple[str, ...], key: str) -> str:
    a, b = _figures(found, above, key), _figures(found, below, key)
    if not a or not b:
        return ""
    middle = f"{statistics.median(a) / statistics.median(b):.2f}"
    return middle if len(a) == len(b) == 1 else f"{middle} ({min(a) / max(b):.2f} to {max(a) / min(b):.2f})"


def _figures(found: dict[str, Any], variants: tuple[str, ...], key: str) -> list[float]:
    # Those of the variant with the lowest median.
    rows = [found[v][key] for v in variants if key in found.get(v, {})]
    return min((r if isinstance(r, list) else [r] for r in rows), key=statistics.median, default=[])


# kernels and products


def _calls(section: str, rows: dict[str, Any], unit: str, scale: float, speed: str) -> list[str]:
    share = " of a copy |" if section == "kernels" else ""
    lines = [f"## {section}", "", f"| | {unit} | {speed} |{share} PyTorch {unit} | PyTorch / ampkit |"]
    lines.append("|---|---|---|---|---|" + ("---|" if share else ""))
    copy = rows.get("copy", {}).get(speed) if share else None
    return [*lines, *(_call(name, row, scale, speed, copy, bool(share)) for name, row in rows.items()), ""]


def _call(name: str, row: dict[str, Any], scale: float, speed: str, copy: float | None, share: bool) -> str:
    if "error" in row:
        return f"| {name} | {_last(row['error'])} | | | |" + (" |" if share else "")
    part = f" {row[speed] / copy:.0%} |" if copy else " |" if share else ""
    return f"| {name} | {row['seconds'] * scale:.4g} | {row[speed]:.0f} |{part} {_beside(row, scale)} |"


def _beside(row: dict[str, Any], scale: float) -> str:
    # PyTorch's median and the ratio of medians with its minimum and maximum over the turns, or why there is none.
    if "theirs" not in row:
        return f"{row['why']} |"
    turns = [theirs / ours for ours, theirs in zip(row["ours"], row["theirs"], strict=True)]
    theirs = statistics.median(row["theirs"])
    return f"{theirs * scale:.4g} | {theirs / row['seconds']:.2f} ({min(turns):.2f} to {max(turns):.2f})"
