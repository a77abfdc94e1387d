"""`cepheid measure sweep --quality`: what a network learns at each batch size."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.measure.studies.sweep.quality import DECAY, QualityJob
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE

if TYPE_CHECKING:
    from cepheid.measure.studies.sweep.quality import QualityPoint, QualitySweep


def sweep_quality(
    definition: Definition,
    arguments: argparse.Namespace,
    sizes: Sequence[int],
    seeds: Sequence[int],
    output: Path,
) -> int:
    """Train what is missing, print a table, write tables and figure."""
    from cepheid.measure.engine import own_process
    from cepheid.measure.engine.recorded_points import measure_missing
    from cepheid.measure.studies.sweep import quality
    from cepheid.measure.studies.sweep.quality_figure import draw_quality
    from cepheid.tools.console.terminal import Terminal

    samples = arguments.samples or _find_samples(definition)
    if max(sizes) > samples:
        raise UserError(
            f"--batch-sizes: {max(sizes):,} is more than the {samples:,} samples of each training; "
            "fix: leave it out, or give more --samples"
        )
    jobs = [
        QualityJob(
            definition.name,
            definition.scale,
            arguments.framework,
            size,
            seed,
            samples,
            tuple(arguments.overrides),
            arguments.data,
        )
        for seed in seeds
        for size in sizes
    ]
    terminal = Terminal()
    configuration = quality.prepare_quality(definition, jobs[0], terminal)
    failed = []
    for seed, folder in quality.open_folders(output, configuration, seeds).items():
        failed += measure_missing(
            [job for job in jobs if job.seed == seed],
            folder,
            lambda job: own_process.run_alone(train_on_terminal, job),
            terminal,
            _describe_point,
        )
    points = quality.load_all(output)
    if points:
        sweep = quality.QualitySweep(configuration, points)
        quality.write_tables(output, sweep)
        draw_quality(output / "quality.png", definition, sweep)
        terminal.tell(f"\n{_format_table(sweep)}\n")
        for name in ("quality.json", "quality.csv", "quality.png"):
            terminal.tell(f"written: {output / name}")
    return EXIT_FINDINGS if terminal.tell_failed(failed) else EXIT_FINE


def train_on_terminal(job: QualityJob) -> "QualityPoint":
    """Train in this process, which was started for it."""
    from cepheid.measure.studies.sweep.quality import train_once
    from cepheid.tools.console.terminal import Terminal

    return train_once(job, Terminal())


def _find_samples(definition: Definition) -> int:
    """Return the samples over which the learning rate decays by default, else the budget."""
    decay = definition.hyperparameters.get(DECAY)
    return int(decay.default) if decay and decay.default else definition.timing.max_samples


def _describe_point(point: "QualityPoint") -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in point.quality.items())
    return f"{values} after {point.samples:,} samples, {point.seconds:.0f} s"


def _format_table(sweep: "QualitySweep") -> str:
    """Return a line for each batch size: the median over the seeds, and the range."""
    from tabulate import tabulate

    from cepheid.measure.studies.sweep.quality import describe_spread

    rows = []
    for size in sweep.sizes:
        seeds = len(sweep.list_values(sweep.metrics[0], size))
        row = {"batch size": str(size), "seeds": str(seeds)}
        for metric in sweep.metrics:
            row[metric] = describe_spread(sweep.list_values(metric, size))
        rows.append(row)
    return tabulate(rows, headers="keys", disable_numparse=True)
