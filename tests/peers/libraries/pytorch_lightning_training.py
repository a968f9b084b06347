"""A LightningModule with manual optimization of two networks in pytorch_lightning's Trainer, with a callback."""

import logging
import warnings

import torch
from job import PRECISION, numbers, say, start, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
import pytorch_lightning as pl  # noqa: E402  # after its log is off

PACKAGES = ("pytorch-lightning",)
PRECISIONS = ("float32", "bfloat16")

MODES = {"float32": "32", "bfloat16": "bf16-mixed"}


class Adversaries(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker = start(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), seed=1)
        self.judge = start(nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)), seed=2)

    def training_step(self, batch, index):
        for_maker, for_judge = self.optimizers()
        truth = torch.ones(len(batch[0]), 1)
        self.toggle_optimizer(for_maker)
        made = nn.functional.binary_cross_entropy_with_logits(self.judge(self.maker(batch[0])), truth)
        for_maker.zero_grad()
        self.manual_backward(made)
        for_maker.step()
        self.untoggle_optimizer(for_maker)
        self.toggle_optimizer(for_judge)
        real = nn.functional.binary_cross_entropy_with_logits(self.judge(batch[1]), truth)
        fake = nn.functional.binary_cross_entropy_with_logits(self.judge(self.maker(batch[0]).detach()), 1 - truth)
        for_judge.zero_grad()
        self.manual_backward((real + fake) / 2)
        self.clip_gradients(for_judge, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        for_judge.step()
        self.untoggle_optimizer(for_judge)
        self.log_dict({"maker": made, "judge": (real + fake) / 2}, prog_bar=True)
        say("losses", made, real, fake)

    def configure_optimizers(self):
        betas = 0.5, 0.999
        return [torch.optim.Adam(part.parameters(), lr=2e-3, betas=betas) for part in (self.maker, self.judge)], []


class Norms(pl.Callback):
    def on_train_epoch_end(self, trainer, module):
        say("norm", torch.stack([p.norm() for p in module.parameters()]).norm(), trainer.callback_metrics["judge"])


pl.seed_everything(0)
trainer = pl.Trainer(max_epochs=3, accelerator="cpu", precision=MODES[PRECISION], callbacks=[Norms()], logger=False,
                     enable_progress_bar=False, enable_checkpointing=False, profiler="simple")  # fmt: skip
with timed():
    trainer.fit(Adversaries(), DataLoader(TensorDataset(numbers(64, 8), numbers(64, 4, seed=3)), batch_size=16))
say("steps", trainer.global_step)
