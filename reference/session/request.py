"""What a user asks of a session. It needs no framework, so that wrong use is found at once.

Round v1.0 still accepts keys of ``--set`` that became one key or moved to a study, with a note:
command lines of CI and of submitters' ``run.sh`` have them, and logs that `cepheid audit` repeats.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError


@dataclass(frozen=True)
class WantedRuns:
    """The number of runs that a result shall have: in all, or so many more than there are."""

    required: int  # for a score
    number: int
    is_additional: bool = False

    def count(self, present: int) -> int:
        """Return the number in all, given how many runs are present."""
        if self.is_additional:
            return min(present + self.number, max(self.required, present))
        return self.number


@dataclass(frozen=True)
class Request:
    """What a session shall do: runs of one configuration, and where they leave their logs."""

    config: RunConfig  # of run 0, without the name of the system
    output: Path
    wanted: WantedRuns
    submitter: str = "local"
    system: Mapping[str, Any] | None = None  # a description; None: this machine is described
    task_module: str = ""  # the name of the module with the reference's task
    own_task: Path | None = None  # the file of a submitter's task, which takes its place
    planned_ranks: int = 0  # of a plan for another machine; 0: the ranks that were started
    planned_ranks_per_node: int = 1
    notes: tuple[str, ...] = ()  # for the user, on keys that were given under an old name
    is_continued: bool = False  # an earlier process made the run before


Texts = Mapping[str, str]


def replace_old_keys(
    overrides: Sequence[str], known: Collection[str] = ("all_reduce", "pipeline")
) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the overrides with today's keys, and a note on each key that is no more.

    ``known`` are the execution settings of the benchmark. Raises UserError where an old key had no
    effect without another one that is missing.
    """
    pairs = (each.partition("=") for each in overrides)
    given = {key.strip(): text.strip() for key, _, text in pairs}
    current, notes = list(overrides), []
    for (today, old_keys), replace in REPLACED.items():
        old = {key: given[key] for key in old_keys if key in given and key not in known}
        if not old or today not in known:
            continue
        current = [each for each in current if each.partition("=")[0].strip() not in old]
        setting = replace(old, given)
        current += [setting] if setting else []
        was = " ".join(f"--set {key}={text}" for key, text in old.items())
        fix = f"write --set {setting}" if setting else "leave it out"
        notes.append(f"{was}: this round still accepts it; from the next one on, {fix}")
    return current, tuple(notes)


def _join_mesh(old: Texts, given: Texts) -> str:
    rows, way = old["mesh_rows"], given.get("all_reduce", "flat")
    if rows == "auto":
        return ""
    if way != "mesh":
        raise UserError(
            f"mesh_rows={rows}: it has no effect without all_reduce=mesh; "
            f"fix: set all_reduce=mesh:{rows}"
        )
    return f"all_reduce=mesh:{rows}"


def _join_pipeline(old: Texts, given: Texts) -> str:
    stages = old.get("pipeline_stages", "1")
    schedule = old.get("pipeline_schedule", "1f1b")
    micro_batches = old.get("pipeline_micro_batches", "4")
    if stages == "1" and (schedule, micro_batches) == ("1f1b", "4"):
        return "pipeline=1"
    if stages == "1":
        texts = " ".join(f"{key}={text}" for key, text in old.items())
        raise UserError(
            f"{texts}: it has no effect without stages; "
            f"fix: set pipeline=2:{schedule}:{micro_batches}"
        )
    return f"pipeline={stages}:{schedule}:{micro_batches}"


def _join_formats(old: Texts, given: Texts) -> str:
    half = old.get("kfac_half_factors", "off")
    if old.get("kfac_float21", "off") == "off":
        return f"kfac_factor_format={'float32' if half == 'off' else half}"
    if half != "off":
        raise UserError(
            f"--set kfac_half_factors={half}: factors already travel as float21; fix: set "
            f"kfac_factor_format=float21 or kfac_factor_format={half} instead of both"
        )
    return "kfac_factor_format=float21"


def _leave_out(old: Texts, given: Texts) -> str:
    """Return no setting: the value is what each run has. Raises UserError for another value."""
    for key, text in old.items():
        if text != OF_STUDIES[key]:
            raise UserError(
                f"--set {key}={text}: only studies compare it now (cepheid measure costs kfac, "
                f"cepheid measure epochs kfac --compare formats); fix: leave {key} out"
            )
    return ""


OF_STUDIES = {
    "kfac_inverses": "distributed",
    "kfac_symmetric": "on",
    "kfac_overlap": "off",
    "kfac_simulated_ranks": "off",
    "kfac_sums": "float32",
}
"""By the old keys of kfac that only studies have now: the value that each run has."""

# By today's key and the old ones: what returns the setting that stands for these, or "".
REPLACED: Mapping[tuple[str, tuple[str, ...]], Callable[[Texts, Texts], str]] = {
    ("all_reduce", ("mesh_rows",)): _join_mesh,
    ("pipeline", ("pipeline_stages", "pipeline_schedule", "pipeline_micro_batches")): (
        _join_pipeline
    ),
    ("kfac_factor_format", ("kfac_float21", "kfac_half_factors")): _join_formats,
    ("kfac_factor_format", tuple(OF_STUDIES)): _leave_out,
}
