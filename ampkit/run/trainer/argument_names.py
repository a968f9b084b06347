"""The names that other libraries have for arguments: an unknown one is answered with the one here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ...base.near_names import did_you_mean

_P = ParamSpec("_P")
_T = TypeVar("_T")

_HERE = {
    "max_epochs=... of the Trainer": ("epochs", "n_epochs", "num_epochs", "num_train_epochs", "nb_epochs"),
    "max_steps=... of the Trainer": ("steps", "num_steps", "iterations", "max_iters"),
    "the learning rate is the optimizer's": ("lr", "learning_rate"),
    "the batch size is the loader's": ("batch_size", "per_device_train_batch_size"),
    "the model is where it was brought: model.to(device)": ("device", "devices", "accelerator", "gpus"),
    'precision="bf16-mixed" or "16-mixed"': ("dtype", "amp", "mixed_precision", "fp16", "bf16"),
    "fit(train_dataloaders, val_dataloaders) takes the data": (
        "train_dataset", "eval_dataset", "train_data", "val_data", "validation_data", "train_loader", "val_loader",
        "train_dataloader", "val_dataloader", "train_dataloaders", "val_dataloaders", "data",
    ),
    "loss=..., a function of model and batch": ("loss_fn", "criterion", "compute_loss"),
    "callbacks=ampkit.EarlyStopping(patience=...)": ("patience", "early_stopping", "early_stopping_patience"),
    "val_check_interval=..., in updates": ("eval_every", "eval_steps", "check_val_every_n_epoch"),
    "log_every_n_steps=...": ("log_every", "logging_steps"),
    "default_root_dir=...": ("output_dir", "run_dir", "log_dir", "directory"),
    'fit(..., ckpt_path="last")': ("resume", "resume_from_checkpoint", "ckpt_path"),
    "gradient_clip_val=...": ("grad_clip", "max_grad_norm", "clip"),
    "accumulate_grad_batches=...": ("accumulate", "gradient_accumulation_steps"),
    "lr_scheduler=...": ("scheduler", "schedule"),
}  # fmt: skip
_CURES = {name: cure for cure, names in _HERE.items() for name in names}


def known_names(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """`function`, whose TypeError for a keyword that it lacks says which argument here that is."""
    names = inspect.signature(function).parameters

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        unknown = next((name for name in kwargs if name not in names), None)
        if unknown is not None:
            where = function.__qualname__.removesuffix(".__init__")
            cure = _CURES.get(unknown) or did_you_mean(unknown, [*names][1:]) or f"it has {', '.join([*names][1:])}"
            raise TypeError(f"{where}() got an unexpected keyword argument {unknown!r}\nhelp: {cure}")
        return function(*args, **kwargs)

    return called
