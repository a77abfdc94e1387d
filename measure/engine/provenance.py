"""Which code made a record, and what that code computes: ``benchmarks/<name>/fingerprints.json``.

A recorded run keeps the digest of the code that made it. The file has each fingerprint with the
code digests, and their commits, of which it was taken. So a record is stale when what its benchmark
computes has changed, not when a line has.
"""

import math
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.own_process import run_alone
from cepheid.reference.session.code_digest import digest_code
from cepheid.rules.definition import load
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import locate_file, read_file, write_file
from cepheid.rules.host import ROOT

if TYPE_CHECKING:
    from cepheid.reference.machine.ranks import Ranks

FILE = "fingerprints.json"
HARDWARE = (
    "processor", "processor_cores_per_node", "accelerator", "accelerators_per_node",
    "operating_system",
)  # fmt: skip
"""The keys of a system description that say what a measurement ran on."""
ROUNDING = 1e-3  # relative: seven steps amplify the rounding of fp32 by less than this
Digested = tuple[str, Mapping[str, float]]


@dataclass(frozen=True)
class Fingerprint:
    """The digest of a benchmark or of a case, and the losses and metrics that it covers."""

    digest: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        """Return the digest, the first loss (or metric) and the last metric."""
        named = list(self.values.items())
        shown = dict([named[0], named[-1]]).items()
        return f"{self.digest}  " + ", ".join(f"{name} {value:.6g}" for name, value in shown)


@dataclass(frozen=True)
class Taken:
    """A fingerprint: its kind of machine, commits by code digest, and digest of a definition."""

    fingerprint: Fingerprint
    machine: Mapping[str, str]
    code: Mapping[str, str]
    definition: str = ""

    def is_like(self, other: "Taken") -> bool:
        """Return True where both compute the same: the same bits on one kind of machine."""
        same_machine = self.machine == other.machine
        return not find_difference(self.fingerprint, other.fingerprint, same_machine)


def find_difference(now: Fingerprint, before: Fingerprint, is_same_machine: bool) -> str:
    """Return how a fingerprint differs from an earlier one, or "" if it does not.

    On the same kind of machine the bits must be equal; on another one, losses and metrics must
    agree within rounding.
    """
    if now.digest == before.digest:
        return ""
    for name in sorted(now.values.keys() | before.values.keys()):
        new, old = now.values.get(name), before.values.get(name)
        if new is None or old is None:
            return f"{name} is new" if old is None else f"{name} is gone"
        if not math.isclose(new, old, rel_tol=ROUNDING, abs_tol=ROUNDING):
            return f"{name} was {old:.6g} and is {new:.6g}"
    if not is_same_machine:
        return ""
    return "other bits; losses and metrics agree within rounding"


def load_taken(name: str) -> list[Taken]:
    """Return the recorded fingerprints of a benchmark. Raises UserError for a damaged file."""
    try:
        return [
            Taken(Fingerprint(digest, entry.pop("values")), **entry)
            for digest, entry in read_file(name, FILE).items()
        ]
    except (KeyError, TypeError) as error:
        path = locate_file(name, FILE)
        raise UserError(f"{path}: damaged ({error!r}); fix: restore it from git") from error


def lock_record(name: str, file: str) -> AbstractContextManager[object]:
    """Return a lock on a benchmark's file for who reads it, adds a run, and writes it."""
    from filelock import FileLock  # here: who reads what is recorded needs no extra

    path = locate_file(name, file)
    return FileLock(path.with_name(f".{path.name}.lock"))


def keep_current(name: str, data_root: Path) -> str:
    """Record what today's code of a benchmark computes, if it is not known; return its digest.

    Of processes that start together, one takes the fingerprint.
    """
    code = digest_code(ROOT, name)
    with lock_record(name, FILE):
        if _find_known(name, code):
            return code
        now = take_all([name], data_root)[name]
        document = read_file(name, FILE)
        entry = document.setdefault(now.fingerprint.digest, {"code": {}})
        entry["code"] |= now.code
        document[now.fingerprint.digest] = {
            "machine": dict(now.machine), "values": dict(now.fingerprint.values),
            "definition": now.definition, "code": entry["code"],
        }  # fmt: skip
        write_file(name, FILE, document)
    return code


def find_current_code(names: Iterable[str], data_root: Path) -> Mapping[str, frozenset[str]]:
    """Return for each benchmark the digests of code that computes what today's code computes.

    A fingerprint is taken, in seconds, where the file does not know today's code and definition.
    Code that computed the same under an earlier definition counts: a record names its own.
    """
    known = {name: load_taken(name) for name in names}
    now = {name: _find_known(name, digest_code(ROOT, name)) for name in known}
    unknown = [name for name, taken in now.items() if taken is None]
    now |= take_all(unknown, data_root) if unknown else {}
    return {name: _list_same(mine, known[name]) for name, mine in now.items() if mine is not None}


def _list_same(mine: Taken, known: Sequence[Taken]) -> frozenset[str]:
    """Return the digests of code like ``mine``, and of what that computed as other code did."""
    like = mine.code.keys() | {
        code for taken in known if taken.is_like(mine) for code in taken.code
    }
    return frozenset(like).union(*(taken.code for taken in known if like & taken.code.keys()))


def _find_known(name: str, code: str) -> Taken | None:
    """Return the recorded fingerprint of code under today's definition, None if there is none."""
    now = load(name, "mini").digest
    taken = load_taken(name)
    return next((each for each in taken if each.definition == now and code in each.code), None)


def take_all(names: list[str], data_root: Path) -> Mapping[str, Taken]:
    """Take the fingerprints of benchmarks as they are now, in a process of its own."""
    machine, digests = run_alone(_take_all, names, data_root)
    commit = find_commit()
    now = [(name, digest_code(ROOT, name), load(name, "mini").digest) for name in names]
    return {
        name: Taken(Fingerprint(*digests[name]), machine, {code: commit}, definition)
        for name, code, definition in now
    }


def _take_all(names: list[str], data_root: Path) -> tuple[Mapping[str, str], dict[str, Digested]]:
    from cepheid.measure.engine.fingerprint_cases import describe_machine, take_fingerprint

    return describe_machine(), {name: take_fingerprint(name, data_root) for name in names}


def describe_making(asked: Any, ranks: "Ranks") -> dict[str, Any]:
    """Return the machine, the command, and commit and digest of the code of a measurement."""
    from cepheid.reference.machine import system

    description = system.describe("local", ranks)
    return {
        "machine": {key: description[key] for key in (*HARDWARE, "framework", "software")},
        "command": str(getattr(asked, "command", "")),
        "commit": find_commit(),
        "code_digest": digest_code(ROOT, asked.benchmark),
    }


def find_commit() -> str:
    """Return the commit of the checkout, with "+" where files differ from it; "" without git."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
