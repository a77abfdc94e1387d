"""Train gnmt and transformer on the same sentences: `python -m cepheid.benchmarks.gnmt.comparison`.

The Transformer has its own mini network, batch size and rates; data and evaluations are gnmt's.
One thread. Seconds are those of the processor, which other work changes less than the clock.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cepheid.benchmarks.gnmt import task as gnmt
from cepheid.benchmarks.transformer import task as transformer
from cepheid.reference.run.config import configure
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.trainer import Trainer
from cepheid.rules import definition

SETTINGS = ("precision=fp32", "compile=off", "threads=1")


def main() -> None:
    """Print quality and seconds after each evaluation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--data", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    ours = definition.load("gnmt", "mini")
    theirs = definition.load("transformer", "mini")
    theirs = replace(theirs, data=ours.data, timing=ours.timing)
    for seed in arguments.seeds:
        both: Any = ((gnmt, ours), (transformer, theirs))
        for module, chosen in both:
            config = configure(chosen, overrides=SETTINGS, data_root=arguments.data, seed=seed)
            task = Trainer(module.WORKLOAD, config, TorchRanks(0, 1, torch.device("cpu")))
            task.build()
            task.open_data()
            start = time.process_time()
            for block in chosen.schedule(config.global_batch_size):
                task.train(block, lambda samples: None)
                bleu, seconds = task.evaluate()["bleu"], time.process_time() - start
                print(
                    f"{chosen.name}, seed {seed}: {block.samples:,} pairs, {bleu:.1f} BLEU, "
                    f"{seconds:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
