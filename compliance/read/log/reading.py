"""From the bytes of a run log to its records, within bounds and whatever the bytes are.

Three dialects are read: ``mllog``, ``:::MLLOG {json}`` with times in milliseconds, that of MLPerf
v0.6, ``:::MLL <seconds> <key>: {json}``, and that of v0.5 (``version_05.py``). Every record becomes
an ``Event`` with its true line number, and everything that does not follow rule T1 a ``Problem``.
The checks decide whether a problem matters: real logs have text before the marker or two records on
one line, and such records are read all the same. ``blocks.py`` reads lines without surprises.
"""

import io
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from cepheid.compliance.read.log import damage, records, unpack, version_05
from cepheid.compliance.read.log.blocks import PLAIN, STEM, V06_HEAD, Block, parse_block
from cepheid.compliance.read.log.fields import find_field_problems, format_field
from cepheid.compliance.read.log.records import (
    FIELDS,
    Event,
    Problem,
    count_keys,
    is_finite,
    make_decoder,
    parse_plain,
)
from cepheid.rules.events import MARKER, is_number
from cepheid.rules.rounds import Dialect, ProblemKind

BLOCK_BYTES = 256 * 2**10  # of lines that are parsed together: all of a piece, mostly
ODD_BYTES = 4 * 2**10  # the same behind an odd line, since others may follow

_MARKER = MARKER.encode()
_V06_RECORD = re.compile(rb":::MLL " + V06_HEAD + rb"(\{.*\})\s*", re.DOTALL)
_V06_HEAD = re.compile(r":::MLL[ \t]+([0-9.]{1,40})[ \t]+(\w{1,200})[ \t]?:[ \t]+", re.ASCII)
_RECORD_BYTES_MIN = len(PLAIN) + sum(map(len, FIELDS))  # of a usual line, and then some


def find_open_record(text: bytes) -> int:
    """Return where a last record begins that may go on behind the text, else where it ends."""
    marker = text.rfind(STEM, max(len(text) - damage.WRAPPED_BYTES_MAX, 0))
    if marker < 0 or not text.endswith(b"\n") or b"}\n" in text[marker:]:
        return len(text)
    start = text.rfind(b"\n", 0, marker) + 1
    return start if len(text) - start <= damage.WRAPPED_BYTES_MAX else len(text)


class _StopReadingError(Exception):
    """A bound was reached: nothing after this line is read."""


@dataclass
class Reading:
    """What has been read so far, and how much of what is bounded is used up.

    ``labels`` are problems, too: line by line what stands before the marker, mostly a rank. There
    may be one on each line, so they become a ``Problem`` each only where they matter. Where
    ``is_lenient``, most problems that lose no record are not looked for.
    """

    events: list[Event] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    labels: list[tuple[int, bytes]] = field(default_factory=list)
    problem_counts: Counter[ProblemKind] = field(default_factory=Counter)
    dialects: dict[Dialect, int] = field(default_factory=dict)  # and the first line of each
    record_bytes: int = 0
    values: int = 0
    is_text: bool = True
    not_finite: set[int] = field(default_factory=set)  # lines that hold NaN or an infinite number
    lines_read: int = 0
    is_stopped: bool = False  # a bound was reached: nothing more is read
    is_lenient: bool = False

    def add_problem(
        self, line: int | None, kind: ProblemKind, message: str, got: str = "", lost: bool = False
    ) -> None:
        """Note a problem of no known cause."""
        self.add(Problem(line, kind, message, got[: records.GOT_CHARACTERS_MAX], lost))

    def add(self, problem: Problem) -> None:
        """Note a problem; of each kind the first thousand are kept.

        More of a kind by which records are lost end the reading. Others do not: a rank may stand
        before each record of a log that is sound otherwise.
        """
        self.problem_counts[problem.kind] += 1
        if self.problem_counts[problem.kind] <= records.PROBLEMS_MAX:
            self.problems.append(problem)
        elif problem.lost:
            self.problems.append(Problem(problem.line, "file", records.TOO_MANY, lost=True))
            raise _StopReadingError

    def read_file(self, file: io.BufferedReader) -> None:
        """Read all lines of a file, also of one that is packed."""
        opened, size, carried = file, 0, b""
        try:
            opened, packed_as = unpack.open_plain(file)
            for problem in packed_as:
                self.add(problem)
            for chunk in records.read_pieces(opened):
                if self.is_stopped:
                    break
                size += len(chunk)
                whole = carried + chunk if carried else chunk
                at = find_open_record(whole)
                self.read_lines(whole[:at])
                carried = whole[at:]
            self.read_lines(carried)
        except unpack.DamagedError as error:
            self.add_problem(None, "file", f"the file is damaged: {error}", lost=True)
        if size > records.FILE_BYTES_MAX and opened is not file:
            message = f"unpacked, the file is larger than {records.FILE_BYTES_MAX // 2**20} MiB"
            self.add_problem(None, "file", message, lost=True)

    def read_lines(self, chunk: bytes) -> None:
        """Read the next lines, of which only the last may be too long."""
        if not self.is_stopped:
            cause = None if self.lines_read else damage.recognise(chunk)
            try:
                if cause:
                    self.add(Problem(1, "text", cause.message, lost=True, case=cause.case))
                    raise _StopReadingError
                self.lines_read += self.read_chunk(self.lines_read + 1, chunk)
            except _StopReadingError:
                self.is_stopped = True

    def read_chunk(self, number: int, chunk: bytes) -> int:
        """Read some lines, the first of them line ``number``; return how many they are."""
        first, kept = number, self.drop_long_line(number, chunk)
        at, limit = 0, BLOCK_BYTES
        while at < len(kept):
            newline = kept.rfind(b"\n", at, at + limit)
            end = (newline if newline >= 0 else kept.find(b"\n", at + limit)) + 1 or len(kept)
            marker = kept.rfind(STEM, at, end)  # the last one: much text may follow it
            read_to = kept.find(b"\n", marker, end) + 1 or end if marker >= 0 else at
            parsed = self.parse_within_bounds(number, kept[at:read_to]) if marker >= 0 else None
            if isinstance(parsed, Block):
                self.add_block(parsed)
                number, limit = number + parsed.line_feeds, min(2 * limit, BLOCK_BYTES)
            elif parsed:
                limit = parsed
                continue
            elif parsed == 0:
                end = read_to = self.read_first_line(number, kept, at)
                number, limit = number + kept.count(b"\n", at, end), ODD_BYTES
            if read_to < end:  # nothing but text
                other = kept[read_to:end]
                self.check_other_text(number, other)
                number += records.count_lines(other)
            at = end
        last = kept[kept.rfind(b"\n") + 1 :]
        if last and _MARKER.startswith(last):
            message = "the log ends in the middle of a record"
            self.add_problem(number, "truncated", message, lost=True)
        return number - first + chunk.count(b"\n", len(kept))

    def parse_within_bounds(self, number: int, text: bytes) -> Block | int:
        """Parse whole lines with a record all at once if nothing is odd, and within the bounds.

        Where an odd line is among others, return how many bytes to try instead, 0 for the first.
        """
        is_within_bounds = (  # each value takes one byte or more
            self.record_bytes + len(text) <= records.RECORD_BYTES_MAX
            and self.values + len(text) <= records.VALUES_MAX
            and len(self.events) + len(text) // _RECORD_BYTES_MIN <= records.EVENTS_MAX
        )
        if not is_within_bounds:
            return 0
        return parse_block(number, text, is_text=self.is_text, is_lenient=self.is_lenient)

    def read_first_line(self, number: int, text: bytes, start: int) -> int:
        """Read the line at ``start`` with care, and those that its record goes on on.

        Return where the next line begins.
        """
        end = text.find(b"\n", start) + 1 or len(text)
        if text.find(STEM, start, end) < 0:
            self.check_other_text(number, text[start:end])
        elif joined := damage.join_wrapped(text, start, STEM):
            line, end = joined
            message = f"{damage.WRAPPED.message}, and was joined"
            self.add(Problem(number, "json", message, case=damage.WRAPPED.case, foreign=True))
            self.read_line(number, line)
        else:
            self.read_line(number, text[start:end])
        return end

    def add_block(self, block: Block) -> None:
        """Add the records of a block and their problems."""
        if len(self.events) > records.LONG_EVENTS:
            records.share_texts(block.events)
        self.events += block.events
        self.record_bytes += block.record_bytes
        self.values += block.values
        self.dialects.setdefault(block.dialect, block.events[0].line)
        if block.labels:
            room = max(0, records.PROBLEMS_MAX - self.problem_counts["around"])
            self.labels += islice(zip(block.labelled, block.labels, strict=True), room)
            self.problem_counts["around"] += len(block.labels)
        for problem in block.problems:
            self.add(problem)

    def drop_long_line(self, number: int, chunk: bytes) -> bytes:
        """Return the chunk without its last line if that is too long; no other line can be."""
        start = chunk.rfind(b"\n", 0, len(chunk) - 1) + 1
        if len(chunk) - start <= records.LINE_BYTES_MAX:
            return chunk
        message = f"the line is longer than {records.LINE_BYTES_MAX // 2**20} MiB"
        self.add_problem(number + chunk.count(b"\n", 0, start), "text", message, lost=True)
        return chunk[:start]

    def check_other_text(self, number: int, text: bytes) -> None:
        """Report lines without a record if they show that the file is not text.

        A log of v0.5 holds no other records than its own.
        """
        if (not self.events or "mlp" in self.dialects) and text.rfind(version_05.STEM) >= 0:
            self.read_v05_lines(number, text)
        has_nul = b"\0" in text
        if not self.is_text or not (has_nul or not (self.is_lenient or text.isascii())):
            return
        cause, at = damage.Cause("", "the file is not UTF-8 text"), damage.find_not_utf8(text)
        if has_nul:
            cause, at = damage.explain_nul(text), text.find(b"\0")
        if at >= 0:
            self.is_text = False  # one finding says it
            line, is_lost = number + text.count(b"\n", 0, at), bool(cause.case)
            self.add(Problem(line, "text", cause.message, lost=is_lost, case=cause.case))

    def read_v05_lines(self, number: int, text: bytes) -> None:
        """Read the records of MLPerf v0.5 among lines; one that cannot be read is named."""
        for at, line in enumerate(text.split(b"\n"), number):
            if version_05.STEM in line:
                self.record_bytes += len(line)
                self.demand_room(at)
                found = version_05.parse(line, is_first=not self.events)
                for record in found:
                    self.add_record(at, record, "mlp")
                if not found:
                    message, got = "the record is not as MLPerf v0.5 writes it", line[:200]
                    self.add_problem(at, "json", message, got.decode(errors="replace"), lost=True)

    def read_line(self, number: int, line: bytes) -> None:
        """Read one line with a record carefully, within the bounds."""
        self.record_bytes += len(line)
        self.demand_room(number)
        # A cheap upper bound on what parsing creates: "[[],[],…" costs 30 times its size.
        values = line.count(b",") + line.count(b"[") + line.count(b"{")
        self.values += values
        if self.values > records.VALUES_MAX:
            message = f"the log holds more than {records.VALUES_MAX:,} values"
            self.add_problem(number, "file", message, lost=True)
            raise _StopReadingError
        if values > records.VALUES_PER_RECORD_MAX:
            message = f"the record holds more than {records.VALUES_PER_RECORD_MAX:,} values"
            self.add_problem(number, "json", message, lost=True)
            return
        if not self.read_one_record(number, line):
            self.read_odd_line(number, line)

    def demand_room(self, number: int) -> None:
        """Stop reading where the records are larger than a log may hold."""
        if self.record_bytes > records.RECORD_BYTES_MAX:
            message = (
                f"the records are larger than {records.RECORD_BYTES_MAX // 2**20} MiB together"
            )
            self.add_problem(number, "file", message, lost=True)
            raise _StopReadingError

    def read_one_record(self, number: int, line: bytes) -> bool:
        """Read a line of the marker and one object; return False if it needs a closer look."""
        if line.startswith(PLAIN):
            record = parse_plain(line[len(PLAIN) :])
            if record is None:
                return False
            self.add_record(number, record)
            return True
        matched = _V06_RECORD.fullmatch(line)
        content = parse_plain(matched[3]) if matched else None
        if matched is None or not isinstance(content, dict):
            return False
        self.add_v06_record(number, matched[1].decode(), matched[2].decode(), content)
        return True

    def read_odd_line(self, number: int, line: bytes) -> None:
        """Read a line with text around its record, several records, or broken JSON."""
        encoding = "utf-8"
        if damage.find_not_utf8(line) >= 0:
            self.add_problem(number, "text", "the line is not UTF-8 text")
            encoding = "latin-1"  # whatever the bytes are, each is a character there
        text = line.decode(encoding).rstrip()
        if damage.COLOURS.search(text):
            message = "colour codes of a terminal stand around the record"
            self.add(Problem(number, "around", message, text[:60], case="colours"))
            text = damage.COLOURS.sub("", text).rstrip()
        if unwrapped := damage.unwrap_docker(text):
            case, message = damage.DOCKER
            self.add(Problem(number, "around", message, text[:60], case=case, foreign=True))
            text = unwrapped
        at = text.find(STEM.decode())
        if at > 0:
            self.add(damage.describe_label(number, text[:at]))
        elif text.startswith(MARKER) and not text.startswith(MARKER + " "):
            self.add_problem(number, "place", "no blank follows the marker")
        while at >= 0:
            duplicates: list[str] = []
            head = None if text.startswith(MARKER, at) else _V06_HEAD.match(text, at)
            start = head.end() if head else damage.skip_blanks(text, at + len(MARKER))
            try:
                if head is None and not text.startswith(MARKER, at):
                    raise ValueError("no dialect has such a line")
                record, end = make_decoder(duplicates).raw_decode(text, start)
                if count_keys(record) is None:
                    raise ValueError("nested too deeply")
            except (ValueError, RecursionError) as error:
                broken_at, at = at, text.find(STEM.decode(), at + len(STEM))
                if at < 0 and not line.endswith(b"\n"):
                    message = "the log ends in the middle of this record"
                    self.add_problem(number, "truncated", message, text[-60:], lost=True)
                else:
                    broken = text[broken_at : at if at >= 0 else None]
                    (case, message), column = damage.explain_json(text, error)
                    shown = broken if column is None else text[max(column - 30, 0) : column + 30]
                    self.add(Problem(number, "json", message, shown[:300], True, case, column))
                continue
            if duplicates:
                message = f'the record holds "{duplicates[0]}" more than once'
                self.add_problem(number, "fields", message)
            if not is_finite(record):
                self.not_finite.add(number)
            if head:
                self.add_v06_record(number, head[1], head[2], record)
            else:
                self.add_record(number, record)
            at = text.find(STEM.decode(), end)
            self.check_text_between(number, text[end : at if at >= 0 else None], is_last=at < 0)

    def check_text_between(self, number: int, between: str, is_last: bool) -> None:
        """Report text after a record. A carriage return from a progress bar also ends a line."""
        if between.lstrip(" \t").startswith("\r"):
            self.add_problem(
                number, "around", "a carriage return follows the record", between.strip()
            )
        elif between.strip():
            self.add_problem(number, "place", "text stands after the record", between.strip())
        elif not is_last:
            self.add_problem(number, "place", "several records stand on one line")

    def add_v06_record(self, number: int, seconds: str, key: str, content: object) -> None:
        """Add a record in the dialect of MLPerf v0.6."""
        if not isinstance(content, dict):
            message = "what follows the key is not a JSON object"
            self.add_problem(number, "json", message, type(content).__name__, lost=True)
            return
        try:
            time_ms: float | None = float(seconds + "e3")
        except ValueError:  # for example 1.2.3
            time_ms = None
        self.add_record(number, {**content, "time_ms": time_ms, "key": key}, "mll")

    def add_record(self, number: int, record: object, dialect: Dialect = "mllog") -> None:
        """Add the JSON value that followed a marker as an event if it is one."""
        if not isinstance(record, dict):
            message = "what follows the marker is not a JSON object"
            self.add_problem(number, "json", message, type(record).__name__, lost=True)
            return
        if len(self.events) >= records.EVENTS_MAX:
            message = f"the log holds more than {records.EVENTS_MAX:,} records"
            self.add_problem(number, "file", message, lost=True)
            raise _StopReadingError
        key, time_ms = record.get("key"), record.get("time_ms")
        if not isinstance(key, str) or not key:
            message = "the record has no key, a string that is not empty"
            self.add_problem(number, "fields", message, format_field(record, "key"), lost=True)
            return
        if not is_number(time_ms) or not 0 <= time_ms < records.INTEGER_MAX:
            message = "time_ms is not a time in milliseconds"
            self.add_problem(number, "fields", message, format_field(record, "time_ms"), lost=True)
            return
        metadata = record.get("metadata")
        self.dialects.setdefault(dialect, number)
        for problem in find_field_problems(number, record, has_schema=dialect == "mllog"):
            self.add(problem)
        if not isinstance(metadata, dict):
            metadata = {}
        event_type = record.get("event_type")
        self.events.append(
            Event(
                line=number,
                namespace=record.get("namespace", ""),
                time_ms=time_ms,
                event_type=event_type if isinstance(event_type, str) else "",
                key=key,
                value=record.get("value"),
                metadata=metadata,
            )
        )
