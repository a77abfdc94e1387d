"""A repeated run is new: written in the audit, and not the logged one once more."""

import itertools
import random
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from cepheid.compliance.checks.result.traces import list_durations_ms
from cepheid.compliance.read.log.runlog import read
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools import audit_submission
from cepheid.tools.audit import rerun
from cepheid.tools.audit.newness import ALIKE_COUNT_MIN, is_alike
from tests import assert_refused
from tests.compliance.asserting import Printed, call_tool
from tests.compliance.builder import write_result
from tests.tools.audit.test_audit_submission import BLOCKS, MINI, PROGRAM, write_foreign
from tests.tools.audit.test_containment import needs_bwrap

COPY = 'cp "$(dirname "$0")/recorded_$run.txt" "$folder/result_$run.txt"'
WRITE = PROGRAM.splitlines()[-2].strip()
SHIFT = """python3 -c 'if True:
    import json, sys, time
    lines = [json.loads(line[9:]) for line in open(sys.argv[1])]
    later = time.time() * 1000 - lines[-1]["time_ms"]
    with open(sys.argv[2], "w") as log:
        for line in lines:
            line["time_ms"] += later
            print(":::MLLOG " + json.dumps(line), file=log)
' "$(dirname "$0")/recorded_$run.txt" "$folder/result_$run.txt"
"""


@needs_bwrap
@pytest.mark.parametrize(
    ("instead", "code", "says"),
    [
        (COPY, 1, "differs: newness: the log begins outside of this audit, "),
        (SHIFT, 1, "s before it began; own durations: the durations are those of the log"),
        (f'{WRITE}; touch -d 2020-01-01 "$folder/result_$run.txt"', 1, "older than this audit"),
        ('ln -s /etc/passwd "$folder/result_$run.txt"', 2, "not a regular file of its own"),
        ('mkfifo "$folder/result_$run.txt"', 2, "not a regular file of its own"),
        (f'{WRITE}; ln "$folder/result_$run.txt" "$folder/x"', 2, "not a regular file of its own"),
        (f'{WRITE}; mv "$2/results" "$2/r"; ln -s r "$2/results"', 2, "a link leads there"),
        (f"{WRITE}; exit 3", 2, "could not be repeated"),
        ("true", 2, "could not be repeated"),
        ("sleep 600", 2, "ended after [23] s"),
    ],
)
def test_a_repetition_is_proven_to_be_new(
    instead: str, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_foreign(tmp_path / "acme", PROGRAM.replace(WRITE, instead))
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(rerun, "_prepare", lambda choice, data: data)
    monkeypatch.setattr(rerun, "SECONDS_MIN", 2.0 if instead == "sleep 600" else 60.0)
    line = [str(folder), "--data", str(tmp_path / "data"), rerun.FLAG, "--times", "0.01"]
    if code == 1:
        assert says in call_tool(audit_submission.main, line, 1)
    else:
        assert_refused(says, audit_submission.main, line)


def test_old_outputs_and_the_same_log_are_refused(tmp_path: Path, capsys: Printed) -> None:
    folder = write_foreign(tmp_path / "acme")
    with pytest.raises(UserError, match="not empty, so what is made could not be told apart"):
        audit_submission.main([str(folder), rerun.FLAG, "--output", str(tmp_path)])
    folder = write_result(tmp_path / "acme", MINI, blocks=lambda index: BLOCKS)
    log = str(folder / "result_0.txt")
    assert audit_submission.main([log, "--against", log]) == 1
    assert "differs: own durations: the durations are those of the log" in capsys.readouterr().out


def test_no_two_recorded_runs_are_alike_but_a_run_is_like_itself() -> None:
    """However steadily a machine works: also where only a factor or a little noise lies between."""
    of_benchmark = defaultdict(list)
    for path in sorted((ROOT / "submissions").glob("*/results/*/*/result_*.txt")):
        of_benchmark[path.parent.name].append(list_durations_ms(read(path)))
    pairs = [pair for runs in of_benchmark.values() for pair in itertools.combinations(runs, 2)]
    assert len(pairs) > 500
    assert not [pair for pair in pairs if is_alike(*pair)]
    noise = random.Random(1)
    for durations in itertools.chain(*of_benchmark.values()):
        if len(durations) < ALIKE_COUNT_MIN:
            assert is_alike(durations, durations)
            continue
        assert is_alike(durations, [2 * value for value in durations])
        assert is_alike(durations, [value + noise.uniform(-1, 1) for value in durations])
