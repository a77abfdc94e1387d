"""Make some of a log's judged images again, with the reference and its weights (rule T24).

A closed log has one number for each judged image: its projection on a direction that follows from
the seed. The noise of the images follows from the seed too, and the weights are the definition's,
so anybody can compute any of them again. The numbers themselves choose which: after they were
logged it was too late to choose. Images of other noise differ by a fifth of their norm or more,
those of another precision by a hundredth.
"""

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.tools.audit.comparison import Verdict

WHAT = "judged images"
MADE_AGAIN = 20
DIFFERENCE_MAX = 0.05  # of the norm of an image
PLAINLY = ("precision=fp32", "compile=off")


def choose_images(projections: Sequence[float]) -> list[int]:
    """Return the numbers of the images that are made again, by the digest of all projections."""
    digest = hashlib.sha256(json.dumps(list(projections)).encode()).hexdigest()
    made = min(MADE_AGAIN, len(projections))
    return random.Random(digest).sample(range(len(projections)), made)


def judge_images(logged: RunLog, chosen: Definition, data_root: Path) -> Iterator[Verdict]:
    """Judge the images of a closed run that generates; nothing for any other run."""
    if chosen.generation is None or logged.text("submission_division") != "closed":
        return
    projections, seed = logged.value("image_projections"), logged.value("seed")
    if not isinstance(projections, list) or not isinstance(seed, int):
        yield Verdict(WHAT, False, "the log has no image_projections")
        return
    rows = choose_images(projections)
    difference = measure_difference(projections, rows, seed, chosen, data_root)
    found = f"{len(rows)} of {len(projections):,} made again differ by at most {difference:.3f} "
    allowed = f"of their norm, {DIFFERENCE_MAX:g} is allowed"
    yield Verdict(WHAT, difference <= DIFFERENCE_MAX, found + allowed)


def measure_difference(
    projections: Sequence[float],
    rows: Sequence[int],
    seed: int,
    chosen: Definition,
    data_root: Path,
) -> float:
    """Return the largest difference of images that are made again, in units of their norms."""
    import numpy as np
    import torch

    from cepheid.benchmarks.registry import import_task
    from cepheid.reference.run.config import configure
    from cepheid.reference.torch.ranks.distributed import TorchRanks

    assert chosen.generation is not None
    config = configure(chosen, overrides=PLAINLY, seed=seed, data_root=data_root)
    ranks = TorchRanks(0, 1, torch.device("cpu"))
    maker = import_task(chosen, "torch").WORKLOAD.make(config, ranks)
    maker.build()
    count, repetition = chosen.generation.counts[-1], chosen.generation.repetitions[-1] - 1
    latents = maker.sample(count, repetition)[list(rows)]
    images = maker.decode(latents)
    again = np.array(maker.project(images))
    norms = np.sqrt(np.square(np.asarray(images)).reshape(len(rows), -1).sum(1))
    away = np.abs(np.array([projections[row] for row in rows]) - again) / norms.clip(1e-9)
    return float(away.max())
