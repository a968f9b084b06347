"""Adam and its relatives: steps from running moments of the gradient."""

from .adam import Adam, Adamax, AdamW
from .nadam import NAdam
from .radam import RAdam

__all__ = ["Adam", "AdamW", "Adamax", "NAdam", "RAdam"]
