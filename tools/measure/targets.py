"""`cepheid measure targets`: measure that targets separate correct from broken implementations."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference.run.frameworks import import_task
from rules import definition, evidence
from rules.evidence import Evidence
from tools.arguments import add_data_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool
from tools.measure.measuring import Training, measured

DESCRIPTION = """\
Train the reference with several seeds and every broken variant (shuffled labels, frozen weights, …)
to the full budget, and record the quality curves in benchmarks/<name>/evidence.json. A benchmark
that generates does so with each of them, and is judged once a run. The tests accept a benchmark's
targets only with such evidence for the very definition they belong to. What is recorded for this
definition is not measured again.
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid measure targets`."""
    made = command_parser(
        "measure targets",
        DESCRIPTION,
        "example: cepheid measure targets galaxy_shape --scale mini",
    )
    add = made.add_argument
    add("benchmark", help="which benchmark")
    add("--scale", default="mini", help="mini (default) or full")
    add(
        "--seeds",
        type=int,
        metavar="N",
        help="seeds 1 … N of the correct model (default: 10 at mini, 5 at full scale)",
    )
    add(
        "--broken-seeds",
        type=int,
        default=2,
        metavar="N",
        help="seeds 1 … N of each broken variant (default: %(default)s)",
    )
    add_data_option(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing; exit code 1 if the targets do not hold what they promise."""
    arguments = parser().parse_args(argv)
    chosen = definition.load(arguments.benchmark, arguments.scale)
    task = import_task(chosen, "torch")
    variants = importlib.import_module(f"benchmarks.{chosen.name}.broken").VARIANTS
    seeds = arguments.seeds or evidence.CORRECT_SEEDS_REQUIRED[chosen.scale]
    wanted = [("correct", task.create, seed) for seed in range(1, seeds + 1)]
    wanted += [
        (name, create, seed)
        for name, create in variants.items()
        for seed in range(1, arguments.broken_seeds + 1)
    ]
    recorded = _measured(chosen, wanted, arguments.data)
    for line in _summary(recorded, chosen):
        print(line)
    problems = evidence.problems(recorded, chosen, tuple(variants))
    for problem in problems:
        print(f"problem: {problem}")
    return EXIT_FINDINGS if problems else EXIT_FINE


def _measured(
    chosen: definition.Definition, wanted: list[tuple[str, Any, int]], data_root: Path
) -> Evidence:
    """The evidence on record, completed run by run; each one is saved as soon as it is there."""
    from reference.run.config import configure

    before = evidence.load(chosen.name, chosen.scale)
    recorded = before or Evidence(chosen.digest, {}, ())
    is_ours = before is not None and before.definition_digest == chosen.digest
    curves = list(recorded.curves) if is_ours else []
    have = {(curve.variant, curve.seed) for curve in curves}
    missing = [
        Training(
            f"{variant}, seed {seed}",
            variant,
            create,
            configure(chosen, seed=seed, data_root=data_root),
        )
        for variant, create, seed in wanted
        if (variant, seed) not in have
    ]
    for _, curve, measured_on in measured(chosen, missing, data_root):
        curves.append(curve)
        recorded = Evidence(chosen.digest, measured_on, tuple(curves))
        evidence.save(chosen.name, chosen.scale, recorded)
    return recorded


def _summary(recorded: Evidence, chosen: definition.Definition) -> list[str]:
    """One line per run: samples to target, or the best of each metric that was reached instead."""
    lines = []
    counted = "samples" if chosen.kind == "train" else "images"
    for curve in recorded.curves:
        samples = curve.samples_to_target(chosen)
        best = [
            f"{target.metric} {(min if target.better == 'lower' else max)(values):.4f}"
            for target in chosen.quality
            if (values := [quality[target.metric] for _, quality in curve.evaluations])
        ]
        reached = f"reached after {samples:,} {counted}" if samples else "never reached"
        lines.append(
            f"{curve.variant:<22} seed {curve.seed:<3} {reached:<30} best: {', '.join(best)}"
            f"  {curve.seconds:.0f} s"
        )
    usual = evidence.samples_to_target(recorded, chosen)
    if usual and chosen.kind == "train":
        lines.append(
            f"samples to target: fewest {usual[0]:,}, median {usual[1]:,}, most {usual[2]:,}"
        )
    return lines


if __name__ == "__main__":
    run_tool(main)
