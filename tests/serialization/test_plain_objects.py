"""Objects of plain classes in files: their class and their attributes come back, and no code runs."""

from __future__ import annotations

import dataclasses
import enum
import gc
import io
import types

import pytest
from pytorch_bytes import text, zip_of

import ampkit
from ampkit.base.errors import DTypeError, FileError
from ampkit.serialization import load, save

pytestmark = pytest.mark.cpu


def round_trip(obj, **options):
    stream = io.BytesIO()
    save(obj, stream)
    stream.seek(0)
    return load(stream, **options)


class Color(enum.Enum):
    RED, BLUE = "red", "blue"


class Level(enum.IntEnum):
    LOW = 3


@dataclasses.dataclass
class Options:
    rate: float
    color: Color
    sizes: tuple = (1, 2)


class Shared:
    def __init__(self):
        raise AssertionError("a file calls nothing")


class Ends:
    def __del__(self):
        ended.append(self)


class Restores:
    def __setstate__(self, state):
        ended.append(state)


class Settings(types.SimpleNamespace):
    """One of SimpleNamespace's subclasses, with which programs keep their options."""

    def __init__(self, **options):
        ended.append(options)
        super().__init__(**options)


class Slotted:
    __slots__ = ("a",)


ended = []


def test_objects_of_plain_classes_and_members_of_enumerations_come_back():
    shared = object.__new__(Shared)
    shared.x = ampkit.ones(2)
    options, level, again = round_trip([Options(0.5, Color.BLUE), Level.LOW, {"a": [shared, shared]}])
    assert options == Options(0.5, Color.BLUE) and level is Level.LOW
    assert again["a"][0] is again["a"][1] and type(again["a"][0]) is Shared and again["a"][0].x.tolist() == [1.0, 1.0]


def test_objects_are_none_of_the_weights():
    with pytest.raises(FileError, match=r"a whole .*Options\nhelp: pass weights_only=False"):
        round_trip({"o": Options(0.5, Color.RED)}, weights_only=True)


@pytest.mark.parametrize("kind", [Ends, Restores, Slotted])
def test_an_object_whose_class_would_run_code_is_neither_saved_nor_made(kind):
    with pytest.raises(DTypeError, match=f"a {kind.__name__} at 'the top'"):
        save(kind(), io.BytesIO())
    gc.collect()
    ended.clear()
    for made in (")\x81}b", ")R"):
        with pytest.raises(FileError, match=f"an object of {__name__}.{kind.__name__}"):
            load(io.BytesIO(zip_of(f"c{__name__}\n{kind.__name__}\n{made}".encode("latin1"))))
    gc.collect()
    assert not ended


@pytest.mark.parametrize("name", ["threading.Thread", "logging.Logger", "subprocess.Popen", "collections.UserDict"])
def test_classes_of_pythons_library_that_do_more_are_refused(name):
    module, _, kind = name.rpartition(".")
    __import__(module)
    found = zip_of(f"c{module}\n{kind}\n(X\x01\0\0\0atR".encode("latin1"))
    with pytest.raises(FileError):
        load(io.BytesIO(found))


def test_a_member_that_the_enumeration_lacks_is_a_damaged_file():
    wrong = b"c" + __name__.encode() + b"\nColor\n" + text("green") + b"\x85R"
    with pytest.raises(FileError, match="a whole file"):
        load(io.BytesIO(zip_of(wrong)))


def test_an_object_of_a_local_class_is_refused_by_its_name():
    class Local:
        pass

    with pytest.raises(DTypeError, match=r"objects of classes at the top of a file, got one of .*Local"):
        save([Local()], io.BytesIO())


def test_simple_namespaces_come_back_and_their_constructors_are_not_called():
    ended.clear()
    settings = Settings(rate=0.1, more=types.SimpleNamespace(sizes=[1, 2]))
    found = round_trip({"args": settings})["args"]
    assert type(found) is Settings and vars(found) == vars(settings) and len(ended) == 1
    ended.clear()
