"""S3, S5 and S6: the code, the file names and the licence of a submission."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath

from cepheid.compliance.checks.registry import Needs, rule
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.contents import README, SubmittedFile, Submitter
from cepheid.compliance.read.log.records import FILE_BYTES_MAX as LOG_BYTES_MAX
from cepheid.compliance.read.powerlog import FILE_BYTES_MAX as POWER_BYTES_MAX
from cepheid.rules import definition
from cepheid.rules.digests import BYTE_CODE, has_modes, is_executable_text
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
        yield breach(who.path / name, None, "S3.unfilled")
    sizes = {file.name: file.size_bytes for file in who.files if not file.is_folder}
    parts = [result.parts for result in who.results if result.runs and result.parts]
    for benchmark in sorted({part[0] for part in parts if part[0] in definition.names()}):
        folder = PurePosixPath("benchmarks", benchmark)
        inside = [name for name in sizes if name.parts[:2] == folder.parts and sizes[name]]
        if not any(_is_code(name) for name in inside):
            yield breach(
                who.path / folder, None, "S3.no_code", benchmark=benchmark, folder=str(folder)
            )
        if not sizes.get(folder / README):
            yield breach(who.path / folder / README, None, "S3.no_readme", benchmark=benchmark)
    yield from _check_unused(who)
    keeps_modes = has_modes([file.mode for file in who.files])
    for file in who.files:
        if _is_unbound(file, keeps_modes):
            yield _report_unbound(who, file)
    for result in who.results:
        if result.parts and result.parts[2] == "open" and result.runs and not result.has_readme:
            yield breach(result.path / README, None, "S3.no_result_readme")


def _check_unused(who: Submitter) -> Iterator[Finding]:
    """Report code for a benchmark without a result: no digest of a result's code covers it."""
    used = {result.parts[0] for result in who.results if result.parts}
    if not used <= set(definition.names()):
        return  # S1 reports the name, and the code may be that of this result
    for file in sorted(who.files or (), key=lambda file: file.name):
        parts = file.name.parts
        is_code = file.is_folder and len(parts) == 2 and parts[0] == "benchmarks"
        if used and is_code and parts[1] in definition.names() and parts[1] not in used:
            yield breach(who.path / file.name, None, "S3.unused", benchmark=parts[1])


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
    return breach(
        who.path / file.name,
        None,
        "S3.unbound",
        case="byte_code" if BYTE_CODE.fullmatch(file.name.name) else "",
    )


def _is_code(name: PurePosixPath) -> bool:
    return name.name != README and not _LICENCE_NAME.fullmatch(name.name)


@rule("S5", Needs.SUBMITTER)
def check_hygiene(who: Submitter) -> Iterator[Finding]:
    """Check that there are no links, device files, unsafe names or oversized files (S5)."""
    for refused in who.refused:
        yield breach(refused, None, "S5.refused", why=refused.why)
    of_files = list(islice(_check_files(who), PROBLEMS_MAX + 1))
    yield from of_files[:PROBLEMS_MAX]
    if len(of_files) > PROBLEMS_MAX:
        yield breach(who, None, "S5.more_files", most=PROBLEMS_MAX)


def _check_files(who: Submitter) -> Iterator[Finding]:
    """Check the names and sizes of all files of a submission."""
    folded: dict[str, SubmittedFile] = {}
    for file in sorted(who.files or (), key=lambda file: file.name):
        yield from _check_name(who, file)
        yield from _check_size(who, file)
        other = folded.setdefault(str(file.name).casefold(), file)
        if other is not file:
            yield breach(who.path / file.name, None, "S5.case", other=escape(str(other.name)))


def _check_name(who: Submitter, file: SubmittedFile) -> Iterator[Finding]:
    name = file.name.name
    is_safe = _SAFE_NAME.fullmatch(name) and not name.endswith(".")
    if not is_safe or DEVICE_NAME.fullmatch(name):
        yield breach(who.path / file.name, None, "S5.name", name=format_value(name))
    elif len(str(file.name)) > PATH_CHARACTERS_MAX:
        yield breach(
            who.path / file.name,
            None,
            "S5.long_path",
            most=PATH_CHARACTERS_MAX,
            characters=len(str(file.name)),
        )


def _check_size(who: Submitter, file: SubmittedFile) -> Iterator[Finding]:
    is_result = file.name.parts[0] == "results"
    bounds = {".txt": LOG_BYTES_MAX, ".csv": POWER_BYTES_MAX} if is_result else {}
    bound = bounds.get(file.name.suffix, FILE_BYTES_MAX)
    if file.size_bytes > bound:
        yield breach(
            who.path / file.name,
            None,
            "S5.large_file",
            mebibytes=bound // 2**20,
            size_bytes=file.size_bytes,
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
    yield breach(who.path / "LICENSE", None, "S6.no_licence")
