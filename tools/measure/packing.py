"""Ways to keep many small files, each written and read by the library that people use for it."""

import importlib.util
import io
import os
import struct
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SHARD_FILES = 1000


class Packing:
    """One way. It is written once, then opened for reading, in turn and in any order."""

    name: str
    package: str | None = None
    """Without which it cannot be measured."""

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        """Into a new folder."""
        raise NotImplementedError

    def in_order(self, folder: Path) -> Iterator[Any]:
        """All contents, first to last; each item has a length."""
        raise NotImplementedError

    def at(self, folder: Path, order: Sequence[int]) -> Iterator[Any] | None:
        """The contents at these places, or None where only reading in order is possible."""
        raise NotImplementedError


class Folder(Packing):
    """One file each, a thousand in a folder, as ImageNet is distributed."""

    name = "folder of files"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        for number, content in enumerate(contents):
            path = self._path(folder, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def in_order(self, folder: Path) -> Iterator[bytes]:
        return self.at(folder, range(sum(1 for _ in folder.glob("*/*"))))

    def at(self, folder: Path, order: Sequence[int]) -> Iterator[bytes]:
        return (self._path(folder, number).read_bytes() for number in order)

    def _path(self, folder: Path, number: int) -> Path:
        return folder / f"{number // SHARD_FILES:05}" / f"{number:08}.JPEG"


class Raw(Packing):
    """One file, and where each content ends: what ``reference.data.store`` calls ragged."""

    name = "raw file and index"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        (folder / "all.bin").write_bytes(b"".join(contents))
        np.save(folder / "ends.npy", np.cumsum([len(content) for content in contents]))

    def in_order(self, folder: Path) -> Iterator[bytes]:
        return self.at(folder, range(len(np.load(folder / "ends.npy"))))

    def at(self, folder: Path, order: Sequence[int]) -> Iterator[bytes]:
        ends = np.load(folder / "ends.npy")
        file = np.memmap(folder / "all.bin", np.uint8, mode="r")
        return (file[ends[i - 1] if i else 0 : ends[i]].tobytes() for i in order)


class Tar(Packing):
    """Tar files of a thousand, as WebDataset reads them, one after the other."""

    name = "WebDataset shards"
    package = "webdataset"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        for first in range(0, len(contents), SHARD_FILES):
            with tarfile.open(folder / f"{first // SHARD_FILES:06}.tar", "w") as tar:
                for number, content in enumerate(contents[first : first + SHARD_FILES], first):
                    entry = tarfile.TarInfo(f"{number:08}.jpg")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))

    def in_order(self, folder: Path) -> Iterator[bytes]:
        import webdataset

        shards = [str(path) for path in sorted(folder.glob("*.tar"))]
        samples = webdataset.WebDataset(shards, shardshuffle=False)
        return (sample["jpg"] for sample in samples)

    def at(self, folder: Path, order: Sequence[int]) -> None:
        return None


class Lmdb(Packing):
    """A memory-mapped B-tree in one file."""

    name = "LMDB"
    package = "lmdb"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        import lmdb

        size = 2 * sum(map(len, contents)) + 2**24
        with lmdb.open(str(folder), map_size=size) as database, database.begin(write=True) as put:
            for number, content in enumerate(contents):
                put.put(self._key(number), content, append=True)

    def in_order(self, folder: Path) -> Iterator[bytes]:
        import lmdb

        opened = lmdb.open(str(folder), readonly=True, lock=False)
        with opened as database, database.begin() as read:
            for _, content in read.cursor():
                yield content

    def at(self, folder: Path, order: Sequence[int]) -> Iterator[bytes]:
        import lmdb

        opened = lmdb.open(str(folder), readonly=True, lock=False, readahead=False)
        with opened as database, database.begin() as read:
            for number in order:
                yield read.get(self._key(number))

    def _key(self, number: int) -> bytes:
        return struct.pack(">Q", number)


class Hdf5(Packing):
    """One flat data set of bytes and one of ends."""

    name = "HDF5, flat"
    package = "h5py"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        import h5py

        with h5py.File(folder / "all.h5", "w") as file:
            file["all"] = np.frombuffer(b"".join(contents), np.uint8)
            file["ends"] = np.cumsum([len(content) for content in contents])

    def in_order(self, folder: Path) -> Iterator[Any]:
        return self.at(folder, ())

    def at(self, folder: Path, order: Sequence[int]) -> Iterator[Any]:
        import h5py

        with h5py.File(folder / "all.h5", "r") as file:
            ends, flat = file["ends"][:], file["all"]
            for number in order or range(len(ends)):
                yield flat[ends[number - 1] if number else 0 : ends[number]]


class TfRecord(Packing):
    """TensorFlow's records, a thousand in a file, read by tf.data."""

    name = "TFRecord (tf.data)"
    package = "tensorflow"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        import tensorflow

        for first in range(0, len(contents), SHARD_FILES):
            path = str(folder / f"{first // SHARD_FILES:06}.tfrecord")
            with tensorflow.io.TFRecordWriter(path) as writer:
                for content in contents[first : first + SHARD_FILES]:
                    writer.write(content)

    def in_order(self, folder: Path) -> Iterator[Any]:
        import tensorflow

        paths = [str(path) for path in sorted(folder.glob("*.tfrecord"))]
        records = tensorflow.data.TFRecordDataset(paths, buffer_size=2**23)
        return iter(records.as_numpy_iterator())

    def at(self, folder: Path, order: Sequence[int]) -> None:
        return None


PACKINGS: tuple[Packing, ...] = (Folder(), Raw(), Lmdb(), Hdf5(), Tar(), TfRecord())


def is_installed(packing: Packing) -> bool:
    """Whether its library is there."""
    return packing.package is None or importlib.util.find_spec(packing.package) is not None


def drop_from_caches(folder: Path) -> None:
    """Ask the operating system to forget the contents of all files below ``folder``."""
    os.sync()  # it keeps what is not on the disk yet; one call, because a thousand take minutes
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
