"""`cepheid run --dry-run`: what would be run, how long, on how much disk, and what is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from compliance.read import runlog
from reference import data
from reference.run.config import RunConfig
from reference.run.results import ResultFolder, weights_folder
from rules import evidence

BYTES_PER_PARAMETER = 12  # of the weights that are kept, with the two moments of Adam


def told(config: RunConfig, output: Path, count: int, present: list[int]) -> str:
    """The plan in words; nothing is run or written."""
    missing = sorted(set(range(count)) - set(present))
    folder = output / "results" / config.system / config.result_name
    seeds = ", ".join(str(config.for_run(index).seed) for index in missing)
    values = ", ".join(f"{key}={value}" for key, value in config.hyperparameters.items())
    lines = [
        f"result:  {folder} (submitter {config.submitter})",
        f"runs:    {len(present)} of {count} are there; to be made: {_listed(missing)}",
        f"seeds:   {seeds or 'none'} ({config.seed_origin})",
        f"values:  {values or 'none'}",
        f"data:    {_data(config)}",
        f"time:    {_time(config, folder, present, len(missing))}",
        f"disk:    {_disk(config, output, len(missing))}",
    ]
    lines += [f"refused: {why}" for why in refused_in_closed(config)]
    return "\n".join([*lines, "nothing was run, nothing was written"])


def there(output: Path, config: RunConfig) -> list[int]:
    """The runs of a result that have ended."""
    folder = output / "results" / config.system / config.result_name
    return ResultFolder(folder, folder).present() if folder.is_dir() else []


def refused_in_closed(config: RunConfig) -> Iterator[str]:
    """Every value that the closed division forbids, if the run is of that division (rule T12)."""
    if config.division != "closed":
        return
    for key, rule in config.definition.hyperparameters.items():
        value = config.hyperparameters[key]
        beside = None
        if isinstance(value, int | float):
            beside = rule.find_conflict(value, config.hyperparameters)
        problem = rule.find_problem(value) or beside
        if problem:
            yield f"{key}={value}: in the closed division it {problem} (rule T12)"


def _listed(missing: list[int]) -> str:
    return ", ".join(map(str, missing)) or "none"


def _data(config: RunConfig) -> str:
    where = data.folder(config.definition.data, config.data_root)
    if (where / "manifest.json").is_file():
        size = sum(path.stat().st_size for path in where.iterdir())
        return f"{where}, prepared, {size / 2**20:,.0f} MiB"
    name, scale = config.definition.name, config.definition.scale
    return f"{where}, not prepared yet; `cepheid data {name} --scale {scale}` does it beforehand"


def time_left(folder: Path, present: list[int], missing: int) -> str:
    """For so many runs, by those that are there, from the first record of each log to its last;
    empty where there are none."""
    logs = [runlog.read(folder / f"result_{index}.txt") for index in present]
    whole = [log.events for log in logs if log.events]
    seconds = [(events[-1].time_ms - events[0].time_ms) / 1000 for events in whole]
    if not seconds:
        return ""
    each = sum(seconds) / len(seconds)
    return (
        f"about {_rounded(missing * each)} ({missing} x {each:,.0f} s, as the runs that are there)"
    )


def _rounded(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def _time(config: RunConfig, folder: Path, present: list[int], missing: int) -> str:
    """By the runs that are there; else in samples, which is all that is known of this machine."""
    by_runs = time_left(folder, present, missing)
    if by_runs:
        return by_runs
    if config.definition.generation is not None:
        images = config.definition.generation.images
        return f"per run {images:,} images; in seconds, known after a first run"
    budget = config.definition.timing.max_samples
    measured = evidence.load(config.definition.name, config.definition.scale)
    usual = evidence.summarize_samples(measured, config.definition) if measured else None
    needs = f"the reference needs about {usual[1]:,}" if usual else "how many are needed is unknown"
    return f"per run at most {budget:,} samples, {needs}; in seconds, known after a first run"


def _disk(config: RunConfig, output: Path, missing: int) -> str:
    """Of the weights: logs and reports are small beside them, and all that generation leaves."""
    place = output
    while not place.exists():
        place = place.resolve().parent
    free = f"{shutil.disk_usage(place).free / 2**30:,.0f} GiB are free there"
    if config.definition.kind == "generate":
        return f"less than a MiB a run; {free}"
    parameters = config.definition.count_parameters(config.hyperparameters)
    mib = missing * parameters * BYTES_PER_PARAMETER / 2**20
    return f"about {mib:,.0f} MiB of weights in {weights_folder(output)}; {free}"
