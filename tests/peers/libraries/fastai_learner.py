"""fastai's Learner: a small vision network and a tabular model, by one-cycle training, saved and loaded."""

import numpy as np
import pandas as pd
import torch
from fastai.callback.schedule import *  # noqa: F403  # adds fit_one_cycle
from fastai.data.block import RegressionBlock
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.layers import ConvLayer, Flatten
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat, MSELossFlat
from fastai.metrics import accuracy, mae
from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas, range_of
from fastai.tabular.learner import tabular_learner
from job import numbers, say, start, timed
from torch import nn

PACKAGES = ("fastai",)

images, labels = numbers(64, 3, 16, 16), torch.arange(64) % 4
pairs = list(zip(images, labels, strict=True))
loaders = DataLoaders(DataLoader(pairs[:48], bs=16, num_workers=0), DataLoader(pairs[48:], bs=16, num_workers=0))
net = start(nn.Sequential(ConvLayer(3, 8, stride=2), ConvLayer(8, 16, stride=2), nn.AdaptiveAvgPool2d(1), Flatten(),
                          nn.Linear(16, 4)))  # fmt: skip
learner = Learner(loaders, net, loss_func=CrossEntropyLossFlat(), metrics=accuracy, model_dir="models", path=".")
with learner.no_bar(), learner.no_logging(), timed():
    learner.fit_one_cycle(3, 1e-2)
for row in learner.recorder.values:
    say("vision", *row)
learner.save("kept", with_opt=False)
learner.load("kept", with_opt=False)
with learner.no_bar():
    say("predictions", learner.get_preds()[0])

random = np.random.default_rng(0)
frame = pd.DataFrame({"a": random.standard_normal(80), "b": random.standard_normal(80), "c": list("xyzw") * 20})
frame["y"] = (frame.a + (frame.c == "x")).astype("float32")
table = TabularPandas(frame, [Categorify, FillMissing, Normalize], ["c"], ["a", "b"], "y", y_block=RegressionBlock(),
                      splits=(range_of(frame)[:64], range_of(frame)[64:]))  # fmt: skip
batches = table.dataloaders(bs=16, shuffle_train=False, shuffle=False)
tabular = tabular_learner(batches, layers=[16, 8], n_out=1, metrics=mae, loss_func=MSELossFlat())
start(tabular.model)
with tabular.no_bar(), tabular.no_logging():
    tabular.fit(3, 5e-3)
for row in tabular.recorder.values:
    say("tabular", *row)
