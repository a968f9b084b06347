"""Accelerate 1.15 trains a model through the alias, with the losses that it has on PyTorch 2.13."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(find_spec("accelerate") is None, reason="needs the package accelerate, without its torch"),
]

SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision=sys.argv[1], gradient_accumulation_steps=2, cpu=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
with torch.no_grad():
    for p in model.parameters():
        p.copy_(torch.linspace(-.3, .3, p.numel()).reshape(p.shape))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
x = torch.linspace(-1, 1, 256).reshape(32, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for _ in range(3):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        print(loss.item())
print(optimizer.param_groups[0]["lr"])
"""

# of PyTorch 2.13; on a CPU Accelerate runs float16 in float32
FLOAT32 = [20.4922, 2.8678, 3.6881, 23.4298, 7.8572, 0.9775, 1.8684, 12.4989, 0.4317, 0.0226, 0.61, 4.7547]
BFLOAT16 = [20.4583, 2.8614, 3.681, 23.4171, 7.8404, 0.9754, 1.8666, 12.4867, 0.4232, 0.0229, 0.6121, 4.7218]


@pytest.mark.parametrize(("mode", "losses"), [("no", FLOAT32), ("fp16", FLOAT32), ("bf16", BFLOAT16)])
def test_accelerate_trains_with_accumulation_clipping_and_a_schedule(tmp_path, mode, losses):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "ampkit.as_torch", str(script), mode]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *came, rate = map(float, done.stdout.split())
    assert came == pytest.approx(losses, rel=1e-2 if mode == "bf16" else 1e-3, abs=1e-3)
    assert rate == 0.025
