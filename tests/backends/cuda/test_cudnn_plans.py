"""Plans of the real cuDNN for an H100: engines for what the kernels ask for, and how much workspace they want."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import cudnn_planner

from ampkit.backends.cuda.libs.cudnn_graphs import Attention, AttentionBackward, Convolution, Layout
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.ops.nn.conv_geometry import conv_geometry


def heads(n, h, rows, width, dtype=float16):
    return Layout((n, h, rows, width), (rows * h * width, width, h * width, 1), dtype)


def conv(kind, dtype, out=None, x=(8, 16, 14, 14), k=(24, 16, 3, 3), bias=False, **given):
    p = {"stride": 1, "padding": 1, "dilation": 1, **given}
    w = conv_geometry("conv2d", k[2:], p["stride"], p["padding"], p["dilation"], x[2:])
    return Convolution(kind, (x[0], k[0], *w.output_size), x, k, w, dtype, out or dtype, bias)


def volumes(kind, dtype, out=None, x=(2, 16, 8, 9, 10), k=(24, 16, 3, 3, 3), bias=False, **given):
    return conv(kind, dtype, out, x, k, bias, **given)


def attention(q=(2, 4, 64, 64), g=4, keys=64, width=64, dtype=float16, causal=False, bias=None, drops=False):
    n, h, rows, e = q
    laid = None if bias is None else Layout(bias, tuple(int(np.prod(bias[i + 1 :])) for i in range(4)), dtype)
    k, v = heads(n, g, keys, e, dtype), heads(n, g, keys, width, dtype)
    shape = (n, h, rows, keys)
    keep = Layout(shape, (h * rows * keys, rows * keys, keys, 1), dtype) if drops else None
    return Attention(heads(*q, dtype), k, v, laid, keep, heads(*q[:3], width, dtype), causal, 0.125)


def backward(a, deterministic=True):
    return AttentionBackward(a, a.out, (a.query, a.key, a.value), deterministic)


THREE = ("maps", "images", "kernels")
WANTED = {
    **{f"{kind} {d.name}": conv(kind, d) for kind in THREE for d in (float16, bfloat16, float32)},
    **{f"{kind} of a 1x1, stride 2": conv(kind, float16, k=(24, 16, 1, 1), padding=0, stride=2) for kind in THREE},
    **{f"{kind} in groups": conv(kind, float16, k=(24, 4, 3, 3)) for kind in THREE},
    "kernels of odd channels": conv("kernels", float16, x=(8, 5, 9, 11), k=(7, 5, 3, 3)),
    **{f"{kind} by depth, float32": conv(kind, float32, k=(16, 1, 3, 3)) for kind in THREE},
    "maps of three channels": conv("maps", float16, x=(8, 3, 32, 32), k=(24, 3, 7, 7), stride=2, padding=3),
    "maps of odd channels": conv("maps", float16, x=(8, 5, 9, 11), k=(7, 5, 3, 2)),
    "maps, uneven padding": conv("maps", float16, k=(24, 16, 2, 2), padding="same"),
    "maps of one row, dilated": conv("maps", float16, x=(8, 16, 1, 50), k=(24, 16, 1, 3), padding=(0, 2), dilation=2),
    **{f"{kind} of volumes, {d.name}": volumes(kind, d) for kind in THREE for d in (float16, bfloat16, float32)},
    "maps of volumes in groups": volumes("maps", float16, k=(24, 4, 3, 3, 3)),
    "images of volumes, stride 2, with a bias": volumes("images", float16, bias=True, stride=2),
    "maps with a bias": conv("maps", float16, bias=True),
    "images with a bias": conv("images", float16, bias=True),
    "attention, causal": attention(dtype=bfloat16, causal=True),
    "its backward": backward(attention(dtype=bfloat16, causal=True)),
    "attention, grouped, masked by key": attention(g=2, keys=77, bias=(2, 1, 1, 77)),
    "backward, grouped, masked by key": backward(attention(g=2, keys=77, bias=(2, 1, 1, 77))),
    **{f"{kind} to float32": conv(kind, bfloat16, float32) for kind in THREE[:2]},
    **{f"{kind} with a bias, float32": conv(kind, float32, bias=True) for kind in THREE[:2]},
    **{f"{kind} by depth": conv(kind, float16, k=(16, 1, 3, 3)) for kind in THREE},
}
for _name, _a in {
    "odd rows": attention(q=(2, 4, 33, 40), keys=57, width=24),
    "heads of 128": attention(q=(2, 4, 1000, 128), g=2, keys=1000, width=128, causal=True),
    "heads of 256": attention(q=(1, 2, 128, 256), g=2, keys=128, width=256, causal=True),
    "a mask per head": attention(bias=(1, 4, 64, 64), dtype=bfloat16),
    "dropout": attention(g=2, causal=True, drops=True),
    "dropout, odd rows, masked": attention(q=(2, 4, 33, 40), keys=57, width=40, bias=(1, 1, 33, 57), drops=True),
    "one query": attention(q=(2, 4, 1, 64)),
    "more rows than keys, causal": attention(q=(2, 4, 65, 64), keys=33, causal=True),
}.items():
    WANTED |= {f"attention, {_name}": _a, f"backward, {_name}": backward(_a)}
REFUSED = {"ragged heads": attention(q=(2, 4, 64, 20), width=20)}
SINCE_9_28 = {"images to float32", "images of volumes, stride 2, with a bias"}  # else of operands cast to float32


def _planned(signatures, tmp_path, **more):
    if why := cudnn_planner.missing():
        pytest.skip(f"cuDNN cannot plan here: {why}")
    return dict(zip(signatures, cudnn_planner.plan(list(signatures.values()), tmp_path, **more), strict=True))


def test_an_h100_has_engines_for_what_the_kernels_ask_for(tmp_path):
    found = _planned(WANTED | REFUSED, tmp_path)
    assert {name for name, p in found.items() if "refused" in p} - SINCE_9_28 == REFUSED.keys(), found


def test_engines_are_compiled_for_an_h100(tmp_path):
    some = {name: WANTED[name] for name in ("kernels float16", "attention, causal", "its backward")}
    made = _planned(some, tmp_path, compiles=True)
    assert all(p.get("engine") for p in made.values()), made


BATCHES = [(8, 16, 512, 64), (16, 12, 1024, 64), (8, 16, 4096, 64), (4, 16, 8192, 128)]  # N, heads, rows, width


def test_the_workspace_of_attention_stays_under_a_bound_as_sequences_grow(tmp_path):
    """The deterministic algorithm in one call: 67 MB, 403 MB, 4.3 GB and 8.6 GB."""
    forward = [attention(q=q, g=q[1], keys=q[2], width=q[3], causal=True) for q in BATCHES]
    made = _planned(dict(zip(BATCHES, forward, strict=True)), tmp_path, compiles=True)
    assert all(p["workspace"] <= 256e6 for p in made.values()), made
    found = cudnn_planner.workspaces([backward(a, d) for a in forward for d in (True, False)], tmp_path)
    assert all(used <= 256e6 for calls in found for used in calls), found
    assert [len(calls) for calls in found[::2]] == [1, 2, 24, 64]
    assert [len(calls) for calls in found[1::2]] == [1, 1, 1, 2]


def test_the_workspace_of_grouped_heads_and_of_masks_stays_under_it(tmp_path):
    grouped = attention(q=(2, 32, 4096, 128), g=8, keys=4096, width=128, bias=(2, 1, 1, 4096))
    per_head = attention(q=(2, 16, 2048, 64), g=16, keys=2048, bias=(1, 16, 2048, 2048))
    if why := cudnn_planner.missing():
        pytest.skip(f"cuDNN cannot plan here: {why}")
    found = cudnn_planner.workspaces([backward(grouped), backward(per_head)], tmp_path)
    assert all(used <= 256e6 for calls in found for used in calls), found
    assert [len(calls) for calls in found] == [16, 2]
