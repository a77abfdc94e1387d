"""What a trained gnmt does, for people: translations, and where the decoder looks for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from cepheid.reference.data.sentences.batches import END, Pairs, pad
from cepheid.reference.torch.translation.beam_search import shift
from cepheid.reference.torch.translation.sentences import Translation
from cepheid.reference.torch.workload import Inference, Result

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


def draw(shape: Translation, result: Result) -> "Figure":
    """Return a figure with the attention of some translations of middle length."""
    rows = result.data.sorted_rows
    middle = len(rows) // 2
    alignments = [align(result.inference, row) for row in rows[middle : middle + SHOWN].tolist()]
    curve = [(samples, metrics["bleu"]) for samples, metrics in result.curve]
    return draw_alignments(alignments, curve)


def align(inference: Inference, row: int) -> Alignment:
    """Translate the sentence of an evaluation row; return where the decoder looks for it."""
    pairs, network = inference.data.pairs, inference.network.module
    source = inference.to_device(pad(pairs, np.array([row])).source)
    target = [*inference(source)[0], END]
    before = shift(torch.tensor([target], device=source.device))
    memory = network.remember(source)
    _, attention, _ = network.decode(network.embedding(before.t()), memory, None)
    return Alignment(
        name_tokens(pairs, source[0].tolist()),
        name_tokens(pairs, target),
        attention[0].float().cpu().numpy(),
        pairs.text(target),
        pairs.references[row - pairs.train_samples],
    )


def name_tokens(pairs: Pairs, tokens: Sequence[int]) -> list[str]:
    """Return the text of each token."""
    return [pairs.text([token]) or ("END" if token == END else "·") for token in tokens]


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
