"""Adam and its relatives: steps from running moments of the gradient."""

from .adam import Adam, Adamax, AdamW
from .nadam import NAdam
from .radam import RAdam
from .schedule_free import AdamWScheduleFree

__all__ = ["Adam", "AdamW", "AdamWScheduleFree", "Adamax", "NAdam", "RAdam"]
