"""The records of MLPerf v0.5, as those of later rounds.

    :::MLPv0.5.0 gnmt 1544232580.120606184 (nmt.py:591) eval_accuracy: {"epoch": 3, "value": 21.9}

Each line names the benchmark, which later logs do in a record of its own; ``run_stop`` says in its
value whether the run succeeded, or nothing. The text after the key is JSON, or there is none.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from cepheid.compliance.read.log.records import LINE_BYTES_MAX, count_keys
from cepheid.rules.events import STATUS_ABORTED, STATUS_SUCCESS

STEM = b":::MLPv0.5"
VALUE_BYTES_MAX = LINE_BYTES_MAX // 16
_LINE = re.compile(
    rb":::MLPv0\.5\.\d (?P<benchmark>\w{1,80}) (?P<seconds>\d{1,12}(?:\.\d{1,12})?)"
    rb" \((?P<file>[^\n]{0,1000}?):(?P<line>\d{1,9})\) (?P<key>\w{1,200})(?: ?: ?(?P<value>.*))?\s*"
)
_SUCCESS = {True: STATUS_SUCCESS, "true": STATUS_SUCCESS, False: STATUS_ABORTED}


def parse(line: bytes, is_first: bool) -> tuple[dict[str, Any], ...]:
    """Return the records of a line, none where it is not as v0.5 writes it.

    The first record of a log is preceded by one of its benchmark. Nothing is raised, whatever the
    bytes are. A value that is nested too deeply, or larger than any that was ever logged, is not
    read, so that a log costs no more than its size.
    """
    found = _LINE.match(line, line.find(STEM))
    if found is None or found.end() != len(line):
        return ()
    text = (found["value"] or b"").strip()
    try:
        value = json.loads(text) if text else None
        if len(text) > VALUE_BYTES_MAX or count_keys(value) is None:
            return ()
    except (ValueError, RecursionError):
        return ()
    key, time_ms = found["key"].decode(), round(float(found["seconds"]) * 1000, 3)
    metadata = {"file": found["file"].decode(errors="replace"), "lineno": int(found["line"])}
    if key in ("eval_accuracy", "run_stop") and isinstance(value, dict):
        value = dict(_move(value, metadata)).get("value")
    record = {"key": key, "value": value, "time_ms": time_ms, "metadata": metadata}
    benchmark = {**record, "key": "submission_benchmark", "value": found["benchmark"].decode()}
    return (benchmark, record) if is_first else (record,)


def _move(value: dict[str, Any], metadata: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is the value, and put epoch and success where later rounds have them."""
    for name, part in value.items():
        if name == "epoch":
            metadata["epoch_num"] = part
        elif name == "success":
            metadata["status"] = _SUCCESS.get(part) if isinstance(part, bool | str) else None
        else:
            yield name, part
