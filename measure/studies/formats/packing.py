"""Ways to pack many small files, each written and read by its usual library."""

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
    """One way to pack files: written once, then read in order or at any places."""

    name: str
    package: str | None = None
    """The package that it needs, if any."""

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        """Write all contents into a new folder."""
        raise NotImplementedError

    def read_all(self, folder: Path) -> Iterator[Any]:
        """Return all contents from first to last; each item has a length."""
        raise NotImplementedError

    def read_at(self, folder: Path, order: Sequence[int]) -> Iterator[Any] | None:
        """Return the contents at these places; None if only reading in order is possible."""
        return None


class _Folder(Packing):
    """A file for each content, a thousand in a folder, as ImageNet is distributed."""

    name = "folder of files"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        for number, content in enumerate(contents):
            path = self._path(folder, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def read_all(self, folder: Path) -> Iterator[bytes]:
        return self.read_at(folder, range(sum(1 for _ in folder.glob("*/*"))))

    def read_at(self, folder: Path, order: Sequence[int]) -> Iterator[bytes]:
        return (self._path(folder, number).read_bytes() for number in order)

    def _path(self, folder: Path, number: int) -> Path:
        return folder / f"{number // SHARD_FILES:05}" / f"{number:08}.JPEG"


class _Raw(Packing):
    """One file, and the place where each content ends: ragged rows of a store."""

    name = "raw file and index"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        (folder / "all.bin").write_bytes(b"".join(contents))
        np.save(folder / "ends.npy", np.cumsum([len(content) for content in contents]))

    def read_all(self, folder: Path) -> Iterator[bytes]:
        return self.read_at(folder, range(len(np.load(folder / "ends.npy"))))

    def read_at(self, folder: Path, order: Sequence[int]) -> Iterator[bytes]:
        ends = np.load(folder / "ends.npy")
        file = np.memmap(folder / "all.bin", np.uint8, mode="r")
        return (file[ends[i - 1] if i else 0 : ends[i]].tobytes() for i in order)


class _Tar(Packing):
    """Tar files of a thousand contents, read by WebDataset one after the other."""

    name = "WebDataset shards"
    package = "webdataset"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        for first in range(0, len(contents), SHARD_FILES):
            with tarfile.open(folder / f"{first // SHARD_FILES:06}.tar", "w") as tar:
                for number, content in enumerate(contents[first : first + SHARD_FILES], first):
                    entry = tarfile.TarInfo(f"{number:08}.jpg")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))

    def read_all(self, folder: Path) -> Iterator[bytes]:
        import webdataset

        shards = [str(path) for path in sorted(folder.glob("*.tar"))]
        samples = webdataset.WebDataset(shards, shardshuffle=False)
        return (sample["jpg"] for sample in samples)


class _Lmdb(Packing):
    """A memory-mapped B-tree in one file."""

    name = "LMDB"
    package = "lmdb"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        import lmdb

        size = 2 * sum(map(len, contents)) + 2**24
        with lmdb.open(str(folder), map_size=size) as database, database.begin(write=True) as put:
            for number, content in enumerate(contents):
                put.put(self._key(number), content, append=True)

    def read_all(self, folder: Path) -> Iterator[bytes]:
        import lmdb

        database = lmdb.open(str(folder), readonly=True, lock=False)
        with database, database.begin() as read:
            for _, content in read.cursor():
                yield content

    def read_at(self, folder: Path, order: Sequence[int]) -> Iterator[bytes]:
        import lmdb

        database = lmdb.open(str(folder), readonly=True, lock=False, readahead=False)
        with database, database.begin() as read:
            for number in order:
                yield read.get(self._key(number))

    def _key(self, number: int) -> bytes:
        return struct.pack(">Q", number)


class _Hdf5(Packing):
    """One flat HDF5 data set of bytes, and one of the ends."""

    name = "HDF5, flat"
    package = "h5py"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        import h5py

        with h5py.File(folder / "all.h5", "w") as file:
            file["all"] = np.frombuffer(b"".join(contents), np.uint8)
            file["ends"] = np.cumsum([len(content) for content in contents])

    def read_all(self, folder: Path) -> Iterator[Any]:
        return self.read_at(folder, ())

    def read_at(self, folder: Path, order: Sequence[int]) -> Iterator[Any]:
        import h5py

        with h5py.File(folder / "all.h5", "r") as file:
            ends, flat = file["ends"][:], file["all"]
            for number in order or range(len(ends)):
                yield flat[ends[number - 1] if number else 0 : ends[number]]


class _TfRecord(Packing):
    """Records of TensorFlow, a thousand in a file, read by tf.data."""

    name = "TFRecord (tf.data)"
    package = "tensorflow"

    def write(self, folder: Path, contents: Sequence[bytes]) -> None:
        import tensorflow

        for first in range(0, len(contents), SHARD_FILES):
            path = str(folder / f"{first // SHARD_FILES:06}.tfrecord")
            with tensorflow.io.TFRecordWriter(path) as writer:
                for content in contents[first : first + SHARD_FILES]:
                    writer.write(content)

    def read_all(self, folder: Path) -> Iterator[Any]:
        import tensorflow

        paths = [str(path) for path in sorted(folder.glob("*.tfrecord"))]
        records = tensorflow.data.TFRecordDataset(paths, buffer_size=2**23)
        return iter(records.as_numpy_iterator())


PACKINGS: tuple[Packing, ...] = (_Folder(), _Raw(), _Lmdb(), _Hdf5(), _Tar(), _TfRecord())


def is_installed(packing: Packing) -> bool:
    """Return True if the package that a way needs is installed."""
    return packing.package is None or importlib.util.find_spec(packing.package) is not None


def drop_from_caches(folder: Path) -> None:
    """Ask the operating system to forget the contents of all files below ``folder``."""
    # The system keeps what is not on the disk yet. One call for all: a thousand take minutes.
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
