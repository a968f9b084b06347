"""Averages of a network's weights: of a fixed and a growing decay, and synthesized afterwards; saved and loaded."""

import torch
from ema_pytorch import EMA, PostHocEMA
from job import numbers, say, start
from torch import nn

PACKAGES = ("ema-pytorch",)

model = start(nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)))
plain = EMA(model, beta=0.9, update_after_step=2, update_every=2)
power = EMA(model, beta=0.999, update_after_step=0, update_every=1, power=3 / 4, include_online_model=False)
afterwards = PostHocEMA(model, sigma_rels=(0.05, 0.3), update_every=1, checkpoint_every_num_steps=4,
                        checkpoint_folder="kept")  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
x, y = numbers(8, 6), torch.arange(8) % 3
for _ in range(8):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for average in (plain, power, afterwards):
        average.update()
    say("loss", loss)
for name, average in (("plain", plain), ("power", power)):
    average.eval()
    with torch.no_grad():
        say(name, average(x))
    say("decay", average.get_current_decay())
torch.save(plain.state_dict(), "average.pt")
again = EMA(model, beta=0.9)
again.load_state_dict(torch.load("average.pt"))
again.copy_params_from_ema_to_model()
model.eval()
say("loaded", model(x))
synthesized = afterwards.synthesize_ema_model(sigma_rel=0.15)
synthesized.eval()
with torch.no_grad():
    say("synthesized", synthesized(x))
