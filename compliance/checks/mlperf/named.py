"""M7: what logs name agrees with where they lie and with the description of their system.

mlcommons' tools take submitter, benchmark and status from folder and description, and ignore what
the logs say (github.com/mlcommons/logging/issues/241). In published rounds a quarter of the results
has logs that name the vendor of the machine, or a placeholder, as the submitter: notes say so. No
published log names another benchmark than its folder does.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cepheid.compliance.checks.registry import Needs, rule
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.contents import ResultFolder, Submitter
from cepheid.compliance.read.summary import ResultSummary
from cepheid.rules import rounds
from cepheid.rules.rounds import Round

PLACEHOLDER = re.compile(r"placeholder|reference[ _]implementation|\btodo\b", re.IGNORECASE)
NAMED_MAX = 3  # values of one key that a message lists


def is_same_name(logged: str, described: str) -> bool:
    """Return whether one name holds the other, apart from case, blanks and punctuation."""
    ours, theirs = (re.sub(r"[\W_]", "", text).casefold() for text in (logged, described))
    return ours in theirs or theirs in ours


def is_same_status(logged: str, described: str) -> bool:
    """Return False for a cloud that the description calls on-premise, and the reverse.

    "Available on-premise" is "onprem" in a log. A preview, or research, is either of both.
    """
    says = re.sub(r"[\W_]", "", described).casefold()
    other = {"onprem": ("cloud", "prem"), "cloud": ("prem", "cloud")}.get(logged.casefold())
    return other is None or other[0] not in says or other[1] in says


COMPARED: Mapping[str, tuple[str, Callable[[str, str], bool]]] = {  # with a field of descriptions
    "submission_org": ("submitter", is_same_name),
    "submission_status": ("status", is_same_status),
    "submission_platform": ("system_name", lambda logged, described: True),  # its nodes, mostly
}


@rule("M7", Needs.SUMMARIES)
def check_names(who: Submitter, summaries: Mapping[Path, ResultSummary]) -> Iterator[Finding]:
    """Check that logs name the benchmark of their folder, and what the description says (M7)."""
    judged_in = rounds.load(who.round)
    for result in who.results:
        runs = summaries[result.path].runs if result.path in summaries else ()
        texts = [run.texts for run in runs]
        named = {key: list(dict.fromkeys(each[key] for each in texts if key in each))
                 for key in ("submission_benchmark", *COMPARED)}  # fmt: skip
        yield from _check_benchmark(result, named.pop("submission_benchmark"), judged_in)
        system = who.systems.get(result.system or "")
        for key, values in named.items():
            field, is_same = COMPARED[key]
            described = system.text(field) if system else None
            odd = [value for value in values if described and not is_same(value, described)]
            listed = ", ".join(map(format_value, values[:NAMED_MAX]))
            if any(map(PLACEHOLDER.search, values)):
                yield breach(result.path, None, "M7.placeholder", key=key, got=listed)
            elif odd:
                yield breach(
                    result.path, None, "M7.described", key=key, got=listed, field=field,
                    described=escape(described or ""),
                )  # fmt: skip


def _check_benchmark(result: ResultFolder, named: list[str], judged_in: Round) -> Iterator[Finding]:
    """Find logs of another benchmark than the folder says, where the round knows both."""
    wanted = judged_in.benchmark(result.benchmark)
    known = filter(None, map(judged_in.benchmark, named))
    if odd := [each.name for each in known if wanted and each.name != wanted.name]:
        names = escape(", ".join(odd))
        yield breach(
            result.path, None, "M7.benchmark", got=names, folder=escape(result.benchmark or "")
        )
