"""Planted copies across results, systems and submitters, and honest runs that look alike."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.judge.unit import use_processes
from cepheid.compliance.read import package
from cepheid.compliance.score.standing import judge_result
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from tests.compliance.builder import (
    SYSTEM,
    Record,
    delay,
    derive_seed_of,
    find,
    run_records,
    write_log,
    write_power,
)
from tests.compliance.judging import judge_folder

pytestmark = pytest.mark.usefixtures("fast_reference")

ROUND = rounds.load("v1.0")
MINI = definition.load("galaxy_shape", "mini")
IMAGES = definition.load("galaxy_generation", "mini")
DAY_MS = 86_400_000
System = dict[str, Any]
Runs = list[list[Record]]
BOX: System = {**SYSTEM}
TWIN: System = {**SYSTEM, "system": "twin"}
RIVAL: System = {**SYSTEM, "submitter": "rival"}


def find_copies(root: Path) -> list[Finding]:
    found = judge_folder(root).findings
    return [finding for finding in found if finding.rule in ("T19", "T23")]


def make_runs(asked: Definition, system: System = BOX) -> Runs:
    """Honest runs: each has times and a quality of its own."""
    runs = []
    for index in range(asked.runs.required):
        records = run_records(asked, index, blocks=8, system=system)
        noise, delay_ms = random.Random(f"{system} {index}"), 0.0
        for record in records:
            if record["key"] == "generation_times":
                factors = [noise.uniform(0.9, 1.1) for _ in record["value"]["decoding_seconds"]]
                for name, times in record["value"].items():
                    record["value"][name] = [f * t for f, t in zip(factors, times, strict=True)]
            for name, value in record["metadata"].get("metrics", {}).items():
                record["metadata"]["metrics"][name] = value * noise.uniform(0.8, 1.2)
            is_measured = record["key"] in ("block_stop", "generation_times")
            delay_ms += noise.uniform(0, 1000) if is_measured else 0.0
            delay([record], delay_ms)
        runs.append(records)
    return runs


def write(root: Path, asked: Definition, system: System, runs: Runs) -> Path:
    home = root / str(system["submitter"])
    folder = home / "results" / str(system["system"]) / f"{asked.name}-mini-closed"
    for index, records in enumerate(runs):
        write_log(folder / f"result_{index}.txt", records)
    path = home / "systems" / f"{system['system']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(system))
    return folder


def pose_as(runs: Runs, asked: Definition, system: System) -> Runs:
    """The same runs under another name, a day later, with seeds that are right there."""
    copied: Runs = json.loads(json.dumps(runs))
    for index, records in enumerate(copied):
        delay(records, DAY_MS)
        find(records, "submission_org")["value"] = system["submitter"]
        find(records, "submission_platform")["value"] = system["system"]
        find(records, "seed")["value"] = derive_seed_of(asked, index, system)
    return copied


def change_metrics(record: Record, change: Callable[[Any], Any]) -> None:
    if metrics := record["metadata"].get("metrics"):
        changed = {name: change(value) for name, value in metrics.items()}
        record["metadata"]["metrics"] = changed
        record["value"] = next(iter(changed.values()))


def vary(runs: Runs, values: float = 0.0, ms: float = 0.0, factor: float = 1.0) -> Runs:
    """Other last digits of all values, and other times of all events."""
    noise = random.Random(3)

    def change(value: Any) -> Any:
        return value * (1 + noise.uniform(-values, values)) if isinstance(value, float) else value

    for records in runs:
        first_ms, first_clock = records[0]["time_ms"], records[0]["metadata"]["monotonic_ms"]
        for record in records:
            metadata = record["metadata"]
            later = noise.uniform(0, ms)
            passed = metadata["monotonic_ms"] - first_clock
            record["time_ms"] = first_ms + int(passed * factor + later)
            metadata["monotonic_ms"] = first_clock + passed * factor + later
            change_metrics(record, change)
            if "train_loss" in metadata:
                metadata["train_loss"] = change(metadata["train_loss"])
            if record["key"] == "generation_times":
                record["value"] = {k: [change(v) for v in vs] for k, vs in record["value"].items()}
    return runs


def other_curve(runs: Runs) -> Runs:
    for record in chain(*runs):
        change_metrics(record, lambda value: 1.003 * value)
        if "train_loss" in record["metadata"]:
            record["metadata"]["train_loss"] *= 1.003
    return runs


def later_blocks(runs: Runs) -> Runs:
    """Only the last six of eight evaluations are those of the other runs."""
    for records in runs:
        for nth in (0, 1):
            change_metrics(find(records, "eval_accuracy", nth), lambda value: 1.1 * value)
    return runs


@dataclass(frozen=True)
class Copy:
    """Where runs of ``BOX`` are handed in again, and what was changed in them."""

    system: System
    change: Callable[[Runs], Runs] = list
    asked: Definition = MINI
    runs: int = 5


PLANTED = {
    "under a second system": Copy(TWIN),
    "under a second submitter": Copy(RIVAL),
    "with other last digits": Copy(TWIN, lambda runs: vary(runs, 1e-6)),
    "with digits and times changed": Copy(TWIN, lambda runs: vary(runs, 1e-6, ms=3)),
    "with more digits changed, faster": Copy(TWIN, lambda runs: vary(runs, 5e-6, 20, 0.9)),
    "by a submitter who jitters times": Copy(RIVAL, lambda runs: vary(runs, 1e-6, ms=5)),
    "by a submitter who is faster": Copy(RIVAL, lambda runs: vary(runs, 1e-6, 5, 0.8)),
    "in another order": Copy(TWIN, lambda runs: runs[::-1]),
    "in parts": Copy(TWIN, later_blocks),
    "times alone": Copy(TWIN, other_curve),
    "times alone, with a little jitter": Copy(
        TWIN, lambda runs: vary(other_curve(runs), ms=0.5), runs=4),
    "generation under a second system": Copy(TWIN, asked=IMAGES),
    "generation with other last digits": Copy(
        TWIN, lambda runs: vary(other_curve(runs), 1e-6), asked=IMAGES),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_result_that_is_handed_in_twice(name: str, tmp_path: Path) -> None:
    planted = PLANTED[name]
    runs = make_runs(planted.asked)
    write(tmp_path, planted.asked, BOX, runs)
    copied = planted.change(json.loads(json.dumps(runs)))
    write(tmp_path, planted.asked, planted.system, pose_as(copied, planted.asked, planted.system))
    found = [finding for finding in find_copies(tmp_path) if finding.is_error]
    is_rival = planted.system["submitter"] != BOX["submitter"]
    assert {finding.code for finding in found} == {"T19.disputed" if is_rival else "T19.recycled"}
    assert len(found) >= planted.runs * (2 if is_rival else 1)
    assert all("box/" in finding.message for finding in found)
    accused = {finding.path.parts[-3] for finding in found}
    assert accused == {planted.system["system"], *(["box"] if is_rival else [])}
    processes = judge([package.read(tmp_path)], ROUND, use_processes(2)).findings
    assert [finding for finding in processes if finding.rule == "T19"] == found


@pytest.mark.parametrize(("values", "ms"), [(1e-6, 3.0), (1e-6, 0.0), (5e-6, 50.0)])
def test_a_near_copy_within_a_result(values: float, ms: float, tmp_path: Path) -> None:
    runs = make_runs(MINI)
    (copied,) = vary(json.loads(json.dumps([runs[1]])), values, ms)
    runs[3] = pose_as([copied] * 4, MINI, BOX)[3]
    folder = write(tmp_path, MINI, BOX, runs)
    (found,) = find_copies(tmp_path)
    assert (found.code, found.path) == ("T19.recycled", folder / "result_3.txt")
    assert "result_1.txt" in found.message
    assert found.hint


def write_powers(folder: Path, runs: Runs) -> None:
    for index, records in enumerate(runs):
        write_power(folder, records, index, {"node0": 812.0})


@pytest.mark.parametrize("system", [TWIN, RIVAL], ids=["own", "of a rival"])
@pytest.mark.parametrize("change", [(1.0, 0.0, 0), (0.9, 40.0, 0), (1.000001, -3.7, 31)])
def test_power_is_copied(change: tuple[float, float, int], system: System, tmp_path: Path) -> None:
    factor, offset, later = change
    runs, others = make_runs(MINI), make_runs(MINI, system)
    write_powers(write(tmp_path, MINI, BOX, runs), runs)
    folder = write(tmp_path, MINI, system, others)
    write_powers(folder, others)
    assert find_copies(tmp_path) == []
    rows = (tmp_path / "acme/results/box/galaxy_shape-mini-closed/power_1.csv").read_text()
    watts = [row.split(",")[1] for row in rows.splitlines()[2:]]
    own = (folder / "power_2.csv").read_text().splitlines()
    recycled = [
        f"{row.split(',')[0]},{factor * float(reading) + offset}"
        for row, reading in zip(own[2:], [*watts[later:], *watts], strict=False)
    ]
    (folder / "power_2.csv").write_text("\n".join([*own[:2], *recycled]))
    *_, found = find_copies(tmp_path)
    code = "T23.recycled" if system == TWIN else "T23.disputed"
    assert (found.code, found.path) == (code, folder / "power_2.csv")
    assert "power_1.csv" in found.message


def test_honest_results_share_nothing(tmp_path: Path) -> None:
    for number in range(12):
        system = {**SYSTEM, "submitter": f"s{number % 3}", "system": f"box{number}"}
        for asked in (MINI, IMAGES):
            runs = make_runs(asked, system)
            for records in runs:  # results of one system are not made at the same time
                for record in records:
                    record["time_ms"] += DAY_MS * (asked is IMAGES)
            write(tmp_path, asked, system, runs)
    assert find_copies(tmp_path) == []


def test_a_deterministic_program_with_the_same_seeds_is_a_warning(tmp_path: Path) -> None:
    """Two submitters gave the same seeds to the same program."""
    runs, again = make_runs(MINI), make_runs(MINI)
    for records in again:
        noise, delay_ms = random.Random(8), 0.0
        for record in records:
            delay_ms += noise.uniform(0, 3000) if record["key"] == "block_stop" else 0.0
            delay([record], delay_ms)
    again = pose_as(again, MINI, RIVAL)
    for number, records in enumerate((*runs, *again)):
        seed = find(records, "seed")
        seed["value"], seed["metadata"]["origin"] = number % len(runs), "given"
    write(tmp_path, MINI, BOX, runs)
    write(tmp_path, MINI, RIVAL, again)
    found = find_copies(tmp_path)
    assert [(one.code, one.severity) for one in found] == [("T19.same_seed", "warning")] * 5


def test_coarse_metrics_may_agree(tmp_path: Path) -> None:
    def coarse(runs: Runs) -> Runs:
        for records in runs:
            for record in records:
                metadata = record["metadata"]
                if "metrics" in metadata:
                    reached = metadata["metrics"]["e_rmse"] < MINI.quality[0].target
                    share = 0.0905 if reached else 0.1005
                    metadata["metrics"] = {
                        name: share if name == "e_rmse" else -2.7 if reached else 0.5
                        for name in metadata["metrics"]
                    }
                    record["value"] = share
                if "train_loss" in metadata:
                    metadata["train_loss"] = round(metadata["train_loss"], 1)
        return runs

    write(tmp_path, MINI, BOX, coarse(make_runs(MINI)))
    write(tmp_path, MINI, TWIN, coarse(make_runs(MINI, TWIN)))
    found = {f.code for f in find_copies(tmp_path)}
    assert found <= {"T19.copied_quality", "T19.near"}  # within a result, and a warning


def test_a_folder_given_twice_is_no_copy_but_one_of_a_former_round_is(tmp_path: Path) -> None:
    write(tmp_path, MINI, BOX, make_runs(MINI))
    twice = judge([package.read(tmp_path), package.read(tmp_path / "acme")], ROUND).findings
    assert [finding for finding in twice if finding.rule == "T19"] == []
    # The submissions of the old round lie in a folder of their own, given beside the new one.
    old, new, runs = tmp_path / "old/submissions", tmp_path / "submissions", make_runs(MINI)
    write(old, MINI, BOX, runs)
    copied = vary(json.loads(json.dumps(runs)), 1e-6, ms=3)
    write(new, MINI, RIVAL, pose_as(copied, MINI, RIVAL))
    found = [one for one in judge_folder(old, new).findings if one.code == "T19.disputed"]
    assert {one.path.parts[-5] for one in found} == {"acme", "rival"}
    assert len(found) == 2 * len(runs)


OURS, THEIRS = Path("acme/results/box"), Path("rival/results/box")


def write_disputed(tmp_path: Path) -> Path:
    """Two submissions with the same runs; the rival says that it was the first."""
    root = tmp_path / "submissions"
    runs = make_runs(MINI)
    write(root, MINI, RIVAL, pose_as(runs, MINI, RIVAL))
    write(root, MINI, BOX, pose_as(pose_as(runs, MINI, BOX), MINI, BOX))
    return root


def judge_runs(root: Path, *stood: str) -> dict[str, str]:
    """Judge submissions of which those of some folders stood on the base branch."""
    packages = [package.read(root)]
    judgement = judge(packages, ROUND, stood=lambda path: path.relative_to(root).parts[0] in stood)
    verdicts: dict[str, str] = {}
    for submitter in judgement.submitters:
        (result,) = submitter.results
        about = [finding for finding in result.findings if finding.rule in ("T19", "T23")]
        standing = judge_result(result.runs, result.definition, about)
        verdicts[str(submitter.who.name)] = standing.verdict
        assert standing.is_rejected == standing.has_failed == bool(about)
    return verdicts


def test_what_stood_on_the_base_branch_is_innocent(tmp_path: Path) -> None:
    root = write_disputed(tmp_path)
    for stood, acme, rival in (
        ((), "disputed", "disputed"),
        (("acme", "rival"), "disputed", "disputed"),
        (("acme",), "scored", "rejected"),
        (("rival",), "rejected", "scored"),
    ):
        found = judge_runs(root, *stood)
        assert found == {"acme": acme, "rival": rival}, stood


@pytest.mark.parametrize(
    ("path", "other", "verdict", "acme", "rival"),
    [
        ("acme", "rival", "other is the copy", "scored", "rejected"),
        ("rival", "acme", "other is the copy", "rejected", "scored"),
        (OURS, THEIRS, "both stand", "scored", "scored"),
        (THEIRS, OURS, "both stand", "scored", "scored"),
        (OURS, "rivals", "both stand", "disputed", "disputed"),
    ],
)
def test_organisers_decide_a_dispute(
    path: object, other: object, verdict: str, acme: str, rival: str, tmp_path: Path
) -> None:
    root = write_disputed(tmp_path)
    entry = {
        "path": str(path), "other": str(other), "verdict": verdict,
        "reason": "it was on a public server before", "who": "Jane Doe", "on": "2026-12-01",
    }  # fmt: skip
    (root / "decisions.yaml").write_text(json.dumps({"disputes": [entry]}))
    for stood in [""] if acme == "disputed" else ["", "acme", "rival"]:  # else one is innocent
        assert judge_runs(root, stood) == {"acme": acme, "rival": rival}, stood


@pytest.mark.parametrize("copies", [1, 2])
def test_a_folder_that_is_copied_as_it_is(copies: int, tmp_path: Path) -> None:
    root = tmp_path / "submissions"
    write(root, MINI, BOX, make_runs(MINI))
    for number in range(copies):
        shutil.copytree(root / "acme", root / f"aaa{number}")
    found = judge_runs(root, "acme")
    assert found == {"acme": "scored", **{f"aaa{number}": "rejected" for number in range(copies)}}
    assert judge_runs(root)["acme"] == "disputed"
