"""Decode text files: by the mark they begin with, else by the encoding that the caller names."""

from __future__ import annotations

import codecs
from pathlib import Path

from ...base.errors import ConfigError, FileError

# UTF-32's little-endian mark begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_of(data: bytes, encoding: str = "utf-8") -> str:
    """The encoding that the mark at the start of `data` (Unicode's byte order mark) says; without one `encoding`."""
    return next((name for mark, name in _MARKS.items() if data.startswith(mark)), encoding)


def decode(path: Path, data: bytes, encoding: str = "utf-8", cut: bool = False) -> str:
    """The text of the bytes `data` of a file, without a mark at its start.

    cut: more bytes follow in the file, so that the last character may lack some. Raises FileError for bytes that are no
    text of this encoding, naming the file and the line, and for a file with zero bytes, which is binary; ConfigError
    for an encoding that Python does not know.
    """
    taken = encoding_of(data, encoding)
    try:
        if not isinstance(codecs.decode(b"", taken), str):  # a codec of bytes, such as hex
            raise LookupError
        text = codecs.getincrementaldecoder(taken)().decode(data, final=not cut)
    except LookupError:
        raise ConfigError("data.encoding", "an encoding that Python knows", repr(encoding), '"utf-8", say') from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = f"the byte {data[error.start]:#04x} in line {line}" + (", of a binary file" if b"\0" in data else "")
        raise FileError(str(path), f"text in {taken}", got, _cure(taken, b"\0" in data)) from None
    if "\0" in text:
        raise FileError(str(path), "a text file", "a binary file, with zero bytes")
    return text


def _cure(encoding: str, binary: bool) -> str | None:
    if binary:
        return None
    other = "utf-8" if encoding != "utf-8" else "latin-1"
    return f'say how it is stored, data.encoding="{other}" perhaps, or save it in UTF-8'
