"""The site without names, and everything that is published: site, archives, digests, signature."""

import argparse
import gzip
import hashlib
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cepheid.compliance.finding import MORE, Finding
from cepheid.compliance.judge.judgement import JudgedResult, judge
from cepheid.compliance.judge.unit import use_processes
from cepheid.compliance.read import package
from cepheid.leaderboard.build import make_site_files
from cepheid.leaderboard.rows.entry import list_entries
from cepheid.leaderboard.site.evidence import copy_folders
from cepheid.leaderboard.site.view import Site
from cepheid.rules import definition, rounds
from cepheid.rules.definition import locate_benchmarks
from cepheid.rules.digests import digest_file
from cepheid.rules.errors import UserError
from cepheid.rules.findings import find_code
from cepheid.rules.host import ROOT, atomic_path, remove_partials
from cepheid.rules.rounds import Round
from cepheid.tools.console.program import EXIT_FINE, replace_file
from cepheid.tools.leaderboard import folder as site_folder

SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
Tool = Callable[[Sequence[str]], int]
NAMESPACE = "cepheid"  # of the signature


def preview(arguments: argparse.Namespace) -> int:
    """Write the site without names of submitters and systems."""
    site_folder.refuse_foreign(arguments.output)
    judged_in = rounds.load(arguments.round)
    packages = [package.read(arguments.path, judged_in.layout)]
    judgement = judge(packages, judged_in, use_processes(None), keep="courses")
    entries = tuple(list_entries(hide_names(judgement.results)))
    site = Site(judged_in.name, entries, arguments.output, elsewhere=copy_folders(()))
    site_folder.write(arguments.output, make_site_files(site))
    print(arguments.output / "index.html")
    return EXIT_FINE


def hide_names(results: Sequence[JudgedResult]) -> Iterator[JudgedResult]:
    """Hide whose results they are: names, paths, descriptions, texts of findings, identity.

    Submitters and systems are numbered in the order of digests, which says nothing about names.
    """
    aliases: dict[tuple[object, ...], str] = {}
    for result in sorted(results, key=_digest_result):
        who = (result.who and result.who.path,)
        system = (*who, result.folder.system)
        first = aliases.setdefault(who, f"submitter-{sum(len(key) == 1 for key in aliases) + 1}")
        second = aliases.setdefault(system, f"system-{sum(len(key) == 2 for key in aliases) + 1}")
        hidden = Path(first, "results", second, result.folder.path.name)
        runs = (
            replace(run, path=hidden / run.path.name, texts={}, setup={}) for run in result.runs
        )
        yield replace(
            result,
            place=replace(result.place, submitter=first, system=second, described=None),
            folder=replace(result.folder, path=hidden, system=second),
            system={},
            findings=tuple(_hide_texts(finding, hidden) for finding in result.findings),
            summary=replace(result.summary, runs=tuple(runs)),
            who=None,
        )


def _hide_texts(finding: Finding, folder: Path) -> Finding:
    """Leave the code of a finding and what it means in general."""
    meant = (
        "more of the same" if finding.code.endswith(f".{MORE}") else find_code(finding.code).means
    )
    return replace(finding, path=folder, message=meant, expected="", got="", hint="")


def _digest_result(result: JudgedResult) -> str:
    return hashlib.sha256(repr([run.seed for run in result.runs]).encode()).hexdigest()


def publish(arguments: argparse.Namespace, build: Tool) -> int:
    """Write site, archives and digests; a rejected result is shown and stops nobody.

    ``build`` is `cepheid leaderboard`.
    """
    output, submissions = arguments.output, arguments.path
    for open_question in list_open_questions(rounds.load(arguments.round)):
        print(f"warning: {open_question}", file=sys.stderr)
    remove_partials(output)
    build([
        str(submissions), "--output", str(output / "site"), "--logs", "copy", "--round",
        arguments.round, "--on", str(arguments.on), "--commit", arguments.commit,
    ])  # fmt: skip
    for name in (SUMS, SIGNATURE):  # they fit the site no more; a refused call has kept them
        (output / name).unlink(missing_ok=True)
    write_archive(output / "submissions.tar.gz", [(submissions, "submissions")])
    definitions = locate_benchmarks(arguments.round)
    write_archive(
        output / "rules.tar.gz", [(ROOT / "rules", "rules"), (definitions, "benchmarks")],
        (".md", ".yaml", ".json", "CURRENT"),
    )  # fmt: skip
    replace_file(output / SUMS, "".join(list_sums(output)))
    print(f"{output / SUMS}: verify with `sha256sum -c {SUMS}`")
    if arguments.sign:
        sign(output / SUMS, arguments.sign)
        print(f"{output / SIGNATURE}: signed, namespace {NAMESPACE}")
    return EXIT_FINE


def list_open_questions(judged_in: Round) -> Iterator[str]:
    """Yield what the organisers should have decided before they publish a round."""
    if judged_in.undecided:
        yield judged_in.undecided
    if not judged_in.rule_set and not (definition.FROZEN / judged_in.name).is_dir():
        yield (
            f"the definitions of {judged_in.name} are not frozen, so that a later change of "
            f"benchmarks/ changes what is published now; fix: cepheid round freeze {judged_in.name}"
        )


def write_archive(
    path: Path, folders: Sequence[tuple[Path, str]], endings: tuple[str, ...] = ("",)
) -> None:
    """Write an archive of folders; the same files give the same bytes."""
    with (
        atomic_path(path) as partial,
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for folder, name in folders:
            for file in list_files(folder):
                if file.name.endswith(endings):
                    about = tarfile.TarInfo(f"{name}/{file.relative_to(folder).as_posix()}")
                    about.size = file.stat().st_size
                    about.mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
                    with file.open("rb") as content:
                        archive.addfile(about, content)


def list_files(folder: Path) -> list[Path]:
    """List the files of a folder in the order of their names, without links and hidden ones."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(
        path for path in files
        if not any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
    )  # fmt: skip


def list_sums(output: Path) -> Iterator[str]:
    """List the digests of all files that are published, as `sha256sum` writes them."""
    for path in list_files(output):
        if path.name not in (SUMS, SIGNATURE):
            yield f"{digest_file(path)}  {path.relative_to(output).as_posix()}\n"


def sign(path: Path, key: Path) -> None:
    """Sign a file by an SSH key. Raises UserError where ssh-keygen does not."""
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UserError("--sign needs ssh-keygen, which is part of OpenSSH") from error
    if done.returncode != 0:
        raise UserError(f"--sign {key}: ssh-keygen says: {done.stderr.strip()[:300]}")
