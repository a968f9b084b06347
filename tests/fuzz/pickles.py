"""A grammar of pickles: values that `torch.save` writes and such that it never would, then changed opcode by opcode."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from random import Random

NUMBERS = (
    *(0, 0, 1, 1, 2, 3, 4, 6, 7, -1, -2, -(2**31), 2**31, 2**32, 2**32 + 1, 2**33, 2**40, 2**61 - 1, 2**62),
    *(2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**70, -(2**63), 2**200),
)
KINDS = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "Untyped": 1, "ComplexFloat": 8, "ComplexDouble": 16, "QInt8": 1,
}  # fmt: skip
DTYPES = (
    "float64", "float32", "bfloat16", "int64", "uint8", "bool", "complex64", "uint16", "float8_e4m3fn", "qint8",
    "bits8",
)  # fmt: skip
HOSTILE = (
    "os system", "posix system", "builtins eval", "builtins exec", "builtins getattr", "builtins __import__",
    "subprocess Popen", "numpy load", "numpy fromfile", "ampkit load", "tests.fuzz.traps function",
    "tests.fuzz.traps Class", "tests.fuzz.traps Layer", "ampkit.ops.pointwise.arithmetic add", "torch.storage _load",
    "torch.hub load", "collections namedtuple", "functools partial", "operator attrgetter", "ampkit.nn Linear",
    "ampkit.nn.modules.linear Linear", "torch.nn.modules.linear Linear",
)  # fmt: skip
CALLED = (
    "collections OrderedDict", "collections Counter", "collections defaultdict", "collections deque",
    "argparse Namespace", "torch Size", "torch device", "_codecs encode", "numpy dtype", "builtins set",
    "builtins list", "builtins frozenset", "builtins complex", "builtins slice", "builtins range", "builtins bytes",
    "builtins bytearray", "__builtin__ set", "numpy.core.multiarray scalar", "numpy._core.multiarray scalar",
    "pathlib PosixPath",
    "numpy._core.multiarray _reconstruct", "numpy._core.numeric _frombuffer", "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_parameter_with_state", "torch._tensor _rebuild_from_type_v2", "numpy ndarray",
    "torch._utils _rebuild_sparse_tensor", "torch._utils _rebuild_qtensor",
    "torch._utils _rebuild_meta_tensor_no_storage", "torch.serialization _get_layout", "__builtin__ xrange",
    "torch FloatStorage", "torch Tensor", "torch.nn.parameter Parameter",
)  # fmt: skip
NUMPY = (
    "f8", "f4", "f2", "i8", "i4", "u1", "b1", "c8", "c16", "O8", "U3", "S2", "V8", "M8", "a", "g", ">f4", "=f4",
    "f4,i4", "u" * 400,
)  # fmt: skip
LOOSE = (
    *(b"0", b"1", b"2", b"(", b"t", b"l", b"d", b"e", b"a", b"s", b"u", b"]", b"}", b")", b"\x8f", b"\x90", b"\x91"),
    *(b"R", b"b", b"\x81", b"Q", b"\x93", b"\x94", b"N", b"\x88", b"\x89", b"\x85", b"\x86", b"\x87", b".", b"o"),
    *(b"I01\n", b"I9\n", b"L7L\n", b"Fnan\n", b"F1e999\n", b"S'a'\n", b"\x82\x01", b"P1\n", b"c\n\n", b"\x92"),
    *(b"\x8b\xff\xff\xff\x7f", b"\x8b\x04\0\0\0\1\2\3\4", b"B\xff\xff\xff\xff", b"X\xff\xff\xff\x7f", b"\x8a\xff"),
    *(b"\x8e" + b"\xff" * 8, b"\x96" + b"\xff" * 7 + b"\x7f", b"\x95" + b"\0" * 8, b"\x80\x05", b"\x97", b"\x98"),
)


class Pickles:
    """Draws pickles. storages: the keys of the storages that they name, and the bytes that these need."""

    def __init__(self, draw: Random, legacy: bool = False):
        self.draw, self.legacy, self.storages = draw, legacy, dict[str, int]()
        self._out: list[bytes] = []
        self._kept = 0  # entries of the memo
        self._makers: tuple[Callable[[int], None], ...] = (
            *(self._scalar, self._scalar, self._container, self._container, self._tensor, self._tensor, self._tensor),
            *(self._array, self._array, self._call, self._call, self._state, self._again, self._again, self._storage),
            *(self._numpy_scalar, self._object, self._hostile, self._deep, self._dtype),
        )

    def one(self) -> bytes:
        """A pickle of protocol 2."""
        self._out, self._kept = [], 0
        self.value(self.draw.choice((1, 2, 3)))
        for _ in range(self.draw.choice((0, 0, 0, 0, 1, 1, 2, 5))):
            self._change()
        return b"\x80\x02" + b"".join(self._out) + b"."

    def value(self, depth: int) -> None:
        """Append opcodes that push one value."""
        self.draw.choice(self._makers)(depth - 1) if depth > 0 else self._scalar(0)
        if self.draw.random() < 0.4:
            self._keep()

    def _change(self) -> None:
        out, draw = self._out, self.draw
        at, kind = draw.randrange(len(out) + 1), draw.randrange(5)
        if kind == 0:
            out.insert(at, draw.choice(LOOSE))
        elif kind == 1 and out:
            del out[min(at, len(out) - 1)]
        elif kind == 2 and out:
            out.insert(at, draw.choice(out))
        elif kind == 3:
            begin = draw.randrange(len(out) + 1)
            out[at:at] = out[begin : begin + draw.randrange(8)]
        elif out:
            out[min(at, len(out) - 1)] = draw.choice(LOOSE)

    def _emit(self, *parts: bytes) -> None:
        self._out.extend(parts)

    def _keep(self) -> None:
        self._emit(b"q" + bytes([self._kept % 256]) if self.draw.random() < 0.8 else b"\x94")
        self._kept += 1

    def _again(self, depth: int) -> None:
        if self._kept:
            self._emit(b"h" + bytes([self.draw.randrange(min(self._kept, 256))]))
        else:
            self._scalar(0)

    def _name(self, name: str) -> None:
        module, _, attribute = name.partition(" ")
        if self.draw.random() < 0.9:
            self._emit(f"c{module}\n{attribute}\n".encode())
        else:
            self._text(module)
            self._text(attribute)
            self._emit(b"\x93")

    def _text(self, text: str) -> None:
        self._emit(b"X" + struct.pack("<I", len(text.encode())) + text.encode())

    def _bytes(self, data: bytes) -> None:
        letter = self.draw.choice((b"B", b"B", b"\x8e", b"\x96"))
        self._emit(letter + len(data).to_bytes(4 if letter == b"B" else 8, "little") + data)

    def _number(self, value: int) -> None:
        if -(2**31) <= value < 2**31:
            self._emit(b"J" + struct.pack("<i", value))
        else:
            digits = pickle.encode_long(value)
            self._emit(b"\x8a" + bytes([len(digits)]) + digits)

    def _odd(self, right: int, chance: float = 0.08) -> None:
        # A number, mostly the right one.
        self._number(self.draw.choice(NUMBERS) if self.draw.random() < chance else right)

    def _scalar(self, depth: int) -> None:
        draw, kind = self.draw, self.draw.randrange(7)
        if kind == 0:
            self._number(draw.choice(NUMBERS))
        elif kind == 1:
            self._text(draw.choice(("", "a", "weight", "é", "x" * 300, "__class__", "_metadata", "latin1", "cpu", "0")))
        elif kind == 2:
            self._emit(b"G" + struct.pack(">d", draw.choice((0.5, -1.0, float("inf"), float("nan"), 1e300))))
        elif kind == 3:
            self._bytes(draw.randbytes(draw.choice((0, 1, 8, 24, 64))))
        else:
            self._emit(draw.choice((b"N", b"\x88", b"\x89", b"]", b"}", b")")))

    def _several(self, depth: int, count: int) -> None:
        self._emit(b"(")
        for _ in range(count):
            self.value(depth)

    def _container(self, depth: int) -> None:
        count, kind = self.draw.randrange(4), self.draw.randrange(6)
        if kind == 0:
            self._several(depth, count)
            self._emit(b"t")
        elif kind == 1:
            self._emit(b"]")
            self._keep()
            self._several(depth, count)
            self._emit(b"e")
        elif kind == 2:
            self._emit(b"}")
            self._keep()
            self._pairs(depth, count)
        elif kind == 3:
            self._emit(b"\x8f")
            self._keep()
            self._several(0, count)
            self._emit(b"\x90")
        elif kind == 4:
            self._several(0, count)
            self._emit(b"\x91")
        else:  # a container within itself
            self._emit(b"]", b"q\xfe", b"h\xfe", b"a")

    def _pairs(self, depth: int, count: int) -> None:
        self._emit(b"(")
        for _ in range(count):
            self.value(0) if self.draw.random() < 0.9 else self.value(depth)
            self.value(depth)
        self._emit(b"u")

    def _call(self, depth: int) -> None:
        self._name(self.draw.choice(CALLED))
        self._several(depth, self.draw.choice((0, 1, 1, 2, 3, 7)))
        self._emit(b"t", self.draw.choice((b"R", b"R", b"R", b"\x81")))

    def _hostile(self, depth: int) -> None:
        self._name(self.draw.choice(HOSTILE))
        self._several(0, self.draw.randrange(3))
        self._emit(b"t", self.draw.choice((b"R", b"R", b"\x81")))
        if self.draw.random() < 0.5:
            self.value(depth)
            self._emit(b"b")

    def _object(self, depth: int) -> None:
        self._name(self.draw.choice(("argparse Namespace", "collections OrderedDict", "tests.fuzz.traps Layer")))
        self._emit(b")", self.draw.choice((b"R", b"\x81")))
        self._keep()
        self._emit(b"}")
        self._pairs(depth, self.draw.randrange(3))
        self._emit(b"b")

    def _state(self, depth: int) -> None:
        self.value(depth)
        self.value(depth)
        self._emit(b"b")

    def _deep(self, depth: int) -> None:
        # Many levels, or values that double with each level.
        count = self.draw.choice((50, 3000, 40_000)) if self.draw.random() < 0.1 else 30
        opcode, key = self.draw.choice((b"\x85", b"]", b"2", b"\x86")), self.draw.random() < 0.3
        if key:
            self._emit(b"}")
        if opcode == b"\x86":
            self._emit(b"N", b"q\xfdh\xfd\x86" * count)
        elif opcode == b"]":
            self._emit(b"]" * count, b"a" * (count - 1))
        else:
            self._emit(b")", opcode * count)
        if key:
            self._emit(b"N", b"s")

    def _dtype(self, depth: int) -> None:
        self._name(f"torch {self.draw.choice(DTYPES)}")

    def _numpy_dtype(self, name: str) -> None:
        self._name("numpy dtype")
        self._text(name if self.draw.random() < 0.9 else self.draw.choice(NUMPY))
        self._emit(b"\x89\x88\x87R")
        if self.draw.random() < 0.8:
            self._number(3)
            self._text(self.draw.choice(("<", "<", "<", "|", ">", "=", "!")))
            self._emit(b"(", b"NNN", b"J\xff\xff\xff\xff" * 2, b"K\0", b"t", b"0") if self.draw.random() < 0.1 else None
            self._emit(b"\x86b")

    def _numpy_scalar(self, depth: int) -> None:
        self._name("numpy._core.multiarray scalar")
        self._numpy_dtype(self.draw.choice(("f8", "b1", "i4", "c8")))
        self._bytes(self.draw.randbytes(self.draw.choice((8, 8, 4, 1, 0, 16))))
        self._emit(b"\x86R")

    def _array(self, depth: int) -> None:
        """An array of NumPy, often with something between its parts, or with its state given again."""
        self._name("numpy.core.multiarray _reconstruct")
        self._name("numpy ndarray")
        self._emit(b"K\0\x85", b"U\x01b", b"\x87R")
        kept = self._kept
        self._keep()
        if self.draw.random() < 0.1:
            self._emit(b"h" + bytes([kept % 256]))
        self._array_state()
        if self.draw.random() < 0.3:
            self._emit(b"q\xfb")
            if self.draw.random() < 0.5:
                self._emit(b"(")
                self._tensor(0)
                self._emit(b"h\xfb")
                self._array_state()
                self._emit(b"t")
            else:
                self._array_state()

    def _array_state(self) -> None:
        count = self.draw.choice((0, 1, 3, 100))
        name, size = self.draw.choice((("f8", 8), ("f4", 4), ("b1", 1), ("i8", 8), ("c8", 8)))
        self._emit(b"(")
        self._odd(1, 0.02)
        self._odd(count)
        self._emit(b"\x85")
        self._numpy_dtype(name)
        self._emit(self.draw.choice((b"\x88", b"\x89")))
        self._bytes(self.draw.randbytes(count * size))
        self._emit(b"t", b"b")

    def _storage(self, depth: int) -> str:
        kind = self.draw.choice(tuple(KINDS))
        key, count = self.draw.choice("0123"), self.draw.choice((0, 1, 6, 6, 24, 1000))
        known = self.storages.get(key)
        if known is not None and self.draw.random() < 0.9:
            count = known // KINDS[kind]
        self.storages.setdefault(key, count * KINDS[kind])
        self._emit(b"(")
        self._text("storage" if self.draw.random() < 0.98 else "module")
        self._name(f"torch {kind}Storage") if self.draw.random() < 0.97 else self.value(1)
        self._text(key) if self.draw.random() < 0.97 else self._scalar(0)
        self._text(self.draw.choice(("cpu", "cpu", "cpu", "cuda:0", "meta", "x" * 50)))
        self._odd(count, 0.04)
        if self.legacy:
            if self.draw.random() < 0.1:
                self._several(0, 3)
                self._emit(b"t")
            else:
                self._emit(b"N")
        self._emit(b"t", b"Q")
        self._count = count
        return kind

    def _tensor(self, depth: int) -> None:
        name = self.draw.choice(("_rebuild_tensor_v2", "_rebuild_tensor_v2", "_rebuild_tensor", "_rebuild_tensor_v3"))
        typed = self.draw.random() < 0.1
        if typed:
            self._name("torch._tensor _rebuild_from_type_v2")
            self._emit(b"(")
        parameter = self.draw.random() < 0.15
        if parameter:
            self._name("torch._utils _rebuild_parameter")
            self._emit(b"(")
        self._name(f"torch._utils {name}")
        if typed and not parameter:
            self._name(self.draw.choice(("torch Tensor", "torch.nn.parameter Buffer", "builtins list")))
        self._emit(b"(")
        self._storage(0) if self.draw.random() < 0.97 else self.value(1)
        self._view(getattr(self, "_count", 6))
        if name != "_rebuild_tensor":
            self._emit(self.draw.choice((b"\x88", b"\x89", b"\x89", b"\x89", b"N")))
            self._emit(b"ccollections\nOrderedDict\n)R")
        if name == "_rebuild_tensor_v3":
            self._dtype(0)
        self._emit(b"t")
        if typed and not parameter:
            self._emit(b"}", b"t")
        self._emit(b"R")
        if parameter:
            self._emit(self.draw.choice((b"\x88", b"\x89", b"]")), b")", b"t", b"R")

    def _view(self, count: int) -> None:
        """Offset, sizes and strides: of all elements, of some, expanded, or any numbers."""
        sizes, strides = self.draw.choice((
            ((count,), (1,)), ((count // 2, 2), (2, 1)), ((2, count // 2), (1, 2)), ((), ()), ((3, count), (0, 1)),
            ((0,), (1,)), ((count // 3,), (3,)), ((2**32 + 1,), (2**32,)), ((2**33, 1), (2**31, 1)),
            ((2**40,), (0,)), ((2**21,) * 3, (0, 0, 0)), ((1,) * 65, (1,) * 65),
        ))  # fmt: skip
        self._odd(0)
        for numbers in (sizes, strides):
            self._emit(b"(")
            for each in numbers:
                self._odd(each)
            self._emit(b"t")
