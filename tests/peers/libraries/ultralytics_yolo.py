"""A YOLO of the smallest width in ultralytics' trainer (which leaves amp=True out on a CPU); saved, and its boxes."""

import sys
from pathlib import Path

import numpy as np
import torch
from job import numbers, say, start
from PIL import Image

sys.argv[1:] = []  # which ultralytics reads
import ultralytics  # noqa: E402
from ultralytics import YOLO  # noqa: E402
from ultralytics.models.yolo.detect import DetectionTrainer  # noqa: E402

PACKAGES = ("ultralytics",)
TOLERANCE = 1e-3  # of losses after steps through batch norms of a few values

random = np.random.default_rng(0)
for part in ("train", "val"):
    for kind in ("images", "labels"):
        Path("data", kind, part).mkdir(parents=True)
    for i in range(4):
        image = random.integers(0, 60, (64, 64, 3), np.uint8)
        x, y = random.integers(4, 30, 2)
        image[y : y + 24, x : x + 20] = 255 * np.eye(3, dtype=np.uint8)[i % 3]
        Image.fromarray(image).save(f"data/images/{part}/{i}.png")
        Path(f"data/labels/{part}/{i}.txt").write_text(f"{i % 3} {(x + 10) / 64} {(y + 12) / 64} {20 / 64} {24 / 64}\n")
Path("data.yaml").write_text(
    f"path: {Path('data').resolve()}\ntrain: images/train\nval: images/val\nnames: [red, green, blue]\n"
)
plain = dict.fromkeys(("hsv_h", "hsv_s", "hsv_v", "translate", "scale", "fliplr", "mosaic", "erasing"), 0.0)
options = {"data": "data.yaml", "epochs": 3, "imgsz": 64, "batch": 4, "device": "cpu", "workers": 0, "nbs": 4,
           "amp": True, "plots": False, "optimizer": "SGD", "lr0": 0.01, "warmup_epochs": 0, "seed": 0,
           "verbose": False, "project": "runs", "exist_ok": True, "save": True, **plain}  # fmt: skip


class Trainer(DetectionTrainer):
    """The trainer, with weights that do not depend on the library."""

    def get_model(self, *args, **kwargs):
        """A new model."""
        return start(super().get_model(*args, **kwargs))

    def on_step(self):
        """Report the losses of a batch."""
        say("losses", *self.loss_items.values())


trainer = Trainer(overrides={"model": "yolov8n.yaml", **options})
trainer.add_callback("on_train_batch_end", Trainer.on_step)
trainer.train()
say("rates", *trainer.lr.values())
model = YOLO(str(trainer.last))
found = model.predict(numbers(1, 3, 64, 64).sigmoid(), imgsz=64, conf=0.0, max_det=5, verbose=False, device="cpu")
say("boxes", len(found), len(found[0].boxes))
assert ultralytics.__version__ and torch.__version__
