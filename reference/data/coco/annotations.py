"""The annotations of COCO as they are distributed, and the image files that they describe.

``annotations/instances_train2017.json`` and ``instances_val2017.json`` list images, categories and
objects; the images lie in ``train2017`` and ``val2017``. The ids of the 80 categories have gaps (up
to 90); labels count them from 1 in the order of the file. Training images of which nothing is
annotated are left out; the evaluation has all images. Everything else stays: crowds, and boxes
without area or beyond the edge of their image.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from cepheid.reference.data.coco import masks
from cepheid.reference.data.image_files.packing import SourceFiles
from cepheid.reference.data.store import StoreError, explain_unreadable

PARTS = ("train2017", "val2017")
PLAIN_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
OBJECT = np.dtype(
    [("box", "<f8", 4), ("area", "<f8"), ("label", "<i4"), ("is_crowd", "<i4")], align=True
)
"""An object: left, top, width and height of its box in pixels, the area of its mask, its label."""


class _Image(msgspec.Struct):
    id: int
    file_name: str
    height: int
    width: int


class _Category(msgspec.Struct):
    id: int
    name: str


class _Object(msgspec.Struct):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    area: float
    iscrowd: int


class _OutlinedObject(_Object):
    segmentation: msgspec.Raw


class _Instances(msgspec.Struct):
    """What is used of a file of annotations; the decoder skips the outlines, most of the file."""

    images: list[_Image]
    categories: list[_Category]
    annotations: Sequence[_Object]


class _OutlinedInstances(_Instances):
    annotations: list[_OutlinedObject]


@dataclass(frozen=True)
class Listing:
    """All images in use, training first.

    ``objects`` are those of all images in turn, of OBJECT; those of row i end at ``ends[i]``.
    ``left_out`` training images have no object. ``masks`` are those of ``objects`` in COCO's
    run-length code, if they were asked for.
    """

    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]
    files: SourceFiles
    image_ids: np.ndarray
    objects: np.ndarray
    ends: np.ndarray
    left_out: int
    digest: str
    masks: Sequence[bytes] = ()


def list_images(
    source: Path, train: int, evaluation: int, has_masks: bool = False, is_subset: bool = False
) -> Listing:
    """Read both files of annotations, and the sizes of the image files without opening them.

    Raises StoreError where something is missing, cannot be read or contradicts itself, or if there
    are not as many images as there should be.
    """
    digest = hashlib.sha256()
    kind = _OutlinedInstances if has_masks else _Instances
    found = [_read_instances(source / _name_annotations(part), digest, kind) for part in PARTS]
    if found[0].categories != found[1].categories:
        raise StoreError(
            f"{source / _name_annotations(PARTS[1])}: its categories are not those of training. "
            "Unpack the annotations again; both files are of the same archive."
        )
    by_image = [_group_objects(source, part, one) for part, one in zip(PARTS, found, strict=True)]
    used = [
        (part, image, objects[image.id])
        for part, one, objects in zip(PARTS, found, by_image, strict=True)
        for image in one.images
        if objects[image.id] or part == PARTS[1]
    ]
    left_out = len(found[0].images) - sum(part == PARTS[0] for part, _, _ in used)
    if is_subset:  # the first of those that are there
        there = [each for each in used if (source / _name_image(source, *each[:2])).is_file()]
        groups = [[each for each in there if each[0] == part] for part in PARTS]
        used = [*groups[0][:train], *groups[1][:evaluation]]
    names = [_name_image(source, part, image) for part, image, _ in used]
    _check_counts(source, [part for part, _, _ in used], (train, evaluation), is_subset)
    with explain_unreadable():
        sizes = np.array([(source / name).stat().st_size for name in names], np.int64)
    digest.update("\n".join(names).encode() + sizes.astype("<i8").tobytes())
    sides = [(image.height, image.width) for _, image, _ in used]
    labels = {category.id: k for k, category in enumerate(found[0].categories, start=1)}
    return Listing(
        class_names=tuple(category.name for category in found[0].categories),
        category_ids=tuple(labels),
        files=SourceFiles(source, names, sizes, sides=np.array(sides, np.int64)),
        image_ids=np.array([image.id for _, image, _ in used], np.int64),
        objects=_make_records([each for _, _, objects in used for each in objects], labels),
        ends=np.cumsum([len(objects) for _, _, objects in used], dtype=np.int64),
        left_out=left_out,
        digest=digest.hexdigest(),
        masks=[
            _encode_mask(source / _name_annotations(part), image, each)
            for part, image, objects in used
            for each in objects
        ]
        if has_masks
        else (),
    )


def _name_annotations(part: str) -> str:
    return f"annotations/instances_{part}.json"


def _read_instances(path: Path, digest: "hashlib._Hash", kind: type[_Instances]) -> _Instances:
    if not path.is_file():
        raise StoreError(
            f"{path}: there is no such file. Put COCO 2017 there, or link it: annotations/, "
            f"{' and '.join(f'{part}/' for part in PARTS)}, as its archives unpack."
        )
    with explain_unreadable():
        content = path.read_bytes()
    digest.update(content)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(
            f"{path}: is not a file of COCO's annotations ({error}). Unpack it again."
        ) from error


def _group_objects(source: Path, part: str, found: _Instances) -> dict[int, list[_Object]]:
    """Return the objects of each image by its id, in the order of the file."""
    path = source / _name_annotations(part)
    by_image: dict[int, list[_Object]] = {image.id: [] for image in found.images}
    categories = {category.id for category in found.categories}
    if len(by_image) < len(found.images) or len(categories) < len(found.categories):
        raise StoreError(f"{path}: an image or a category is listed twice. Unpack it again.")
    for each in found.annotations:
        if each.image_id not in by_image or each.category_id not in categories:
            raise StoreError(
                f"{path}: an object is of image {each.image_id} and category {each.category_id}, "
                "of which one is not listed. Unpack it again."
            )
        by_image[each.image_id].append(each)
    return by_image


def _encode_mask(path: Path, image: _Image, found: _Object) -> bytes:
    assert isinstance(found, _OutlinedObject)
    try:
        outline = msgspec.json.decode(found.segmentation, type=masks.Outline)
        return masks.encode(outline, image.height, image.width)
    except (msgspec.MsgspecError, StoreError) as error:
        raise StoreError(
            f"{path}: an object of image {image.id} has no mask ({error}). Unpack it again."
        ) from error


def _name_image(source: Path, part: str, image: _Image) -> str:
    """Return the name of an image's file in the source. Raises StoreError where it lies outside."""
    if not PLAIN_NAME.fullmatch(image.file_name) or min(image.height, image.width) < 1:
        raise StoreError(
            f"{source / _name_annotations(part)}: image {image.id} is {image.file_name!r} of "
            f"{image.height} × {image.width} pixels, expected the name of a file in {part}/"
        )
    return f"{part}/{image.file_name}"


def _check_counts(
    source: Path, parts: Sequence[str], expected: tuple[int, int], is_subset: bool
) -> None:
    for part, wanted in zip(PARTS, expected, strict=True):
        count = parts.count(part)
        if count != wanted:
            kind = "images with objects" if part == PARTS[0] else "images"
            fix = "Give a smaller --limit." if is_subset else "Unpack the annotations again."
            raise StoreError(
                f"{source / _name_annotations(part)}: {count:,} {kind}, expected {wanted:,}. {fix}"
            )


def _make_records(objects: Sequence[_Object], labels: dict[int, int]) -> np.ndarray:
    records = np.zeros(len(objects), OBJECT)
    records["box"] = np.array([each.bbox for each in objects]).reshape(-1, 4)
    records["area"] = [each.area for each in objects]
    records["label"] = [labels[each.category_id] for each in objects]
    records["is_crowd"] = [each.iscrowd for each in objects]
    return records
