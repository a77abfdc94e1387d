"""Ways to pack many small files, each written and read by its usual library."""

import importlib
import importlib.util
import io
import os
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.reference.keras.meeting import quiet_libraries

SHARD_FILES = 1000  # contents of a folder or of a file with some of them
MAGIC = 0xCED7230A  # begins a record of RecordIO
RECORD = struct.Struct("<II")  # the magic word and the length


@dataclass(frozen=True)
class Packing:
    """One way to pack files: written once into a new folder, then read in order or at any places.

    ``read(folder, None)`` returns all contents from first to last, and ``read(folder, order)``
    those at these places, unless they can be read ``only_in_order``. Each has a length.
    ``package`` is what it needs, if anything.
    """

    name: str
    write: Callable[[Path, Sequence[bytes]], None]
    read: Callable[[Path, Sequence[int] | None], Iterator[Any]]
    package: str = ""
    only_in_order: bool = False


def _find_file(folder: Path, number: int) -> Path:
    return folder / f"{number // SHARD_FILES:05}" / f"{number:08}.JPEG"


def _write_files(folder: Path, contents: Sequence[bytes]) -> None:
    """Write a file for each content, a thousand in a folder, as ImageNet is distributed."""
    for number, content in enumerate(contents):
        path = _find_file(folder, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _read_files(folder: Path, order: Sequence[int] | None) -> Iterator[bytes]:
    if order is None:
        order = range(sum(1 for _ in folder.glob("*/*")))
    return (_find_file(folder, number).read_bytes() for number in order)


def _write_raw(folder: Path, contents: Sequence[bytes]) -> None:
    """Write one file, and the place where each content ends: ragged rows of a store."""
    import numpy as np

    (folder / "all.bin").write_bytes(b"".join(contents))
    np.save(folder / "ends.npy", np.cumsum([len(content) for content in contents]))


def _read_raw(folder: Path, order: Sequence[int] | None) -> Iterator[bytes]:
    import numpy as np

    ends = np.load(folder / "ends.npy")
    file = np.memmap(folder / "all.bin", np.uint8, mode="r")
    numbers = range(len(ends)) if order is None else order
    return (file[ends[i - 1] if i else 0 : ends[i]].tobytes() for i in numbers)


def _write_tar(folder: Path, contents: Sequence[bytes]) -> None:
    """Write tar files of a thousand contents."""
    for first in range(0, len(contents), SHARD_FILES):
        with tarfile.open(folder / f"{first // SHARD_FILES:06}.tar", "w") as tar:
            for number, content in enumerate(contents[first : first + SHARD_FILES], first):
                entry = tarfile.TarInfo(f"{number:08}.jpg")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def _read_tar(folder: Path, order: Sequence[int] | None) -> Iterator[bytes]:
    """Read by WebDataset, one file after the other."""
    import webdataset

    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    return (sample["jpg"] for sample in webdataset.WebDataset(shards, shardshuffle=False))


def _write_lmdb(folder: Path, contents: Sequence[bytes]) -> None:
    """Write a memory-mapped B-tree in one file."""
    import lmdb

    size = 2 * sum(map(len, contents)) + 2**24
    with lmdb.open(str(folder), map_size=size) as database, database.begin(write=True) as put:
        for number, content in enumerate(contents):
            put.put(struct.pack(">Q", number), content, append=True)


def _read_lmdb(folder: Path, order: Sequence[int] | None) -> Iterator[bytes]:
    import lmdb

    database = lmdb.open(str(folder), readonly=True, lock=False, readahead=order is None)
    with database, database.begin() as read:
        if order is None:
            yield from (content for _, content in read.cursor())
        else:
            yield from (read.get(struct.pack(">Q", number)) for number in order)


def _write_hdf5(folder: Path, contents: Sequence[bytes]) -> None:
    """Write one flat HDF5 data set of bytes, and one of the ends."""
    import h5py
    import numpy as np

    with h5py.File(folder / "all.h5", "w") as file:
        file["all"] = np.frombuffer(b"".join(contents), np.uint8)
        file["ends"] = np.cumsum([len(content) for content in contents])


def _read_hdf5(folder: Path, order: Sequence[int] | None) -> Iterator[Any]:
    import h5py

    with h5py.File(folder / "all.h5", "r") as file:
        ends, flat = file["ends"][:], file["all"]
        for number in range(len(ends)) if order is None else order:
            yield flat[ends[number - 1] if number else 0 : ends[number]]


def _write_recordio(folder: Path, contents: Sequence[bytes]) -> None:
    """Write one file of records as MXNet's RecordIO, and the index that its reader needs.

    A record is a magic word, its length, the content, and zeros up to four bytes. A magic word
    within a content would be split in MXNet's files; here the length alone ends a record.
    """
    place = 0
    with (folder / "all.rec").open("wb") as records, (folder / "all.idx").open("w") as index:
        for number, content in enumerate(contents):
            index.write(f"{number}\t{place}\n")
            padding = bytes(-len(content) % 4)
            place += records.write(RECORD.pack(MAGIC, len(content)) + content + padding)


def _read_recordio(folder: Path, order: Sequence[int] | None) -> Iterator[bytes]:
    places = [int(line.split("\t")[1]) for line in (folder / "all.idx").read_text().splitlines()]
    with (folder / "all.rec").open("rb") as records:
        for number in range(len(places)) if order is None else order:
            records.seek(places[number])
            magic, length = RECORD.unpack(records.read(RECORD.size))
            assert magic == MAGIC, f"record {number} begins with {magic:#x}"
            yield records.read(length)


def _write_tfrecord(folder: Path, contents: Sequence[bytes]) -> None:
    """Write records of TensorFlow, a thousand in a file."""
    tensorflow = load_package("tensorflow")
    for first in range(0, len(contents), SHARD_FILES):
        path = str(folder / f"{first // SHARD_FILES:06}.tfrecord")
        with tensorflow.io.TFRecordWriter(path) as writer:
            for content in contents[first : first + SHARD_FILES]:
                writer.write(content)


def _read_tfrecord(folder: Path, order: Sequence[int] | None) -> Iterator[Any]:
    """Read by tf.data."""
    tensorflow = load_package("tensorflow")
    paths = [str(path) for path in sorted(folder.glob("*.tfrecord"))]
    records = tensorflow.data.TFRecordDataset(paths, buffer_size=2**23)
    return iter(records.as_numpy_iterator())


PACKINGS = (
    Packing("folder of files", _write_files, _read_files),
    Packing("raw file and index", _write_raw, _read_raw),
    Packing("RecordIO and index", _write_recordio, _read_recordio),
    Packing("LMDB", _write_lmdb, _read_lmdb, "lmdb"),
    Packing("HDF5, flat", _write_hdf5, _read_hdf5, "h5py"),
    Packing("WebDataset shards", _write_tar, _read_tar, "webdataset", only_in_order=True),
    Packing(
        "TFRecord (tf.data)", _write_tfrecord, _read_tfrecord, "tensorflow", only_in_order=True
    ),
)


def is_installed(packing: Packing) -> bool:
    """Return True if the package that a way needs is installed."""
    return not packing.package or importlib.util.find_spec(packing.package) is not None


def load_package(name: str) -> Any:
    """Return a module; what TensorFlow says as it is loaded and reads stays unsaid."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are raised, too
    with quiet_libraries():
        return importlib.import_module(name)
