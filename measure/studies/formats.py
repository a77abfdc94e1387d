"""How fast a disk gives images, by how they are packed: `cepheid measure formats`."""

import importlib.util
import io
import os
import shutil
import statistics
import struct
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cepheid.measure.engine import options
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.turns import format_spread
from cepheid.rules import extras
from cepheid.rules.errors import UserError

DESCRIPTION = """\
Measure how many images a second one process reads from the disk of --data, packed in several ways:
in order and in random order with cold file caches, and in order with warm ones.

Contents are random bytes as long as the images of ImageNet (110 kB on average, from 10 to 600 kB),
and nothing is decoded. Cold means that the pages of each file are dropped (posix_fadvise DONTNEED,
which needs no root) before each measurement; names and inodes stay cached, and so does whatever a
hypervisor or a storage server keeps. On a shared file system each open costs more: the column
`files` says how many files there are. Numbers are medians; brackets hold the smallest and the
largest. The command needs room for twice the contents and deletes what it wrote.
"""
EXAMPLES = """\
examples:
  cepheid measure formats                                   on the disk of data/
  cepheid measure formats --data /lustre/me --files 50000   on a shared file system
  cepheid measure formats --png                             radiographs: how fast PNG is decoded

exit codes: 0 fine; 2 wrong use
"""
FEWEST_FILES = 10
SHARD_FILES = 1000  # contents of a folder or of a file with some of them

MEAN_KB, SHORTEST_KB, LONGEST_KB = 110, 10, 600
LOG_SPREAD = 0.6  # of the lengths, as of ImageNet's files
SPARE_BYTES = 2**28

PIXELS, SEEN_PIXELS, IMAGES = 1024, 224, 12  # of PNG files


# Ways to pack many small files, each written and read by its usual library -----------------------


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


def _write_tfrecord(folder: Path, contents: Sequence[bytes]) -> None:
    """Write records of TensorFlow, a thousand in a file."""
    import tensorflow

    for first in range(0, len(contents), SHARD_FILES):
        path = str(folder / f"{first // SHARD_FILES:06}.tfrecord")
        with tensorflow.io.TFRecordWriter(path) as writer:
            for content in contents[first : first + SHARD_FILES]:
                writer.write(content)


def _read_tfrecord(folder: Path, order: Sequence[int] | None) -> Iterator[Any]:
    """Read by tf.data."""
    import tensorflow

    paths = [str(path) for path in sorted(folder.glob("*.tfrecord"))]
    records = tensorflow.data.TFRecordDataset(paths, buffer_size=2**23)
    return iter(records.as_numpy_iterator())


PACKINGS = (
    Packing("folder of files", _write_files, _read_files),
    Packing("raw file and index", _write_raw, _read_raw),
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


# The measurement ---------------------------------------------------------------------------------


@dataclass
class ReadingRates:
    """Contents per second of one way to pack them, a number for each round."""

    name: str
    files: int = 0
    cold_in_order: list[float] = field(default_factory=list)
    cold_shuffled: list[float] = field(default_factory=list)  # stays empty where it is impossible
    warm_in_order: list[float] = field(default_factory=list)


def make_contents(count: int) -> list[bytes]:
    """Return random bytes whose lengths are distributed like ImageNet's files."""
    import numpy as np

    random = np.random.default_rng(0)
    median_kb = np.log(MEAN_KB) - 0.5 * LOG_SPREAD**2
    sizes = random.lognormal(median_kb, LOG_SPREAD, size=count) * 1000
    sizes = np.clip(sizes, SHORTEST_KB * 1000, LONGEST_KB * 1000)
    return [random.bytes(int(size)) for size in sizes]


def check_space(folder: Path, needed: int) -> None:
    """Raise UserError if the disk of ``folder`` has too little room for so many bytes."""
    free = shutil.disk_usage(folder).free
    needed = 2 * needed + SPARE_BYTES  # LMDB rounds each content up to whole pages
    if free < needed:
        raise UserError(
            f"{folder}: {free / 1e6:,.0f} MB free, {needed / 1e6:,.0f} MB needed; ask for fewer "
            "--files, or give --data on another disk"
        )


def measure_reading(
    way: Packing, contents: Sequence[bytes], data_root: Path, rounds: int
) -> ReadingRates:
    """Pack contents in a temporary folder and read them again and again.

    A cold measurement begins by dropping the files from the caches of the operating system.
    """
    import numpy as np

    order = [int(place) for place in np.random.default_rng(1).permutation(len(contents))]
    expected = sum(map(len, contents))
    rates = ReadingRates(way.name)
    with tempfile.TemporaryDirectory(prefix="formats-", dir=data_root) as name:
        folder = Path(name)
        way.write(folder, contents)
        for _ in range(rounds):
            drop_from_caches(folder)
            rates.cold_in_order.append(_time_reading(way.read(folder, None), expected))
            rates.warm_in_order.append(_time_reading(way.read(folder, None), expected))
            drop_from_caches(folder)
            if not way.only_in_order:
                rates.cold_shuffled.append(_time_reading(way.read(folder, order), expected))
        rates.files = sum(1 for path in folder.rglob("*") if path.is_file())
    return rates


def format_rates(rates: Sequence[float]) -> str:
    """Return the median and the range of contents per second."""
    return format_spread(statistics.median(rates), (min(rates), max(rates)), ",.0f")


def _time_reading(contents: Iterator[Any], expected_bytes: int) -> float:
    """Return contents per second, all of which must come."""
    start = time.perf_counter()
    count = total = 0
    for content in contents:
        count += 1
        total += len(content)
    seconds = time.perf_counter() - start
    assert total == expected_bytes, f"{total} bytes of {expected_bytes} were read"
    return count / seconds


def require_packages(request: Request) -> None:
    """Raise UserError where a package is missing."""
    extras.require("filelock", "numpy", *(["PIL"] if request.arguments.png else []))


def measure(request: Request, _: None) -> Measured:
    """Write and read the contents in each way that is installed; delete what was written."""
    from cepheid.reference.data.disk import explain_disk_errors

    asked, folder, observer = request.arguments, request.data_root, request.observer
    contents = make_contents(asked.files)
    total = sum(map(len, contents))
    rows = []
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_space(folder, total)
        for way in PACKINGS:
            if not is_installed(way):
                observer.tell(f"{way.name}: left out, {way.package} is not installed")
                continue
            rows.append(measure_reading(way, contents, folder, asked.rounds))
            observer.tell(
                f"{way.name}: {format_rates(rows[-1].cold_in_order)} images/s cold, in order"
            )
    return Measured(rows, f"\n{len(contents):,} images, {total / 1e6:,.0f} MB; images a second")


def measure_png(request: Request, _: None) -> Measured:
    """Measure how long one core needs to decode a radiograph and to resize it."""
    from cepheid.reference.data.image_files.decoding import decode_png
    from cepheid.reference.data.image_files.threads import resize

    rounds, whole = request.arguments.rounds, (0, 0, PIXELS, PIXELS)
    files = [draw_png(number) for number in range(IMAGES)]
    decoded = [decode_png(file) for file in files]

    def time_median(work: Callable[[int], object]) -> float:
        """Return milliseconds of processor time an image."""
        times = []
        for _ in range(rounds):
            start = time.process_time()
            for number in range(IMAGES):
                work(number)
            times.append(1000 * (time.process_time() - start) / IMAGES)
        return statistics.median(times)

    decoding_ms = time_median(lambda number: decode_png(files[number]))
    resizing_ms = time_median(lambda number: resize(decoded[number], whole, SEEN_PIXELS))
    kilobytes = sum(map(len, files)) / len(files) / 1000
    text = (
        f"grey PNG, {PIXELS:,} x {PIXELS:,} pixels, {kilobytes:,.0f} kB: decoding "
        f"{decoding_ms:.1f} ms, resizing to {SEEN_PIXELS} pixels {resizing_ms:.1f} ms, "
        f"{1000 / (decoding_ms + resizing_ms):.0f} images/s on one core"
    )
    return Measured(notes=[text])


def draw_png(number: int) -> bytes:
    """Return a PNG file of noise whose amplitude falls with the frequency, as in photographs."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(number)
    frequency = np.hypot(np.fft.fftfreq(PIXELS)[:, None], np.fft.rfftfreq(PIXELS))
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(random.standard_normal((PIXELS, PIXELS))) / frequency
    field = np.fft.irfft2(spectrum)
    levels = np.clip(128 + 40 * field / field.std(), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


STUDY = Study(
    "formats",
    require_packages,
    measure,
    columns=(
        Column("", "name"),
        Column("files", "files", "{:,}"),
        Column("cold, in order", "cold_in_order", format_rates),
        Column(
            "cold, random order",
            "cold_shuffled",
            lambda rates: format_rates(rates) if rates else "not possible",
        ),
        Column("warm, in order", "warm_in_order", format_rates),
    ),
    is_timed=True,
    others=(Study("png", require_packages, measure_png, is_timed=True),),
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        Option("--files N", "how many files (default: 5000)", int, 5000, least=FEWEST_FILES),
        Option("--rounds N", "measurements of each (default: 3)", int, 3, least=1),
        Option("--png", "decode grey PNG files of 1,024 x 1,024 pixels instead", bool),
        options.DATA,
    ),
)
