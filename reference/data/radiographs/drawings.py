"""Drawings of chests with fourteen findings, in the layout of ChestX-ray14: data for mini scale.

A drawing is grey: a body with two lungs, ribs, a heart, and noise. Four findings change the anatomy
(a large heart, a level of fluid, haze, a dark rim). On a circle lie five marks, always all five
shapes of ``MARKS``, each turned by any angle, lighter than what it lies on. Each of the
other ten findings says that two of these shapes are near each other. So neither what is in a
drawing nor where tells a finding, only what lies beside what: random patches and a start from
random weights learn little of it from a few thousand drawings, and a network that has learnt to
see pairs of other shapes (``image_files.trios``) knows what to look for.

Findings are rare and occur together: each has a normal variable, correlated with a common one and
with that of its partner, and is there where its variable is above a threshold. A mark has one
neighbour, so of findings that share a mark one stays, by chance. A patient has one to three
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
from itertools import combinations
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
from cepheid.reference.data.store import OnProgress, split_rows
from cepheid.reference.data.workers import map_in_processes
from cepheid.rules.host import atomic_path, atomic_write

GENERATOR_VERSION = 2  # to be raised by every change that draws other files
SHARES = {
    "Atelectasis": 0.14,
    "Cardiomegaly": 0.10,
    "Effusion": 0.12,
    "Infiltration": 0.18,
    "Mass": 0.14,
    "Nodule": 0.14,
    "Pneumonia": 0.14,
    "Pneumothorax": 0.10,
    "Consolidation": 0.16,
    "Edema": 0.10,
    "Emphysema": 0.14,
    "Fibrosis": 0.16,
    "Pleural_Thickening": 0.16,
    "Hernia": 0.14,
}
"""The share of drawings with each finding, before findings that share a mark are dropped."""
MARKS = ("crescent", "letter_t", "square", "star", "two_discs")
ANATOMY = ("Cardiomegaly", "Effusion", "Pneumothorax", "Edema")
NEAR = dict(zip((n for n in SHARES if n not in ANATOMY), combinations(MARKS, 2), strict=True))
"""The marks that are near each other, of each finding that is not one of the anatomy."""
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
RADIUS = (0.089, 0.103)  # of a mark, in sides of the drawing, as the next two
CIRCLE = (0.354, 0.375)  # on which the marks lie
OUT = 0.01  # of the circle, at most
NEAR_ANGLE = 36.0  # degrees between neighbours; between others 72 or more
TURN = 2.0  # degrees that a mark lies beside its place, at most
CONTRAST = (55.0, 85.0)  # of a mark to what it lies on, in levels
NOISE = (2.0, 5.0)  # levels
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
        draw = partial(_draw_rows, folder / IMAGES, seed, pixels, every)
        done = 0
        pieces = split_rows(len(every), PIECE)
        for rows, _ in map_in_processes(draw, pieces, processes, folder):
            done += len(rows)
            on_progress(done, len(every))
        for each in every:
            found = draw_findings(seed, each)
            names = BETWEEN_FINDINGS.join(n for n in FINDINGS if n in found) or NO_FINDING
            lines.append(f"{each.name},{names},{each.number},{each.patient}")
        for name, part in zip(LISTS, parts, strict=True):
            atomic_write(folder / name, "".join(f"{each.name}\n" for each in part))
        atomic_write(folder / TABLES[0], "\n".join(lines) + "\n")


def _draw_rows(
    folder: Path, seed: int, pixels: int, drawings: Sequence[Drawing], rows: range
) -> None:
    for each in drawings[rows.start : rows.stop]:
        if not (path := folder / each.name).exists():
            levels = draw_chest(seed, each, draw_findings(seed, each), pixels)
            with atomic_path(path, sync=False) as temporary:
                temporary.write_bytes(encode_png(levels))


def draw_findings(seed: int, drawing: Drawing) -> frozenset[str]:
    """Draw what is found in a drawing."""
    random = _make_generator(seed, drawing, 0)
    common = random.standard_normal()
    own = dict(zip(FINDINGS, random.standard_normal(len(FINDINGS)), strict=True))
    own = {name: COMMON * common + math.sqrt(1 - COMMON**2) * own[name] for name in FINDINGS}
    for name, partner in PARTNERS.items():
        own[name] = PARTNER * own[partner] + math.sqrt(1 - PARTNER**2) * own[name]
    found = [n for n in FINDINGS if own[n] > NormalDist().inv_cdf(1 - SHARES[n])]
    kept: set[str] = set()
    for name in random.permutation(found):
        if not any(set(NEAR.get(name, ())) & set(NEAR.get(other, ())) for other in kept):
            kept.add(str(name))
    return frozenset(kept)


def draw_chest(seed: int, drawing: Drawing, findings: frozenset[str], pixels: int) -> np.ndarray:
    """Draw a chest with these findings, uint8 (pixels, pixels)."""
    body = _make_generator(seed, Drawing(drawing.patient, 0), 1)
    random = _make_generator(seed, drawing, 2)
    y, x = (np.mgrid[0:pixels, 0:pixels] + 0.5) / pixels - 0.5
    image = np.full((pixels, pixels), body.uniform(120, 140))
    lungs = [_outline_lung(body, x, y, side) for side in (-1, 1)]
    for lung in lungs:
        image[lung < 1] = random.uniform(85, 115)
    radius = body.uniform(0.11, 0.14) + (0.05 if "Cardiomegaly" in findings else 0)
    image[((x - 0.05) / radius) ** 2 + ((y - 0.2) / (0.9 * radius)) ** 2 < 1] = 160
    _draw_anatomy(random, image, lungs, findings, y)
    ribs = (y + 0.6 * x * x) / 0.13 + body.uniform(0, 1)
    image[ribs - np.floor(ribs) < 0.3] += 6
    for mark in place_marks(
        random, [NEAR[name] for name in FINDINGS if name in findings & set(NEAR)], pixels
    ):
        window, cover = mark.cover(pixels, pixels)
        image[window] += random.uniform(*CONTRAST) * cover
    image += random.uniform(-12, 12) + random.uniform(*NOISE) * random.standard_normal(image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def place_marks(
    random: np.random.Generator, pairs: Sequence[tuple[str, str]], pixels: int
) -> Iterator[shapes.Placed]:
    """Yield the five marks on their circle, those of each pair near each other."""
    groups = [list(random.permutation(pair)) for pair in pairs]
    groups += [[mark] for mark in MARKS if not any(mark in pair for pair in pairs)]
    circle, place = random.uniform(*CIRCLE), random.uniform(0, 360)
    gap = (360 - NEAR_ANGLE * len(pairs)) / len(groups)
    for group in random.permutation(len(groups)):
        for number, mark in enumerate(groups[group]):
            place += NEAR_ANGLE if number else gap
            angle = math.radians(place + random.uniform(-TURN, TURN))
            out = circle + random.uniform(-OUT, OUT)
            yield shapes.Placed(
                str(mark),
                pixels * (0.5 + out * math.cos(angle)),
                pixels * (0.5 + out * math.sin(angle)),
                pixels * random.uniform(*RADIUS),
                random.uniform(0, 2 * math.pi),
                random.uniform(0.92, 1.09),
            )


def _outline_lung(body: np.random.Generator, x: np.ndarray, y: np.ndarray, side: int) -> np.ndarray:
    """Return a field that is below 1 inside a lung, shaped as ``x``."""
    across = (x - side * 0.235 - body.uniform(-0.01, 0.01)) / 0.235
    down = (y - body.uniform(-0.02, 0.02)) / body.uniform(0.45, 0.49)
    return np.abs(across) * across**2 + np.abs(down) * down**2


def _draw_anatomy(
    random: np.random.Generator,
    image: np.ndarray,
    lungs: Sequence[np.ndarray],
    findings: frozenset[str],
    y: np.ndarray,
) -> None:
    """Draw haze, fluid and the rim of air over the lungs in ``image``."""
    if "Edema" in findings:
        haze = random.uniform(25, 45)
        for lung in lungs:
            image += haze * np.maximum(0, 1 - lung)
    if "Effusion" in findings:
        image[(lungs[int(random.integers(2))] < 1) & (y > random.uniform(0.08, 0.22))] = 170
    if "Pneumothorax" in findings:
        lung = lungs[int(random.integers(2))]
        image[(lung < 1) & (lung > random.uniform(0.45, 0.6)) & (y < 0.15)] = 40


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
