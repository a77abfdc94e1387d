"""The parser: true line numbers, all that real logs have, and nothing that brings it down."""

import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.read.log import reading, records, runlog
from cepheid.compliance.read.log.reading import Reading
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import definition, rounds
from cepheid.rules.documents import SCHEMAS
from tests.checkout import PUBLISHED_LOGS, needs_published_logs
from tests.compliance.builder import line_of, run_records, write_log
from tests.compliance.mutations import PATHS, PLACES, judge, mutate, parse

MINI = definition.load("galaxy_shape", "mini")
LINES = [line_of(record) for record in run_records(MINI)]
ANY_TIME = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100
)


def read(content: bytes, tmp_path: Path) -> RunLog:
    path = tmp_path / "result_0.txt"
    path.write_bytes(content)
    return runlog.read(path)


def test_accessors_of_runs_that_ended_well_or_were_aborted(tmp_path: Path) -> None:
    entries = run_records(MINI, blocks=3)
    run = runlog.read(write_log(tmp_path / "result_7.txt", entries))
    assert len(run.events) == len(entries)
    assert [event.line for event in run.events] == list(range(1, len(entries) + 1))
    assert run.problems == ()
    assert run.index == 7
    assert run.value("submission_org") == "acme"
    assert run.first("nothing") is None
    assert run.value("nothing") is None
    assert len(run.all("eval_accuracy")) == 3
    assert run.seconds == pytest.approx(3 * 22, rel=1e-3)
    assert run.converged
    assert run.samples_to_target == entries[-2]["metadata"]["samples_count"]
    assert [set(point.metrics) for point in run.quality_curve] == [
        {"e_rmse", "nll", "coverage_68", "coverage_95"}
    ] * 3
    run = runlog.read(write_log(tmp_path / "x.txt", run_records(MINI, converged=False)))
    assert not run.converged
    assert run.status == "aborted"
    assert run.samples_to_target is None
    assert run.index is None


def test_glued_records_and_prefixes_are_read_with_their_line(tmp_path: Path) -> None:
    run = read(f"noise\n[1,0]{LINES[0]}\n{LINES[1]}{LINES[2]} tail\n".encode(), tmp_path)
    assert [event.line for event in run.events] == [2, 3, 3]
    assert [event.key for event in run.events] == [
        "submission_round", "submission_org", "submission_platform",
    ]  # fmt: skip
    assert [(problem.line, problem.kind) for problem in run.problems] == [
        (2, "around"), (3, "place"), (3, "place"),
    ]  # fmt: skip
    assert run.is_complete


def test_long_lines_and_markers_in_strings_are_read_right(tmp_path: Path) -> None:
    record = {**json.loads(LINES[0][9:]), "value": 'said ":::MLLOG {}" twice: :::MLLOG'}
    run = read(line_of(record).encode(), tmp_path)
    assert run.problems == ()
    assert run.value("submission_round") == record["value"]
    long = b"x" * (3 * records.LINE_BYTES_MAX)
    run = read(LINES[0].encode() + b"\n" + long + b"\n" + LINES[1].encode() + b"\n", tmp_path)
    assert [event.line for event in run.events] == [1, 3]
    assert [problem.line for problem in run.problems] == [2]
    assert len(read(b":::MLLOG {\n" * 5000, tmp_path).problems) == records.PROBLEMS_MAX + 1


def test_hostile_content_is_only_a_problem(tmp_path: Path) -> None:
    for content, kind in [
        (b":::MLLOG", "truncated"),
        (b":::MLLOG \n", "json"),
        (b":::MLLOG {\n", "json"),
        (b":::MLLOG {", "truncated"),
        (b":::MLLO", "truncated"),
        (b":::MLLOG null\n", "json"),
        (b":::MLLOG 1e5 \n", "json"),
        (b':::MLLOG {"key": "a", "time_ms": -1}\n', "fields"),
        (b':::MLLOG {"key": "a", "time_ms": 1e300}\n', "fields"),
        (b':::MLLOG {"key": "a", "time_ms": ' + b"9" * 5000 + b"}\n", "fields"),
        (b':::MLLOG {"key": "", "time_ms": 1}\n', "fields"),
        (b":::MLLOG " + b"[" * 100_000 + b"\n", "json"),
        (b":::MLLOG " + b'{"a":' * 5_000 + b"\n", "json"),
        (b":::MLLOG {}" * 50_000 + b"\n", "json"),
        (b":::MLLOG " * 100_000 + b"\n", "json"),
        (b"a\xffb\n", "text"),
        (b":::MLLOG {\xff}\n", "text"),
        (b"\xff\xfe:\0:\0:\0M\0\n", "text"),
        (b"x" * (records.LINE_BYTES_MAX + 1) + b"\n", "text"),
        (b"\0" * 4096, "text"),
    ]:
        started = time.perf_counter()
        run = read(content, tmp_path)
        assert kind in {problem.kind for problem in run.problems}
        assert time.perf_counter() - started < 5
        assert check_log(run, Place("v1.0"), rounds.load("v1.0"))


@ANY_TIME
@given(lengths=st.lists(st.integers(-1, 1500), max_size=25), ends=st.booleans())
def test_line_numbers_are_true_at_any_cut(lengths: list[int], ends: bool, tmp_path: Path) -> None:
    """-1 is a record, another number so many other bytes, read in pieces of 400 bytes."""
    record = LINES[0].encode()
    lines = [record if length < 0 else b"x" * length for length in lengths]
    content = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "LINE_BYTES_MAX", 400)
        run = read(content, tmp_path)
    assert len(record) < 400
    numbers = [number for number, line in enumerate(lines, 1) if line == record]
    assert [event.line for event in run.events] == numbers
    whole = content.splitlines(keepends=True)
    long = [number for number, line in enumerate(whole, 1) if len(line) > 400]
    assert [problem.line for problem in run.problems] == long


@pytest.mark.parametrize(
    ("bound", "value", "says"),
    [
        ("EVENTS_MAX", 5, "5 records"),
        ("VALUES_MAX", 30, "30 values"),
        ("RECORD_BYTES_MAX", 1000, "together"),
        ("FILE_BYTES_MAX", 1000, "larger than"),
        ("VALUES_PER_RECORD_MAX", 5, "the record holds more"),
    ],
)
def test_every_bound_is_kept(
    bound: str, value: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, bound, value)
    run = read("\n".join(LINES).encode(), tmp_path)
    assert any(says in problem.message for problem in run.problems)
    assert not run.is_complete
    assert len(run.events) <= 10


@pytest.mark.parametrize("what", ["missing", "folder", "pipe", "device"])
def test_a_path_without_a_regular_file_is_a_problem(what: str, tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path = Path("/dev/zero")
    (problem,) = runlog.read(path).problems
    assert problem.kind == "file"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@ANY_TIME
@given(data=st.data())
def test_any_mutation_of_a_log_can_be_read_and_checked(data: st.DataObject, tmp_path: Path) -> None:
    """Values, metadata and fields of any type and place: findings, never an exception."""
    entries = json.loads(json.dumps(run_records(MINI)))
    for _ in range(data.draw(st.integers(1, 3))):
        record = data.draw(st.sampled_from(entries))
        where = record.get("metadata") if data.draw(st.booleans()) else record
        if not isinstance(where, dict) or not where:
            continue
        name = data.draw(st.sampled_from(sorted(where)))
        if data.draw(st.booleans()):
            where[name] = data.draw(json_values)
        else:
            del where[name]
    if data.draw(st.booleans()):
        entries = data.draw(st.permutations(entries))
    text = "\n".join(f":::MLLOG {json.dumps(record)}" for record in entries)
    run = read(text.encode("utf-8", "surrogatepass"), tmp_path)
    for place in (Place("v1.0"), Place("v1.0", "a", "b", "galaxy_shape", "mini", "closed")):
        for finding in check_log(run, place, rounds.load("v1.0")):
            assert all(part.isprintable() for part in finding.text().split("\n"))
            assert finding.rule


LABELS = (
    b"", b"0: ", b"  11: ", b"[1,0]<stdout>:", b"\r 4% ", b"\xc3\xbc: ", b"\xff", b" ", b":::ML",
)  # fmt: skip
labels = st.sampled_from(LABELS)


@ANY_TIME
@given(
    seed=st.integers(0, 2**32),
    label=labels,
    rare=labels,
    extra=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    is_v06=st.booleans(),
)
def test_the_fast_and_the_careful_way_agree(
    seed: int, label: bytes, rare: bytes, extra: dict[str, object], is_v06: bool
) -> None:
    """Whatever stands before the markers and in the metadata, and whatever is broken."""
    chance = random.Random(seed)
    corpus = [[_with_metadata(line, extra, is_v06) for line in LINES]]
    log = mutate(chance, corpus) if chance.random() < 0.8 else b"\n".join(corpus[0])
    content = b"\n".join((rare if chance.random() < 0.05 else label) + x for x in log.split(b"\n"))
    fast = parse(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "parse_block", lambda *_, **__: 0)
        careful = parse(content)
    # Of texts of all fields, 1, 1.0 and True are different.
    shown = [[repr(astuple(event)) for event in run.events] for run in (fast, careful)]
    assert shown[0] == shown[1]
    assert fast.problems == careful.problems
    assert (fast.not_finite, fast.dialects) == (careful.not_finite, careful.dialects)


def _with_metadata(line: str, extra: Mapping[str, object], is_v06: bool) -> bytes:
    record = json.loads(line.removeprefix(":::MLLOG "))
    record["metadata"] |= extra
    if is_v06:
        head = f":::MLL {record['time_ms'] / 1000:.3f} {record['key']}: "
        record = {name: record[name] for name in ("value", "metadata")}  # as all logs of v0.6
    else:
        head = ":::MLLOG "
    return (head + json.dumps(record)).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    "metadata", [{}, {"rank": {"node": [1]}}, {"command": "a: {b}", "é": "\\"}]
)
@pytest.mark.parametrize("label", ["", "0: ", "[1,0]<stdout>: ", "é "])
def test_no_usual_line_needs_the_careful_way(
    label: str, metadata: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else such a log takes ten times as long."""
    monkeypatch.setattr(Reading, "read_line", lambda *_: pytest.fail("the careful way"))
    for is_v06 in (False, True):
        lines = [label.encode() + _with_metadata(line, metadata, is_v06) for line in LINES]
        assert len(parse(b"\n".join(lines)).events) == len(LINES)


RECORD = json.loads(LINES[0][len(":::MLLOG ") :])
fields = st.text(max_size=8) | st.sampled_from(["x" * 200, "x" * 201, "x" * 1000, "x" * 1001])


@ANY_TIME
@given(
    name=st.sampled_from([*RECORD, "extra", "file", "lineno"]),
    value=json_values | fields,
    remove=st.booleans(),
)
def test_the_parser_follows_schemas(name: str, value: object, remove: bool, tmp_path: Path) -> None:
    """A record has a form problem exactly where event.schema.json refuses it (clock aside: T4)."""
    assume(not (isinstance(value, float) and value.is_integer()))  # 1.0 is JSON Schema's integer
    assume(not (isinstance(value, int) and value >= records.INTEGER_MAX))  # read as floats
    record = json.loads(json.dumps(RECORD))
    where = record["metadata"] if name in ("file", "lineno") else record
    where[name] = value
    if remove:
        del where[name]
    if isinstance(record.get("metadata"), dict):
        record["metadata"]["monotonic_ms"] = 1.0
    schema = json.loads((SCHEMAS / "event.schema.json").read_text())
    accepted = jsonschema.Draft202012Validator(schema).is_valid(record)
    text = f":::MLLOG {json.dumps(record)}\n"
    assert accepted == (not read(text.encode("utf-8", "surrogatepass"), tmp_path).problems)


@needs_published_logs
def test_published_logs_are_read_whole() -> None:
    """Every record of both dialects, whatever stands around it; never a problem else."""
    paths = sorted(PUBLISHED_LOGS.glob("*/**/result_*.txt"))
    assert paths
    for path in paths:
        run = runlog.read(path)
        assert len(run.events) == path.read_bytes().count(b":::MLL"), path
        assert {problem.kind for problem in run.problems} <= {"around"}, path


CORPUS = [
    [line_of(record).encode() for record in run_records(MINI, blocks=2, converged=converged)]
    for converged in (True, False)
]
INPUTS = 400


def test_changed_logs_bring_nothing_down_and_take_no_long_time() -> None:
    found = 0
    for number in range(INPUTS):
        chance = random.Random(f"test/{number}")
        content = mutate(chance, CORPUS)
        path, place = chance.choice(PATHS), PLACES[number % len(PLACES)]
        found += judge(content, path, place, reported=number % 20 == 0)
    assert found > INPUTS / 2, "the changes are seen"
    # Suggestions for each of them once took minutes.
    line = CORPUS[0][10]
    key = line.split(b'"key": "')[1].split(b'"')[0]
    many = [line.replace(key, b"opt_lerning_rate%d" % number) for number in range(3000)]
    assert judge(b"\n".join(CORPUS[0][:20] + many), PATHS[0], PLACES[0])


@given(
    lines=st.sampled_from([0, 1, 20]),
    content=st.binary(max_size=400).flatmap(lambda b: st.sampled_from([b, b":::MLLOG " + b])),
    place=st.sampled_from(PLACES),
)
def test_any_bytes_after_a_compliant_beginning(lines: int, content: bytes, place: Place) -> None:
    judge(b"\n".join([*CORPUS[0][:lines], content]), PATHS[0], place)
