"""Numbers per device: minutes, throughput, parallel efficiency; claims that no machine can have."""

from pathlib import Path

import pytest

from cepheid.leaderboard.pages.benchmark_page import DeviceLine, measure_devices
from cepheid.leaderboard.plots.curves import improves_steadily
from cepheid.leaderboard.plots.plot import Axis, Series, make_plot
from cepheid.leaderboard.plots.scaling import find_front
from cepheid.leaderboard.rows import entry
from cepheid.leaderboard.rows.entry import Entry
from cepheid.leaderboard.rows.rounds import read_hardware
from cepheid.rules.definition import Definition
from tests.compliance.builder import run_records, write_log, write_result
from tests.compliance.field import write_field
from tests.compliance.judging import judge_folder


def list_entries(root: Path) -> list[Entry]:
    judgement = judge_folder(root, with_course=True)
    return entry.list_entries(judgement.results)


@pytest.fixture
def lines(star_shape: Definition) -> dict[str, DeviceLine]:
    """What each result of the field needs, by benchmark and system."""
    entries = list_entries(write_field(Path("submissions"), star_shape))
    names = {entry.names.benchmark for entry in entries}
    groups = [[e for e in entries if e.names.benchmark == name] for name in sorted(names)]
    found = [line for group in groups for line in measure_devices(group)]
    return {f"{one.entry.names.benchmark} {one.entry.names.system}": one for one in found}


def test_training(lines: dict[str, DeviceLine]) -> None:
    one, eight = lines["star_shape a100.x1"], lines["star_shape a100.x8"]
    assert eight.minutes == eight.score
    assert eight.device_minutes == pytest.approx(8 * eight.score)
    samples = eight.entry.progress.samples
    assert samples is not None
    assert eight.throughput == pytest.approx(samples / (60 * eight.score) / 8)
    assert one.efficiency == 1
    scores = [line.entry.standing.cost for line in (one, eight)]
    assert eight.efficiency == pytest.approx(scores[0] / scores[1] / 8)
    assert lines["star_shape reference"].efficiency is None
    assert one.kilojoules is not None
    assert eight.kilojoules is None


def test_generation(lines: dict[str, DeviceLine]) -> None:
    one, eight = lines["star_images a100.x1"], lines["star_images a100.x8"]
    assert eight.throughput == pytest.approx(eight.score / 8)
    assert eight.efficiency == pytest.approx(eight.score / one.score / 8)
    assert eight.device_minutes is None


@pytest.mark.parametrize("claim", [10**30, "999999999", -1, True, 1.5])
def test_a_number_of_nodes_that_no_machine_has_is_unknown(claim: object) -> None:
    found = read_hardware({"number_of_nodes": claim, "accelerators_per_node": 8})
    assert (found.nodes, found.accelerators) == (0, 8)


def test_a_claim_beyond_an_axis_is_drawn_at_its_end_and_said() -> None:
    honest = Series("honest", ((1.0, 8.0), (8.0, 1.0)), 0, key="a")
    liar = Series("liar", ((1e30, 1.0),), 1, key="b")
    alone = make_plot("p", "t", Axis("n", is_log=True, limit=100), Axis("y"), [honest])
    both = make_plot("p", "t", Axis("n", is_log=True, limit=100), Axis("y"), [honest, liar])
    assert alone is not None
    assert both is not None
    (drawn,) = next(one for one in both.series if one.label == "liar").marks
    assert drawn.x <= both.right
    assert "1 point lies beyond the axis" in both.note
    first, second = next(one for one in both.series if one.label == "honest").marks
    assert second.x - first.x > 100
    assert "beyond" not in alone.note


def test_the_front_leaves_out_results_that_another_beats_in_both() -> None:
    assert find_front([(2, 5), (1, 9), (3, 6), (4, 1), (4, 2)]) == [(1, 9), (2, 5), (4, 1)]
    assert find_front([]) == []


def test_only_metrics_that_improve_steadily_have_other_targets(star_shape: Definition) -> None:
    steady, wild = Path("steady"), Path("wild")
    write_result(steady, star_shape, blocks=lambda index: 5)
    folder = write_result(wild, star_shape, runs=0)
    for index in range(star_shape.runs.required):
        records = run_records(star_shape, index, blocks=5)
        seen = [r["metadata"]["metrics"] for r in records if r["key"] == "eval_accuracy"]
        for place, metrics in enumerate(seen[:-1]):
            metrics["rmse"] = 0.9 if place % 2 else 0.2
        write_log(folder / f"result_{index}.txt", records)
    rmse = star_shape.quality[0]
    assert improves_steadily(list_entries(steady), rmse)
    assert not improves_steadily(list_entries(wild), rmse)
