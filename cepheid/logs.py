"""Run logs and results, for any program.

    >>> log = cepheid.read_log("results/first/results/…/result_0.txt")
    >>> log.seconds, log.converged, log.value("global_batch_size")
    >>> [(point.samples, point.metrics["nll"]) for point in log.quality_curve]
    >>> cepheid.results("submissions").query("scale == 'mini'")[["benchmark", "score_minutes"]]

``score_minutes`` and ``time_minutes`` are in minutes, ``seconds`` in seconds, ``energy_joules`` in
joules. Both read the logs as the checker does, and judge them by the rules of the current round.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cepheid.compliance.failure import isolate
from cepheid.compliance.judge.judgement import judge, strip_result
from cepheid.compliance.read import package
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.leaderboard.rows.data import describe_entry
from cepheid.leaderboard.rows.entry import list_rows
from cepheid.rules import extras, rounds
from cepheid.rules.errors import UserError

Folder = str | os.PathLike[str]


def read_log(path: Folder) -> RunLog:
    """Read a run log: ours, or one of any round of MLPerf.

    What is wrong with it is in its ``problems``, as a log may hold anything. Raises UserError where
    there is no such file.
    """
    if not Path(path).is_file():
        raise UserError(f"{path}: there is no such run log; fix: name a file result_<k>.txt")
    return runlog.read(Path(path))


def results(*folders: Folder, round: str = rounds.CURRENT) -> Any:
    """Return the results in folders, one record each, as `cepheid summary --format json` has them.

    It is a data frame if pandas is installed, else a list of mappings. A folder is one that
    `cepheid run --output` wrote, a submitter's, or a folder of those. A result without a number has
    None there, and ``reasons`` say why. Raises UserError where there is no result.
    """
    extras.require("numpy", "scipy")
    judged_in = rounds.load(round)
    judgement = judge([package.read(Path(each), judged_in.layout) for each in folders], judged_in)
    if not judgement.results:
        raise UserError("no result was found; fix: name the folder of `cepheid run --output`")

    def describe(judged: Any) -> list[dict[str, Any]]:
        return [describe_entry(entry) for entry in list_rows(judged)]

    records, _ = isolate(judgement.results, describe, strip_result)
    if not find_spec("pandas"):
        return records
    import pandas

    return pandas.DataFrame.from_records(records)
