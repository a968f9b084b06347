"""Streams of other libraries: a run that was cut anywhere goes on with the very next batch, epoch after epoch."""

from __future__ import annotations

import importlib
import io
import json
import tarfile
from itertools import chain, count, islice

import numpy as np
import pytest

import ampkit
from ampkit.base.errors import ArgumentError, FileError, StateError
from ampkit.utils.data import DataLoader

pytestmark = pytest.mark.cpu
ITEMS, EPOCHS, SIZE = 8, 3, 3


def of(package, name, *bases):
    """A class that says it is of another library."""
    return type(name, bases, {"__module__": f"{package}.somewhere"})


class Stages:
    """The stages of a stream of Hugging Face's."""


class BufferShuffledExamplesIterable(Stages):
    """The one that its state knows nothing of."""


class HuggingFace(of("datasets", "IterableDataset")):
    """Numbers in an order of the epoch; as Hugging Face's, what was loaded stays for all iterations of its epoch."""

    def __init__(self, buffered=False, shows_stages=True):
        self.epoch, self.at, self.loaded, self.drawn = 0, 0, None, 0
        self.buffered = buffered
        if shows_stages:
            self._ex_iterable = Stages()
            self._ex_iterable.ex_iterables = [BufferShuffledExamplesIterable() if buffered else Stages()]

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.loaded = state

    def __iter__(self):
        self.at = self.loaded["at"] if self.loaded and self.loaded["epoch"] == self.epoch else 0
        order = np.random.RandomState(self.epoch).permutation(ITEMS)
        if self.buffered and self.at:
            order = order[::-1]  # of a buffer that was lost
        for value in order[self.at :]:
            self.at, self.drawn = self.at + 1, self.drawn + 1
            yield {"n": int(value)}


class GrainIterator:
    def __init__(self, as_bytes):
        self.at, self.as_bytes = 0, as_bytes

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == ITEMS:
            raise StopIteration
        self.at += 1
        return {"n": np.int64(self.at - 1)}

    def get_state(self):
        return json.dumps({"at": self.at}).encode() if self.as_bytes else {"at": self.at}

    def set_state(self, state):
        self.at = (json.loads(state) if self.as_bytes else state)["at"]


class GrainDataset(of("grain", "IterDataset")):
    def __iter__(self):
        return GrainIterator(False)


class GrainLoader(of("grain", "DataLoader")):
    def __iter__(self):
        return GrainIterator(True)


class Stage:
    epoch = -1


class WebDataset(of("webdataset", "DataPipeline")):
    """Samples of two shards in an order of the epoch, which a stage counts; unseeded: in another one each time."""

    times = count()

    def __init__(self, seeded=True):
        self.pipeline, self.seeded = [object(), Stage()], seeded

    def __iter__(self):
        self.pipeline[1].epoch += 1
        seed = self.pipeline[1].epoch if self.seeded else 100 + next(self.times)
        return ({"__key__": f"k{n}", "n": int(n)} for n in np.random.RandomState(seed).permutation(ITEMS))


class Torch(of("torch", "IterableDataset")):
    def __iter__(self):
        return ({"n": n} for n in range(ITEMS))


SOURCES = [HuggingFace, lambda: HuggingFace(True), GrainDataset, GrainLoader, WebDataset, Torch]


def numbers(batch):
    found = batch["n"] if "n" in batch else batch["json"]["n"]
    return found.numpy().tolist()


def epochs(loader):
    """The batches up to the end of the last epoch."""
    for _ in range(EPOCHS - loader.epoch):
        yield from map(numbers, loader)


def check_every_cut(make, path):
    """A new loader with the state of another one, after any number of batches, gives all batches that are left."""
    whole = list(epochs(DataLoader(make(), SIZE)))
    assert sorted(chain(*whole)) == sorted([*range(ITEMS)] * EPOCHS)
    for cut in range(len(whole)):
        first = DataLoader(make(), SIZE)
        assert list(islice(epochs(first), cut)) == whole[:cut]
        ampkit.save(first.state_dict(), path)
        second = DataLoader(make(), SIZE)
        second.load_state_dict(ampkit.load(path))
        assert list(epochs(second)) == whole[cut:], f"after {cut} batches"


@pytest.mark.parametrize("make", SOURCES)
def test_a_stream_goes_on_with_the_very_next_batch(make, tmp_path):
    check_every_cut(make, tmp_path / "state.safetensors")


@pytest.mark.parametrize("make", [HuggingFace, WebDataset])
def test_every_epoch_has_an_order_of_its_own(make):
    loader = DataLoader(make(), ITEMS)
    first, second = (numbers(next(iter(loader))) for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize(("words", "drawn"), [({}, 6), ({"buffered": True}, 8), ({"shows_stages": False}, 8)])
def test_a_state_is_used_only_where_it_is_all_there_is(words, drawn):
    cut = DataLoader(HuggingFace(**words), 2)
    next(iter(cut))
    resumed = DataLoader(HuggingFace(**words), 2)
    resumed.load_state_dict(cut.state_dict())
    list(resumed)
    assert resumed.dataset.drawn == drawn


def test_a_stream_that_was_read_already_starts_anew_unless_a_state_says_where():
    stream, epoch = HuggingFace(), numbers(next(iter(DataLoader(HuggingFace(), ITEMS))))
    cut = DataLoader(stream, SIZE)
    next(iter(cut))
    resumed = DataLoader(stream, SIZE)
    resumed.load_state_dict(cut.state_dict())
    assert numbers(next(iter(resumed))) == epoch[SIZE : 2 * SIZE]
    assert numbers(next(iter(DataLoader(stream, SIZE)))) == epoch[:SIZE]


def test_a_web_dataset_in_another_order_is_not_resumed():
    cut = DataLoader(WebDataset(seeded=False), SIZE)
    next(iter(cut))
    resumed = DataLoader(WebDataset(seeded=False), SIZE)
    resumed.load_state_dict({**cut.state_dict(), "dataset": {"epoch": 0, "source": {"taken": 3, "last": "none"}}})
    with pytest.raises(StateError, match="a WebDataset that gives the same samples again, got 'k.' as number 3, which"):
        next(iter(resumed))


@pytest.mark.parametrize("words", [{"num_workers": 2}, {"shuffle": True}])
def test_what_a_stream_of_another_library_does_itself_is_refused(words):
    with pytest.raises(ArgumentError, match=r"DataLoader: needs (num_workers=0 for GrainDataset|no shuffle)"):
        DataLoader(GrainDataset(), 2, **words)


def test_several_items_are_read_at_once_where_a_data_set_can():
    class Rows:
        asked = ()

        def __len__(self):
            return 5

        def __getitem__(self, index):
            raise AssertionError(index)

        def __getitems__(self, indices):
            self.asked += (indices,)
            return [{"n": index} for index in indices]

    rows = Rows()
    assert [numbers(batch) for batch in DataLoader(rows, 2)] == [[0, 1], [2, 3], [4]]
    assert rows.asked == ([0, 1], [2, 3], [4])


def package(name):
    return pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["plain", "shards", "buffer", "rows"])
def test_hugging_face_datasets(kind, tmp_path):
    datasets = package("datasets")
    rows = datasets.Dataset.from_dict({"n": list(range(ITEMS))})

    def make():
        if kind == "rows":
            return rows
        stream = rows.to_iterable_dataset(num_shards=4)
        return stream if kind == "plain" else stream.shuffle(seed=1, buffer_size=4 if kind == "buffer" else 1)

    check_every_cut(make, tmp_path / "state.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["stream", "loader", "rows"])
def test_grain(kind, tmp_path):
    grain = package("grain")

    def make():
        if kind == "loader":
            sampler = grain.samplers.IndexSampler(ITEMS, shuffle=True, seed=0, num_epochs=1)
            return grain.DataLoader(data_source=[{"n": n} for n in range(ITEMS)], sampler=sampler, worker_count=0)
        rows = grain.MapDataset.range(ITEMS).seed(3).shuffle().map(lambda n: {"n": n})
        return rows if kind == "rows" else rows.to_iter_dataset()

    check_every_cut(make, tmp_path / "state.pt")


@pytest.mark.filterwarnings("ignore")
def test_webdataset(tmp_path):
    webdataset = importlib.import_module(package("webdataset").__name__)
    for shard in range(2):
        with tarfile.open(tmp_path / f"shard-{shard}.tar", "w") as tar:
            for n in range(shard * ITEMS // 2, (shard + 1) * ITEMS // 2):
                info, content = tarfile.TarInfo(f"{n:04d}.json"), json.dumps({"n": n}).encode()
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))

    def make(**words):
        source = webdataset.WebDataset(f"{tmp_path}/shard-{{0..1}}.tar", shardshuffle=2, **words)
        return source.shuffle(3, seed=1 if words else None).decode()

    check_every_cut(lambda: make(detshuffle=True, seed=0), tmp_path / "state.pt")


def test_a_shard_that_breaks_off_is_named_in_one_line():
    def pipeline(self):
        yield {"__key__": "0", "x": np.zeros(2)}
        error = tarfile.ReadError("unexpected end of data")
        error.args += (self, "part-0.tar")  # as webdataset adds them
        raise error

    source = of("webdataset", "DataPipeline")
    source.__iter__, source.pipeline = pipeline, []
    with pytest.raises(FileError, match=r"to their end, got unexpected end of data, part-0.tar\nhelp: copy the shard"):
        list(DataLoader(source(), batch_size=1))
