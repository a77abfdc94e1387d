"""A small set of photographs with annotations that have all the oddities of COCO 2017."""

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

from cepheid.reference.data import coco
from cepheid.reference.data.coco import CocoParameters
from tests.reference.data.pictures import jpeg

TRAIN, EVALUATION, LEFT_OUT = 9, 4, 3
PARAMETERS = CocoParameters(TRAIN, EVALUATION)
CATEGORIES = {1: "person", 2: "bicycle", 13: "stop sign", 90: "toothbrush"}
"""Ids with gaps; the labels are 1 to 4."""
CROWD, NO_AREA, BEYOND = 2, 3, 4  # training images with something special


def write_replica(root: Path) -> Path:
    """Write ``root/COCO2017`` as its archives unpack."""
    source = root / coco.REAL
    for part, first, count in (("train2017", 0, TRAIN + LEFT_OUT), ("val2017", 500, EVALUATION)):
        images, objects = [], []
        for number in range(first, first + count):
            content = jpeg(number, "L" if number == 1 else "RGB")
            with Image.open(io.BytesIO(content)) as image:
                width, height = image.size
            path = source / part / f"{number:012}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            images.append({"id": number, "file_name": path.name, "height": height, "width": width})
            objects += describe_objects(number, width, height)
        instances = {
            "info": {"year": 2017},
            "licenses": [],
            "images": images[::-1],  # the real ones are in no order either
            "categories": [
                {"id": number, "name": name, "supercategory": "thing"}
                for number, name in CATEGORIES.items()
            ],
            "annotations": [{"id": k, **each} for k, each in enumerate(objects, start=900)][::-1],
        }
        write_annotations(source, part, instances)
    return source


def describe_objects(number: int, width: int, height: int) -> list[dict[str, Any]]:
    """The objects of an image; none of every fifth."""
    if number % 5 == 0:
        return []
    boxes = [[4.25, 6.5, 20.0, 30.75], [width / 2, 8.0, 12.5, 16.0]][: 1 + number % 2]
    objects = [
        describe(number, list(CATEGORIES)[(number + k) % 4], box) for k, box in enumerate(boxes)
    ]
    if number == CROWD:
        segmentation = {"counts": [272, 2, 4, 4, height * width - 282], "size": [height, width]}
        crowd = describe(number, 1, [0.0, 0.0, 40.0, 40.0], iscrowd=1)
        objects.append({**crowd, "segmentation": segmentation})
    if number == NO_AREA:
        objects.append(describe(number, 13, [9.98, 18.56, 15.52, 0.0]))
    if number == BEYOND:
        objects.append(describe(number, 90, [width - 10.0, 5.0, 10.01, 20.0]))
    return objects


def describe(number: int, category: int, box: list[float], iscrowd: int = 0) -> dict[str, Any]:
    left, top, width, height = box
    return {
        "image_id": number,
        "category_id": category,
        "bbox": box,
        "area": 0.7 * width * height,
        "iscrowd": iscrowd,
        "segmentation": [[left, top, left + width, top, left, top + height]],
    }


def read_annotations(source: Path, part: str) -> dict[str, Any]:
    path = source / f"annotations/instances_{part}.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def write_annotations(source: Path, part: str, content: dict[str, Any]) -> None:
    path = source / f"annotations/instances_{part}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def pack(root: Path, parameters: CocoParameters = PARAMETERS, **options: Any) -> Path:
    """Prepare below ``root`` what lies there; returns the prepared folder."""
    folder = root / "packed"
    coco.prepare(folder, parameters, **{"processes": 1, **options})
    return folder
