"""A classifier by ignite's engines, with metrics, a checkpoint handler, early stopping and a warm-up of the rate."""

import torch
from ignite.contrib.handlers import ProgressBar  # noqa: F401  # imports what it needs
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, LRScheduler, create_lr_scheduler_with_warmup
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, RunningAverage
from job import PRECISION, numbers, say, start, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PACKAGES = ("pytorch-ignite",)
PRECISIONS = ("float32", "bfloat16")

model = start(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(numbers(96, 16), torch.arange(96) % 3), batch_size=16)


def update(engine, batch):
    with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bfloat16"):
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


trainer, judge = (
    Engine(update),
    create_supervised_evaluator(
        model, {"accuracy": Accuracy(), "loss": Loss(nn.functional.cross_entropy), "confusion": ConfusionMatrix(3)}
    ),
)
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "average")
step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
warm = create_lr_scheduler_with_warmup(LRScheduler(step), warmup_start_value=0.01, warmup_duration=4)
trainer.add_event_handler(Events.ITERATION_STARTED, warm)
kept = {"model": model, "optimizer": optimizer, "trainer": trainer}
saver = Checkpoint(kept, DiskSaver("kept", create_dir=True), n_saved=2)
trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
judge.add_event_handler(Events.COMPLETED, EarlyStopping(9, lambda e: -e.state.metrics["loss"], trainer))


@trainer.on(Events.EPOCH_COMPLETED)
def measure(engine):
    judge.run(loader)
    say("epoch", *(judge.state.metrics[name] for name in ("accuracy", "loss", "confusion")))
    say("train", engine.state.output, engine.state.metrics["average"], optimizer.param_groups[0]["lr"])


with timed():
    trainer.run(loader, max_epochs=4)
with torch.no_grad():
    model[0].weight.zero_()
Checkpoint.load_objects(kept, torch.load(saver.last_checkpoint))
judge.run(loader)
other = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
say("more", other.run(loader, max_epochs=1).output, trainer.state.epoch)
