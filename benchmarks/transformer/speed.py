"""How fast the reference is beside other networks of its size, and how fast it translates.

    python -m benchmarks.transformer.speed [--rounds N] [--data DIR]

The training step in float32 against ``torch.nn.Transformer`` (as ``cepheid measure speed``
does too), as the reference computes it and in one pass as the peer does, and against the
`MarianMTModel` of
`transformers` where that is installed; and the beam search with its cache against one that computes
the places of every hypothesis anew, and against one sentence at a time. The sides take turns in one
process, on the same sentences; tokens are counted without padding, and brackets hold the middle
half of the rounds.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.transformer import plain, task
from benchmarks.transformer.model import Transformer
from benchmarks.transformer.task import Translation
from reference import data
from reference.data.wmt.pairs import END, PADDING
from reference.data.wmt.sentence_batches import by_length, padded
from reference.measure.speed import Comparison, Timing, in_turns, step_seconds
from reference.run.config import RunConfig, configure
from reference.torch.distributed import TorchRanks
from rules import definition
from rules.definition import Block
from rules.errors import UserError

STEPS, SENTENCES = 3, 32
SETTINGS = ("precision=fp32", "compile=off")
ONE_PASS = "pass_tokens=32768"

Create = Callable[[RunConfig, TorchRanks], Translation]


def compared_steps(name: str, peer: Translation, ours: Translation, rounds: int) -> str:
    """A line about the training step of both on the same sentences."""
    peer.samples = ours.samples = 0
    counted = ours.tokens
    sides = {
        name: lambda: step_seconds(peer, STEPS),
        "reference": lambda: step_seconds(ours, STEPS),
    }
    compared = in_turns(name, rounds, sides)
    assert peer.samples == ours.samples
    return told(compared, (ours.tokens - counted) / (STEPS * (rounds + 1)))


def compared_decoding(
    name: str, work: Callable[[], object], ours: Callable[[], object], tokens: int, rounds: int
) -> str:
    """A line about the two ways to translate sentences, into so many tokens."""
    sides = {name: lambda: seconds_of(work), "reference": lambda: seconds_of(ours)}
    return told(in_turns(name, rounds, sides), tokens)


def told(compared: Comparison, tokens: float) -> str:
    """The ratio, and the tokens a second of either side."""

    def rate(timing: Timing) -> str:
        slowest, fastest = (tokens / seconds for seconds in timing.quartiles_seconds[::-1])
        middle = tokens / timing.median_seconds
        return f"{middle:,.0f} [{slowest:,.0f} to {fastest:,.0f}] tokens/s"

    ours, theirs = rate(compared.reference), rate(compared.baseline)
    return f"{compared.what}: {compared.ratio:.2f} times as fast; {ours} against {theirs}"


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ready(config: RunConfig, create: Create) -> Translation:
    """A task that can take steps."""
    made = create(config, TorchRanks(0, 1, torch.device("cpu")))
    made.build()
    made.warm_up()
    made.open_data()
    return made


@torch.no_grad()
def translated_anew(network: Transformer, source: Tensor, steps: int) -> Tensor:
    """``steps`` tokens of four hypotheses each, the likeliest token each time, without a cache.

    Sources are encoded once and only the last place gets logits, as in the search; what the search
    chooses is left out. Returns (4 · sentences, 1 + steps), END first.
    """
    hypotheses = torch.arange(len(source)).repeat_interleave(4)
    memory = network.remember(source).of(hypotheses)
    target = torch.full((len(hypotheses), 1), END)
    for _ in range(steps):
        last = network.decoded(target, memory)[:, -1:]
        target = torch.cat([target, network.logits(last).argmax(-1)], dim=1)
    return target


def measure(config: RunConfig, one_pass: RunConfig, rounds: int) -> None:
    """Print a line for each comparison."""
    ours, at_once = ready(config, task.create), ready(one_pass, task.create)
    torchs = ready(config, plain.create)
    print(f"training, a step of {config.global_batch_size} sentences", flush=True)
    print(compared_steps("torch.nn.Transformer", torchs, ours, rounds), flush=True)
    name = "torch.nn.Transformer, the reference in one pass too"
    print(compared_steps(name, torchs, at_once, rounds), flush=True)
    if importlib.util.find_spec("transformers"):
        marian = ready(config, plain.create_marian)
        print(compared_steps("MarianMTModel", marian, ours, rounds), flush=True)

    print("training one epoch: what an untrained network says ends at once", flush=True)
    ours.samples, train = 0, config.definition.train_samples
    ours.train(Block(1, 0, train), lambda samples: None)
    count = min(SENTENCES, config.definition.evaluation_samples)
    rows = by_length(ours.pairs, np.arange(train, train + count))
    source = torch.from_numpy(padded(ours.pairs, rows).source)
    ours.model.eval()
    lengths = [len(tokens) + 1 for tokens in ours._outputs(source)]  # END too
    print(f"decoding, {count} translations of {min(lengths)} to {max(lengths)} tokens", flush=True)
    ways: dict[str, Callable[[], object]] = {
        "without a cache, as many steps": lambda: translated_anew(ours.model, source, max(lengths)),
        "one sentence at a time": lambda: [
            ours._outputs(row[row != PADDING][None]) for row in source
        ],
    }
    search = partial(ours._outputs, source)
    for name, work in ways.items():
        print(compared_decoding(name, work, search, sum(lengths), rounds), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 3:
        raise UserError(f"--rounds {arguments.rounds}: expected 3 or more, for a spread")
    chosen = definition.load("transformer", "mini")
    data.prepare(chosen.data, arguments.data)
    config, one_pass = (
        configure(chosen, overrides=settings, data_root=arguments.data, seed=1)
        for settings in (SETTINGS, (*SETTINGS, ONE_PASS))
    )
    measure(config, one_pass, arguments.rounds)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:  # as the tools tell it, which nothing here may import
        print(f"cepheid: {error}", file=sys.stderr)
        raise SystemExit(2) from None
