"""Train galaxy_vae far beyond its targets, for the weights that generation publishes.

    python -m cepheid.benchmarks.galaxy_generation.training [--scale full]
        [--samples 240000] [--seed 1] [--set KEY=VALUE] [--store float16]

A run of the benchmark ends when it reaches its targets; here the learning rates decay over all
``--samples``. All else follows the definition of galaxy_vae. After each block the state is kept, so
that the same command goes on where it was interrupted. Writes ``weights/<scale>.safetensors`` and
prints the digest for ``benchmark.yaml``.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cepheid.benchmarks.galaxy_generation import weights
from cepheid.benchmarks.galaxy_vae.task import WORKLOAD
from cepheid.reference.data import generators
from cepheid.reference.run import checkpoint
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.reference.torch.trainer import Trainer
from cepheid.rules import definition
from cepheid.rules.errors import UserError, run_script

DATA = Path("data")
STATES = Path("results", "galaxy_generation-weights")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python -m cepheid.benchmarks.galaxy_generation.training",
        description=__doc__.partition("\n\n")[0],
    )
    add = parser.add_argument
    add("--scale", default="mini", choices=("mini", "full"))
    add("--samples", type=int, default=240_000, help="default: %(default)s")
    add("--seed", type=int, default=1, help="default: %(default)s")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of galaxy_vae, as for `cepheid run`",
    )
    add("--data", type=Path, default=DATA, metavar="DIR", help="default: %(default)s")
    add(
        "--states",
        type=Path,
        default=STATES,
        metavar="DIR",
        help="where the state of an unfinished training is kept (default: %(default)s)",
    )
    weights.add_store_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print the quality after each block, and write the file."""
    arguments = make_parser().parse_args(argv)
    config = _configure(arguments)
    kept = arguments.states / f"{arguments.scale}-{arguments.samples}-{arguments.seed}.pt"
    console = Console(highlight=False, soft_wrap=True)
    chosen = config.definition
    made_with = {"definition_digest": chosen.digest, "settings": arguments.set}
    generators.prepare(chosen.data, arguments.data)
    with start_ranks() as ranks:
        task = Trainer(WORKLOAD, config, ranks)
        task.build()
        task.warm_up()
        task.open_data()
        if kept.is_file():
            state = checkpoint.load(kept)
            if {key: state.pop(key, None) for key in made_with} != made_with:
                raise UserError(
                    f"{kept}: the state of a training by another definition or with another --set; "
                    "fix: move it away, or give another folder with --states"
                )
            task.restore(state)
            console.print(f"{task.samples:>9,} samples  taken up from {kept}")
        for block in chosen.schedule(config.global_batch_size):
            if block.samples <= task.samples:
                continue
            task.train(block, lambda samples: None)
            quality = task.evaluate()
            metrics = "  ".join(
                f"{target.metric} {quality[target.metric]:.3f}" for target in chosen.quality
            )
            console.print(f"{block.samples:>9,} samples  {metrics}")
            if ranks.rank == 0:
                checkpoint.save(kept, {**task.state(), **made_with})
        if ranks.rank == 0:
            weights.write_weights(arguments.scale, task.state()["model"], arguments.store)
    return 0


def _configure(arguments: argparse.Namespace) -> RunConfig:
    """Return the configuration of galaxy_vae with a longer decay and budget."""
    chosen = definition.load("galaxy_vae", arguments.scale)
    timing = dataclasses.replace(chosen.timing, max_samples=arguments.samples)
    longer = dataclasses.replace(chosen, timing=timing)
    decay = f"opt_learning_rate_decay_samples={arguments.samples}"
    settings = [decay, *arguments.set]
    return configure(longer, overrides=settings, data_root=arguments.data, seed=arguments.seed)


if __name__ == "__main__":
    run_script(main)
