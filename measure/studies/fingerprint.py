"""`cepheid measure fingerprint`: whether a change of the code changed what is computed.

Two fingerprints are equal if the same seed gives the same bits, so a record (evidence, reference
points) that was made before the fingerprint changed is stale. Processors and versions of PyTorch
round differently, so a fingerprint also keeps the losses and metrics themselves: on another machine
these must agree within rounding.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.provenance import Fingerprint, find_difference
from cepheid.measure.engine.study import Measured, Request, Study
from cepheid.rules import definition as definitions
from cepheid.rules.errors import UserError, cannot_read

if TYPE_CHECKING:
    from cepheid.measure.engine.fingerprint_cases import Case


@dataclass(frozen=True)
class Record:
    """Fingerprints by name, and what decides how their numbers are rounded."""

    machine: Mapping[str, str]
    fingerprints: Mapping[str, Fingerprint]


@dataclass(frozen=True)
class Plan:
    """The cases of each benchmark to take, and the earlier record to compare with."""

    cases: "Mapping[str, list[Case]]"
    before: Record | None


def plan(request: Request) -> Plan:
    """Read what was asked for and recorded. Raises UserError for what cannot be read."""
    asked = request.arguments
    names = asked.benchmarks or definitions.names()
    for name in names:
        definitions.load(name, "mini")
    from cepheid.measure.engine.fingerprint_cases import list_cases

    before = read_record(asked.against) if asked.against else None
    return Plan({name: list_cases(name) if asked.cases == "all" else [] for name in names}, before)


def read_record(path: Path) -> Record:
    """Return what ``--output`` wrote. Raises UserError for another file.

    Only the form is checked: a record is compared, and decides nothing else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValueError as error:
        fix = "give a file that `cepheid measure fingerprint --output` wrote"
        raise UserError(f"{path}: this is no record of fingerprints; {fix}") from error


def measure(request: Request, wanted: Plan) -> Measured:
    """Take and print one fingerprint after the other, each with how it differs from before."""
    from cepheid.measure.engine.fingerprint_cases import describe_machine, take_fingerprints

    machine, taken, is_fine = describe_machine(), {}, True
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    width = max(len(str(case)) for name in wanted.cases for case in (name, *wanted.cases[name]))
    for name, cases in wanted.cases.items():
        for label, facts in take_fingerprints(name, cases, request.data_root):
            taken[label] = now = Fingerprint(*facts)
            verdict = _compare(label, now, wanted.before, machine) if wanted.before else ""
            is_fine = is_fine and not verdict.startswith("differs")
            print(f"{label:<{width}}  {now}  {verdict}".rstrip(), flush=True)
    return Measured(facts=asdict(Record(machine, taken)), is_fine=is_fine)


def _compare(label: str, now: Fingerprint, before: Record, machine: Mapping[str, Any]) -> str:
    """Return a phrase that says whether this computes otherwise than before."""
    earlier = before.fingerprints.get(label)
    if earlier is None:
        return "not in the earlier file"
    if difference := find_difference(now, earlier, before.machine == machine):
        return f"differs: {difference}"
    return "same bits" if now.digest == earlier.digest else "same within rounding"


STUDY = Study("fingerprint", plan, measure, **read_command("fingerprint"))
