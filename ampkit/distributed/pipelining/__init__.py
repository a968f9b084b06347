"""Pipeline parallelism: ranks that have consecutive parts of a model, and pass micro-batches on; PyTorch's names."""

from .schedules import Schedule1F1B, ScheduleGPipe
from .split import Pipe, SplitPoint, pipeline
from .stage import PipelineStage

__all__ = ["Pipe", "PipelineStage", "Schedule1F1B", "ScheduleGPipe", "SplitPoint", "pipeline"]
