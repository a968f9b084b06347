"""What a mistaken word of a recipe or of the command line probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from ..base.near_names import did_you_mean as did_you_mean
from .sections import SECTIONS

# Keys by other names that they have in PyTorch, Lightning, Keras and Hugging Face's Trainer.
SYNONYMS = {
    "learning_rate": "optimizer.lr",
    "beta1": "optimizer.betas",
    "adam_epsilon": "optimizer.eps",
    "wd": "optimizer.weight_decay",
    "bs": "data.batch_size",
    "per_device_train_batch_size": "data.batch_size",
    "num_workers": "data.workers",
    "num_epochs": "train.epochs",
    "num_train_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "max_steps": "train.steps",
    "iterations": "train.steps",
    "gradient_accumulation_steps": "train.accumulate",
    "accumulate_grad_batches": "train.accumulate",
    "max_grad_norm": "train.grad_clip",
    "gradient_clip_val": "train.grad_clip",
    "clip": "train.grad_clip",
    "eval_steps": "train.eval_every",
    "val_check_interval": "train.eval_every",
    "save_steps": "train.checkpoint_every",
    "save_total_limit": "train.keep",
    "save_top_k": "train.keep_best",
    "metric_for_best_model": "train.monitor",
    "early_stopping": "train.patience",
    "early_stopping_patience": "train.patience",
    "logging_steps": "train.log_every",
    "warmup_steps": "schedule.warmup",
    "num_warmup_steps": "schedule.warmup",
    "scheduler": "schedule.name",
    "precision": "amp.dtype",
    "mixed_precision": "amp.dtype",
    "fp16": "amp.dtype",
    "bf16": "amp.dtype",
    "accelerator": "train.device",
    "gpus": "train.device",
    "logger": "train.loggers",
    "seed_everything": "train.seed",
}

# Names of kinds that have another name here.
OTHER_NAMES = {"csv": "table", "tsv": "table", "jsonl": "table", "imagefolder": "images", "hf": "huggingface"}


def kind_meant(word: object, known: Iterable[str]) -> str | None:
    """The kind of a section, or the value of a key, that `word` probably was to be, as a question."""
    words = list(known)
    other = OTHER_NAMES.get(str(word).lower())
    return did_you_mean(other if other in words else word, words)


def keys_named(key: str, but: str = "") -> list[str]:
    """The dotted keys of this name, or that this is another name of, in sections other than `but`."""
    key = key.lower().replace("-", "_")
    kinds = [(section, kind) for section, named in SECTIONS.items() for kind in named.values()]
    found = dict.fromkeys(section for section, kind in kinds if key in kind.model_fields and section != but)
    return [f"{section}.{key}" for section in found] or ([SYNONYMS[key]] if key in SYNONYMS else [])


def is_key(dotted: str) -> bool:
    """Whether some recipe has this key."""
    section, _, key = dotted.partition(".")
    return any(key in kind.model_fields for kind in SECTIONS.get(section, {}).values())
