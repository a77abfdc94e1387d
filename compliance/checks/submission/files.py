"""S3, S5 and S6: the code, the file names and the licence of a submission."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath

from cepheid.compliance.checks.registry import Needs, make_finding, rule
from cepheid.compliance.finding import Finding, escape, format_value
from cepheid.compliance.read.log.records import FILE_BYTES_MAX as LOG_BYTES_MAX
from cepheid.compliance.read.package import README, SubmittedFile, Submitter
from cepheid.compliance.read.powerlog import FILE_BYTES_MAX as POWER_BYTES_MAX
from cepheid.rules import definition
from cepheid.rules.digests import BYTE_CODE, has_modes, is_executable_text
from cepheid.rules.documents import FILL_IN
from cepheid.rules.names import DEVICE_NAME

FILE_BYTES_MAX = 16 * 2**20  # of a file that is not a log
PATH_CHARACTERS_MAX = 200
PROBLEMS_MAX = 100  # listed one by one
_SAFE_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+-]{0,99}")
_LICENCE_NAME = re.compile(r"(LICEN[CS]E|COPYING)(\.(txt|md))?", re.IGNORECASE)


@rule("S3", Needs.SUBMITTER)
def check_code(who: Submitter) -> Iterator[Finding]:
    """Check that each benchmark has its code and a README, and each open result a README (S3)."""
    if who.files is None:
        return
    for name in who.unfilled:
        yield make_finding(
            who.path / name,
            None,
            "S3.unfilled",
            f"the {README} is still to be written",
            expected=f"no text that begins with {FILL_IN.strip()}",
            hint="replace that text with what it asks for",
        )
    sizes = {file.name: file.size_bytes for file in who.files if not file.is_folder}
    parts = [result.parts for result in who.results if result.runs and result.parts]
    for benchmark in sorted({part[0] for part in parts if part[0] in definition.names()}):
        folder = PurePosixPath("benchmarks", benchmark)
        inside = [name for name in sizes if name.parts[:2] == folder.parts and sizes[name]]
        if not any(_is_code(name) for name in inside):
            yield make_finding(
                who.path / folder,
                None,
                "S3.no_code",
                f"the code that ran {benchmark} is missing",
                expected=f"the program and what started it, under {folder}/",
                hint="copy the code that wrote the logs; that of the reference is "
                f"benchmarks/{benchmark}/ of this repository",
            )
        if not sizes.get(folder / README):
            yield make_finding(
                who.path / folder / README,
                None,
                "S3.no_readme",
                f"{benchmark} has no {README}",
                expected="how to prepare the data and how to make the runs again",
                hint="write the commands that were used, from an empty machine to the run logs",
            )
    yield from _check_unused(who)
    keeps_modes = has_modes([file.mode for file in who.files])
    for file in who.files:
        if _is_unbound(file, keeps_modes):
            yield _report_unbound(who, file)
    for result in who.results:
        if result.parts and result.parts[2] == "open" and result.runs and not result.has_readme:
            yield make_finding(
                result.path / README,
                None,
                "S3.no_result_readme",
                f"the result of the open division has no {README}",
                expected="model, optimizer, schedule and hyperparameters in words (T13)",
                hint="say what differs from the definition, so that a reader can compare",
            )


def _check_unused(who: Submitter) -> Iterator[Finding]:
    """Report code for a benchmark without a result: no digest of a result's code covers it."""
    used = {result.parts[0] for result in who.results if result.parts}
    if not used <= set(definition.names()):
        return  # S1 reports the name, and the code may be that of this result
    for file in sorted(who.files or (), key=lambda file: file.name):
        parts = file.name.parts
        is_code = file.is_folder and len(parts) == 2 and parts[0] == "benchmarks"
        if used and is_code and parts[1] in definition.names() and parts[1] not in used:
            yield make_finding(
                who.path / file.name,
                None,
                "S3.unused",
                f"there is code for {parts[1]}, but no result of it",
                expected=f"a result {parts[1]}-<scale>-<division>",
                hint="add the result, or remove the code; other code must not use it",
            )


def _is_unbound(file: SubmittedFile, keeps_modes: bool) -> bool:
    """Return True for code that can run although no digest of the code covers it."""
    in_code = len(file.name.parts) > 2 and file.name.parts[0] == "benchmarks"
    is_text_of_code = in_code and len(file.name.parts) == 3 and not file.is_folder
    is_byte_code = BYTE_CODE.fullmatch(file.name.name) is not None
    is_script = keeps_modes and is_text_of_code and is_executable_text(file.name.name, file.mode)
    if not (is_byte_code or is_script):
        return False
    return not any(map(BYTE_CODE.fullmatch, file.name.parts[:-1]))  # else reported with its folder


def _report_unbound(who: Submitter, file: SubmittedFile) -> Finding:
    return make_finding(
        who.path / file.name,
        None,
        "S3.unbound",
        "this can run, but the digest of the code does not cover it",
        expected="source files; a README or licence that is not executable",
        hint="remove byte code: find benchmarks -name __pycache__ -exec rm -r {} +"
        if BYTE_CODE.fullmatch(file.name.name)
        else "chmod -x, or rename it if it is code",
    )


def _is_code(name: PurePosixPath) -> bool:
    return name.name != README and not _LICENCE_NAME.fullmatch(name.name)


@rule("S5", Needs.SUBMITTER)
def check_hygiene(who: Submitter) -> Iterator[Finding]:
    """Check that there are no links, device files, unsafe names or oversized files (S5)."""
    for refused in who.refused:
        yield make_finding(
            refused.path,
            None,
            "S5.refused",
            f"not read: {refused.why}",
            expected="plain files and folders that may be read, within the bounds of S5",
            hint="replace a link by what it names, let others read the files, or leave out what is "
            "no log, description or code",
        )
    of_files = list(islice(_check_files(who), PROBLEMS_MAX + 1))
    yield from of_files[:PROBLEMS_MAX]
    if len(of_files) > PROBLEMS_MAX:
        yield make_finding(
            who.path,
            None,
            "S5.more_files",
            f"more than {PROBLEMS_MAX} files have such names or sizes",
            hint="fix the files that are listed, then check again",
        )


def _check_files(who: Submitter) -> Iterator[Finding]:
    """Check the names and sizes of all files of a submission."""
    folded: dict[str, SubmittedFile] = {}
    for file in sorted(who.files or (), key=lambda file: file.name):
        yield from _check_name(who, file)
        yield from _check_size(who, file)
        other = folded.setdefault(str(file.name).casefold(), file)
        if other is not file:
            yield make_finding(
                who.path / file.name,
                None,
                "S5.case",
                f"the name differs from {escape(str(other.name))} only in case",
                hint="rename one of them: on some systems they are the same file",
            )


def _check_name(who: Submitter, file: SubmittedFile) -> Iterator[Finding]:
    name = file.name.name
    is_safe = _SAFE_NAME.fullmatch(name) and not name.endswith(".")
    if not is_safe or DEVICE_NAME.fullmatch(name):
        yield make_finding(
            who.path / file.name,
            None,
            "S5.name",
            "the name is hidden, or not one that every system can read",
            expected="letters, digits, '.', '_', '+' and '-', at most 100, '-' and '.' not first, "
            "'.' not last, and no device name of Windows",
            got=format_value(name),
            hint="rename it, or remove what no reviewer needs",
        )
    elif len(str(file.name)) > PATH_CHARACTERS_MAX:
        yield make_finding(
            who.path / file.name,
            None,
            "S5.long_path",
            "the path is too long",
            expected=f"at most {PATH_CHARACTERS_MAX} characters below the submitter's folder",
            got=f"{len(str(file.name)):,}",
            hint="use shorter names or fewer folders",
        )


def _check_size(who: Submitter, file: SubmittedFile) -> Iterator[Finding]:
    is_result = file.name.parts[0] == "results"
    bounds = {".txt": LOG_BYTES_MAX, ".csv": POWER_BYTES_MAX} if is_result else {}
    bound = bounds.get(file.name.suffix, FILE_BYTES_MAX)
    if file.size_bytes > bound:
        yield make_finding(
            who.path / file.name,
            None,
            "S5.large_file",
            "the file is too large for a submission",
            expected=f"at most {bound // 2**20} MiB",
            got=f"{file.size_bytes:,} bytes",
            hint="leave out data, weights and output; let the README say how to make them",
        )


@rule("S6", Needs.SUBMITTER)
def check_licence(who: Submitter) -> Iterator[Finding]:
    """Check that the code has a licence (S6)."""
    if who.files is None or not who.results:
        return
    for file in who.files:
        at_top, beside_code = len(file.name.parts) == 1, file.name.parts[0] == "benchmarks"
        if (at_top or beside_code) and _LICENCE_NAME.fullmatch(file.name.name) and file.size_bytes:
            return
    yield make_finding(
        who.path / "LICENSE",
        None,
        "S6.no_licence",
        "the submission states no licence",
        expected="a file LICENSE at the top or beside the code under benchmarks/",
        hint="add the licence of the code; logs and descriptions are published under Apache-2.0",
    )
