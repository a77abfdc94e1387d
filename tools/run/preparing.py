"""How long a dataset takes to prepare here, before it is there.

Files like the distributed ones, of noise with the spectrum of photographs, are timed in memory, and
the first samples of what is drawn. What preparing
text takes depends on the words that there are, so its rate is one that was measured before.
"""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.rules.definition import Definition
from cepheid.rules.host import usable_processors
from cepheid.tools.run.costs import DATASETS, find_disk

FILES, LEAST_SECONDS = 4, 0.3


@dataclass(frozen=True)
class Replica:
    """Files like those of a sample: their form and sides in pixels, and how many it has."""

    form: str
    height: int
    width: int
    channels: int = 3
    files: int = 1

    def __str__(self) -> str:
        return f"{self.form} files of {self.width:,} × {self.height:,} pixels"


REPLICAS = {name: Replica(**like) for name, like in DATASETS["replicas"].items()}
DRAWN = ("galaxies", "scenes", "videos")  # that are drawn sample by sample, where not distributed
OURS = "parametric"  # a catalogue of others is read first, and may be damaged


def describe_preparation(chosen: Definition) -> str:
    """Say how many minutes the data of a definition take; "" where nobody knows."""
    source, processors = str(chosen.data.get("source", "")), usable_processors()
    samples = chosen.train_samples + chosen.evaluation_samples
    if source in DATASETS["text_rates"]:
        rate, of = DATASETS["text_rates"][source]
        basis = f"as {of} were prepared on an AMD EPYC"
    elif source in REPLICAS:
        rate, of = measure_rate(REPLICAS[source]), str(REPLICAS[source])
        basis = f"as {FILES} {of} were decoded just now"
    elif chosen.data["generator"] in DRAWN and chosen.data.get("catalogue", OURS) == OURS:
        rate, basis = measure_drawing(chosen), "as the first ones were drawn just now"
    else:
        return ""
    rate *= processors
    disk = find_disk(chosen)
    reads = disk[0] * 1e3 * rate / samples if disk else 0
    need = f", if the disk reads {reads:,.0f} MB/s" if reads >= 1 else ""
    minutes = round(samples / rate / 60)
    how_long = f"about {minutes:,} min" if minutes else "less than a minute"
    return f"{how_long} to prepare at {rate:,.0f} samples/s, {basis}{need}"


def measure_drawing(chosen: Definition, clock: Callable[[], float] = time.process_time) -> float:
    """Return the samples that one processor draws in a second that it works."""
    from cepheid.reference.data import dataset, generators

    kind: dataset.Dataset[Any, Any] = generators.find_source(chosen.data).DATASET
    work = dataset.Work(Path(), 1, 1, lambda done, total: None)
    draw = kind.plan(kind.parse(chosen.data), work).draw
    draw(range(1))  # what is made once
    started, done = clock(), 0
    while clock() - started < LEAST_SECONDS:
        draw(range(done, done + FILES))
        done += FILES
    return done / (clock() - started)


def measure_rate(replica: Replica, clock: Callable[[], float] = time.process_time) -> float:
    """Return the samples that one processor prepares in a second that it works."""
    from cepheid.reference.data.image_files.decoding import examine, examine_png

    shape, channels = (replica.height, replica.width), replica.channels
    contents = [_draw_file(number, shape, channels, replica.form) for number in range(FILES)]
    read: Callable[[bytes], object] = examine if replica.form == "JPEG" else examine_png
    started, done = clock(), 0
    while clock() - started < LEAST_SECONDS:
        read(contents[done % FILES])
        done += 1
    return done / (clock() - started) / replica.files


def _draw_file(number: int, shape: tuple[int, int], channels: int, form: str) -> bytes:
    """Return an image of noise whose amplitude falls with the frequency, as in photographs."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(number)
    frequency = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1]))
    frequency[0, 0] = np.inf
    spectra = np.fft.rfft2(random.standard_normal((channels, *shape))) / frequency
    field = np.fft.irfft2(spectra, shape)
    levels = np.clip(128 + 40 * field / field.std(), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels[0] if channels == 1 else np.moveaxis(levels, 0, -1)).save(file, form)
    return file.getvalue()
