"""Waves resampled, filtered, encoded and masked, mel banks and deltas, without spectrograms; a classifier of waves."""

import torch
import torchaudio
from job import numbers, say, start
from torch import nn
from torchaudio import functional, models, transforms

PACKAGES = ("torchaudio",)

seconds = torch.arange(800) / 8000
waves = torch.stack([torch.sin(2 * torch.pi * pitch * seconds) for pitch in (220.0, 440.0, 880.0, 1760.0)])
waves = 0.5 * waves + 0.05 * numbers(4, 800)
say("resampled", transforms.Resample(8000, 6000)(waves), functional.resample(waves, 8000, 11025))
say("encoded", functional.mu_law_encoding(waves, 256).float(), functional.mu_law_decoding(torch.arange(256), 256))
say("banks", functional.melscale_fbanks(101, 0.0, 4000.0, 20, 8000), functional.create_dct(13, 20, "ortho"))
say("filtered", functional.lowpass_biquad(waves, 8000, 1000.0), functional.equalizer_biquad(waves, 8000, 500.0, 6.0))
say("deltas", functional.compute_deltas(numbers(2, 20, 30)), functional.amplitude_to_DB(waves.abs(), 10, 1e-5, 0.0))
say("masked", functional.mask_along_axis(torch.ones(1, 20, 30), 1, 0.0, 1), functional.gain(waves, 6.0))
coefficients = torch.tensor([1.0, -0.4, 0.2]).requires_grad_()
(functional.lfilter(waves, coefficients, torch.tensor([0.5, 0.3, 0.1])) ** 2).sum().backward()
say("gradient", coefficients.grad)
model = start(models.ConvTasNet(num_sources=1, enc_kernel_size=8, enc_num_feats=16, msk_num_feats=8,
                                msk_num_hidden_feats=16, msk_num_layers=2, msk_num_stacks=1))  # fmt: skip
head = start(nn.Linear(800, 4), seed=1)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.01)
for _ in range(5):
    loss = nn.functional.cross_entropy(head(model(waves[:, None])[:, 0]), torch.arange(4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", loss)
conformer = start(models.Conformer(16, 2, 32, 1, 7)).eval()
say("conformer", *(found.float() for found in conformer(numbers(2, 10, 16), torch.tensor([10, 7]))))
assert torchaudio.__version__
