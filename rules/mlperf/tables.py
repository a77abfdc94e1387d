"""Tables of mlperf-logging beside its rules: benchmarks, numbers of runs, runs of the reference.

The files are read as text, and a Python file as a syntax tree whose literals are taken: nothing of
the package is imported. Each function raises UserError for a file that is not as expected.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cepheid.rules.documents import parse_json
from cepheid.rules.errors import UserError, cannot_read

FILE_BYTES_MAX = 2**20
EPOCHS, SAMPLES = "Epochs to converge", "samples to converge"  # of a reference point


@cache
def read_benchmarks(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the numbers of runs, and the benchmarks of rounds, both by usage."""
    with _refuse_other(path):
        body = ast.parse(read_text(path)).body
        counts, allowed = _read(body, "_ALL_RESULT_FILE_COUNTS", "_ALL_ALLOWED_BENCHMARKS")
    return counts, allowed


@cache
def read_description_rules(path: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Return the fields that the description of a system must have, and what its status may be."""
    with _refuse_other(path):
        nodes = ast.walk(ast.parse(read_text(path)))
        fields, statuses = _read(nodes, "required_fields", "availability_options")
        return tuple(map(str, fields)), tuple(map(str, statuses))


def _read(nodes: Iterable[ast.AST], *names: str) -> Iterator[Any]:
    """Yield the literals that are assigned to names."""
    assignments = (node for node in nodes if isinstance(node, ast.Assign))
    assigned = {ast.unparse(node.targets[0]): node.value for node in assignments}
    return (ast.literal_eval(assigned[name]) for name in names)


@contextmanager
def _refuse_other(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        SyntaxError, ValueError, TypeError, KeyError, AttributeError, RecursionError
    ) as error:  # fmt: skip
        raise UserError(f"{path}: not as expected: {error!r}; is it a newer package?") from None


@cache
def read_reference_runs(path: Path) -> Mapping[int, Sequence[float]]:
    """Return the epochs or samples of the reference's runs, by batch size."""
    with _refuse_other(path):
        records = parse_json(read_text(path)).values()
        return {
            int(record["BS"]): tuple(map(float, record.get(SAMPLES) or record[EPOCHS]))
            for record in records
        }


def read_text(path: Path) -> str:
    """Return the text of a file of the package.

    Raises UserError where it cannot be read, is no text, or is too large to be such a file.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UserError(f"{path}: larger than {FILE_BYTES_MAX:,} bytes; is it a rule file?")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise cannot_read(path, error) from error
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; is it a rule file?") from None
