"""Logs that are packed, recoded or wrapped are read, within bounds, and named."""

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.checks.mlperf.requirements import is_broken
from cepheid.compliance.read.log import records, runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from tests.compliance.history import mllog_lines, resnet_40

PLACE = Place("mlperf-training-4.0")
TEXT = "".join(f"{line}\n" for line in mllog_lines(resnet_40(0), 0))
Pack = Callable[[bytes], bytes]


def wrap(width: int, end: bytes = b"\n") -> Pack:
    def broken(log: bytes) -> bytes:
        lines = (
            line[at : at + width] + end
            for line in log.splitlines()
            for at in range(0, len(line), width)
        )
        return b"".join(lines)

    return broken


PACKED: dict[str, tuple[Pack, set[str]]] = {
    "gzip": (gzip.compress, {"compressed"}),
    "gzip in parts": (
        lambda log: gzip.compress(log[:999]) + gzip.compress(b"") + gzip.compress(log[999:]),
        {"compressed"}),
    "gzip with zeros behind": (lambda log: gzip.compress(log) + bytes(99), {"compressed"}),
    "UTF-16": (lambda log: log.decode().encode("utf-16"), {"utf_16"}),
    "UTF-16, big end first": (
        lambda log: b"\xfe\xff" + log.decode().encode("utf-16-be"), {"utf_16"}),
    "UTF-16 without a mark": (lambda log: log.decode().encode("utf-16-le"), {"utf_16"}),
    "UTF-16, the other one": (lambda log: log.decode().encode("utf-16-be"), {"utf_16"}),
    "UTF-32": (lambda log: log.decode().encode("utf-32"), {"utf_32"}),
    "UTF-32 without a mark": (lambda log: log.decode().encode("utf-32-be"), {"utf_32"}),
    "gzip of UTF-16": (
        lambda log: gzip.compress(log.decode().encode("utf-16")), {"compressed", "utf_16"}),
    "wrapped at 80": (wrap(80), {"wrapped"}),
    "wrapped at 41": (wrap(41), {"wrapped"}),
    "wrapped, CRLF": (wrap(132, b"\r\n"), {"wrapped"}),
    "gzip of a wrapped log": (lambda log: gzip.compress(wrap(80)(log)), {"compressed", "wrapped"}),
}  # fmt: skip


def read(path: Path, content: bytes) -> RunLog:
    path.write_bytes(content)
    return runlog.read(path)


def show(run: RunLog) -> list[tuple[object, ...]]:
    return [(e.time_ms, e.key, e.value, e.metadata, e.event_type) for e in run.events]


@pytest.mark.parametrize("name", PACKED)
def test_what_is_packed_is_read_and_named(name: str, tmp_path: Path) -> None:
    """Nothing is lost, and nothing else is found; mlcommons' checker reads no record there."""
    pack, cases = PACKED[name]
    plain = read(tmp_path / "result_0.txt", TEXT.encode())
    run = read(tmp_path / "result_1.txt", pack(TEXT.encode()))
    assert show(run) == show(plain)
    assert not run.has_lost_records
    assert {problem.case for problem in run.other_problems} == cases
    assert not is_broken(plain, PLACE)
    assert is_broken(run, PLACE)
    found = check_log(run, PLACE, rounds.load(PLACE.round))
    assert {each.code for each in found} <= {"T1.text", "T1.json"}
    assert len(found) == len(cases)


def test_records_are_joined_wherever_a_piece_of_the_file_ends(tmp_path: Path) -> None:
    lines = "".join(TEXT.splitlines(keepends=True)[:9]) * (3 * records.PIECE_BYTES // len(TEXT))
    plain = read(tmp_path / "result_0.txt", lines.encode())
    run = read(tmp_path / "result_1.txt", wrap(80)(lines.encode()))
    assert len(lines) > records.PIECE_BYTES // 2
    assert show(run) == show(plain)
    assert not run.has_lost_records


def test_a_record_that_goes_on_nowhere_is_lost(tmp_path: Path) -> None:
    for lines in [
        ':::MLLOG {"key": \n' + "no record\n" * 99,
        ':::MLLOG {"key": \n:::MLLOG {"key": \n',
        ':::MLLOG {"key": \n' + "x" * 99_999 + "}\n",
        ':::MLLOG {"key": ',
        ":::MLLOG " + "[" * 9_999 + "\n]\n",
    ]:
        run = read(tmp_path / "result_0.txt", (TEXT + lines).encode())
        assert run.has_lost_records
        assert len(run.events) == TEXT.count("\n")


@cache
def bomb(megabytes: int, piece: bytes) -> bytes:
    machine = zlib.compressobj(1, wbits=31)  # in a third of the time of the smallest one
    packed = [machine.compress(piece * (2**20 // len(piece))) for _ in range(megabytes)]
    return b"".join([*packed, machine.flush()])


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a bomb of zeros": lambda: bomb(300, b"\0"),
    "a bomb of short lines": lambda: bomb(300, b"x\n"),
    "a bomb in a bomb": lambda: gzip.compress(bomb(300, b"x\n")),
    "many parts": lambda: gzip.compress(b"") * 50_000,
    "cut": lambda: gzip.compress(TEXT.encode())[:-20],
    "no gzip at all": lambda: b"\x1f\x8b" + TEXT.encode(),
    "a wrong sum": lambda: gzip.compress(TEXT.encode())[:-8] + bytes(8),
    "gzip three times": lambda: gzip.compress(gzip.compress(gzip.compress(TEXT.encode()))),
    "half a character": lambda: TEXT.encode("utf-16")[:-1],
    "no UTF-16 from some place on": lambda: TEXT.encode("utf-16") + b"\x00\xd8" * 2,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_within_bounds(name: str, tmp_path: Path) -> None:
    content = HOSTILE[name]()
    tracemalloc.start()
    started = time.process_time()
    run = read(tmp_path / "result_0.txt", content)
    seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert run.has_lost_records
    assert peak < 32 * 2**20
    assert seconds < 20
    assert len(run.other_problems) < 2 * records.PROBLEMS_MAX
