"""Choose the run that is audited, among logs that the checker accepts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import JudgedResult, judge
from cepheid.compliance.read import package
from cepheid.compliance.read.contents import LOG_NAME
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import read_logs
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError

UNFINISHED = "T16.too_few"  # not a reason to refuse an audit: the logs that are there may be sound


@dataclass(frozen=True)
class Choice:
    """The run to audit, the converged runs of its result, and what the checker says of them.

    ``seed`` is that of the draw, or None where the user named the run.
    """

    logged: RunLog
    converged: Sequence[RunLog]
    definition: Definition
    result: JudgedResult
    seed: int | None

    @property
    def root(self) -> Path:
        """The submitter's folder, with ``systems/`` and perhaps ``benchmarks/``."""
        parents, here = self.logged.path.resolve().parents, Path.cwd()
        root = parents[min(3, len(parents) - 1)]
        return root.relative_to(here) if root.is_relative_to(here) else root

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The errors in the logs of the result, for which an audit is refused."""
        folder = self.logged.path.resolve().parent
        errors = (one for one in self.result.findings if one.is_error and one.code != UNFINISHED)
        return tuple(one for one in errors if one.path.resolve().is_relative_to(folder))


def choose_run(path: Path, index: int | None, seed: int) -> Choice:
    """Choose a run of the result at ``path``: number ``index``, or one drawn with ``seed``.

    All logs of the result are judged. Raises UserError where the path does not identify one result
    and run, or where this checkout has another version of its definition.
    """
    named = path if path.is_file() else None
    is_numbered = named is not None and LOG_NAME.fullmatch(named.name)
    judgement = judge([package.read(path.parent if is_numbered else path)], rounds.load())
    results = [result for result in judgement.results if result.folder.runs]
    if len(results) != 1:
        names = "".join(f"\n  {result.folder.path}" for result in results[:20])
        what = f"contains several results; give one of{names}" if names else "no run that counts"
        raise UserError(f"{path}: {what}")
    runs = read_logs(results[0].folder).runs
    converged = [run for run in runs if run.converged]
    if named is not None:
        wanted, seed_used = [run for run in runs if run.path.name == named.name], None
    elif index is not None:
        wanted, seed_used = [run for run in runs if run.index == index], None
    else:
        # A submitter who knew which run is repeated would need to keep only that one honest.
        wanted, seed_used = [random.Random(seed).choice(converged)] if converged else [], seed
    if not wanted:
        which = "that converged" if index is None else f"with number {index}"
        raise UserError(f"{path}: no run {which} among {len(runs)}")
    return Choice(wanted[0], converged, _load_definition(wanted[0]), results[0], seed_used)


def _load_definition(logged: RunLog) -> Definition:
    """Return the definition of the log. Raises UserError where this checkout has another one."""
    name, scale = logged.text("submission_benchmark"), logged.text("submission_scale")
    chosen = definition.load(name or "", scale or "")
    if logged.text("definition_digest") != chosen.digest:
        raise UserError(
            f"{logged.path}: written for another version of {name}, scale {scale}; check out the "
            "revision with that version"
        )
    return chosen
