"""M4 to M6: what mlcommons asks of descriptions, power logs and files beside the run logs."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.contents import ResultFolder, Submitter, SystemFile
from cepheid.compliance.read.logs import ResultLogs
from cepheid.compliance.read.mlperf_folders import POWER
from cepheid.rules import rounds
from cepheid.rules.definition import Definition
from cepheid.rules.rounds import Round, RoundBenchmark

TEXTS = (  # mlcommons' checker joins these, and ends with an error of Python at a number
    "submitter", "system_name", "host_processor_model_name", "host_processor_core_count",
    "accelerator_model_name", "accelerators_per_node", "framework",
)  # fmt: skip
NUMBERED = re.compile(r"([0-9]{1,9})(\.[^_]*)?")  # the end of node_3.txt


@rule("M4", Needs.SUBMITTER)
def check_descriptions(who: Submitter) -> Iterator[Finding]:
    """Check that each system has a description with the fields that the round asks for (M4)."""
    judged_in = rounds.load(who.round)
    if not judged_in.description_fields:
        return
    used = {result.system for result in who.results if result.system}
    for name in sorted(used - {system.path.stem for system in who.systems.values()}):
        other = who.systems.get(name)
        where = who.path / "systems" / f"{name}.json"
        found = f"only {escape(other.path.name)} describes it" if other else "no such file"
        yield breach(where, None, "M4.missing", system=escape(name), found=found)
    by_path = {system.path: system for system in who.systems.values()}
    for path in sorted(by_path):
        if who.is_whole or by_path[path].name in used:
            yield from _check_description(by_path[path], judged_in)


def _check_description(system: SystemFile, judged_in: Round) -> Iterator[Finding]:
    if system.content is None:
        yield breach(system, None, "M4.unreadable", problem=escape(system.problem))
        return
    content = system.content
    if system.problem:
        yield breach(system, None, "M4.repeated", problem=escape(system.problem))
    if lacking := [field for field in judged_in.description_fields if field not in content]:
        plural = "" if len(lacking) == 1 else "s"
        yield breach(
            system, None, "M4.fields", fields=", ".join(lacking), number=len(lacking), plural=plural
        )
    for key in TEXTS:
        if key in content and not isinstance(content[key], str):
            yield breach(system, None, "M4.text", field=key, got=format_value(content[key]))
    status = content.get("status")
    if judged_in.statuses and "status" in content and status not in judged_in.statuses:
        known = ", ".join(f'"{each}"' for each in judged_in.statuses)
        yield breach(system, None, "M4.status", known=known, got=format_value(status))


def find_power_problems(folder: ResultFolder) -> Mapping[str, Finding]:
    """Return what is wrong with the power logs of each run, by the name of its log.

    As power_checker.py of mlcommons asks: a folder for each run, with as many logs as in most runs
    and no higher number than they are. Empty for a result without power logs.
    """
    logs_of, problems = folder.power_of, dict[str, Finding]()
    if logs_of is None:
        return problems
    for kind in ("node", "sw"):
        names_of = {
            run: sorted(path.name for path in logs if path.name.startswith(kind))
            for run, logs in logs_of.items()
        }
        counts = Counter(map(len, names_of.values()))
        usual = max(counts, key=lambda count: counts[count], default=0)
        for run, names in names_of.items():
            where, logs = folder.path / POWER / run, len(names)
            if logs != usual:
                problems[run] = breach(where, None, "M5.number", kind=kind, logs=logs, usual=usual)
            ends = [NUMBERED.fullmatch(name.rpartition("_")[2]) for name in names]
            if not all(end and int(end[1]) < logs for end in ends):
                shown, last = ", ".join(map(escape, names[:NAMED_MAX])), logs - 1
                problems[run] = breach(where, None, "M5.names", kind=kind, last=last, names=shown)
    for run in (path.stem for path in folder.runs if path.stem not in logs_of):
        problems[run] = breach(folder.path / POWER / run, None, "M5.missing", run=escape(run))
    return problems


NAMED_MAX = 5


@rule("M5", Needs.RESULT)
def check_power(
    result: ResultLogs, judged_by: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that each run of a result with power logs has its own, as many as the others (M5)."""
    for _, found in sorted(find_power_problems(result.folder).items()):
        yield found
    measured = (result.folder.power_of or {}).keys()
    for name in sorted(run.path.stem for run in result.runs if run.seconds):
        if name in measured and name not in result.joules:
            yield breach(result.path / POWER / name, None, "M5.no_energy")


@rule("M6", Needs.SUBMITTER)
def check_files(who: Submitter) -> Iterator[Finding]:
    """Check that folders of results hold logs, and mlcommons' repositories take all files (M6).

    Files of one kind are one finding.
    """
    for folder in who.without_logs:
        yield breach(folder, None, "M6.no_logs")
    kinds = Counter(each.why for each in who.unfit)
    for why, number in kinds.items():
        first = next(each for each in who.unfit if each.why == why)
        more = f" ({number:,} in all)" if number > 1 else ""
        yield breach(first.path, None, "M6.unfit", why=why, more=more)
