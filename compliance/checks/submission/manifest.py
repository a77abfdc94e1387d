"""S4 and S9: the manifest, which binds logs, systems and code together, and own waivers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cepheid.compliance.checks.registry import Needs, rule
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read import manifest
from cepheid.compliance.read.contents import Submitter
from cepheid.compliance.read.manifest import Manifest
from cepheid.compliance.read.summary import ResultSummary
from cepheid.rules.digests import NOT_CODE


@rule("S9", Needs.SUBMITTER)
def check_waivers(who: Submitter) -> Iterator[Finding]:
    """Check that a submitter grants no waivers in the own folder (S9)."""
    if who.old_waivers is not None:
        yield breach(who.old_waivers, None, "S9.own")


PROBLEMS_MAX = 20  # listed one by one
SCRIPTS = (".sh", ".sbatch", ".slurm")  # which start what is logged
CODES = {"changed": "S4.digest", "missing": "S4.missing_file", "not listed": "S4.unlisted_file"}


Summaries = Mapping[Path, ResultSummary]
"""What remains of the logs of each result, by the folder of the result."""


@rule("S4", Needs.SUMMARIES)
def check_manifest(who: Submitter, summaries: Summaries) -> Iterator[Finding]:
    """Check that files, code, systems and definitions are those of the manifest (S4)."""
    if who.in_submission and who.results and not who.is_whole:
        yield breach(who, None, "S4.not_checked", folder=escape(str(who.path)))
    if who.files is None or not who.results:
        return
    if who.manifest is None:
        yield breach(who.path / manifest.FILE_NAME, None, "S4.no_manifest")
        yield from _check_code_of_logs(who, summaries)
        return
    findings = [*_check_content(who, who.manifest, summaries)]
    yield from findings[:PROBLEMS_MAX]
    if len(findings) > PROBLEMS_MAX:
        yield breach(who.manifest, None, "S4.more_files", files=len(findings) - PROBLEMS_MAX)
    yield from _check_code_of_logs(who, summaries)


def _check_content(who: Submitter, listed: Manifest, summaries: Summaries) -> Iterator[Finding]:
    if listed.problem:
        yield breach(listed, None, "S4.unreadable", problem=escape(listed.problem))
        return
    if listed.round != who.round:
        yield breach(
            listed, None, "S4.round", expected=format_value(who.round),
            round=format_value(listed.round),
        )  # fmt: skip
    if who.name and listed.submitter != who.name:
        yield breach(
            listed, None, "S4.submitter", expected=format_value(who.name),
            submitter=format_value(listed.submitter),
        )  # fmt: skip
    there = list_digests(who, summaries)
    differing = list(manifest.find_differences(listed.files, there))
    for name, how in differing:
        yield breach(
            listed if how == "missing" else who.path / name, None, CODES[how],
            name=format_value(name), listed=listed.files.get(name, ""), there=there.get(name, ""),
        )  # fmt: skip
    results = bind_results(who, summaries)
    if not differing and listed.results != results:
        names = sorted(listed.results.keys() | results.keys())
        wrong = [name for name in names if listed.results.get(name) != results.get(name)]
        yield breach(listed, None, "S4.results", results=escape(", ".join(wrong))[:200])


def _check_code_of_logs(who: Submitter, summaries: Summaries) -> Iterator[Finding]:
    """Check that logs that name the digest of the submitter's code name the code that is here."""
    there, unbound = list_digests(who, summaries), dict[str, Sequence[str]]()
    for result in who.results:
        if not result.parts:
            continue
        benchmark, runs = result.parts[0], summaries[result.path].runs
        expected = manifest.digest_code(there, benchmark)
        if runs and not any(run.code for run in runs):
            unbound.setdefault(benchmark, _list_code(there, benchmark))
        for run in runs:
            if run.code and run.code.value != expected:
                yield breach(
                    run, run.code, "S4.code", benchmark=escape(benchmark),
                    expected=format_value(expected), digest=run.code.shown,
                )  # fmt: skip

    for benchmark, names in unbound.items():
        if names:
            script = "script" if names[0].endswith(SCRIPTS) else ""
            yield breach(
                who.path / "benchmarks" / benchmark / names[0], None, "S4.unbound", case=script,
                benchmark=escape(benchmark),
            )  # fmt: skip


def _list_code(there: Mapping[str, str], benchmark: str) -> Sequence[str]:
    """Return the names of the files of code of a benchmark; scripts of a shell come last."""
    folder = f"benchmarks/{benchmark}/"
    names = [name.removeprefix(folder) for name in there if name.startswith(folder)]
    code = (name for name in names if not NOT_CODE.fullmatch(name))
    return sorted(code, key=lambda name: (name.endswith(SCRIPTS), name))


def list_digests(who: Submitter, summaries: Summaries) -> dict[str, str]:
    """Return the digests of the files of a submission that a manifest lists."""
    of_logs = {path: sha for summary in summaries.values() for path, sha in summary.digests.items()}
    root, digests = os.path.abspath(who.path), {}
    for file in who.files or ():
        sha256 = file.sha256 or of_logs.get(os.path.join(root, file.name), "")
        if sha256 and manifest.is_listed(file.name):
            digests[str(file.name)] = sha256
    return digests


def bind_results(who: Submitter, summaries: Summaries) -> dict[str, manifest.BoundResult]:
    """Return what each result with logs stands on."""
    there = list_digests(who, summaries)
    bound = {}
    for result in who.results:
        if result.runs and result.parts:
            name = f"results/{result.system}/{result.path.name}"
            digests = (run.text("definition_digest") for run in summaries[result.path].runs)
            bound[name] = manifest.BoundResult(
                system=there.get(f"systems/{result.system}.json", ""),
                code=manifest.digest_code(there, result.parts[0]),
                definition_digest=next(filter(None, digests), ""),
            )
    return bound
