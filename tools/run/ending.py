"""The last lines of `cepheid run`: what the number is, what it compares with, what comes next."""

from collections.abc import Iterator
from pathlib import Path

from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from cepheid.rules.layout import wrap
from cepheid.tools.run.costs import Reference, find_reference, has_accelerators


def describe_end(chosen: Definition, result: Path, output: Path, required: int) -> str:
    """Return the lines for a result folder of which some runs are there; "" where none is."""
    paths = sorted(result.glob("result_*.txt"), key=lambda path: path.stat().st_mtime)
    if not paths:
        return ""
    log = runlog.read(paths[-1])
    kind = has_accelerators(output, result.parent.name)
    ours = find_reference(chosen, on_accelerators=kind, other_than=result)
    lines = [
        f"{chosen.name}, {chosen.scale} scale: {len(paths)} of {required} runs",
        *_list_lines(chosen, log, ours),
        *_list_next(paths, output, required),
        f"about it: {_find_page(chosen)}",
    ]
    return wrap("\n".join(["", *lines]))


def _list_lines(chosen: Definition, log: RunLog, reference: Reference | None) -> Iterator[str]:
    if log.seconds is None:
        return
    outcome = "reached" if log.converged else "missed"
    samples = f" and {log.samples_trained:,} samples" if log.samples_trained else ""
    yield f"this run: {log.seconds:,.1f} s{samples}; the targets were {outcome}"
    if log.quality_curve:
        metrics = log.quality_curve[-1].metrics
        for target in chosen.quality:
            value, unit = metrics.get(target.metric), chosen.units.get(target.metric, "")
            meaning = chosen.meanings.get(target.metric, "")
            if value is not None:
                said = f"{target.metric}: {value:.4g} {unit}".rstrip()
                yield f"{said}, target {target.target:g}" + (f" ({meaning})" if meaning else "")
    if reference:
        ratio = log.seconds / reference.seconds
        yield (
            f"compare: our reference took {reference.seconds:,.1f} s on {reference.system}, the "
            f"median of {reference.runs} runs; this run took {ratio:.2f} times as long"
        )


def _list_next(paths: list[Path], output: Path, required: int) -> Iterator[str]:
    missing = required - len(paths)
    more = f"the same command with --runs +1 makes one run more, {missing} give a score"
    yield f"next: {more}" if missing > 0 else f"next: `cepheid summary {output}`"
    yield f"see: `cepheid leaderboard {output}` draws curves and pictures as pages"


def _find_page(chosen: Definition) -> str:
    path = ROOT / "benchmarks" / chosen.name / "README.md"
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
