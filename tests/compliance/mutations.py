"""Broken run logs by the million: random changes of real and of built ones.

``mutated`` is a pure function of a corpus and a ``random.Random``, so that a seed and a number name
an input for ever. The script tests/fuzz.py makes very many, test_runlog.py a few.
"""

import io
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.finding import sort_findings
from cepheid.compliance.read.log.reading import Reading
from cepheid.compliance.read.log.runlog import RunLog, make_run_log
from cepheid.compliance.report import formats as report
from cepheid.rules import rounds

Lines = list[bytes]
Mutation = Callable[[random.Random, Lines, Sequence[Lines]], None]

MARKER = b":::MLLOG"
PLACES = tuple(
    place
    for name in rounds.names()
    for place in (
        Place(name),
        Place(name, "acme", "box", "galaxy_shape", "mini", "closed", in_result=True),
        Place(name, "acme", "box", "galaxy_shape", "mini", "open", in_submission=True),
    )
)
PATHS = tuple(map(Path, ("result_0.txt", "result_0.txt.partial", "a%,:\n\u202e.txt")))
ODD_VALUES = (
    b"null", b"true", b"-1", b"0", b"-0", b"0.5", b"1e308", b"-1e308", b"1e999", b"NaN",
    b"-Infinity",
    b"9007199254740993", b"9" * 40, b"9" * 5000, b"1e-320", b'""', b'"success"', b'"\\ud800"',
    b'"\\u0000"', b'"\\u202e"', b'"' + b"x" * 2000 + b'"', b"[]", b"{}",
    b'{"a": {"a": {"a": []}}}',
    b'{"": ""}', b"[[[[[[[[[[]]]]]]]]]]", b"[" * 40 + b"]" * 40, b"[" * 3000, b'{"a":' * 2000,
    b"{}" * 50, b"[1, 2, 3]", b'"1"', b'"nan"', b"\xff", "\u0430".encode(), b"",
)  # fmt: skip
LOOK_ALIKES = (("a", "\u0430"), ("e", "\u0435"), ("o", "\u03bf"), ("_", "\uff3f"), (":", "\uff1a"))
_NUMBER = re.compile(rb"(?<=[ :\[])-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?")
_VALUE = re.compile(rb'(?<=": )(?:"[^"]*"|[^",{}\[\]]+)')
_KEY = re.compile(rb'"[a-z_0-9]+"(?=: )')


def _drop(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
    del lines[chance.randrange(len(lines))]


def _repeat(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
    lines.insert(chance.randrange(len(lines)), chance.choice(lines))


def _swap(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def _truncate(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
    del lines[chance.randrange(len(lines)) + 1 :]
    lines[-1] = lines[-1][: chance.randrange(len(lines[-1]) + 1)]


def _behead(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
    del lines[: chance.randrange(len(lines))]


def _borrow(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(chance.choice(corpus)))


def _glue(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
    at = chance.randrange(len(lines))
    lines[at : at + 2] = [b"".join(lines[at : at + 2])]


def _shuffle(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
    chance.shuffle(lines)


def _in_a_line(change: Callable[[random.Random, bytes], bytes]) -> Mutation:
    def mutation(chance: random.Random, lines: Lines, corpus: Sequence[Lines]) -> None:
        at = chance.randrange(len(lines))
        lines[at] = change(chance, lines[at])

    return mutation


def _flip(chance: random.Random, line: bytes) -> bytes:
    if not line:
        return b"\0"
    changed = bytearray(line)
    changed[chance.randrange(len(line))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _insert(chance: random.Random, line: bytes) -> bytes:
    odd = (b"\0", b"\r", b"\n", b"\x1b[31m", b"\xe9", b"\xef\xbb\xbf", MARKER, MARKER + b" {", b"{",
           b"}", b'"', b"\\", b",", b":", b"\xe2\x80\xa8", b" " * 50, b"x" * 5000)  # fmt: skip
    at = chance.randrange(len(line) + 1)
    return line[:at] + chance.choice(odd) * chance.choice((1, 1, 1, 2, 20)) + line[at:]


def _replace(pattern: re.Pattern[bytes], by: Callable[[random.Random, bytes], bytes]) -> Mutation:
    def change(chance: random.Random, line: bytes) -> bytes:
        found = list(pattern.finditer(line))
        if not found:
            return line
        at = chance.choice(found)
        return line[: at.start()] + by(chance, at.group()) + line[at.end() :]

    return _in_a_line(change)


def _other_number(chance: random.Random, before: bytes) -> bytes:
    change = chance.choice((1, -1, 64, -(10**6), 10**9, 10**15))
    number = float(before) if len(before) < 300 else 0.0
    return b"%d" % (int(number) + change) if math.isfinite(number) else b"%d" % change


def _other_key(chance: random.Random, before: bytes) -> bytes:
    names = (b'"key"', b'"value"', b'"time_ms"', b'"metadata"', b'"samples_count"', b'"metrics"',
             b'"monotonic_ms"', b'"x"', b'"status"', b'""', b'"' + b"k" * 300 + b'"')  # fmt: skip
    return chance.choice(names)


def _look_alike(chance: random.Random, line: bytes) -> bytes:
    latin, other = chance.choice(LOOK_ALIKES)
    return line.replace(latin.encode(), other.encode(), chance.choice((1, 3, -1)))


_odd_value = _replace(_VALUE, lambda chance, before: chance.choice(ODD_VALUES))
_key_of_record = _replace(
    re.compile(rb'(?<="key": )"[^"]*"'),
    lambda chance, before: chance.choice(
        (b'"run_start"', b'"run_stop"', b'"eval_accuracy"', b'"block_start"', b'"block_stop"',
         b'"init_start"', b'"seed"', b'"global_batch_size"',
         b'"submission_benchmark"', b'"nonsense"',
         b'"init_aborted"', b'"epoch_start"', b'"opt_nmae"', b'"status"', b'"eval_stop"')
    ),
)  # fmt: skip

MUTATIONS: Sequence[Mutation] = (
    _drop, _repeat, _swap, _truncate, _behead, _borrow, _glue, _shuffle,
    _in_a_line(_flip), _in_a_line(_insert), _in_a_line(_look_alike),
    _odd_value, _odd_value, _replace(_NUMBER, _other_number),
    _replace(_KEY, _other_key), _key_of_record,
)  # fmt: skip


def mutate(chance: random.Random, corpus: Sequence[Lines]) -> bytes:
    """One broken log: between one and six changes of one of the corpus."""
    lines = list(chance.choice(corpus))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        if lines:
            chance.choice(MUTATIONS)(chance, lines, corpus)
    return chance.choice((b"\n", b"\n", b"\n", b"\r\n")).join(lines) + chance.choice((b"\n", b""))


def excerpt(chance: random.Random, lines: Lines, records: int) -> Lines:
    """The first and the last records of a log and some from its middle: small, so that many inputs
    can be made, and with everything that a run begins and ends with."""
    kept = [line for line in lines if b":::MLL" in line]
    middle = chance.randrange(max(1, len(kept) - records))
    picked = [*range(records), *range(middle, middle + records), *range(-records // 2, 0)]
    numbers = sorted({index % len(kept) for index in picked if -len(kept) <= index < len(kept)})
    return [kept[number] for number in numbers]


def parse(content: bytes, path: Path = PATHS[0]) -> RunLog:
    """The log that ``content`` is, without a file."""
    reading = Reading()
    reading.read_file(io.BufferedReader(io.BytesIO(content)))
    return make_run_log(path, reading)


def judge(content: bytes, path: Path, place: Place, *, reported: bool = False) -> int:
    """Parse, check in the place's round and perhaps report in each format; returns the number of
    findings."""
    findings = check_log(parse(content, path), place, rounds.load(place.round))
    for text_of in report.FORMATS.values() if reported else ():
        text_of(sort_findings(findings), 1, place.round).encode("utf-8")
    return len(findings)
