"""What 16 bits do to a model: where a NaN came from, what each layer loses, and what runs in which dtype."""

from ..amp.precisions import Precisions, precisions
from ..utils.flop_counter import FlopCounter
from .detect import detect_nonfinite, explain
from .finding import Finding
from .gradient_noise import GradientNoise, gradient_noise
from .ledger import Ledger, ledger
from .planning import plan
from .policy_search.format_tuning import FormatTuning, tune_formats
from .policy_search.formats import Laboratory, lab
from .policy_search.tuning import Tuning, tune
from .precision_plan import PrecisionPlan
from .range_rows import Range, Sample, Updates
from .ranges import Ranges

__all__ = [
    "Finding", "FlopCounter", "FormatTuning", "GradientNoise", "Laboratory", "Ledger", "PrecisionPlan", "Precisions",
    "Range", "Ranges", "Sample", "Tuning", "Updates", "detect_nonfinite", "explain", "gradient_noise", "lab", "ledger",
    "plan", "precisions", "tune", "tune_formats",
]  # fmt: skip
