"""Training steps of a small UNet on noise of a DDPM schedule, then a sample by a DDIM schedule."""

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from job import DTYPE, numbers, say, start

PACKAGES = ("diffusers",)
PRECISIONS = ("float32", "bfloat16")
TOLERANCE = 2e-5  # sampling takes the model's output four times

model = UNet2DModel(
    sample_size=8,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
model = start(model).to(DTYPE)
schedule = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, noise = numbers(4, 3, 8, 8).to(DTYPE), numbers(4, 3, 8, 8, seed=1).to(DTYPE)
steps = torch.tensor([3, 20, 55, 90])
for _ in range(4):
    noisy = schedule.add_noise(images, noise, steps)
    found = model(noisy, steps, return_dict=False)[0]
    loss = torch.nn.functional.mse_loss(found.float(), noise.float())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    say("loss", loss)
sampler = DDIMScheduler(num_train_timesteps=100)
sampler.set_timesteps(4)
sample = noise
with torch.no_grad():
    for step in sampler.timesteps:
        sample = sampler.step(model(sample, step).sample, step, sample).prev_sample
say("sample", sample[0, 0])  # whole, not as a sum of rounding errors
