"""Many results, to measure the site by: ``python -m tests.compliance.many 2000 DIR``."""

import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from cepheid.rules import definition
from cepheid.rules.definition import Definition
from tests.compliance.builder import SYSTEM, Record, delay, keep_relations, run_records, write_log

BENCHMARKS = ("galaxy_shape", "galaxy_bnn")
PER_SUBMITTER = 100


def write_many(root: Path, count: int, mini: Sequence[Definition] = ()) -> Path:
    """``count`` results with all their runs at mini scale, each with values and times of its own.

    Some results of galaxy_shape reach their targets sooner than the reference can, so that they are
    rejected.
    """
    mini = mini or [definition.load(name, "mini") for name in BENCHMARKS]
    for number in range(count):
        division = "closed" if number % 3 else "open"
        _write(root, mini[number % len(mini)], number // len(mini), division)
    return root


def _write(root: Path, asked: Definition, number: int, division: str) -> None:
    who = f"submitter{number // PER_SUBMITTER}"
    accelerators = 2 ** (number % 8)
    system = {
        **SYSTEM, "submitter": who, "system": f"system{number}",
        "accelerator": f"Example {'ABCD'[number % 4]}100", "accelerators_per_node": accelerators,
    }  # fmt: skip
    folder = root / who / "results" / f"system{number}" / f"{asked.name}-mini-{division}"
    # 10 are too few in galaxy_shape, 11 just enough in galaxy_bnn.
    blocks = {"galaxy_shape": 10}.get(asked.name, 11) + number % 5
    for index in range(asked.runs.required):
        block_ms = 20_000 / accelerators**0.9 + 10 * ((number * 7 + index * 13) % 101)
        records = run_records(
            asked, index, blocks=blocks, division=division, block_ms=block_ms, system=system
        )
        vary(asked, records, random.Random(f"{who} {number} {asked.name} {division} {index}"))
        write_log(folder / f"result_{index}.txt", records)
    description = root / who / "systems" / f"system{number}.json"
    description.parent.mkdir(parents=True, exist_ok=True)
    description.write_text(json.dumps(system), encoding="utf-8")


def vary(asked: Definition, records: list[Record], noise: random.Random) -> None:
    delay_ms = 0.0
    # Distances from the targets vary, so that a run that reached them still does.
    targets = {target.metric: target.target for target in asked.quality}
    for record in records:
        metadata = record["metadata"]
        if "metrics" in metadata:
            varied = {}
            for name, value in metadata["metrics"].items():
                origin = targets.get(name, 0.0)
                value = origin + (value - origin) * (1 + noise.uniform(-0.1, 0.1))
                lowest, highest = asked.bounds.get(name, (-math.inf, math.inf))
                varied[name] = min(max(value, lowest), highest)
            metadata["metrics"] = keep_relations(asked, varied)
            record["value"] = next(iter(metadata["metrics"].values()))
        if "train_loss" in metadata:
            metadata["train_loss"] *= 1 + noise.uniform(-0.1, 0.1)
            delay_ms += noise.uniform(0, 1000)
        delay([record], delay_ms)


if __name__ == "__main__":
    write_many(Path(sys.argv[2]), int(sys.argv[1]))
