"""Train galaxy_vae far beyond its targets, for the weights that generation publishes.

    python -m benchmarks.galaxy_generation.training [--samples 240000] [--seed 1] [--data DIR]

A run of the benchmark ends when it reaches its targets; here the learning rates decay over all
``--samples``. All else follows the definition of galaxy_vae. Writes ``weights/<scale>.safetensors``
and prints the digest for ``benchmark.yaml``.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.galaxy_generation import weights
from benchmarks.galaxy_vae import task as galaxy_vae
from reference import data
from reference.run.config import configure
from reference.torch.distributed import start_ranks
from rules import definition
from rules.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print the quality after each block, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.galaxy_generation.training")
    parser.add_argument("--scale", default="mini", choices=("mini", "full"))
    parser.add_argument("--samples", type=int, default=240_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR")
    arguments = parser.parse_args(argv)
    chosen = definition.load("galaxy_vae", arguments.scale)
    timing = dataclasses.replace(chosen.timing, max_samples=arguments.samples)
    longer = dataclasses.replace(chosen, timing=timing)
    decay = f"opt_learning_rate_decay_samples={arguments.samples}"
    config = configure(longer, overrides=[decay], data_root=arguments.data, seed=arguments.seed)
    console = Console(highlight=False, soft_wrap=True)
    data.prepare(longer.data, arguments.data)
    with start_ranks() as ranks:
        task = galaxy_vae.create(config, ranks)
        task.build()
        task.warm_up()
        task.open_data()
        for block in longer.schedule(config.global_batch_size):
            task.train(block, lambda samples: None)
            quality = task.evaluate()
            metrics = "  ".join(
                f"{target.metric} {quality[target.metric]:.3f}" for target in longer.quality
            )
            console.print(f"{block.samples:>9,} samples  {metrics}")
        if ranks.rank == 0:
            weights.write_weights(arguments.scale, task.state()["model"])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"cepheid: {error}", file=sys.stderr)
        sys.exit(2)
