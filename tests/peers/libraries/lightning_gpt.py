"""A GPT of plain layers, of width 256 and 4 layers, in Lightning's Trainer, 24 steps of 8 x 128 tokens, clipping."""

import logging
import warnings

import torch
from gpt import GPT, STEPS, Clock, loader
from job import PRECISION, say

logging.getLogger("lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
import lightning  # noqa: E402  # after its log is off
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

PACKAGES = ("lightning",)
PRECISIONS = ("float32", "float16", "bfloat16")

# By its name, "16-mixed" is bfloat16 on a CPU.
MODES = {
    "float32": {"precision": "32-true"},
    "float16": {"plugins": MixedPrecision("16-mixed", "cpu")},
    "bfloat16": {"precision": "bf16-mixed"},
}


class Training(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.gpt, self.clock, self.losses = GPT(), Clock(), []

    def training_step(self, batch, index):
        loss = self.gpt(batch[0])
        self.log("loss", loss, prog_bar=True)
        self.losses.append(loss.item())
        return loss

    def on_train_batch_start(self, batch, index):
        self.clock.step()

    def on_train_end(self):
        self.clock.end()
        say("loss", self.losses)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


lightning.seed_everything(0)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", gradient_clip_val=1.0, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, **MODES[PRECISION],
)  # fmt: skip
trainer.fit(Training(), loader())
