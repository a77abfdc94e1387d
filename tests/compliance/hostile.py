"""Submissions with damaged files, and what every command must bear of them.

``damage`` is a pure function of a ``random.Random`` and a folder, so that a seed and a number name
an input for ever. ``tests/fuzz.py`` tries very many, ``test_hostile.py`` a few.
"""

import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cepheid.compliance.judge import follow
from cepheid.compliance.read.decisions import FILE_NAME
from cepheid.compliance.report.formats import FORMATS
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools import (
    build_leaderboard,
    check_compliance,
    diff_leaderboards,
    pack_submission,
    summarize_results,
)
from tests.compliance.builder import (
    IMPLEMENTATION,
    PNG,
    SYSTEM,
    run_records,
    write_log,
    write_power,
    write_result,
)
from tests.compliance.mutations import mutate
from tests.processes import Ended

BAD, GOOD = "acme", "umbrella"
RANKED = ("rank", "rank_interval")  # what depends on the other results of a table
ODD_NUMBERS = (
    "NaN", "Infinity", "-Infinity", "-1", "0", "-0.0", "1e308", "-1e308", "1e999", "5e-324", "0.5",
    "9007199254740993", "9" * 25, "9" * 400, "1" + "0" * 5000, "1,5", "0x10", "",
)  # fmt: skip
ODD_VALUES: Sequence[object] = (
    None, True, -1, 0, 0.5, 1e308, 10**30, 10**400, float("nan"), "", "x" * 3000, "\ud800", "\0",
    "\u202e", "NaN", "../../..", "/etc/passwd", "2026-99-99", [], {}, [[]], [None], {"": None},
    {"a": {"b": {"c": [1]}}}, ["a", 1],
)  # fmt: skip
ODD_NAMES = (
    b"result_00.txt", b"result_7.txt", b"power_9.csv", b"report_99999999999999999999.json",
    b"interrupted_.txt", b"a\nb", b"\xff\xfe", b".hidden", b"con", b"x" * 250, "é".encode(),
    b"result_0.txt.partial", b"pictures_3.png", b"configuration.json",
)  # fmt: skip


def write_submissions(root: Path, mini: Definition) -> Path:
    """Write a submission with a file of every kind, and another one that stays as it is."""
    for name in (BAD, GOOD):
        system = system_of(name)
        folder = write_result(root / name, mini, system=system)
        for index in range(mini.runs.required):
            records = run_records(mini, index, system=system)
            write_power(folder, records, index, {"node0": 900.0, "node1": 100.0})
    write_result(root / BAD, definition.load("star_images", "mini"), system=system_of(BAD))
    write_result(root / BAD, mini, division="open", system=system_of(BAD))
    records = run_records(mini, 1, system=system_of(BAD))
    write_log(folder_of(root) / "interrupted_0.txt", records[: len(records) // 2])
    known = {"benchmark": mini.name, "scale": mini.scale, "submitter": BAD, "system": "box"}
    configuration = {
        **known, "round": "v1.0", "division": "closed", "seeds": "derived",
        "framework": IMPLEMENTATION["framework"], "execution": {"precision": "auto"},
    }  # fmt: skip
    tables = [{"title": "steps", "rows": [{"p50 ms": 1.0, "p99 ms": 2.0, "images": 10}]}]
    (folder_of(root) / "configuration.json").write_text(json.dumps(configuration))
    report = {**known, "run": 1, "tables": tables}
    (folder_of(root) / "report_1.json").write_text(json.dumps(report))
    (folder_of(root) / "pictures_1.png").write_bytes(PNG)
    (root / "decisions.yaml").write_text(
        f"waivers:\n  - rule: T10\n    path: {BAD}/results/box/star_shape-mini-open\n"
        "    reason: The loader drops the last image.\n    who: Jane Doe\n    until: 2099-12-31\n"
    )
    for name in (BAD, GOOD):
        packed = run(pack_submission.main, [root / name])
        assert packed.returncode == 0, packed.stdout
    return root


def system_of(submitter: str) -> dict[str, Any]:
    """Return the description of a submitter's system."""
    peak = {"fp32": {"datasheet": 50.0}}
    return {**SYSTEM, "submitter": submitter, "peak_tflops": peak, "notes": "quiet"}


def folder_of(root: Path) -> Path:
    """Return the result of the submission to damage that has a file of every kind."""
    return root / BAD / "results" / "box" / "star_shape-mini-closed"


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


Damage = Callable[[random.Random, Path], object]


def _change(change: Callable[[random.Random, bytes], bytes]) -> Damage:
    def damage(chance: random.Random, path: Path) -> None:
        path.write_bytes(change(chance, path.read_bytes()))

    return damage


def _truncate(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _flip(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(chance.choice((1, 1, 3, 50))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _insert(chance: random.Random, content: bytes) -> bytes:
    at = chance.randrange(len(content) + 1)
    odd = chance.choice((b"\0", b"\0" * 4096, b"\xff", b"\xef\xbb\xbf", b"\n", b"[" * 5000, b"{"))
    return content[:at] + odd + content[at:]


def _change_lines(chance: random.Random, content: bytes) -> bytes:
    return mutate(chance, [content.split(b"\n")])


def _change_numbers(chance: random.Random, content: bytes) -> bytes:
    found = list(re.finditer(rb"-?[0-9]+(\.[0-9]+)?", content))
    chosen = chance.sample(found, min(len(found), chance.choice((1, 1, 2, 5))))
    for match in sorted(chosen, key=re.Match.start, reverse=True):
        odd = chance.choice(ODD_NUMBERS).encode()
        content = content[: match.start()] + odd + content[match.end() :]
    return content


def _move_times(chance: random.Random, content: bytes) -> bytes:
    """Shift and scale the times of a power log, or those of all records of a run log."""
    shift = chance.choice((1e9, -1e9, 60_000.0, -60_000.0, 1e15, 1e300))
    factor = chance.choice((1.0, 1.0, 0.0, 1e-3, -1.0, 1e6))

    def move(match: re.Match[bytes]) -> bytes:
        number = float(match[2][:300]) * factor + shift
        return match[1] + (repr(int(number)) if abs(number) < 1e18 else repr(number)).encode()

    pattern = rb'(?m)(^|"monotonic_ms": )([0-9]+(?:\.[0-9]+)?)(?=[,}])'
    if chance.random() < 0.3:
        pattern = rb'("time_ms": )([0-9]+)(?=[,}])'
    return re.sub(pattern, move, content)


def _change_json(chance: random.Random, content: bytes) -> bytes:
    """Replace a value of a JSON document by one of another type."""
    try:
        document = json.loads(content)
    except ValueError:
        return _change_lines(chance, content)
    at, places = document, []
    while isinstance(at, dict | list) and at:
        key: Any = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        places.append((at, key))
        at = at[key]
    odd = chance.choice(ODD_VALUES)
    if not places or chance.random() < 0.1:
        return json.dumps(odd).encode()
    parent, key = chance.choice(places)
    if isinstance(parent, dict) and chance.random() < 0.2:
        parent[chance.choice(("", "x", "\ud800", "k" * 5000))] = parent.pop(key)
    else:
        parent[key] = odd
    return json.dumps(document).encode()


def _replace(make: Callable[[random.Random, Path], object]) -> Damage:
    def damage(chance: random.Random, path: Path) -> None:
        path.unlink()
        make(chance, path)

    return damage


def _make_folder(chance: random.Random, path: Path) -> None:
    path.mkdir()
    if chance.random() < 0.5:
        (path / chance.choice(("result_0.txt", "systems", "x.json"))).write_text("{}")


def _make_link(chance: random.Random, path: Path) -> None:
    root = next(parent for parent in path.parents if parent.name == BAD)
    where = (path, Path("/nowhere"), Path("/etc/passwd"), root.parent / GOOD / "LICENSE", root)
    path.symlink_to(chance.choice(where))


def _move(chance: random.Random, path: Path) -> None:
    is_top = path.parent.name == BAD
    folder = chance.choice((path.parent, path.parent if is_top else path.parents[1]))
    target = os.path.join(os.fsencode(folder), chance.choice(ODD_NAMES))
    if not os.path.lexists(target):
        os.rename(os.fsencode(path), target)


def _overwrite(chance: random.Random, path: Path) -> None:
    root = next(parent for parent in path.parents if parent.name == BAD)
    path.write_bytes(chance.choice(list_files(root)).read_bytes())


DAMAGES: Sequence[Damage] = (
    _change(_truncate), _change(_flip), _change(_insert), _change(_change_lines),
    _change(_change_lines), _change(_change_numbers), _change(_change_numbers),
    _change(_change_json), _change(_change_json), _change(_move_times), _change(_move_times),
    _change(lambda chance, content: b""), _change(lambda chance, content: b"\0" * 200),
    _replace(lambda chance, path: None), _replace(_make_folder), _replace(_make_link),
    _replace(lambda chance, path: os.mkfifo(path)), _move, _overwrite,
)  # fmt: skip


def damage(chance: random.Random, root: Path) -> list[str]:
    """Damage some files of a submission; return which.

    Half of them lack the manifest then, without which a changed file may still have a score.
    """
    if chance.random() < 0.5:
        (root / "manifest.json").unlink()
    damaged = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        files = list_files(root)
        kinds: dict[str, list[Path]] = {}
        for path in files:
            kinds.setdefault(re.sub("[0-9]+", "", path.name), []).append(path)
        of_kind = kinds[chance.choice(sorted(kinds))]  # of many logs there is one kind
        path = chance.choice(chance.choice((files, of_kind)))
        chance.choice(DAMAGES)(chance, path)
        damaged.append(str(path.relative_to(root)))
    return damaged


def run(main: Callable[[list[str]], int], arguments: Sequence[object]) -> Ended:
    """Run a command in this process. What is no UserError is raised.

    Its code is 2 where it says that it was used wrongly.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except UserError as error:
            code = 2
            print(error, file=err)
    return Ended(main.__module__, code, out.getvalue(), err.getvalue())


class _Impatient:
    """An event that ends a command that follows a log, soon."""

    def __init__(self) -> None:
        self.waited = 0

    def set(self) -> None:
        """Do nothing: nobody interrupts."""

    def wait(self, seconds: float) -> bool:
        """Return True to stop."""
        self.waited += 1
        return self.waited > 5


@contextmanager
def impatience() -> Iterator[None]:
    """Let `cepheid check --follow` wait for nothing."""
    import pytest

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(follow, "QUIET_SECONDS", 0.0)
        patched.setattr(check_compliance, "threading", SimpleNamespace(Event=_Impatient))
        yield


@dataclass(frozen=True)
class Bench:
    """Two submissions on a disk, what is published of the good one, and a place for sites."""

    pristine: Path
    work: Path
    row: Mapping[str, Any]
    entry: Mapping[str, Any]

    @property
    def submissions(self) -> Path:
        return self.work / "submissions"


def make_bench(work: Path, mini: Definition) -> Bench:
    """Write the submissions, and publish them once as they are."""
    pristine = write_submissions(work / "pristine" / "submissions", mini).parent
    shutil.copytree(pristine / "submissions", work / "submissions")
    row, entry = _publish(Bench(pristine, work, {}, {}), random.Random(0), work / "site")
    assert (row["verdict"], entry["verdict"]) == ("scored", "scored")
    return Bench(pristine, work, row, entry)


def try_damage(bench: Bench, chance: random.Random) -> list[str]:
    """Damage a submission and try every command on it; return which files were damaged.

    Raises AssertionError, or what a command raises, where one does not bear it.
    """
    bad = bench.submissions / BAD
    shutil.rmtree(bad)
    shutil.copytree(bench.pristine / "submissions" / BAD, bad)
    damaged = damage(chance, bad)
    row, entry = _publish(bench, chance, bench.work / "new")
    assert row == bench.row
    assert entry == bench.entry
    seen = run(diff_leaderboards.main, [bench.work / "site", bench.work / "new"])
    assert_fine(seen, (0, 1))
    _check(bench, chance)
    _check_alone(bad, chance)
    return damaged


def _check(bench: Bench, chance: random.Random) -> None:
    name = chance.choice(tuple(FORMATS))
    assert_fine(run(check_compliance.main, [bench.submissions, "--format", name]), (0, 1))
    found = run(check_compliance.main, [bench.submissions, "--format", "json"])
    assert_fine(found, (0, 1))
    for finding in json.loads(found.stdout)["findings"]:
        path = Path(finding["path"])  # a waiver may cover nothing any more
        is_of_others = path.name == FILE_NAME or finding["code"] == "S4.unbound"
        assert is_of_others or path.is_relative_to(bench.submissions / BAD), finding


def _check_alone(bad: Path, chance: random.Random) -> None:
    """Check one log, follow it, and pack the submission, which may be refused."""
    logs = [path for path in list_files(bad) if path.suffix in (".txt", ".csv")] or [bad]
    log = chance.choice([*logs, folder_of(bad.parent) / "result_0.txt"])
    assert_fine(run(check_compliance.main, [log]), (0, 1, 2))
    with impatience():
        assert_fine(run(check_compliance.main, [log, "--follow"]), (0, 1, 2))
    assert_fine(run(pack_submission.main, [bad]), (0, 1, 2))


def _publish(
    bench: Bench, chance: random.Random, site: Path
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Build the tables and the site; return what both say of the good submission."""
    rows = run(summarize_results.main, [bench.submissions, "--format", "json"])
    assert_fine(rows, (0, 1))
    name = chance.choice(tuple(summarize_results.FORMATS))
    assert_fine(run(summarize_results.main, [bench.submissions, "--format", name]), (0, 1))
    shutil.rmtree(site, ignore_errors=True)
    logs = chance.choice(("copy", "link"))
    built = run(build_leaderboard.main, [bench.submissions, "--output", site, "--logs", logs])
    assert_fine(built, (0, 1))
    index = json.loads((site / "results.json").read_text())
    (row,) = [one for one in json.loads(rows.stdout) if one["submitter"] == GOOD]
    (entry,) = [one for one in index["results"] if one["submitter"] == GOOD]
    for run_log in entry["run_logs"]:
        del run_log["log"]  # it depends on --logs
    return row, {key: value for key, value in entry.items() if key not in RANKED}


def assert_fine(ended: Ended, codes: Sequence[int]) -> None:
    """Assert that a command ended as it may, and that no bug of ours shows in what it printed."""
    assert ended.returncode in codes, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    assert "could not be judged" not in ended.stdout, ended.stderr
