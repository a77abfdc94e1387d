"""What the words on the pages mean: for headers of columns, and as a page of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cepheid.compliance.report.rulebook import read_rules

PAGE = "glossary.html"


@dataclass(frozen=True)
class Term:
    """A word of the pages, its meaning in a sentence or two, and the rules that define it."""

    name: str
    meaning: str
    rules: tuple[str, ...] = ()


TERMS: Mapping[str, Term] = {
    "score": Term(
        "score",
        "The time to train until every quality target holds, or images per second for a benchmark "
        "that generates. It is the mean of the runs without the fastest and the slowest.",
        ("T9", "T20"),
    ),
    "interval": Term(
        "95% interval",
        "If all runs were repeated many times, 95 of 100 such intervals would contain the true "
        "mean. Few runs give wide intervals.",
        ("T20",),
    ),
    "rank": Term(
        "rank",
        "One more than the number of systems that are faster beyond doubt. Systems that cannot be "
        "told apart share a rank. The small range below shows the ranks that the data allow.",
        ("T22",),
    ),
    "system": Term("system", "The machine, with who submitted it and on which framework."),
    "devices": Term(
        "devices", "The number of accelerators, or of nodes for a system without accelerators."
    ),
    "hardware": Term("hardware", "The accelerators of all nodes, or the processor without any."),
    "framework": Term("framework", "The software that trained, and its version."),
    "availability": Term(
        "availability",
        "Whether the system can be bought or rented (available), will be soon (preview) or not "
        "(research).",
        ("S13",),
    ),
    "aggregate": Term(
        "aggregate",
        "How many times as fast as the reference the system is, as the geometric mean over all "
        "benchmarks of the reference. The reference has 1.",
    ),
    "spread": Term(
        "spread of the runs",
        "Each dot is a run and the vertical line is the mean. Hollow dots are left out of the "
        "mean, a cross did not converge, the band is the 95% interval.",
    ),
    "behind": Term(
        "slower than the first",
        "The time divided by that of the fastest result, with its 95% interval. “No difference” "
        "means that the interval contains 1.",
    ),
    "peak": Term(
        "share of peak",
        "The floating-point operations that the model needs for the samples of a second of "
        "training (of generation), divided by those that the system can compute at most: model "
        "FLOPs utilisation (MFU). Evaluations do not count. In brackets: the precision, and "
        "whether the peak is the maker's or measured. The peak is that of the whole system: on "
        "one thread of two cores a run can reach half of it. Empty where a peak is not known.",
        ("T14",),
    ),
    "since": Term(
        "since the last round",
        "Whether the result became faster or slower than in the last round, by the test of two "
        "results. Rounds with different definitions are not compared.",
    ),
    "runs": Term("runs", "The runs that were made, of those that the rules require.", ("T16",)),
    "samples": Term("samples", "Training samples until the targets held, median of the runs."),
    "epochs": Term("epochs", "Passes over the training set until the target held, median."),
    "rcp": Term(
        "RCP",
        "Reference convergence points: the samples that the reference needs, divided by those of "
        "the result. It shows runs that converge implausibly fast, and does not change the score.",
        ("T21",),
    ),
    "energy": Term(
        "kJ a run",
        "Energy of a run, mean over the runs that count. It is never ranked, because sensors "
        "differ in what they leave out.",
        ("T23",),
    ),
    "device_energy": Term("kJ per device", "Energy of a run divided by the devices.", ("T23",)),
    "device_minutes": Term(
        "device-minutes", "Time to train multiplied by the devices: what the run occupies."
    ),
    "throughput": Term(
        "per second and device",
        "Training samples until the targets held, divided by the time and by the devices. For a "
        "benchmark that generates: images per second and device.",
    ),
    "efficiency": Term(
        "efficiency",
        "The speed-up over the submitter's smallest system with the same device and framework, "
        "divided by how many times as many devices there are. 100% is perfect.",
    ),
    "cost": Term(
        "cost of a run",
        "Time to train, multiplied by the devices and by the price of a device-hour that you "
        "enter. It is computed in your browser and is not part of the results.",
    ),
    "mini": Term(
        "mini scale",
        "The same task and code, shrunk to minutes on two processor cores. Its scores are compared "
        "only with each other, never with those of the full scale.",
    ),
    "closed": Term(
        "closed division",
        "The mathematics of the reference: everybody trains the same model in the same way.",
        ("T12",),
    ),
    "open": Term("open division", "Model and training may differ; the target is the same."),
    "provisional": Term("provisional", "Runs are missing, or a target may still change."),
    "latency_ms_p50": Term(
        "p50 ms",
        "Latency: milliseconds to generate the smallest number of images, half of the time.",
        ("T26",),
    ),
    "latency_ms_p99": Term(
        "p99 ms",
        "Latency: milliseconds to generate the smallest number of images, 99 times of 100.",
        ("T26",),
    ),
    "images_per_second": Term(
        "images/s", "Images generated per second, at the largest number at a time.", ("T26",)
    ),
}
"""Every word, by the key of its column where there is one."""


def explain(key: str) -> str:
    """Return what a word means, as a hint of one line; empty for a word that is not here."""
    term = TERMS.get(key)
    if term is None:
        return ""
    rules = [rule for rule in term.rules if rule in read_rules()]
    return term.meaning + (f" (rule {', '.join(rules)})" if rules else "")


@cache
def list_terms() -> tuple[Term, ...]:
    """List all terms in alphabetical order."""
    return tuple(sorted(TERMS.values(), key=lambda term: term.name.casefold()))
