"""The plan of `cepheid run --dry-run`: which runs, how long, how much disk, and what is refused."""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cepheid.reference.data import generators
from cepheid.reference.run.config import RunConfig, find_variant_problems
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.session.result_folder import (
    ResultFolder,
    find_obstacles,
    find_result_folder,
    find_weights_folder,
)
from cepheid.reference.session.session import Session
from cepheid.rules import definition, evidence
from cepheid.rules.errors import UserError
from cepheid.tools.run.costs import (
    describe_bytes,
    describe_disk,
    describe_minutes,
    find_disk,
    find_existing,
    find_reference,
)
from cepheid.tools.run.preparing import describe_preparation

BYTES_PER_PARAMETER = 12  # of the weights that are kept, with the two moments of Adam


@dataclass(frozen=True)
class Plan:
    """What `cepheid run` would do. Nothing is run or written."""

    config: RunConfig
    output: Path
    count: int  # runs in all
    device: str
    ranks: str = ""  # that are planned for
    refusals: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def folder(self) -> ResultFolder:
        """The result folder, which need not exist."""
        return find_result_folder(self.output, self.config)

    def describe(self) -> str:
        """Return the plan as text."""
        config, missing = self.config, self.folder.missing(self.count)
        seeds = ", ".join(str(config.select_run(index).seed) for index in missing)
        values = ", ".join(f"{key}={value}" for key, value in config.hyperparameters.items())
        present = f"{len(self.folder.present())} of {self.count} are present"
        end = "after all repetitions and their evaluation"
        if config.definition.kind == "train":
            end = f"at {evidence.describe_end(config.definition)}"
        lines = [
            f"result:  {self.folder.path} (submitter {config.submitter})",
            f"runs:    {present}; missing: {', '.join(map(str, missing)) or 'none'}",
            f"seeds:   {seeds or 'none'} ({config.seed_origin})",
            f"values:  {values or 'none'}",
            f"end:     {end}",
            f"device:  {self.device}",
            f"data:    {self._describe_data()}",
            f"time:    {self.folder.estimate_time(len(missing)) or self._describe_samples()}",
            f"disk:    {self._describe_disk(len(missing))}",
        ]
        lines[2:2] = [f"ranks:   {self.ranks}"] if self.ranks else []
        lines += [f"note:    {note}" for note in self.notes]
        lines += [f"refused: {why}" for why in self.refusals]
        return "\n".join([*lines, "This is a dry run: nothing was run, nothing was written."])

    def _describe_data(self) -> str:
        try:
            folder = generators.folder(self.config.definition.data, self.config.data_root)
        except UserError:  # among the refusals
            return "cannot be prepared"
        if (folder / "manifest.json").is_file():
            size = sum(path.stat().st_size for path in folder.iterdir())
            return f"{folder}, prepared, {describe_bytes(size)}"
        chosen = self.config.definition
        usual = definition.load(chosen.name, chosen.scale).data
        settings = [
            f" --set {key}={chosen.data[key]}"
            for key in chosen.variants
            if key in usual and chosen.data[key] != usual[key]
        ]
        if chosen.data.get("is_subset"):
            settings.append(f" --limit {chosen.train_samples}")
        command = f"cepheid data {chosen.name} --scale {chosen.scale}{''.join(settings)}"
        free = shutil.disk_usage(find_existing(folder)).free / 1e9
        room = f"about {describe_disk(chosen)} GB, {free:,.0f} GB are free"
        how_long = describe_preparation(chosen)
        said = f"{folder}, not prepared yet ({room}); `{command}` prepares it"
        return f"{said}; {how_long}" if how_long else said

    def _describe_samples(self) -> str:
        """Describe a run in samples, because no run has shown yet how fast this machine is."""
        chosen = self.config.definition
        unknown = "the first run shows how long that takes"
        if reference := find_reference(chosen):
            minutes = f"{describe_minutes(reference)} min on {reference.system}"
            unknown = f"our reference took {minutes}; {unknown}"
        if chosen.generation is not None:
            return f"per run {chosen.generation.images:,} images; {unknown}"
        usual = evidence.find_usual_samples(chosen)
        needed = f", of which the reference needs about {usual:,}" if usual else ""
        return f"per run at most {chosen.timing.max_samples:,} samples{needed}; {unknown}"

    def _describe_disk(self, missing: int) -> str:
        """Describe the space for the weights, beside which logs and reports are small."""
        free = shutil.disk_usage(find_existing(self.output)).free
        there = f"{describe_bytes(free)} are free there"
        weights = _count_weight_bytes(self.config, missing)
        if not weights:
            return f"less than 1 MB per run; {there}"
        folder = find_weights_folder(self.output)
        return f"about {describe_bytes(weights)} of weights in {folder}; {there}"


def _count_weight_bytes(config: RunConfig, runs: int) -> int:
    """Return the bytes of the weights of so many runs; of generation nothing is kept."""
    if config.definition.kind == "generate":
        return 0
    return runs * config.definition.count_parameters(config.hyperparameters) * BYTES_PER_PARAMETER


def _find_places(config: RunConfig, output: Path, runs: int) -> Iterator[str]:
    """Yield why the data or the weights would not fit, or could not be written, where they go."""
    disk = find_disk(config.definition)
    try:
        is_prepared = generators.folder(config.definition.data, config.data_root).exists()
    except UserError:  # among the refusals
        is_prepared = True
    places: list[tuple[str, Path, float, str]] = []
    if not is_prepared:
        places.append(("--data", config.data_root, disk[1] * 1e9 if disk else 0, "the data"))
    places.append(("--output", output, _count_weight_bytes(config, runs), "weights and logs"))
    for option, place, size, what in places:
        there = find_existing(place)
        usage = shutil.disk_usage(there)
        if not os.access(there, os.W_OK) or not usage.total:
            yield f"{option} {place}: {there} cannot be written; fix: give another folder"
        elif usage.free < size:
            yield (
                f"{option} {place}: about {describe_bytes(size)} are needed for {what} and "
                f"{describe_bytes(usage.free)} are free; fix: give a folder on a larger disk"
            )


def plan(session: Session, division: str) -> Plan:
    """Plan the runs of a session, and find everything that they would refuse."""
    config, request = replace(session.config, division=division), session.request
    count = request.wanted.count(len(find_result_folder(request.output, config).present()))
    refusals: list[str] = list(_find_all(session, config, count))
    notes: Sequence[str] = request.notes
    if not any(find_refusals(config)):  # a task may not know a value that the division forbids
        try:
            task = find_create(session.task_module)(config, session.ranks)
            notes = [*notes, *getattr(task, "list_notes", tuple)()]  # own code may have none
        except UserError as error:
            if str(error) not in refusals:
                refusals.append(str(error))
    ranks = _describe_ranks(session)
    return Plan(config, request.output, count, session.device, ranks, refusals, notes)


def _find_all(session: Session, config: RunConfig, count: int) -> Iterator[str]:
    """Yield what the closed division, the folder and the data would refuse."""
    yield from find_refusals(config)
    if problem := session.find_other_machine():
        yield problem
    runs = len(find_result_folder(session.request.output, config).missing(count))
    yield from _find_places(config, session.request.output, runs)
    yield from find_obstacles(session.request.output, config, session.system, session.list_code())
    problem = generators.find_problem(config.definition.data, config.data_root)
    if problem:
        yield problem


def _describe_ranks(session: Session) -> str:
    request = session.request
    if not request.planned_ranks:
        return ""
    nodes = -(-request.planned_ranks // request.planned_ranks_per_node)
    schedule = session.config.definition.generation
    if schedule is not None:
        most = max(schedule.counts)
        share, rest = divmod(most, request.planned_ranks)
        what = f"{share:,}{' or one more' if rest else ''} of the {most:,} images"
    else:
        batch = session.config.global_batch_size
        what = f"{session.ranks.split_batch(batch):,} of the {batch:,} samples of a batch"
    where = "" if request.system else "; --system is missing, so this machine was described"
    on = f"{nodes} node" if nodes == 1 else f"{nodes} nodes"
    return f"{request.planned_ranks} on {on}, each {what}{where}"


def find_refusals(config: RunConfig) -> Iterator[str]:
    """Yield every value that the closed division forbids, if the run is in it (rule T12)."""
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
    yield from find_variant_problems(config.definition, config.execution)
