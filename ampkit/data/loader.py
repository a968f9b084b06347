"""Dataset, TensorDataset and DataLoader: batches of tensors, in an order that can be sought.

Names and defaults are PyTorch's. An epoch's order is a function of (draw of the random stream, epoch), so
a run that was cut off goes on with the very next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core import random
from ..core.errors import ArgumentError, DTypeError, ShapeError
from ..core.tensor import Tensor

_Item = TypeVar("_Item", covariant=True)

# PyTorch's other arguments, with the only values that mean something without worker processes.
_INERT: dict[str, tuple[object, ...]] = {
    "sampler": (None,),
    "batch_sampler": (None,),
    "num_workers": (0,),
    "pin_memory": (False,),
    "timeout": (0,),
    "worker_init_fn": (None,),
    "multiprocessing_context": (None,),
    "prefetch_factor": (None,),
    "persistent_workers": (False,),
    "pin_memory_device": ("",),
    "in_order": (True, False),
}


class Dataset(Generic[_Item]):
    """Items by number: a subclass gives `__getitem__(index)` and `__len__()`."""

    def __getitem__(self, index: int) -> _Item:
        raise NotImplementedError(f"{type(self).__name__}.__getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__}.__len__")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Tensors [n, ...] of one length n; item i is their rows i. A DataLoader fetches a whole batch at once.

    Raises DTypeError for what is no Tensor, ShapeError for no tensors, 0-d tensors and different lengths.
    """

    def __init__(self, *tensors: Tensor):
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                cure = "wrap it: ampkit.tensor(array)"
                raise DTypeError("TensorDataset", "tensors", type(tensor).__name__, cure)
        if len({tensor.shape[:1] for tensor in tensors}) != 1 or tensors[0].ndim == 0:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "none"
            raise ShapeError("TensorDataset", "tensors of one length along axis 0", shapes)
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(Tensor(tensor.array[index, ...]) for tensor in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class DataLoader:
    """Batches of `dataset`, each a list of tensors [batch_size, ...]; a copy, off the tape.

    dataset: anything with `__len__` and `__getitem__`; `collate_fn` (`default_collate`) stacks the items.
    shuffle: another order in each epoch. drop_last: leave out a last batch that is not full.
    generator: the random stream whose next draw fixes all orders of this loader; by default `manual_seed`'s.
    `state_dict` and `load_state_dict` carry the place within a run. Each new iteration is a new epoch, also
    after one that was left early; only the first after `load_state_dict` goes on within its epoch.
    PyTorch's arguments for samplers, workers and pinned memory are taken with their defaults only.
    Raises ArgumentError for an empty dataset or one without a length, a batch_size below 1, other arguments.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | None = False,
        *,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        generator: random.Stream | None = None,
        **inert: object,
    ):
        _check_inert(inert)
        _check_sizes(dataset, batch_size, drop_last)
        if generator is not None and not isinstance(generator, random.Stream):
            got, cure = type(generator).__name__, "give ampkit.manual_seed(seed), or a Stream"
            raise ArgumentError("DataLoader", "generator to be a random stream", got, cure)
        self.dataset, self.batch_size = dataset, batch_size
        self.shuffle, self.drop_last = bool(shuffle), drop_last
        self.collate_fn, self.generator = collate_fn, generator
        self.epoch, self.position = 0, 0  # of the next batch
        self._draw: tuple[int, int] | None = None
        self._resuming = False

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        if self.position and not self._resuming:
            self._seek(self.epoch + 1, 0)
        self._resuming = False
        epoch, order = self.epoch, self._order(self.epoch)
        for position in range(self.position, len(self)):
            # Counted before it is handed out: a state saved while batch k is in use goes on with k + 1.
            self._seek(*divmod(epoch * len(self) + position + 1, len(self)))
            yield self._fetch(order[position * self.batch_size : (position + 1) * self.batch_size])

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch, the draw behind the orders (None unshuffled), batches per epoch."""
        draw = self._drawn() if self.shuffle else None
        return {"draw": draw, "epoch": self.epoch, "position": self.position, "batches": len(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place that `state_dict` gave.

        Raises ArgumentError if it is no such state, or belongs to another dataset or batch size.
        """
        missing = [key for key in ("draw", "epoch", "position", "batches") if key not in state]
        if missing:
            raise ArgumentError("DataLoader.load_state_dict", f"the keys {missing}", f"only {sorted(state)}")
        if state["batches"] != len(self):
            got = f"a state of {state['batches']} batches per epoch"
            cure = "use the dataset and the batch_size of the run that saved it"
            raise ArgumentError("DataLoader.load_state_dict", f"{len(self)} batches per epoch", got, cure)
        if state["draw"] is not None:
            self._draw = (int(state["draw"][0]), int(state["draw"][1]))
        self._seek(int(state["epoch"]), int(state["position"]))
        self._resuming = True

    def _seek(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position

    def _drawn(self) -> tuple[int, int]:
        # As late as the first use, so that a `manual_seed` after this loader was made still rules it.
        if self._draw is None:
            self._draw = (self.generator or random.default).take()
        return self._draw

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The items of an epoch in order. [n] int64."""
        if not self.shuffle:
            return np.arange(len(self.dataset))
        seed, call = self._drawn()
        # Philox has a key of two words: the second sets the shuffles apart from all other draws of the seed.
        return random.generator(seed | (call + 1) << 64, epoch).permutation(len(self.dataset))

    def _fetch(self, indices: NDArray[np.int64]) -> Any:
        if isinstance(self.dataset, TensorDataset) and self.collate_fn is None:
            return list(self.dataset[indices])
        return (self.collate_fn or default_collate)([self.dataset[int(index)] for index in indices])


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack items along a new axis 0: tensors, arrays and numbers, also in tuples, lists and dicts.

    Python floats become float32, integers int64; arrays and NumPy numbers keep their dtype; text is a list.
    Raises ShapeError if shapes or lengths differ, DTypeError for any other type.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return _stack([item.array for item in batch])
    if isinstance(first, np.ndarray | np.generic):
        return _stack([np.asarray(item) for item in batch])
    if isinstance(first, bool | int | float):
        return Tensor(np.array(batch, np.float32 if any(isinstance(item, float) for item in batch) else None))
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([item[key] for item in batch]) for key in first}
    if isinstance(first, Sequence):
        return [default_collate(field) for field in _transposed(batch)]
    raise DTypeError("DataLoader", "tensors, arrays or numbers", type(first).__name__, "give a collate_fn")


def _stack(arrays: list[Any]) -> Tensor:
    shapes = sorted({tuple(array.shape) for array in arrays})
    if len(shapes) != 1:
        raise ShapeError("DataLoader", "items of one shape in a batch", f"{shapes}", "give a collate_fn")
    dtypes = sorted({array.dtype.name for array in arrays})
    if len(dtypes) != 1:
        cure = "cast them in __getitem__"
        raise DTypeError("DataLoader", "items of one dtype in a batch", ", ".join(dtypes), cure)
    return Tensor(np.stack(arrays))


def _transposed(batch: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    lengths = sorted({len(item) for item in batch})
    if len(lengths) != 1:
        raise ShapeError("DataLoader", "items of one length in a batch", f"{lengths}", "give a collate_fn")
    return list(zip(*batch, strict=True))


def _check_inert(given: dict[str, object]) -> None:
    for name, value in given.items():
        if name not in _INERT:
            raise TypeError(f"DataLoader() got an unexpected keyword argument {name!r}")
        if value not in _INERT[name]:
            cure = f"leave {name} out: the loader makes batches in the calling thread, in an order of its own"
            raise ArgumentError("DataLoader", f"{name}={_INERT[name][0]!r}", repr(value), cure)


def _check_sizes(dataset: Any, batch_size: Any, drop_last: bool) -> None:
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ArgumentError("DataLoader", "batch_size of at least 1", repr(batch_size))
    length = _length(dataset)
    if length == 0:
        raise ArgumentError("DataLoader", "a dataset with items", "an empty one")
    if drop_last and length < batch_size:
        got = f"{length} items, less than batch_size={batch_size}"
        raise ArgumentError("DataLoader", "one full batch when drop_last=True", got, "lower batch_size")


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        got = type(dataset).__name__
        raise ArgumentError("DataLoader", "a dataset with __len__ and __getitem__", got) from None
