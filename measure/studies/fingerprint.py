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

from cepheid.measure.engine import options
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.provenance import Fingerprint, find_difference
from cepheid.measure.engine.study import Measured, Request, Study
from cepheid.rules import definition as definitions
from cepheid.rules.errors import UserError, cannot_read

if TYPE_CHECKING:
    from cepheid.measure.engine.fingerprint_cases import Case

DESCRIPTION = """\
Take the fingerprint of each benchmark at mini scale: train seven steps on 48 samples in fp32 with
two evaluations (or generate a few images), and print a digest of weights, losses and metrics. It
takes seconds for each benchmark.

Where the fingerprint before a change of the code equals the one after it, the same seed still
gives the same bits, and what was recorded before (evidence, reference points) is still true.

--cases all also trains under settings that take other code: micro-batches, bf16, fp16, spans of
batch norm, shared updates, images, layers and matrices, on one rank and on two. It resumes each
from its first block, and takes minutes. Use it for a change of what all benchmarks share.
"""
EXAMPLES = """\
examples:
  cepheid measure fingerprint                              all benchmarks
  cepheid measure fingerprint ssd gnmt
  cepheid measure fingerprint --output before.json         keep them, then change the code
  cepheid measure fingerprint --against before.json        show which benchmarks compute otherwise
  cepheid measure fingerprint ssd --cases all              ssd under many settings, on 1 and 2 ranks

With another version of PyTorch, or on another model of processor, bits differ by rounding; there
--against compares losses and metrics within one part in a thousand.

exit codes: 0 taken, and equal to those of --against; 1 some differ; 2 wrong use
"""


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


STUDY = Study(
    "fingerprint",
    plan,
    measure,
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        Option("benchmarks BENCHMARK", "which benchmarks (default: all)", more={"nargs": "*"}),
        Option("--cases", "plain: each benchmark in fp32 on one rank; all: also other settings and "
               "two ranks", default="plain", more={"choices": ("plain", "all")}),
        Option("--output FILE.json", "write the fingerprints there too", Path),
        Option("--against FILE.json", "compare with what --output wrote before", Path),
        options.DATA,
    ),
)  # fmt: skip
