"""`cepheid pack`: bind logs, systems and code of a submission together by its manifest."""

import os
from collections.abc import Sequence
from pathlib import Path

from cepheid.compliance.checks.submission.manifest import bind_results, list_digests
from cepheid.compliance.failure import Failures
from cepheid.compliance.finding import has_error
from cepheid.compliance.judge.judgement import JudgedSubmitter, judge
from cepheid.compliance.read import manifest, package
from cepheid.compliance.read.manifest import FILE_NAME, Manifest
from cepheid.compliance.report import formats as report
from cepheid.rules import rounds
from cepheid.rules.errors import UserError
from cepheid.rules.host import remove_partials
from cepheid.rules.layout import wrap
from cepheid.rules.systems import refuse_name
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, replace_file, run_tool

COMMAND = read_command("pack")


def main(argv: Sequence[str] | None = None) -> int:
    """Check and, without errors, pack. Exit code 1 where there is one."""
    folder: Path = COMMAND.parse(argv).path
    _refuse_other_folder(folder)
    refuse_name(Path(os.path.abspath(folder)).name, "a submitter")
    remove_partials(folder, FILE_NAME)
    judgement = judge([package.read(folder)], rounds.load())
    (judged,) = judgement.submitters
    # Packing fixes what S4 finds in the manifest; it does not change the code of logs.
    fixed = {each for each in judgement.findings if each.rule == "S4" and each.code != "S4.code"}
    findings = [each for each in judgement.findings if each not in fixed]
    failures = Failures()
    made = None
    if not has_error(findings):
        with failures.caught(folder):
            made = make_manifest(judged)
    findings += failures.findings
    if made is None:
        print(report.FORMATS["text"](findings, judgement.logs, judgement.round))
        print(f"not packed: fix the errors, then `cepheid pack {folder}` again")
        return EXIT_FINDINGS
    replace_file(folder / FILE_NAME, manifest.format_manifest(made))
    for finding in findings:
        print(wrap(finding.text()))
    results = f"{len(made.results)} result{'' if len(made.results) == 1 else 's'}"
    print(f"{folder / FILE_NAME}: {len(made.files):,} files, {results}, bound together")
    print("next: commit the folder and open a pull request; pack again after any change")
    return EXIT_FINE


def _refuse_other_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    is_submission = Path(os.path.abspath(folder)).parent.name == "submissions"
    if not (is_submission or (folder / FILE_NAME).is_file()):
        raise UserError(
            f"{folder}: not a submission, which is a folder in submissions/ (rule S1); "
            "move it there, or start one with `cepheid new-submission`"
        )


def make_manifest(judged: JudgedSubmitter) -> Manifest:
    """Return the manifest of a submission as it is."""
    who, summaries = judged.who, judged.summaries
    name, results = Path(os.path.abspath(who.path)).name, bind_results(who, summaries)
    digests = list_digests(who, summaries)
    return Manifest(who.path / FILE_NAME, rounds.CURRENT, name, results, digests)


if __name__ == "__main__":
    run_tool(main)
