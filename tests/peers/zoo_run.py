"""Run models of one library forward, backward and through a step, and write what comes out.

    python [-m ampkit.as_torch] tests/peers/zoo_run.py LIBRARY FOLDER NAME ...

FOLDER/NAME.npz: outputs in evaluation, gradients in training, outputs after a step; or FOLDER/NAME.txt, the error.
LIBRARY:float64 runs them in float64.
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import same_start
import torch
from zoo_models import BUILDERS, Model


def fill(module: Any) -> None:
    """Overwrite parameters with values of their names and shapes alone: vectors of ones near 1, matrices by fan-in."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            shape = tuple(parameter.shape)
            noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
            start = float(len(shape) < 2 and bool((parameter == 1).all()))
            noise = start + 0.1 * noise if len(shape) < 2 else noise / np.sqrt(np.prod(shape[1:]))
            parameter.copy_(torch.from_numpy(np.asarray(noise, np.float32)).to(parameter.dtype))


def outputs(found: Any) -> list[Any]:
    """The floating-point tensors in what a model returned."""
    if isinstance(found, torch.Tensor):
        return [found] if found.is_floating_point() else []
    if isinstance(found, dict):
        found = list(found.values())
    elif hasattr(found, "to_tuple"):
        found = found.to_tuple()
    return [x for item in found for x in outputs(item)] if isinstance(found, (list, tuple)) else []


def call(model: Model) -> list[Any]:
    """The outputs of one forward."""
    same_start.drawn.clear()
    return outputs(model.module(*model.inputs, **model.options))


def widened(value: Any) -> Any:
    """A floating-point tensor in float64, anything else as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def run(model: Model, wide: bool) -> dict[str, Any]:
    """Outputs in evaluation; in training the loss, gradients by name, and the loss after a step of SGD."""
    module = model.module
    fill(module)
    if wide:
        module.double()
        options = {name: widened(x) for name, x in model.options.items()}
        model = model._replace(inputs=tuple(map(widened, model.inputs)), options=options)
    module.eval()
    with torch.no_grad():
        made = {f"output{i}": x.numpy() for i, x in enumerate(call(model))}
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    for step in range(2):
        optimizer.zero_grad()
        loss = sum((x if wide else x.float()).pow(2).mean() for x in call(model))
        made[f"loss{step}"] = loss.detach().numpy()
        if step == 0:
            loss.backward()
            made |= {f"grad.{n}": p.grad.numpy().copy() for n, p in module.named_parameters() if p.grad is not None}
            optimizer.step()
    return made


def main(library: str, folder: str, *names: str) -> None:
    """Run each model; one that fails does not stop the others."""
    warnings.simplefilter("ignore")
    same_start._draw_alike(), same_start._no_dropout()
    library, _, dtype = library.partition(":")
    build, _ = BUILDERS[library]
    for name in names:
        began, file = time.monotonic(), Path(folder) / name
        try:
            made = run(build(name), bool(dtype))
            np.savez(file.with_suffix(".npz"), **made, seconds=time.monotonic() - began)
        except Exception as error:
            lines = traceback.format_exc().splitlines()
            file.with_suffix(".txt").write_text(f"{type(error).__name__}: {error}\n" + "\n".join(lines[-14:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
