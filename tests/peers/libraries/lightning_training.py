"""A LightningModule in Trainer with accumulation, clipping, validation, ModelCheckpoint; resumed; and in Fabric."""

import logging
import warnings

import torch
from job import PRECISION, numbers, say, start, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
import lightning  # noqa: E402  # after its log is off
from lightning.fabric.plugins import MixedPrecision as FabricPrecision  # noqa: E402
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

PACKAGES = ("lightning",)
PRECISIONS = ("float32", "float16", "bfloat16")


def precision(plugin):
    """The arguments of the precision; the name of float16, "16-mixed", means bfloat16 on a CPU."""
    if PRECISION == "float16":
        return {"plugins": plugin("16-mixed", "cpu")}
    return {"precision": {"float32": "32-true", "bfloat16": "bf16-mixed"}[PRECISION]}


class Classifier(lightning.LightningModule):
    def __init__(self, width=256, rate=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = start(nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 10)))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        say("loss", loss)
        return loss

    def validation_step(self, batch, index):
        logits = self(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]), prog_bar=True)
        self.log("accuracy", (logits.argmax(-1) == batch[1]).float().mean())

    def predict_step(self, batch, index):
        return self(batch[0])

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            say("val", self.trainer.callback_metrics["val_loss"], self.trainer.callback_metrics["accuracy"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


def loader(seed, count=96):
    return DataLoader(TensorDataset(numbers(count, 64, seed=seed), torch.arange(count) % 10), batch_size=12)


def trainer(epochs):
    keep = ModelCheckpoint("kept", monitor="val_loss", save_last=True, save_top_k=2, filename="{epoch}-{val_loss:.3f}")
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", accumulate_grad_batches=2, gradient_clip_val=0.5,
        **precision(MixedPrecision), callbacks=[keep, LearningRateMonitor()], logger=CSVLogger("logs"),
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip


lightning.seed_everything(0)
first = trainer(2)
with timed():
    first.fit(Classifier(), loader(0), loader(1, 36))
second, model = trainer(4), Classifier()
second.fit(model, loader(0), loader(1, 36), ckpt_path="kept/last.ckpt")
say("steps", second.global_step, second.current_epoch)
say("rate", second.optimizers[0].param_groups[0]["lr"])
loaded = Classifier.load_from_checkpoint(second.checkpoint_callback.best_model_path)
say("loaded", loaded.hparams.width, *trainer(1).predict(loaded, loader(2, 12)))
say("validated", *second.validate(loaded, loader(1, 36), verbose=False)[0].values())

fabric = lightning.Fabric(accelerator="cpu", **precision(FabricPrecision))
net = start(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
for x, y in fabric.setup_dataloaders(loader(0)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    fabric.backward(loss)
    fabric.clip_gradients(net, optimizer, max_norm=1.0)
    optimizer.step()
    say("fabric", loss)
fabric.save("fabric.ckpt", {"net": net, "optimizer": optimizer, "step": 8})
say("fabric_step", fabric.load("fabric.ckpt", {"net": net, "optimizer": optimizer})["step"])
