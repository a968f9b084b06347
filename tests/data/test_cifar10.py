"""CIFAR-10's binary files: from a folder, from the archive, and refused where they are something else."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pytest
from traced_memory import memory_below

from ampkit.base.errors import ArgumentError, FileError
from ampkit.data import cifar10

ARCHIVE = "cifar-10-binary.tar.gz"
NAMES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def records(name):
    """Three images of a file: labels 7, 8, 9, and planes that say where they stand."""
    planes = np.arange(9).repeat(1024).reshape(3, 3072) + 10 * NAMES.index(name)
    return np.concatenate([np.array([[7], [8], [9]]), planes], 1).astype(np.uint8).tobytes()


def archive(names=NAMES):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in ["readme.html", *names]:
            content = records(name) if name in NAMES else b"<html>"
            head = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            head.size = len(content)
            tar.addfile(head, io.BytesIO(content))
    return file.getvalue()


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).write_bytes(records(name))


def check(folder, **words):
    images, labels = cifar10.load("train", folder, records=3, **words)
    assert (images.shape, images.dtype, labels.dtype) == ((15, 3, 32, 32), np.uint8, np.int64)
    assert labels.tolist() == [7, 8, 9] * 5
    where = images.reshape(5, 3, 3, 1024)
    assert (where == (10 * np.arange(5)[:, None, None] + np.arange(9).reshape(3, 3))[..., None]).all()
    assert cifar10.load("test", folder, records=3, **words)[0][0, 0, 0, 0] == 50


def test_files_in_the_folder_are_read_in_order(tmp_path):
    write(tmp_path)
    check(tmp_path)


def test_their_own_folder_may_stand_in_it(tmp_path):
    write(tmp_path / "cifar-10-batches-bin")
    check(tmp_path)


def test_the_archive_is_read_as_it_is(tmp_path):
    (tmp_path / ARCHIVE).write_bytes(archive())
    check(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]


def test_the_archive_is_downloaded_with_its_sum(server, tmp_path):
    server.files[ARCHIVE] = archive()
    check(tmp_path, download=True, source=server.source(ARCHIVE))
    assert server.asked == [None]


def test_the_official_archive_has_its_size_and_sum():
    assert cifar10.SOURCE.name == ARCHIVE
    assert (cifar10.SOURCE.size, len(bytes.fromhex(cifar10.SOURCE.sha256))) == (170052171, 32)
    assert len(cifar10.NAMES) == cifar10.CLASSES


def test_missing_files_are_named_with_the_ways_to_get_them(tmp_path):
    with pytest.raises(FileError, match=f"data_batch_1.bin or {ARCHIVE} .*neither\nhelp: say download=true"):
        cifar10.load("train", tmp_path)
    write(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(FileError, match="cifar10: needs a file that can be read, got .*batch_4.bin': No such file"):
        cifar10.load("train", tmp_path, records=3)


def test_a_file_of_another_length_is_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(FileError, match="test_batch.bin: needs 10000 images of 3073 bytes, 30730000, got 9219 bytes"):
        cifar10.load("test", tmp_path)


def test_a_label_that_is_no_class_is_refused(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\x0a" + bytes(3072))
    with pytest.raises(FileError, match="test_batch.bin: needs labels from 0 to 9, got 10"):
        cifar10.load("test", tmp_path, records=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive()[:-40], "a whole archive, got one that breaks"),
        (b"no archive", "a whole archive, got one that breaks"),
        (archive(NAMES[:3]), "data_batch_4.bin, data_batch_5.bin in it, got none"),
    ],
    ids=["cut short", "text", "files missing"],  # the bytes of an archive hold the time
)
def test_a_broken_archive_is_refused(tmp_path, content, message):
    (tmp_path / ARCHIVE).write_bytes(content)
    with pytest.raises(FileError, match=message):
        cifar10.load("train", tmp_path, records=3)


def test_an_archive_is_read_to_the_end_where_its_sum_stands(tmp_path):
    whole = archive()
    (tmp_path / ARCHIVE).write_bytes(whole[:-8] + b"\0\0\0\0" + whole[-4:])
    with pytest.raises(FileError, match="a whole archive, got one that breaks: CRC check failed"):
        cifar10.load("train", tmp_path, records=3)


@pytest.mark.parametrize("claimed", [2**32, 2**60])
def test_a_member_that_claims_more_than_the_images_is_refused_in_little_memory(tmp_path, claimed):
    head = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    head.size = claimed
    (tmp_path / ARCHIVE).write_bytes(gzip.compress(head.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    with memory_below(4 * 2**20), pytest.raises(FileError, match=f"data_batch_1.bin: needs 3 .* got {claimed} bytes"):
        cifar10.load("train", tmp_path, records=3)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_archive_that_unpacks_to_far_more_than_the_images_is_refused(tmp_path, kind):
    head = tarfile.TarInfo("other")
    head.size, head.type = 64 * 2**20, kind
    (tmp_path / ARCHIVE).write_bytes(gzip.compress(head.tobuf() + bytes(64 * 2**20), 1))
    with memory_below(8 * 2**20), pytest.raises(FileError, match="at most 1122328 bytes when it is unpacked, got more"):
        cifar10.load("train", tmp_path, records=3)


def test_a_large_file_in_the_place_of_a_batch_is_not_read(tmp_path):
    write(tmp_path)
    with (tmp_path / "test_batch.bin").open("wb") as file:
        file.truncate(2**40)
    with memory_below(2**20), pytest.raises(FileError, match="got 1099511627776 bytes"):
        cifar10.load("test", tmp_path, records=3)


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="split 'train' or 'test', got 'valid'"):
        cifar10.load("valid", tmp_path)
