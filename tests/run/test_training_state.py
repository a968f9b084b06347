"""What of a run survives a resume."""

from __future__ import annotations

from ampkit import GradScaler, nn, ones, optim
from ampkit.optim.lr_scheduler import StepLR
from ampkit.optim.swa_utils import AveragedModel
from ampkit.run.training_state import TrainingState


def made():
    model = nn.Linear(2, 1)
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    return TrainingState(model, optimizer, StepLR(optimizer, 2), GradScaler(init_scale=8.0), AveragedModel(model))


def test_every_attribute_is_part_of_a_snapshot():
    state = made()
    snapshot = state.snapshot()
    assert {*vars(state)} == {*snapshot, *snapshot["counts"]} - {"counts", "guard", "random"}


def test_a_snapshot_brings_the_counts_and_the_weights_back():
    first, second = made(), made()
    first.done, first.evaluated, first.skipped, first.seconds = 4, 3, 1, 2.5
    first.scaler.scale(first.model(ones(1, 2)).sum()).backward()
    first.scaler.step(first.optimizer)
    first.scaler.update()
    first.average.update_parameters(first.model)
    second.restore(first.snapshot())
    assert (second.done, second.evaluated, second.skipped, second.seconds) == (4, 3, 1, 2.5)
    for one, other in ((first.model, second.model), (first.average.module, second.average.module)):
        assert all(p.tolist() == q.tolist() for p, q in zip(one.parameters(), other.parameters(), strict=True))
