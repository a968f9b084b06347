"""Spectrograms, mel features and MFCC of tones, resampling, filters; a classifier of features trained for 5 steps."""

import torch
import torchaudio
from job import numbers, say, start
from torch import nn
from torchaudio import functional, transforms

PACKAGES = ("torchaudio",)

seconds = torch.arange(4000) / 8000
waves = torch.stack([torch.sin(2 * torch.pi * pitch * seconds) for pitch in (220.0, 440.0, 880.0, 1760.0)])
waves = waves + 0.1 * numbers(4, 4000)
say("resampled", transforms.Resample(8000, 6000)(waves))
say("mu_law", functional.mu_law_encoding(waves, 256).float(), functional.mu_law_decoding(torch.arange(256), 256))
say("biquad", functional.lowpass_biquad(waves, 8000, 1000.0), functional.gain(waves, 6.0))
say("banks", functional.melscale_fbanks(101, 0.0, 4000.0, 20, 8000), functional.create_dct(13, 20, "ortho"))
say("spectrogram", transforms.Spectrogram(n_fft=200, hop_length=80)(waves))
mel = transforms.MelSpectrogram(8000, n_fft=200, hop_length=80, n_mels=20)
to_decibels = transforms.AmplitudeToDB()
say("mel", to_decibels(mel(waves)))
say("mfcc", transforms.MFCC(8000, n_mfcc=13, melkwargs={"n_fft": 200, "hop_length": 80, "n_mels": 20})(waves))
say("masked", transforms.TimeMasking(10)(torch.zeros(1, 20, 51)), functional.compute_deltas(mel(waves)))
model = start(nn.Sequential(nn.Conv1d(20, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(5):
    loss = nn.functional.cross_entropy(model(to_decibels(mel(waves)) / 50), torch.arange(4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", loss)
assert torchaudio.__version__
