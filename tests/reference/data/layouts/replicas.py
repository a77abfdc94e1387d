"""The layouts in which people have ImageNet, written of a replica, and archives of any files."""

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reference.data import pictures

CLASSES = ("n00000001", "n00000002", "n00000003")


def ignore(done: int, total: int) -> None:
    """Report progress to nobody."""


def write_zip(path: Path, files: dict[str, Path], how: int = zipfile.ZIP_DEFLATED) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, file in files.items():
            archive.write(file, name)


def write_tar(path: Path, files: dict[str, Path | bytes], mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, file in files.items():
            content = file if isinstance(file, bytes) else file.read_bytes()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def list_below(folder: Path, prefix: str = "") -> dict[str, Path]:
    return {
        prefix + path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_imagenet(root: Path) -> Path:
    """The replica with names as the real ones: of WordNet, and those of validation images flat."""
    source = pictures.write_set(root)
    for folder, name in zip(pictures.CLASSES, CLASSES, strict=True):
        for path in sorted((source / "train" / folder).iterdir()):
            path.rename(path.with_name(f"{name}_{path.stem[-3:]}.JPEG"))
        for path in sorted((source / "val" / folder).iterdir()):
            path.rename(path.with_name(f"ILSVRC2012_val_{path.stem[-3:]}.JPEG"))
        for part in ("train", "val"):
            (source / part / folder).rename(source / part / name)
    return source


def list_images(source: Path, part: str) -> Iterator[tuple[Path, str, int]]:
    """Every image with its class folder and label, mixed as shards are."""
    for path in sorted((source / part).glob("*/*"), key=lambda path: path.name[::-1]):
        yield path, path.parent.name, CLASSES.index(path.parent.name)


def torchvision(source: Path, given: Path) -> None:
    shutil.copytree(source, given)


def class_tars(source: Path, given: Path) -> None:
    for name in CLASSES:
        write_tar(given / f"train/{name}.tar", dict(list_below(source / "train" / name)))
    shutil.copytree(source / "val", given / "val")


def kaggle(source: Path, given: Path) -> None:
    tree = given / "ILSVRC/Data/CLS-LOC"
    shutil.copytree(source, tree)
    truth = pictures.flatten(tree)
    lines = [f"{name.removesuffix('.JPEG')},{folder} 1 2 3 4 " for name, folder in truth]
    (given / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *lines]))


def kaggle_zip(source: Path, given: Path) -> None:
    tree = given / "tree"
    kaggle(source, tree)
    write_zip(given / "imagenet-object-localization-challenge.zip", list_below(tree))
    shutil.rmtree(tree)


def archives(source: Path, given: Path) -> None:
    """The archives of image-net.org: a tar of tars, a flat tar, and the devkit."""
    import numpy as np
    from scipy.io import savemat

    given.mkdir(parents=True)
    class_tars(source, given / "tars")
    write_tar(given / "ILSVRC2012_img_train.tar", dict(list_below(given / "tars/train")))
    shutil.rmtree(given / "tars")
    flat = {path.name: (path, name) for path, name, _ in list_images(source, "val")}
    files = {f"./{name}": flat[name][0] for name in sorted(flat, reverse=True)}
    write_tar(given / "ILSVRC2012_img_val.tar", dict(files))
    numbers = {CLASSES[1]: 1, CLASSES[2]: 2, CLASSES[0]: 3}
    fields = [("ILSVRC2012_ID", object), ("WNID", object)]
    synsets = np.array([(number, name) for name, number in numbers.items()], fields)
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets.reshape(-1, 1)})
    truth = "".join(f"{numbers[flat[name][1]]}\n" for name in sorted(flat))
    written = {
        "meta.mat": meta.getvalue(),
        "ILSVRC2012_validation_ground_truth.txt": truth.encode(),
    }
    devkit: dict[str, Path | bytes] = {
        f"ILSVRC2012_devkit_t12/data/{name}": content for name, content in written.items()
    }
    write_tar(given / "ILSVRC2012_devkit_t12.tar.gz", devkit, "w:gz")


def huggingface(source: Path, given: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (given / "data").mkdir(parents=True)
    for part, split in (("train", "train"), ("val", "validation")):
        rows: list[dict[str, Any]] = []
        for path, name, label in list_images(source, part):
            image = {"bytes": path.read_bytes(), "path": f"{path.stem}_{name}.JPEG"}
            rows.append({"image": image, "label": label})
        for number in range(2):
            table = pyarrow.Table.from_pylist(rows[number::2])
            parquet.write_table(table, given / f"data/{split}-{number:05}-of-00002.parquet")


def webdataset(source: Path, given: Path) -> None:
    for part, split in (("train", "train"), ("val", "validation")):
        files: dict[str, Path | bytes] = {}
        for path, _, label in list_images(source, part):
            key = path.stem
            files |= {f"{key}.cls": str(label).encode(), f"{key}.jpg": path}
            files[f"{key}.json"] = json.dumps({"label": label, "filename": path.name}).encode()
        write_tar(given / f"imagenet1k-{split}-0000.tar", files)


def tfrecord(source: Path, given: Path, is_script: bool = True) -> None:
    """What TensorFlow's script writes, with labels from 1, or TensorFlow Datasets."""
    tf = pytest.importorskip("tensorflow")
    given.mkdir(parents=True)

    def pack(value: Any) -> Any:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    for part, split in (("train", "train"), ("val", "validation")):
        with tf.io.TFRecordWriter(str(given / f"{split}-00000-of-00001")) as writer:
            for image, name, label in list_images(source, part):
                content, file = image.read_bytes(), image.name.encode()
                features = {"image": content, "file_name": file, "label": label}
                if is_script:
                    features = {"image/encoded": content, "image/filename": file}
                    features |= {
                        "image/class/label": label + 1,
                        "image/class/synset": name.encode(),
                    }
                record = {key: pack(value) for key, value in features.items()}
                example = tf.train.Example(features=tf.train.Features(feature=record))
                writer.write(example.SerializeToString())


def tensorflow_datasets(source: Path, given: Path) -> None:
    tfrecord(source, given, is_script=False)


IMAGENETS = (
    torchvision,
    class_tars,
    kaggle,
    kaggle_zip,
    archives,
    huggingface,
    webdataset,
    tfrecord,
    tensorflow_datasets,
)
