"""S1, S3, S5 and S6: names and places of folders and files, code and licence of a submission."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from cepheid.compliance.checks.registry import DIVISIONS, Needs, rule
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.carried import LIMITS
from cepheid.compliance.read.contents import (
    LEFT_BY_TOOLS,
    LOG_NAME,
    README,
    Carrier,
    ResultFolder,
    SubmittedFile,
    Submitter,
    is_like_log,
)
from cepheid.compliance.read.log.records import FILE_BYTES_MAX as LOG_BYTES_MAX
from cepheid.compliance.read.powerlog import FILE_BYTES_MAX as POWER_BYTES_MAX
from cepheid.compliance.read.texts import WORDS_MIN
from cepheid.rules import definition
from cepheid.rules.digests import BYTE_CODE, has_modes, is_executable_text
from cepheid.rules.errors import did_you_mean
from cepheid.rules.systems import DEVICE_NAME, explain_name

FILE_BYTES_MAX = 16 * 2**20  # of a file that is not a log
BYTES_MAX_OF_LOGS = {".txt": LOG_BYTES_MAX, ".csv": POWER_BYTES_MAX}
PATH_CHARACTERS_MAX = 200
PROBLEMS_MAX = 100  # listed one by one
CARRIERS_MAX = 10  # of one benchmark, that could hold weights
TOGETHER = 4.0  # limits, by files of which none reaches its own
COUNTED = {"encoded": "characters", "numbers": "numbers"}
_SAFE_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+-]{0,99}")
_LICENCE = r"(LICEN[CS]E|COPYING)(\.(txt|md))?"
_LICENCE_NAME = re.compile(_LICENCE, re.IGNORECASE)
_AT_TOP = re.compile(rf"{re.escape(README)}|NOTICE|{_LICENCE}|manifest\.json|waivers\.yaml")
_OF_RESULT = re.compile(
    r"(result|interrupted|power)_[^/]*\.(txt|csv|partial)|manifest\.json", re.IGNORECASE
)
"""Names that tools read in the folder of a result or of a submitter."""
PARTS = ("systems", "results", "benchmarks")


@rule("S3", Needs.SUBMITTER)
def check_code(who: Submitter) -> Iterator[Finding]:
    """Check that each benchmark has its code and a README, and each open result a README (S3)."""
    if who.files is None:
        return
    sizes = {file.name: file.size_bytes for file in who.files if not file.is_folder}
    parts = [result.parts for result in who.results if result.runs and result.parts]
    for benchmark in sorted({part[0] for part in parts if part[0] in definition.names(who.round)}):
        folder = PurePosixPath("benchmarks", benchmark)
        inside = [name.name for name in sizes if name.parts[:2] == folder.parts and sizes[name]]
        if all(name == README or _LICENCE_NAME.fullmatch(name) for name in inside):
            yield breach(
                who.path / folder, None, "S3.no_code", benchmark=benchmark, folder=str(folder)
            )
        if not sizes.get(folder / README):
            yield breach(who.path / folder / README, None, "S3.no_readme", benchmark=benchmark)
    yield from _check_unused(who)
    keeps_modes = has_modes([file.mode for file in who.files])
    for file in who.files:
        if _is_unbound(file, keeps_modes):
            unbound = "byte_code" if BYTE_CODE.fullmatch(file.name.name) else ""
            yield breach(who.path / file.name, None, "S3.unbound", case=unbound)
    for result in who.results:
        if result.parts and result.parts[2] == "open" and result.runs and not result.has_readme:
            yield breach(result.path / README, None, "S3.no_result_readme")
    carried = list(_find_carried(who))
    yield from carried
    yield from islice(_check_texts(who, {one.path for one in carried}), PROBLEMS_MAX)


def _find_carried(who: Submitter) -> Iterator[Finding]:
    """Report what could be weights beside the code of a benchmark that starts at random.

    A log can be silent about weights that a program loads (T25 sees only what it names). So the
    files are looked at, wherever every closed result of a benchmark starts at random.
    """
    closed = [result for result in who.results if result.parts and result.parts[2] == "closed"]
    beside = [one for one in who.carriers if len(one.name.parts) < 3]  # such as a licence
    for benchmark in sorted({str(result.parts and result.parts[0]) for result in closed}):
        scales = [result for result in closed if result.parts and result.parts[0] == benchmark]
        if all(_starts_at_random(result, who.round) for result in scales):
            mine = [one for one in who.carriers if one.name.parts[1:2] == (benchmark,)]
            yield from islice(_check_carriers(who, benchmark, [*beside, *mine]), CARRIERS_MAX)
            beside = []  # once is enough


def _starts_at_random(result: ResultFolder, judged_in: str) -> bool:
    """Return True for a result of a training whose definition gives no weights."""
    name, scale, _ = result.parts or ("", "", "")
    if name not in definition.names(judged_in) or scale not in definition.scales(name, judged_in):
        return False  # S1 reports the name
    chosen = definition.load(name, scale, judged_in)
    return chosen.kind == "train" and "given_weights" not in chosen.model


def _check_carriers(who: Submitter, benchmark: str, carriers: list[Carrier]) -> Iterator[Finding]:
    for one in carriers:
        if one.share >= 1:
            yield breach(
                who.path / one.name, None, "S3.weights",
                case="binary" if one.how in ("binary", "picture") else "encoded"
                if one.how == "encoded" else "numbers" if one.how == "numbers" else "",
                benchmark=benchmark, size=one.size, counted=COUNTED.get(one.how, "bytes"),
                most=LIMITS[one.how],
            )  # fmt: skip
    small = [one for one in carriers if one.share < 1]
    if sum(one.share for one in small) >= TOGETHER:
        folder, files = who.path / "benchmarks" / benchmark, len({one.name for one in small})
        yield breach(folder, None, "S3.scattered_weights", benchmark=benchmark, files=files)


def _check_texts(who: Submitter, reported: set[Path]) -> Iterator[Finding]:
    """Report what is no text, or says nothing, in files that are not ``reported`` already."""
    for flaw in who.flaws:
        path = who.path / flaw.name
        if flaw.how == "unfilled":
            yield breach(path, None, "S3.unfilled")
        elif flaw.how == "thin":
            yield breach(path, None, "S3.thin_readme", words=flaw.what, least=WORDS_MIN)
        elif path not in reported:
            damage = {"utf_16": "utf_16", "direction": "direction", "signature": "signature"}.get(
                flaw.how, ""
            )
            yield breach(path, flaw.line, "S3.no_text", case=damage, what=flaw.what)


def _check_unused(who: Submitter) -> Iterator[Finding]:
    """Report code for a benchmark without a result: no digest of a result's code covers it."""
    used = {result.parts[0] for result in who.results if result.parts}
    known = definition.names(who.round)
    if not used <= set(known):
        return  # S1 reports the name, and the code may be that of this result
    for file in sorted(who.files or (), key=lambda file: file.name):
        parts = file.name.parts
        is_code = file.is_folder and len(parts) == 2 and parts[0] == "benchmarks"
        if used and is_code and parts[1] in known and parts[1] not in used:
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
    folded: dict[str, SubmittedFile] = {}
    for file in sorted(who.files or (), key=lambda file: file.name):
        path, name, characters = who.path / file.name, file.name.name, len(str(file.name))
        is_safe = _SAFE_NAME.fullmatch(name) and not name.endswith(".")
        if not is_safe or DEVICE_NAME.fullmatch(name):
            yield breach(path, None, "S5.name", name=format_value(name))
        elif characters > PATH_CHARACTERS_MAX:
            most = PATH_CHARACTERS_MAX
            yield breach(path, None, "S5.long_path", most=most, characters=characters)
        bounds = BYTES_MAX_OF_LOGS if file.name.parts[0] == "results" else {}
        bound, size = bounds.get(file.name.suffix, FILE_BYTES_MAX), file.size_bytes
        if size > bound:
            yield breach(path, None, "S5.large_file", mebibytes=bound // 2**20, size_bytes=size)
        other = folded.setdefault(str(file.name).casefold(), file)
        if other is not file:
            yield breach(path, None, "S5.case", other=escape(str(other.name)))


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


def _check_places(who: Submitter) -> Iterator[Finding]:
    """Report what lies in a submission where nothing belongs; not what is inside of that."""
    misplaced: set[PurePosixPath] = set()
    for file in sorted(who.files or (), key=lambda file: file.name):
        if misplaced.isdisjoint(file.name.parents) and not _has_place(file, who.round):
            misplaced.add(file.name)
            kind, place = "folder" if file.is_folder else "file", _describe_place(file.name)
            yield breach(who.path / file.name, None, "S1.misplaced", kind=kind, place=place)
    for result in who.results:  # reports and pictures of runs that are not there
        numbers = {path.stem.partition("_")[2] for path in result.runs}
        for path in result.attached:
            if path.stem.partition("_")[2] not in numbers:
                yield breach(path, None, "S1.no_run", index=path.stem.partition("_")[2])


def _has_place(file: SubmittedFile, judged_in: str) -> bool:
    """Return True where a file or folder may lie; what lists results reports what is in theirs."""
    parts = file.name.parts
    if any(part.startswith(".") for part in parts):
        return True  # S5 reports hidden names
    match parts:
        case (name,):
            known = (*PARTS, *LEFT_BY_TOOLS)
            return name in known if file.is_folder else _AT_TOP.fullmatch(name) is not None
        case ("systems", name):
            return not file.is_folder and name.endswith(".json")
        case ("results", _) | ("results", _, _):
            return file.is_folder
        case ("benchmarks", name):
            is_licence = _LICENCE_NAME.fullmatch(name) is not None
            return name in definition.names(judged_in) if file.is_folder else is_licence
        case ("benchmarks", _, *_, name):
            return file.is_folder or _OF_RESULT.fullmatch(name) is None
        case ("results" | "checkpoints" | "leaderboard", *_):
            return True  # S1.unexpected and S1.left_by_tools report these
    return False


def _describe_place(name: PurePosixPath) -> str:
    return {
        "systems": "systems/<system>.json",
        "results": "results/<system>/<benchmark>-<scale>-<division>/",
        "benchmarks": "benchmarks/<benchmark>/ with code, and no logs or manifests in it",
    }.get(name.parts[0] if len(name.parts) > 1 else "", "systems/, results/, benchmarks/, LICENSE,"
          f" {README}, manifest.json")  # fmt: skip


@rule("S1", Needs.SUBMITTER)
def check_layout(who: Submitter) -> Iterator[Finding]:
    """Check names and places of folders and files, and that systems have descriptions (S1)."""
    why = explain_name(who.name) if who.name is not None else ""
    if why:
        yield breach(who, None, "S1.submitter_name", why=why, name=format_value(who.name))
    if who.in_submission and not who.results:
        yield breach(who, None, "S1.no_result")
    if who.in_submission:
        yield from map(_report_left_by_tools, who.left_by_tools)
        yield from islice(_check_places(who), PROBLEMS_MAX)
    for system in sorted({result.system for result in who.results if result.system}):
        yield from _check_system(who, system)
    for result in who.results:
        if result.system is not None:
            yield from _check_result_name(result, who.round)
        yield from _check_result_files(result, who.in_submission)


def report_stray(path: Path) -> Finding:
    """Report what lies beside the folders of submitters and belongs to none of them (S1)."""
    return breach(path, None, "S1.stray", name=format_value(path.name))


def _report_left_by_tools(path: Path) -> Finding:
    """Report a folder that `cepheid run` or `cepheid leaderboard` wrote for its user alone."""
    return breach(path, None, "S1.left_by_tools", name=path.name)


def _check_system(who: Submitter, system: str) -> Iterator[Finding]:
    folder = who.path / "results" / system
    why = explain_name(system)
    if why:
        yield breach(folder, None, "S1.system_name", why=why, system=format_value(system))
    elif system not in who.systems:
        guess = did_you_mean(system, who.systems)
        yield breach(folder, None, "S1.no_description", guess=guess, system=system)


def _check_result_name(result: ResultFolder, judged_in: str) -> Iterator[Finding]:
    parts = result.parts
    if parts is None:
        yield breach(result, None, "S1.result_name", result=format_value(result.path.name))
        return
    benchmark, scale, division = parts
    benchmarks = definition.names(judged_in)
    known: tuple[str, ...]
    if benchmark not in benchmarks:
        what, word, known = "benchmark", benchmark, benchmarks
    elif scale not in definition.scales(benchmark, judged_in):
        what, word, known = "scale", scale, definition.scales(benchmark, judged_in)
    elif division not in DIVISIONS:
        what, word, known = "division", division, DIVISIONS
    else:
        return
    yield breach(
        result, None, "S1.unknown_name", what=what, word=format_value(word),
        guess=did_you_mean(word, known), known=", ".join(known),
    )  # fmt: skip


def _check_result_files(result: ResultFolder, in_submission: bool) -> Iterator[Finding]:
    if not result.runs:
        yield breach(result, None, "S1.no_log", case="submitted" if in_submission else "")
    for path in result.unexpected:
        if path.name in LEFT_BY_TOOLS:
            if in_submission:
                yield _report_left_by_tools(path)
            continue
        if is_like_log(path):
            case = "folder" if LOG_NAME.fullmatch(path.name) else "like_log"
        else:
            case = "submitted" if in_submission else ""
        yield breach(path, None, "S1.unexpected", case=case, name=format_value(path.name))
    if result.unfinished:
        names = ", ".join(escape(path.name) for path in result.unfinished)
        yield breach(
            result, None, "S1.unfinished", case="submitted" if in_submission else "", names=names
        )
    if result.interrupted:
        names = ", ".join(escape(path.name) for path in result.interrupted[:5])
        yield breach(result, None, "S1.interrupted", names=names)
