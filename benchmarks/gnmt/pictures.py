"""What a trained gnmt does, for people: translations, and where the decoder looks for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 3


@dataclass(frozen=True)
class Alignment:
    """A translation, its reference, and the attention, (target tokens, source tokens)."""

    source: Sequence[str]
    target: Sequence[str]
    attention: np.ndarray
    text: str
    reference: str


def draw_alignments(
    alignments: Sequence[Alignment], curve: Sequence[tuple[int, float]]
) -> "Figure":
    """Draw the attention of each translation, and BLEU over samples."""
    from matplotlib.figure import Figure

    count = len(alignments)
    figure = Figure(figsize=(4.4 * (count + 1), 5.2), layout="constrained")
    places = figure.subplots(1, count + 1)
    for place, one in zip(places, alignments, strict=False):
        place.imshow(one.attention, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        place.set_xticks(range(len(one.source)), one.source, rotation=60, ha="right")
        place.set_yticks(range(len(one.target)), one.target)
        place.set_title(f"{one.text}\nreference: {one.reference}", wrap=True)
    samples, bleu = zip(*curve, strict=True) if curve else ((), ())
    places[-1].plot(samples, bleu, marker="o", color="black")
    places[-1].set(xlabel="thousand sentence pairs trained", ylabel="BLEU", ylim=(0, 100))
    places[-1].set_xticks(samples, [f"{count / 1000:g}" for count in samples])
    figure.suptitle("What the decoder reads of the source (columns) for each token (rows)")
    return figure
