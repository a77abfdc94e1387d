"""Drawings of chests with fourteen findings, in the layout of ChestX-ray14: data for mini scale.

A drawing is grey: a body with two lungs, ribs, a heart, and noise. Four findings change the anatomy
(a large heart, a level of fluid, haze, a dark rim). Each of the other ten fills a lung with one of
the shapes of ``image_files.shapes``, like a wallpaper of any scale and angle, light on dark or dark
on light; a lung without such a finding has one of two further shapes. A network that has learnt to
tell those pictures apart knows what to look for; a few hundred drawings alone teach it badly.

Findings are rare and occur together: each has a normal variable, correlated with a common one and
with that of its partner, and is there where its variable is above a threshold. Two lungs have room
for two shapes, so of more findings with a shape two stay, by chance. A patient has one to three
drawings of one body, with findings of their own.

Drawing i of a patient is a function of (seed, patient, i) only. What is computed per pixel uses
additions, multiplications, comparisons and square roots alone, and the files are not compressed,
so that they have the same bytes everywhere.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist

import numpy as np

from cepheid.reference.data.disk import explain_disk_errors
from cepheid.reference.data.image_files import shapes
from cepheid.reference.data.radiographs.layout import (
    BETWEEN_FINDINGS,
    FINDINGS,
    IMAGE,
    IMAGES,
    LABELS,
    LISTS,
    NO_FINDING,
    PATIENT,
    TABLES,
)
from cepheid.reference.data.store import OnProgress
from cepheid.reference.data.workers import map_in_processes
from cepheid.rules.host import atomic_path, atomic_write

GENERATOR_VERSION = 1  # to be raised by every change that draws other files
SHARES = {
    "Atelectasis": 0.10,
    "Cardiomegaly": 0.06,
    "Effusion": 0.12,
    "Infiltration": 0.18,
    "Mass": 0.07,
    "Nodule": 0.07,
    "Pneumonia": 0.06,
    "Pneumothorax": 0.07,
    "Consolidation": 0.06,
    "Edema": 0.05,
    "Emphysema": 0.06,
    "Fibrosis": 0.06,
    "Pleural_Thickening": 0.06,
    "Hernia": 0.05,
}
"""The share of drawings with each finding, before two lungs run out of room."""
SHAPES_OF = {
    "Atelectasis": "arch",
    "Infiltration": "bars",
    "Mass": "crescent",
    "Nodule": "disc",
    "Pneumonia": "frame",
    "Consolidation": "letter_t",
    "Emphysema": "plus",
    "Fibrosis": "ring",
    "Pleural_Thickening": "square",
    "Hernia": "star",
}
OTHER_SHAPES = ("triangle", "two_discs")
PARTNERS = {
    "Pneumothorax": "Emphysema",
    "Edema": "Pneumonia",
    "Atelectasis": "Effusion",
    "Cardiomegaly": "Edema",
    "Consolidation": "Infiltration",
    "Nodule": "Mass",
    "Pleural_Thickening": "Fibrosis",
}
COMMON, PARTNER = 0.3, 0.4  # correlations
MOST_OF_A_PATIENT = 3
RADIUS = (0.14, 0.24)  # of a shape, in sides of the drawing
CONTRAST = (50.0, 80.0)  # of a shape to its lung, in levels
NOISE = 6.0  # levels
PIECE = 100  # drawings that a process makes at a time
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Drawing:
    """One drawing: whose it is, and which of that patient."""

    patient: int
    number: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.patient:08}_{self.number:03}.png"


def list_drawings(seed: int, counts: Sequence[int]) -> Sequence[Sequence[Drawing]]:
    """Return ``counts`` drawings for each part; no patient is in two parts."""
    random = np.random.default_rng(np.random.SeedSequence([seed, GENERATOR_VERSION]))
    parts, patient = [], 0
    for count in counts:
        part: list[Drawing] = []
        while len(part) < count:
            patient += 1
            several = int(random.integers(1, MOST_OF_A_PATIENT, endpoint=True))
            part += [Drawing(patient, k) for k in range(min(several, count - len(part)))]
        parts.append(part)
    return parts


def draw_files(
    folder: Path,
    seed: int,
    pixels: int,
    counts: Sequence[int],
    processes: int | None,
    on_progress: OnProgress,
) -> None:
    """Write the drawings, the table and the lists into ``folder``; existing drawings are kept.

    ``counts`` are those of training and evaluation. ``on_progress`` is called with the drawings
    written and the total. Raises StoreError if they cannot be written or a process is killed.
    """
    parts = list_drawings(seed, counts)
    every = [drawing for part in parts for drawing in part]
    lines = [f"{IMAGE},{LABELS},Follow-up #,{PATIENT}"]
    with explain_disk_errors(folder):
        (folder / IMAGES).mkdir(parents=True, exist_ok=True)
        pieces = range(-(-len(every) // PIECE))
        draw = partial(_draw_piece, folder / IMAGES, seed, pixels, every)
        done = 0
        for _, count in map_in_processes(draw, pieces, processes, folder):
            done += count
            on_progress(done, len(every))
        for each in every:
            found = draw_findings(seed, each)
            names = BETWEEN_FINDINGS.join(n for n in FINDINGS if n in found) or NO_FINDING
            lines.append(f"{each.name},{names},{each.number},{each.patient}")
        for name, part in zip(LISTS, parts, strict=True):
            atomic_write(folder / name, "".join(f"{each.name}\n" for each in part))
        atomic_write(folder / TABLES[0], "\n".join(lines) + "\n")


def _draw_piece(
    folder: Path, seed: int, pixels: int, drawings: Sequence[Drawing], piece: int
) -> int:
    """Write the drawings of a piece; return their number."""
    chosen = drawings[piece * PIECE : (piece + 1) * PIECE]
    for each in chosen:
        if not (path := folder / each.name).exists():
            levels = draw_chest(seed, each, draw_findings(seed, each), pixels)
            with atomic_path(path, sync=False) as temporary:
                temporary.write_bytes(encode_png(levels))
    return len(chosen)


def draw_findings(seed: int, drawing: Drawing) -> frozenset[str]:
    """Draw what is found in a drawing."""
    random = _make_generator(seed, drawing, 0)
    common = random.standard_normal()
    own = dict(zip(FINDINGS, random.standard_normal(len(FINDINGS)), strict=True))
    own = {name: COMMON * common + math.sqrt(1 - COMMON**2) * own[name] for name in FINDINGS}
    for name, partner in PARTNERS.items():
        own[name] = PARTNER * own[partner] + math.sqrt(1 - PARTNER**2) * own[name]
    found = [n for n in FINDINGS if own[n] > NormalDist().inv_cdf(1 - SHARES[n])]
    shaped = [name for name in found if name in SHAPES_OF]
    dropped = {shaped[k] for k in random.permutation(len(shaped))[2:]}
    return frozenset(found) - dropped


def draw_chest(seed: int, drawing: Drawing, findings: frozenset[str], pixels: int) -> np.ndarray:
    """Draw a chest with these findings, uint8 (pixels, pixels)."""
    body = _make_generator(seed, Drawing(drawing.patient, 0), 1)
    random = _make_generator(seed, drawing, 2)
    y, x = (np.mgrid[0:pixels, 0:pixels] + 0.5) / pixels - 0.5
    image = np.full((pixels, pixels), body.uniform(120, 140))
    lungs = [_outline_lung(body, x, y, side) for side in (-1, 1)]
    names = [SHAPES_OF[name] for name in FINDINGS if name in findings and name in SHAPES_OF]
    names = names or [OTHER_SHAPES[random.integers(len(OTHER_SHAPES))]]
    filled = [_fill_lung(random, name, x, y) for name in names]
    for lung, which in zip(lungs, random.permutation(2), strict=True):
        inside = lung < 1
        image[inside] = filled[which % len(filled)][inside]
    radius = body.uniform(0.11, 0.14) + (0.09 if "Cardiomegaly" in findings else 0)
    image[((x - 0.05) / radius) ** 2 + ((y - 0.2) / (0.9 * radius)) ** 2 < 1] = 160
    _draw_anatomy(random, image, lungs, findings, y)
    ribs = (y + 0.6 * x * x) / 0.13 + body.uniform(0, 1)
    image[ribs - np.floor(ribs) < 0.3] += 6
    image += random.uniform(-12, 12) + NOISE * random.standard_normal(image.shape)
    levels: np.ndarray = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return levels


def _outline_lung(body: np.random.Generator, x: np.ndarray, y: np.ndarray, side: int) -> np.ndarray:
    """Return a field that is below 1 inside a lung, shaped as ``x``."""
    across = (x - side * 0.235 - body.uniform(-0.01, 0.01)) / 0.235
    down = (y - body.uniform(-0.02, 0.02)) / body.uniform(0.45, 0.49)
    field: np.ndarray = np.abs(across) * across**2 + np.abs(down) * down**2
    return field


def _fill_lung(random: np.random.Generator, shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the levels of a lung that is filled with a shape, as a whole drawing."""
    tone = random.uniform(85, 125)
    contrast = random.uniform(*CONTRAST) * (1 if random.random() < 0.5 else -1)
    slope = random.uniform(-30, 30, size=2)
    cover = shapes.cover_with(random, shape, len(x), x.shape[1], RADIUS)
    levels: np.ndarray = tone + slope[0] * x + slope[1] * y + contrast * cover
    return levels


def _draw_anatomy(
    random: np.random.Generator,
    image: np.ndarray,
    lungs: Sequence[np.ndarray],
    findings: frozenset[str],
    y: np.ndarray,
) -> None:
    """Draw haze, fluid and the rim of air over the lungs in ``image``."""
    if "Edema" in findings:
        haze = random.uniform(45, 75)
        for lung in lungs:
            image += haze * np.maximum(0, 1 - lung)
    if "Effusion" in findings:
        image[(lungs[int(random.integers(2))] < 1) & (y > random.uniform(0.08, 0.22))] = 190
    if "Pneumothorax" in findings:
        lung = lungs[int(random.integers(2))]
        image[(lung < 1) & (lung > random.uniform(0.45, 0.6)) & (y < 0.15)] = 15


def encode_png(levels: np.ndarray) -> bytes:
    """Return uint8 (y, x) as a grey PNG file without compression: the same bytes everywhere."""
    height, width = levels.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each begins with its filter, none
    lines[:, 1:] = levels
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", b"".join(_store(lines.tobytes()))), (b"IEND", b""))
    return PNG_SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )


def _store(content: bytes) -> Iterator[bytes]:
    """Yield a zlib stream of stored blocks (RFC 1950, RFC 1951 section 3.2.4)."""
    yield b"\x78\x01"
    for first in range(0, len(content), 0xFFFF):
        block = content[first : first + 0xFFFF]
        is_last = first + 0xFFFF >= len(content)
        yield struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF) + block
    yield struct.pack(">I", zlib.adler32(content))


def _make_generator(seed: int, drawing: Drawing, stream: int) -> np.random.Generator:
    entropy = [seed, GENERATOR_VERSION, drawing.patient, drawing.number, stream]
    return np.random.default_rng(np.random.SeedSequence(entropy))
