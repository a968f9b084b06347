"""Messages between neighbouring stages: the activations of a micro-batch, and their gradients.

They go by the point-to-point messages of the group, in the order of the micro-batches. A header of a fixed size says
what follows; the values are one run of bytes, of any mix of dtypes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import backends
from ...backends import Array
from ...base import dtypes
from ...base.dtypes import uint8
from ...base.errors import ShapeError
from ...core.tensor import Tensor
from ..process_group import ProcessGroup
from ..transport import LARGEST_TAG, Call, DistError, call_site

HEADER = 2048  # bytes
_TAG = LARGEST_TAG  # of messages that no script sends, unless it means to


class Messages:
    """What a stage sends to and receives from the others of `group`; `device`: where received tensors are."""

    def __init__(self, group: ProcessGroup, device: Any):
        self.group, self.device = group, device
        self._sent: deque[tuple[Array, Callable[[], None]]] = deque()  # an array stays until it has left

    def send(self, what: str, to: int, arrays: Sequence[Array], header: dict[str, Any] | None = None) -> None:
        """Begin to send arrays to the rank `to`, after a header that `receive_header` returns there."""
        call = Call(f"send {what} to stage {to}", call_site())
        if header is not None:
            text = json.dumps({**header, "tensors": [[a.dtype.name, list(a.shape)] for a in arrays]}).encode()
            if len(text) > HEADER:
                raise ShapeError("pipeline", "fewer tensors between two stages", f"{len(arrays)} of them")
            self._begin(call, to, np.frombuffer(text.ljust(HEADER), uint8))
        size = sum(array.nbytes for array in arrays)
        if size:
            flat = np.empty((size,), uint8)
            for array, part in zip(arrays, np.split(flat, np.cumsum([a.nbytes for a in arrays])[:-1]), strict=True):
                host = backends.backend_of(array).to_numpy(array)
                part[...] = np.ascontiguousarray(host).reshape(-1).view(uint8)
            self._begin(call, to, flat)

    def _begin(self, call: Call, to: int, flat: Array) -> None:
        self._sent.append((flat, self.group.transport.send(call, flat, to, _TAG)))
        while len(self._sent) > 4 * self.group.size():  # 3 per micro-batch, of which as many as stages are under way
            self._sent.popleft()[1]()

    def finish(self) -> None:
        """Wait until all has left. Raises DistError where a stage does not take it in time."""
        while self._sent:
            self._sent.popleft()[1]()

    def receive_header(self, what: str, source: int) -> dict[str, Any]:
        """The header that the rank `source` sends next."""
        found = json.loads(self._received(what, source, HEADER).tobytes())
        if found.get("what") != what:
            raise DistError("pipeline", f"{what} from stage {source}", str(found.get("what")))
        return dict(found)

    def receive(self, what: str, source: int, kinds: Sequence[tuple[str, Sequence[int]]]) -> list[Tensor]:
        """The tensors of these dtypes and shapes that the rank `source` sends next."""
        found = [(dtypes.parse(name), tuple(shape)) for name, shape in kinds]
        sizes = [int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for dtype, shape in found]
        flat = self._received(what, source, sum(sizes)) if sum(sizes) else np.empty((0,), uint8)
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        arrays = [part.view(dtype).reshape(shape) for part, (dtype, shape) in zip(parts, found, strict=True)]
        return [Tensor(array) if self.device is None else Tensor(array).to(self.device) for array in arrays]

    def _received(self, what: str, source: int, size: int) -> Any:
        call, flat = Call(f"receive {what} from stage {source}", call_site()), np.empty((size,), uint8)
        self.group.transport.receive(call, flat, source, _TAG)()
        return flat
