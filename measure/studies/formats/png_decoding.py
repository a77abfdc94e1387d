"""Measure how fast one core decodes radiographs: grey PNG files of 1,024 pixels a side."""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
from PIL import Image

from cepheid.reference.data.image_files import png
from cepheid.reference.data.image_files.threads import resize

PIXELS, SEEN_PIXELS = 1024, 224
IMAGES = 12


@dataclass(frozen=True)
class Decoding:
    """Milliseconds of processor time an image, and how large the files are on average."""

    mean_kilobytes: float
    decoding_ms: float
    resizing_ms: float


def measure_decoding(rounds: int) -> Decoding:
    """Decode images of 1/f noise, and resize them to SEEN_PIXELS; medians over the rounds."""
    files = [draw_file(number) for number in range(IMAGES)]
    decoded = [png.decode(file) for file in files]
    whole = (0, 0, PIXELS, PIXELS)
    return Decoding(
        mean_kilobytes=sum(map(len, files)) / len(files) / 1000,
        decoding_ms=median(_time(lambda k: png.decode(files[k])) for _ in range(rounds)),
        resizing_ms=median(
            _time(lambda k: resize(decoded[k], whole, SEEN_PIXELS)) for _ in range(rounds)
        ),
    )


def draw_file(number: int) -> bytes:
    """Return a PNG file of noise whose amplitude falls with the frequency, as in photographs."""
    random = np.random.default_rng(number)
    frequency = np.hypot(np.fft.fftfreq(PIXELS)[:, None], np.fft.rfftfreq(PIXELS))
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(random.standard_normal((PIXELS, PIXELS))) / frequency
    field = np.fft.irfft2(spectrum)
    levels = np.clip(128 + 40 * field / field.std(), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


def _time(work: Callable[[int], object]) -> float:
    start = time.process_time()
    for number in range(IMAGES):
        work(number)
    return 1000 * (time.process_time() - start) / IMAGES
