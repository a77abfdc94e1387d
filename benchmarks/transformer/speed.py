"""How fast the reference is beside other networks of its size, and how fast it translates.

    python -m benchmarks.transformer.speed [--rounds N] [--data DIR]

The training step in float32 against ``torch.nn.Transformer`` (what ``cepheid speed`` does too) and
against the `MarianMTModel` of `transformers` where that is installed; and the beam search with its
cache against one that computes every hypothesis anew, and against one sentence at a time. The sides
take turns in one process.
"""

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.transformer import plain, task
from benchmarks.transformer.model import Transformer
from benchmarks.transformer.task import Translation
from reference import data
from reference.config import RunConfig, configure
from reference.data.sentence_batches import by_length, padded
from reference.data.wmt import END, PADDING
from reference.distributed import Ranks
from reference.speed import in_turns, step_seconds
from rules import definition
from rules.definition import Block

STEPS, SENTENCES = 3, 32


def ready(config: RunConfig, create: Callable[[RunConfig, Ranks], Translation]) -> Translation:
    """A task that can take steps."""
    made = create(config, Ranks(0, 1, torch.device("cpu")))
    made.build()
    made.warm_up()
    made.open_data()
    return made


@torch.no_grad()
def translated_anew(network: Transformer, source: Tensor, steps: int) -> Tensor:
    """As many steps of four hypotheses each, the likeliest token each time, without a cache: what
    the search computes is paid for, what it chooses is left out."""
    source = source.repeat_interleave(4, 0)
    target = torch.full((len(source), 1), END)
    for _ in range(steps):
        padded_target = torch.nn.functional.pad(target[:, 1:], (0, 1), value=PADDING)
        logits = network(source, padded_target)
        target = torch.cat([target, logits[:, -1:].argmax(-1)], dim=1)
    return target


def steps(config: RunConfig, rounds: int) -> None:
    """Print the ratios of the training step."""
    ours = ready(config, task.create)
    peers: dict[str, Callable[[RunConfig, Ranks], Translation]] = {
        "torch.nn.Transformer": plain.create
    }
    if importlib.util.find_spec("transformers"):
        peers["MarianMTModel"] = plain.create_marian
    for name, create in peers.items():
        peer = ready(config, create)
        compared = in_turns(
            f"step of {config.global_batch_size} sentences",
            rounds,
            {
                name: lambda peer=peer: step_seconds(peer, STEPS),  # type: ignore[misc]
                "reference": lambda: step_seconds(ours, STEPS),
            },
        )
        print(f"{name}: {compared.ratio:.2f} times as fast; {compared.as_json()}", flush=True)


def decoding(config: RunConfig, rounds: int) -> None:
    """Print the ratios of translating."""
    import time

    ours = ready(config, task.create)
    train = config.definition.train_samples
    print("training one epoch: what an untrained network says ends at once", flush=True)
    ours.train(Block(1, 0, train), lambda samples: None)
    rows = by_length(ours.pairs, np.arange(train, train + SENTENCES))
    source = torch.from_numpy(padded(ours.pairs, rows).source)
    ours.model.eval()
    lengths = [len(tokens) for tokens in ours._outputs(source)]
    print(f"{SENTENCES} translations of {min(lengths)} to {max(lengths)} tokens", flush=True)

    def seconds(work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    sides: Mapping[str, Callable[[], object]] = {
        "without a cache": lambda: translated_anew(ours.model, source, max(lengths)),
        "one sentence at a time": lambda: [
            ours._outputs(row[row != PADDING][None]) for row in source
        ],
    }
    for name, work in sides.items():
        compared = in_turns(
            f"{SENTENCES} sentences",
            rounds,
            {
                name: lambda work=work: seconds(work),  # type: ignore[misc]
                "reference": lambda: seconds(lambda: ours._outputs(source)),
            },
        )
        print(f"{name}: {compared.ratio:.2f} times as fast; {compared.as_json()}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--data", type=Path, default=Path("data"))
    arguments = parser.parse_args(argv)
    chosen = definition.load("transformer", "mini")
    data.prepare(chosen.data, arguments.data, lambda done, total: None)
    settings = ["precision=fp32", "compile=off"]
    config = configure(chosen, overrides=settings, data_root=arguments.data, seed=1)
    steps(config, arguments.rounds)
    decoding(config, arguments.rounds)


if __name__ == "__main__":
    main()
