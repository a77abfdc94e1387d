"""What results need of each device: time, throughput, parallel efficiency, energy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cepheid.compliance.score.kinds import MINUTES, TRAINING
from cepheid.leaderboard.plots.scaling import Family, group_families, name_family
from cepheid.leaderboard.rows.entry import Entry
from cepheid.leaderboard.rows.numbers import format_value
from cepheid.rules.devices import PeakShare


@dataclass(frozen=True)
class DeviceLine:
    """A result with a score. Numbers are None where the logs do not tell.

    ``efficiency`` is the speed-up over the family's smallest system, divided by how many times as
    many devices there are.
    """

    entry: Entry
    name: str
    score_name: str
    score: float
    score_text: str
    minutes: float | None
    device_minutes: float | None
    throughput_name: str
    throughput: float | None
    efficiency: float | None
    kilojoules: float | None

    @property
    def peak_share(self) -> PeakShare | None:
        """What share of the system's peak it reached, None where that is not known."""
        return self.entry.peak_share


def measure_devices(entries: Sequence[Entry]) -> Iterator[DeviceLine]:
    """Measure the results with a score, in their order."""
    families = {family.label: family for family in group_families(entries)}
    for entry in entries:
        score = entry.standing.score
        if score is None:
            continue
        trains = entry.kind is TRAINING
        minutes = score.estimates[MINUTES].mean if MINUTES in score.estimates else None
        yield DeviceLine(
            entry=entry,
            name=entry.name,
            score_name="time to train" if trains else "images/s",
            score=score.main.mean,
            score_text=format_value(entry.kind, score.main.mean),
            minutes=minutes if trains else None,
            device_minutes=minutes * entry.devices if trains and minutes is not None else None,
            throughput_name=_name_throughput(entry),
            throughput=_find_throughput(entry, minutes, score.main.mean),
            efficiency=_find_efficiency(entry, families[name_family(entry)]),
            kilojoules=entry.kilojoules,
        )


def _name_throughput(entry: Entry) -> str:
    if entry.kind is not TRAINING:
        return "images/s per device"
    return f"{'epochs/h' if entry.progress.samples is None else 'samples/s'} per device"


def _find_throughput(entry: Entry, minutes: float | None, mean: float) -> float | None:
    """Return what a device does: samples or images a second, or epochs an hour of MLPerf."""
    progress = entry.progress
    if entry.kind is not TRAINING:
        return mean / entry.devices
    if not minutes:
        return None
    if progress.samples is not None:
        return progress.samples / (60 * minutes) / entry.devices
    return None if progress.epochs is None else 60 * progress.epochs / minutes / entry.devices


def _find_efficiency(entry: Entry, family: Family) -> float | None:
    """Return the parallel efficiency, None for a family of one system."""
    if len(family.values) < 2 or entry.standing.score is None:
        return None
    (first, base), *_ = family.values.items()
    mean = entry.standing.score.main.mean
    speed_up = base / mean if entry.kind is TRAINING else mean / base
    return speed_up * first / entry.devices
