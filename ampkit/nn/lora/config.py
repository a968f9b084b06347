"""LoraConfig: what is adapted, and by matrices of which rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.core.arguments import is_number, is_whole

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoraConfig:
    """PEFT's words for low-rank adaptation.

    r: the rank of the added product. lora_alpha: the product counts times lora_alpha / r. lora_dropout: the probability
    of a zero in its input. target_modules: the modules to adapt, each by its whole path, with `*` for any one part, or
    by the end of it (`c_attn`); "all-linear" is every Linear but the output layer. modules_to_save: modules that are
    trained whole, as a new head. use_rslora: divide by sqrt(r), not r (Kalajdzievski 2023, arXiv:2312.03732).
    Raises ArgumentError for values out of range.
    """

    r: int = 8
    lora_alpha: float = 8
    target_modules: str | Iterable[str] = ALL_LINEAR
    lora_dropout: float = 0.0
    modules_to_save: Iterable[str] = ()
    use_rslora: bool = False

    def __post_init__(self) -> None:
        if not is_whole(self.r) or self.r < 1:
            raise ArgumentError("LoraConfig", "r as a whole number from 1", repr(self.r))
        if not is_number(self.lora_alpha) or self.lora_alpha <= 0:
            raise ArgumentError("LoraConfig", "lora_alpha > 0", repr(self.lora_alpha))
        if not is_number(self.lora_dropout) or not 0 <= self.lora_dropout < 1:
            raise ArgumentError("LoraConfig", "lora_dropout in [0, 1)", repr(self.lora_dropout))
        for name in ("target_modules", "modules_to_save"):
            value = getattr(self, name)
            object.__setattr__(self, name, _names(name, value) if value != ALL_LINEAR else value)
        if not self.target_modules:
            raise ArgumentError("LoraConfig", "target_modules, or 'all-linear'", "none")

    @property
    def scaling(self) -> float:
        """What the product of the two matrices is multiplied with."""
        return self.lora_alpha / (self.r**0.5 if self.use_rslora else self.r)

    def to_dict(self) -> dict[str, Any]:
        """The content of PEFT's adapter_config.json."""
        targets = self.target_modules if self.target_modules == ALL_LINEAR else list(self.target_modules)
        return {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": None,
            "bias": "none",
            "inference_mode": True,
            "r": self.r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "target_modules": targets,
            "modules_to_save": list(self.modules_to_save) or None,
            "use_rslora": self.use_rslora,
        }

    @classmethod
    def from_dict(cls, where: str, values: Mapping[str, Any]) -> LoraConfig:
        """The configuration in an adapter_config.json. Raises ArgumentError for what it says that is not done here."""
        if values.get("peft_type") != "LORA":
            raise ArgumentError(where, "an adapter of peft_type LORA", repr(values.get("peft_type")))
        for key, done in _FIXED.items():
            if values.get(key, done) not in (done, None):
                raise ArgumentError(where, f"{key} {done!r}", repr(values[key]))
        names = ("r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save", "use_rslora")
        return cls(**{name: values[name] for name in names if values.get(name) is not None})


# Keys of PEFT's configuration that have one value here.
_FIXED: dict[str, Any] = {
    "bias": "none",
    "use_dora": False,
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "lora_bias": False,
    "layers_to_transform": None,
}


def _names(key: str, value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(name, str) for name in found):
        raise ArgumentError("LoraConfig", f"{key} as names of modules", repr(value))
    return found
