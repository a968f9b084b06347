"""Run a PyTorch script with weights and random numbers that do not depend on the library; record its losses.

    python [-m ampkit.as_torch] tests/peers/same_start.py LOSSES.json N SCRIPT [ARGS ...]

NumPy draws what the script draws; a module's parameters are overwritten at its first call; dropout keeps everything;
data loaders keep the order and load in the script's own process. LOSSES.json: the values on which backward was called,
before a GradScaler scaled them; the script ends after N of them (0: it runs to its end).
"""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

losses: list[float] = []
drawn: Counter[tuple[str, tuple[int, ...]]] = Counter()


def draw(kind: str, shape: Sequence[int]) -> np.random.Generator:
    """A generator of its own for each kind and shape, however often a library draws for its own purposes."""
    drawn[key] = drawn[key := (kind, tuple(shape))] + 1
    return np.random.default_rng([*kind.encode(), *key[1], drawn[key]])


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _tensor(values: Any, dtype: Any = None, requires_grad: bool = False, **ignored: Any) -> Any:
    made = torch.from_numpy(np.asarray(values)).to(dtype or torch.get_default_dtype())
    return made.requires_grad_() if requires_grad else made


def _shape(sizes: Any) -> Any:
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes


def _choose(probabilities: Any, num_samples: int, replacement: bool = False, **ignored: Any) -> Any:
    # By Gumbel's maxima, so that both libraries choose alike where weights differ by roundings.
    weights = np.asarray(probabilities.detach().numpy(), np.float64)
    with np.errstate(divide="ignore"):
        logarithms = np.log(weights)
    noise = draw("multinomial", weights.shape)
    if not replacement:
        chosen = np.argsort(-(logarithms + noise.gumbel(size=weights.shape)))[..., :num_samples]
    else:
        chosen = np.stack([(logarithms + noise.gumbel(size=weights.shape)).argmax(-1) for _ in range(num_samples)], -1)
    return torch.from_numpy(chosen.astype(np.int64))


def _chosen(probabilities: Any, sample_shape: Any) -> Any:
    rows = [_choose(probabilities, 1, True)[..., 0] for _ in range(int(np.prod(sample_shape)))]
    return torch.stack(rows).reshape([*sample_shape, *probabilities.shape[:-1]])


def _values(kind: str, shape: Sequence[int], *bounds: float) -> Any:
    return getattr(draw(kind, shape), kind)(*bounds, size=tuple(shape))


def _draw_alike() -> None:
    torch.rand = lambda *s, **o: _tensor(_values("random", _shape(o.pop("size", None) or s)), **o)
    torch.randn = lambda *s, **o: _tensor(_values("standard_normal", _shape(o.pop("size", None) or s)), **o)
    torch.rand_like = lambda x, **o: _tensor(_values("random", x.shape), **{"dtype": x.dtype, **o})
    torch.randn_like = lambda x, **o: _tensor(_values("standard_normal", x.shape), **{"dtype": x.dtype, **o})
    torch.randperm = lambda n, **o: torch.from_numpy(draw("permutation", [n]).permutation(n))
    torch.randint, torch.normal = _integers, _normal
    torch.multinomial = _choose
    torch.distributions.Categorical.sample = lambda self, sample_shape=(): _chosen(self.probs, sample_shape)
    torch.bernoulli = lambda p, **o: _tensor(_values("random", p.shape) < p.detach().numpy(), p.dtype)
    torch.Tensor.normal_ = lambda x, mean=0.0, std=1.0, **o: x.copy_(_tensor(_values("normal", x.shape, mean, std)))
    torch.Tensor.bernoulli_ = lambda x, p=0.5, **o: x.copy_(_tensor(_values("random", x.shape) < p, x.dtype))
    torch.Tensor.uniform_ = lambda x, a=0.0, b=1.0, **o: x.copy_(_tensor(_values("uniform", x.shape, a, b)))


def _normal(mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> Any:
    parts = [torch.as_tensor(part, dtype=torch.float32) for part in (mean, std)]
    shape = torch.broadcast_tensors(*parts)[0].shape if size is None else size
    return parts[0] + parts[1] * _tensor(_values("standard_normal", shape), torch.float32)


def _integers(*bounds: Any, size: Any = None, low: int = 0, high: int | None = None, **options: Any) -> Any:
    *bounds, size = bounds if size is None else (*bounds, size)
    low, high = (*bounds, high)[:2] if len(bounds) == 2 else (low, bounds[0] if bounds else high)
    return _tensor(_values("integers", size, low, high), options.get("dtype") or torch.int64)


def start_alike(parameters: Iterable[Any], seen: dict[int, Any]) -> None:
    """Overwrite parameters that are not in `seen` with values of their order and shape; vectors of ones: near 1."""
    for parameter in parameters:
        if id(parameter) not in seen:
            seen[id(parameter)] = parameter  # kept, so that no other takes its id
            shape = tuple(parameter.shape)
            noise = np.random.default_rng(len(seen)).standard_normal(shape)
            with torch.no_grad():
                start = float(len(shape) < 2 and bool((parameter == 1).all()))
                noise = start + 0.1 * noise if len(shape) < 2 else noise / np.sqrt(np.prod(shape[1:]))
                parameter.copy_(torch.from_numpy(noise).to(parameter.dtype))


def _watch(count: int) -> None:
    seen: dict[int, Any] = {}  # parameters by id
    called: dict[int, Any] = {}  # modules by id, kept likewise
    inside: list[bool] = []
    unscaled: dict[int, tuple[Any, Any]] = {}
    dropouts = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)

    def call_after_start(call: Any) -> Any:
        def started(self: Any, *inputs: Any, **options: Any) -> Any:
            start_alike(self.parameters(), seen)
            for module in self.modules() if id(self) not in called else ():
                called[id(module)] = module
                if isinstance(getattr(module, "dropout", None), float):  # of attention and of recurrent layers
                    module.dropout = 0.0
                if isinstance(module, dropouts):
                    module.p = 0.0
            return call(self, *inputs, **options)

        return started

    def noted(backward: Any) -> Any:
        def note(self: Any, *inputs: Any, **options: Any) -> Any:
            if inside:  # PyTorch calls it again where a default device is set
                return backward(self, *inputs, **options)
            losses.append(float(unscaled.get(id(self), (self, self))[1].detach().float().sum()))
            if len(losses) == count:
                sys.exit()
            inside.append(True)
            try:
                return backward(self, *inputs, **options)
            finally:
                inside.pop()

        return note

    def step_after_start(init: Any) -> Any:
        def started(self: Any, *inputs: Any, **options: Any) -> None:
            init(self, *inputs, **options)
            start_alike([p for group in self.param_groups for p in group["params"]], seen)

        return started

    def scaled(scale: Any) -> Any:
        def remembered(self: Any, outputs: Any) -> Any:
            made = scale(self, outputs)
            unscaled[id(made)] = made, outputs
            return made

        return remembered

    _replace(torch.amp.GradScaler, "scale", scaled)
    _replace(nn.Module, "__call__", call_after_start)
    _replace(torch.optim.Optimizer, "__init__", step_after_start)
    _replace(torch.Tensor, "backward", noted)


def _no_dropout() -> None:
    def kept(x: Any, *options: Any, **more: Any) -> Any:
        return x

    attention = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = (
        lambda query, key, value, attn_mask=None, dropout_p=0.0, *more, **options: attention(
            query, key, value, attn_mask, 0.0, *more, **options
        )
    )
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"):
        setattr(nn.functional, name, kept)
    for kind in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout):
        kind.forward = lambda self, x: x


def _load_in_order() -> None:
    def ordered(init: Any) -> Any:
        def started(self: Any, *inputs: Any, **options: Any) -> None:
            options.update(num_workers=0, **({"shuffle": False} if "shuffle" in options else {}))
            init(self, *inputs, **options)

        return started

    def sampled(self: Any) -> Any:
        generator = draw("sampler", [len(self.data_source)])
        if not self.replacement:
            return iter(generator.permutation(len(self.data_source)).tolist())
        return (int(generator.integers(len(self.data_source))) for _ in range(self.num_samples))

    _replace(torch.utils.data.DataLoader, "__init__", ordered)
    torch.utils.data.RandomSampler.__iter__ = sampled


def _as_of_their_time() -> None:
    # Scripts of others call `.cuda()` unasked, and know NumPy's old names.
    for old, new in {"Inf": np.inf, "float": float, "int": int, "bool": bool, "object": object}.items():
        if old not in vars(np):
            setattr(np, old, new)
    for kind in (torch.Tensor, nn.Module):
        kind.cuda = lambda self, *options, **more: self


def _made_files() -> None:
    # Files that were made have other checksums than the published ones.
    try:
        import torchvision.datasets.utils
    except RuntimeError:  # torchvision's compiled part is for PyTorch with CUDA, and does not load without
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        import torchvision.datasets.utils

    torchvision.datasets.utils.check_md5 = lambda *options, **more: True


def main(file: str, count: str, script: str, *arguments: str) -> None:
    """Run the script, and write the losses whatever becomes of it."""
    random.seed(0), np.random.seed(0)
    if "CPU_ONLY" in os.environ:
        _as_of_their_time()
    if "MADE_FILES" in os.environ:
        _made_files()
    _draw_alike(), _watch(int(count)), _no_dropout(), _load_in_order()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        Path(file).write_text(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
