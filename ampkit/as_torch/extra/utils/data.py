"""Private names of `torch.utils.data.dataloader` that loaders of others use."""

from ....data.loading.iterators import BatchIterator as _BaseDataLoaderIter
from ....data.loading.iterators import DatasetKind as _DatasetKind
from ....data.loading.iterators import DirectIterator as _SingleProcessDataLoaderIter
from ....data.loading.iterators import WorkerIterator as _MultiProcessingDataLoaderIter
from ....data.samplers import ForeverSampler as _InfiniteConstantSampler

__all__ = [
    "_BaseDataLoaderIter", "_DatasetKind", "_InfiniteConstantSampler", "_MultiProcessingDataLoaderIter",
    "_SingleProcessDataLoaderIter",
]  # fmt: skip
