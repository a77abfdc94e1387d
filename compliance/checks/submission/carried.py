"""S3: no file of code carries the weights that a training may not start from.

A log can be silent about weights that a program loads (T25 sees only what it names). So the files
themselves are looked at, wherever every closed result of a benchmark starts at random.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from cepheid.compliance.finding import Finding, breach
from cepheid.compliance.read.carried import LIMITS
from cepheid.compliance.read.contents import Carrier, HowCarried, ResultFolder, Submitter
from cepheid.rules import definition

PROBLEMS_MAX = 10  # files of one benchmark
TOGETHER = 4.0  # limits, by files of which none reaches its own
CASES: Mapping[HowCarried, tuple[str, str]] = {  # of the code, and what is counted
    "format": ("", "bytes"),
    "binary": ("binary", "bytes"),
    "picture": ("binary", "bytes"),
    "encoded": ("encoded", "characters"),
    "numbers": ("numbers", "numbers"),
}


def find_carried(who: Submitter) -> Iterator[Finding]:
    """Report what could be weights beside the code of a benchmark that starts at random."""
    closed = [result for result in who.results if result.parts and result.parts[2] == "closed"]
    beside = [one for one in who.carriers if len(one.name.parts) < 3]  # such as a licence
    for benchmark in sorted({str(result.parts and result.parts[0]) for result in closed}):
        scales = [result for result in closed if result.parts and result.parts[0] == benchmark]
        if all(_starts_at_random(result, who.round) for result in scales):
            mine = [one for one in who.carriers if one.name.parts[1:2] == (benchmark,)]
            yield from islice(_check_code(who, benchmark, [*beside, *mine]), PROBLEMS_MAX)
            beside = []  # once is enough


def _starts_at_random(result: ResultFolder, judged_in: str) -> bool:
    """Return True for a result of a training whose definition gives no weights."""
    name, scale, _ = result.parts or ("", "", "")
    if name not in definition.names(judged_in) or scale not in definition.scales(name, judged_in):
        return False  # S1 reports the name
    chosen = definition.load(name, scale, judged_in)
    return chosen.kind == "train" and "given_weights" not in chosen.model


def _check_code(who: Submitter, benchmark: str, carriers: list[Carrier]) -> Iterator[Finding]:
    for one in carriers:
        if one.share >= 1:
            case, counted = CASES[one.how]
            yield breach(
                who.path / one.name, None, "S3.weights", case=case, benchmark=benchmark,
                size=one.size, counted=counted, most=LIMITS[one.how],
            )  # fmt: skip
    small = [one for one in carriers if one.share < 1]
    if sum(one.share for one in small) >= TOGETHER:
        folder, files = who.path / "benchmarks" / benchmark, len({one.name for one in small})
        yield breach(folder, None, "S3.scattered_weights", benchmark=benchmark, files=files)
