"""Read the files of archives, and the samples of shards, one after the other.

Every reader yields ``Member``: the name begins with that of the container, and a nested archive
is a part of the name (``train.tar/n01440764.tar/n01440764_10026.JPEG``). The standard library
reads tar and zip archives, WebDataset's shards among them; pyarrow reads Parquet files and
TensorFlow TFRecords. Raises StoreError where a container is damaged.
"""

import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cepheid.reference.data.store import StoreError
from cepheid.rules.errors import raise_if_refused

MEMBER_BYTES_MAX = 2**31  # the largest that is distributed, COCO's annotations, has 0.5 GB
PARQUET_ROWS = 64  # that are in memory at a time
PIECE_BYTES = 2**20
TAR_END = 1024  # bytes of zero, at least, at the end of a tar archive
IMAGE_KEYS = ("jpg", "jpeg", "png")
WORDNET = re.compile(r"(?:^|_|/)(n\d{8})(?=[_/.]|$)")


@dataclass(frozen=True)
class Member:
    """A file of ``container``, and how many bytes of that have been read with it."""

    name: str
    size: int
    file: IO[bytes]
    done: int
    container: Path

    def read_pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces. Raises StoreError where the container is damaged."""
        with _explain_damage(self.container):
            while piece := self.file.read(PIECE_BYTES):
                yield piece


@dataclass(frozen=True)
class Sample:
    """A labelled image of a shard: ``name`` is that of its file, or a key; "" where it has none."""

    name: str
    label: int
    class_name: str
    content: bytes
    done: int


ReadSamples = Callable[[Path], Iterator[Sample]]


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    """Turn whatever a library raises about a container into StoreError."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise_if_refused(path, error)
        kinds = (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError)
        known = (*kinds, zlib.error, tarfile.TarError, zipfile.BadZipFile)
        if not isinstance(error, known) and not type(error).__module__.startswith(
            ("google.protobuf", "tensorflow", "pyarrow")
        ):
            raise
        raise StoreError(
            f"{path}: is damaged or no such file as its name says ({error}). Fetch it again."
        ) from error


def check_end(path: Path) -> None:
    """Raise StoreError where the end of a container is missing, as after half a download.

    It is found within seconds, before hours of unpacking; compressed tar archives do not tell.
    """
    with _explain_damage(path):
        if path.suffix == ".zip":
            zipfile.ZipFile(path).close()
        elif path.suffix == ".parquet":
            from pyarrow import parquet

            parquet.ParquetFile(path).close()
        elif path.suffix == ".tar":
            with open(path, "rb") as file:
                file.seek(max(0, path.stat().st_size - TAR_END))
                end = file.read(TAR_END)
            if any(end) or not end:  # some writers leave the zeros out, so look for all members
                with tarfile.open(path, "r:*") as archive:
                    archive.getmembers()


def read_archive(path: Path) -> Iterator[Member]:
    """Yield the files of a tar or zip archive, compressed or not, and of tar archives in it."""
    with _explain_damage(path):
        if path.suffix == ".zip":
            yield from _read_zip(path)
        else:
            with tarfile.open(path, "r:*") as archive:
                yield from _read_tar(archive, path, path.name, 0)
                while archive.fileobj and archive.fileobj.read(PIECE_BYTES):
                    pass  # the checksum of a compressed one stands at its end


def _read_zip(path: Path) -> Iterator[Member]:
    done = 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            done += info.compress_size
            if not info.is_dir():
                _refuse_large(path, info.filename, info.file_size)
                with archive.open(info) as file:
                    yield Member(f"{path.name}/{info.filename}", info.file_size, file, done, path)


def _read_tar(archive: tarfile.TarFile, path: Path, name: str, start: int) -> Iterator[Member]:
    most = path.stat().st_size
    for info in archive:
        if not info.isfile():  # no links: they may lead anywhere
            continue
        inner, file = f"{name}/{info.name.removeprefix('./')}", archive.extractfile(info)
        assert file is not None
        done = min(start + info.offset_data + info.size, most)
        if info.name.endswith(".tar"):
            with tarfile.open(fileobj=file, mode="r:") as nested:
                yield from _read_tar(nested, path, inner, start + info.offset_data)
        else:
            _refuse_large(path, info.name, info.size)
            yield Member(inner, info.size, file, done, path)


def _refuse_large(container: Path, name: str, size: int) -> None:
    if size > MEMBER_BYTES_MAX:
        raise StoreError(
            f"{container}: {name[:80]} has {size:,} bytes, expected at most {MEMBER_BYTES_MAX:,}"
        )


# Shards of labelled images ------------------------------------------------------------------------


def read_webdataset(path: Path) -> Iterator[Sample]:
    """Yield the samples of a shard: files that share a key, ``key.jpg``, ``key.cls`` and others."""
    with _explain_damage(path):
        found: dict[str, bytes] = {}
        last, done = "", 0
        for member in read_archive(path):
            folder, _, name = member.name.partition("/")[2].rpartition("/")
            key, _, kind = name.partition(".")
            if f"{folder}/{key}" != last and found:
                yield _join(path, last, found, done)
                found = {}
            last, done = f"{folder}/{key}", member.done
            found[kind.lower()] = member.file.read()
        if found:
            yield _join(path, last, found, done)


def _join(path: Path, key: str, found: Mapping[str, bytes], done: int) -> Sample:
    image = next((found[kind] for kind in IMAGE_KEYS if kind in found), None)
    about = json.loads(found["json"]) if "json" in found else {}
    label = int(found["cls"]) if "cls" in found else about.get("label")
    if image is None or not isinstance(label, int):
        raise StoreError(
            f"{path}: sample {key[:80]!r} has {', '.join(sorted(found))[:80]}; expected an image "
            f"({', '.join(IMAGE_KEYS)}) and its class (cls, or label in json)"
        )
    name = str(about.get("filename") or key)
    return _make_sample(name, label, "", image, done)


def read_parquet_images(path: Path) -> Iterator[Sample]:
    """Yield the rows of a file of HuggingFace's: ``image`` with bytes and path, and ``label``."""
    for row, done in _read_rows(path, ("image", "label")):
        image = row["image"] or {}
        if not image.get("bytes"):
            raise StoreError(f"{path}: an image has no bytes in it; fix: fetch the whole dataset")
        yield _make_sample(image.get("path") or "", int(row["label"]), "", image["bytes"], done)


def _read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], int]]:
    from pyarrow import parquet

    with _explain_damage(path), parquet.ParquetFile(path) as file:
        if missing := set(columns) - set(file.schema_arrow.names):
            raise StoreError(f"{path}: has no column {min(missing)!r}, expected {columns}")
        total, size, number = max(file.metadata.num_rows, 1), path.stat().st_size, 0
        for batch in file.iter_batches(PARQUET_ROWS, columns=[*columns]):
            for row in batch.to_pylist():
                number += 1
                yield row, size * number // total


def read_tfrecord(path: Path) -> Iterator[Sample]:
    """Yield the records of a shard, of TensorFlow's script or of TensorFlow Datasets."""
    import tensorflow as tf

    with _explain_damage(path):
        done = 0
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            done += len(record) + 16  # its length and two checksums
            known = tf.train.Example.FromString(record).features.feature

            def first(*names: str, known: Any = known, record_end: int = done) -> Any:
                for name in names:
                    if name in known:
                        each = known[name]
                        return (each.bytes_list.value or each.int64_list.value)[0]
                raise StoreError(
                    f"{path}: the record that ends at byte {record_end:,} has no {names[0]}"
                )

            # The script counts from 1 and names the class; TensorFlow Datasets count from 0.
            is_script = "image/class/label" in known
            yield _make_sample(
                first("image/filename", "file_name").decode(),
                first("image/class/label", "label") - is_script,
                first("image/class/synset").decode() if is_script else "",
                first("image/encoded", "image"),
                done,
            )


def _make_sample(name: str, label: int, class_name: str, content: bytes, done: int) -> Sample:
    """Return a sample; its class is named by WordNet where the name of the file tells it."""
    told = WORDNET.search(name)
    return Sample(name, label, class_name or (told[1] if told else ""), content, done)
