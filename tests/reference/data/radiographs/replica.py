"""A replica of ChestX-ray14: its files, a few images, and the oddities of the real set."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from cepheid.reference.data.radiographs import REAL, RadiographParameters

PIXELS = 64  # 1,024 in the real set
HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
ENTRIES: Mapping[str, tuple[str, int]] = {
    "00000001_000.png": ("Cardiomegaly", 1),
    "00000001_001.png": ("Cardiomegaly|Emphysema", 1),
    "00000002_000.png": ("No Finding", 2),
    "00000003_000.png": ("Hernia|Pleural_Thickening", 3),
    "00000004_000.png": ("Mass|Nodule", 4),
    "00000005_000.png": ("No Finding", 5),
    "00000005_001.png": ("Infiltration", 5),
    "00000099_000.png": ("No Finding", 99),  # in the table, in neither list
}
TRAIN, TEST = tuple(ENTRIES)[:4], tuple(ENTRIES)[4:7]
COLOURED = "00000003_000.png"  # some images of the real set have four channels
PARAMETERS = RadiographParameters(REAL, len(TRAIN), len(TEST))


def write_replica(root: Path) -> Path:
    """Write the set below ``root``, images in two folders of archives; return its folder."""
    source = root / REAL
    lines = [HEADER]
    for number, (name, (findings, patient)) in enumerate(ENTRIES.items()):
        folder = source / f"images_{1 + number % 2:03}" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encode_image(number, "RGBA" if name == COLOURED else "L"))
        lines.append(f"{name},{findings},{number},{patient},058Y,F,PA,2682,2749,0.143,0.143,")
    (source / "Data_Entry_2017.csv").write_bytes("\r\n".join(lines).encode() + b"\r\n")
    (source / "train_val_list.txt").write_text("".join(f"{name}\n" for name in TRAIN))
    (source / "test_list.txt").write_text("\n".join(TEST))  # the last line has no end
    return source


def encode_image(number: int, mode: str) -> bytes:
    """Return a PNG file of one level, but for its upper left corner."""
    levels = np.full((PIXELS, PIXELS), 20 * number, np.uint8)
    levels[:8, :8] = 255
    file = io.BytesIO()
    Image.fromarray(levels).convert(mode).save(file, "PNG")
    return file.getvalue()
