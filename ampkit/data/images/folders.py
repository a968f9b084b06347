"""Folders with a subfolder per class: which classes and files there are, and which of them are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...base.errors import FileError, some_of
from ...base.files import foreign
from .files import SUFFIXES

# The usual names of the parts of a data set, which are no classes.
_TRAIN = ("train", "training")
_HELD_OUT = ("val", "valid", "validation", "test", "testing", "eval")


def class_names(folder: str | Path) -> tuple[str, ...]:
    """The sorted names of the subfolders of `folder`; hidden ones are left out.

    Raises FileError for a folder that is missing or cannot be read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileError("images", "a folder with a folder of images per class", f"{str(root)!r}, which is none")
    with foreign(f"images: {root}", "a folder that can be read"):
        return tuple(sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")))


def need_classes(folder: str | Path) -> tuple[str, ...]:
    """`class_names`; raises FileError, with the cure, unless they are two or more and look like classes."""
    names = class_names(folder)
    if not names:
        needs = f"a folder per class with {', '.join(SUFFIXES)} files"
        raise FileError(f"images: {folder}", needs, "none", "move the images of each class to a folder of its name")
    if {name.lower() for name in names} <= {*_TRAIN, *_HELD_OUT}:
        train = next((name for name in names if name.lower() in _TRAIN), names[0])
        other = next((name for name in names if name.lower() in _HELD_OUT and name != train), None)
        cure = f"data.folder={Path(folder) / train}" + (f" data.held_out={Path(folder) / other}" if other else "")
        got = f"{', '.join(names)}, the parts of a data set"
        raise FileError(f"images: {folder}", "a folder per class", got, f"name the parts: {cure}")
    if len(names) == 1:
        got = f"one, {names[0]!r}"
        cure = "add a folder of images that are none of it, or of another class"
        raise FileError(f"images: {folder}", "a folder for each of two or more classes", got, cure)
    return names


def listed(root: Path, classes: Sequence[str]) -> tuple[list[Path], NDArray[np.int64]]:
    """The image files under the folder of each class, by class and path, and the number of the class of each [n]."""
    found = [(number, path) for number, name in enumerate(classes) for path in images_under(root / name)]
    return [path for _, path in found], np.array([number for number, _ in found], np.int64)


def images_under(folder: Path) -> list[Path]:
    """The image files in a folder and those below it, by path; hidden ones are left out."""
    files = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    visible = (path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return sorted(visible, key=lambda path: path.relative_to(folder).parts)


def images_of(paths: Sequence[str | Path]) -> list[Path]:
    """The paths, with the images under a folder in its place. Raises FileError for a folder without any."""
    found: list[Path] = []
    for path in map(Path, paths):
        under = images_under(path) if path.is_dir() else [path]
        if not under:
            raise FileError("images", f"a folder with {', '.join(SUFFIXES)} files", f"{str(path)!r}, without any")
        found += under
    return found


def need_images(root: Path, classes: Sequence[str], labels: NDArray[np.int64], least: int = 1) -> None:
    """Raise FileError unless each class has at least `least` images."""
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    if few := [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < least]:
        needs = f"at least {least} image{'s' if least > 1 else ''} in the folder of each class"
        more = ", one of them to hold out" if least > 1 else ""
        raise FileError(f"images: {root}", needs + more, some_of(few), "add images, or remove the folder")


def need_same_classes(folder: str | Path, classes: Sequence[str], other: str | Path, others: Sequence[str]) -> None:
    """Raise FileError unless the folders to train on and to evaluate on have the same classes."""
    only = [(folder, sorted(set(classes) - set(others))), (other, sorted(set(others) - set(classes)))]
    if told := [f"{some_of(names)} in {where} alone" for where, names in only if names]:
        raise FileError(f"images: {other}", f"the classes of {folder}", " and ".join(told))


def held_out_mask(
    root: Path, paths: Sequence[Path], labels: NDArray[np.int64], share: float, seed: int
) -> NDArray[np.bool_]:
    """Which of the files are held out: `share` of each class, at least one, at most all but one. -> [n] bool.

    The files of a class are taken in the order of SHA-256(seed, path within `root`). So the same are held out wherever
    the folder lies, and most of them also after files were added.
    """
    held_out = np.zeros(len(paths), bool)
    for number in np.unique(labels):
        of_class = np.flatnonzero(labels == number).tolist()
        of_class.sort(key=lambda index: _rank(seed, paths[index].relative_to(root)))
        held_out[of_class[: min(len(of_class) - 1, max(1, round(len(of_class) * share)))]] = True
    return held_out


def checksum(root: Path, paths: Sequence[Path]) -> str:
    """The SHA-256, shortened, of the paths within `root`, in their order."""
    names = "\0".join(path.relative_to(root).as_posix() for path in paths)
    return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _rank(seed: int, path: Path) -> bytes:
    return hashlib.sha256(f"{seed}/{path.as_posix()}".encode("utf-8", "surrogateescape")).digest()
