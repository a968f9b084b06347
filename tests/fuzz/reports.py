"""Run directories as `ampkit report` may meet them: of a run, of another program, and damaged, by a small grammar."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

from ampkit.debug.ledger import Ledger
from ampkit.run.report import page, read_run

_WORDS = ("", "float16", "head.weight", "é", "\ud800", "</script>", "a" * 3000, "\0", "NaN", "1e999", "2026-01-01")
_NUMBERS = (0, 1, -1, 10**9, -(10**9), 2**53 + 1, 2**63, 10**400, 0.5, -2.5, 1e-320, 1e308, -1e308, float("nan"),
            float("inf"), float("-inf"), True, False)  # fmt: skip
_TOML = ('[amp]\ndtype = "float16"\n', "[amp]\ndtype = nan\n", "[amp]\ndtype = [1, 2]\n", "amp = 3\n", "a = inf\n",
         "t = 2026-01-01T00:00:00\n", "[model]\nname = 1\n", "", "not toml", "a." * 3000 + "b = 1\n")  # fmt: skip


def strange(draw: Random, depth: int = 0) -> Any:
    """Any value of JSON."""
    kinds = "number number word none list table" if depth < 3 else "number word none"
    kind = draw.choice(kinds.split())
    if kind == "list":
        return [strange(draw, depth + 1) for _ in range(draw.choice((0, 1, 3)))]
    if kind == "table":
        return {draw.choice(_WORDS): strange(draw, depth + 1) for _ in range(draw.choice((0, 1, 3)))}
    return None if kind == "none" else draw.choice(_NUMBERS if kind == "number" else _WORDS)


def changed(value: Any, draw: Random, chance: float) -> Any:
    """`value` with some parts left out, or replaced by others."""
    if draw.random() < chance:
        return strange(draw)
    if isinstance(value, dict):
        return {key: changed(item, draw, chance) for key, item in value.items() if draw.random() > chance / 2}
    if isinstance(value, list):
        return [changed(item, draw, chance) for item in value for _ in range(draw.random() > chance / 2)]
    return value


def _metrics(draw: Random) -> list[Any]:
    rows: list[Any] = []
    for step in range(1, draw.choice((1, 2, 12))):
        row = {"step": step, "loss": 1 / step, "lr": 0.1, "scale": 65536.0, "skipped": step // 4, "grad_norm": 1.0}
        rows.append({**row, "seconds": 0.1 * step, "memory": 10**8})
        rows += [{"step": step, "val_loss": 0.5, "accuracy": 0.9}] if step % 3 == 0 else []
    return rows


def _ranges(draw: Random) -> list[Any]:
    lost = {name: [0, 3, 1] for name in ("present", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")}
    one = {"of": "gradients", "path": "head", "op": "linear", "dtype": "float32", "stored": "float16", "count": 100}
    one |= {
        **lost,
        "largest": 2.0,
        "scale": 65536.0,
        "exponent": -20,
        "counts": [1, 5, 90],
        "zero": 2,
        "inf": 1,
        "nan": 1,
    }
    update = {"path": "head.weight", "count": 64, "changed": 60, "float16": 3, "bfloat16": 20}
    return [{"step": step, "ranges": [one, one | {"path": "stem"}], "updates": [update]} for step in range(1, 4)]


def _measured(draw: Random) -> Any:
    ledger = vars(
        Ledger(0.01, {"products": 0.006, "casts": 0.001}, {"parameters": 100}, {"softmax": 8}, {"cpu": 10**8})
    )
    plan = {"policy": "float16", "head": ["op"], "rows": [["linear"]], "sentences": ["a"], "notes": []}
    return {"made": "2026", "where": "here", "plan": plan, "ledger": ledger}


def make(folder: Path, draw: Random) -> list[Path]:
    """Write the files of a run directory, some of them strange; the first lacks most often."""
    chance = draw.choice((0.0, 0.01, 0.05, 0.3))
    environment = [{"step": 0, "found": {"float16 on the CPU": "none"}, "version": "1", "ranks": 1}]
    for name, rows in (("metrics", _metrics), ("ranges", _ranges), ("environment", lambda draw: environment)):
        lines = [json.dumps(changed(row, draw, chance)) for row in rows(draw)]
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "measured.json").write_text(json.dumps(changed(_measured(draw), draw, chance)))
    (folder / "config.toml").write_text(draw.choice(_TOML))
    for path in list(folder.iterdir()):
        if draw.random() < 0.1:
            path.write_bytes(draw.choice((b"", b"\n\n", draw.randbytes(200), b"[" * 5000 + b"\n")))
        elif draw.random() < 0.05:
            path.unlink()
    return sorted(folder.iterdir()) or _empty(folder)


def _empty(folder: Path) -> list[Path]:
    (folder / "metrics.jsonl").touch()
    return [folder / "metrics.jsonl"]


def read(path: Path) -> None:
    """Make the page of the directory of `path` beside a sound run, as `ampkit report` does."""
    run = read_run(path.parent)
    text = page([run, run]).encode(errors="replace")
    assert text.startswith(b"<!"), os.fspath(path)
