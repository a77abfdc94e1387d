"""What the cost model says of published times and of devices that nobody measured."""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.measure.studies.projection import known, published
from cepheid.measure.studies.projection.cost_model import Costs, Network
from cepheid.measure.studies.projection.device import Speed, compare, find_device, find_watts
from cepheid.rules.host import ROOT
from cepheid.tools.measure.__main__ import main
from tests.measure.projection.test_projection import FAST, SLOW, TRAINING


def make_family(true: Costs, systems: Mapping[str, known.KnownTime]) -> known.Family:
    """Return a family whose systems take exactly as long as these costs say."""
    blank = replace(true, fixed_seconds=0, sample_seconds=0, exponent=1.0, divided=0.5)
    family = known.Family(
        "made_up", "made up", "nowhere", "none", "bf16", blank, Network(FAST, SLOW, 8), TRAINING,
        systems,
    )  # fmt: skip
    exact = {
        name: replace(each, seconds=family.predict(true, each)) for name, each in systems.items()
    }
    return replace(family, systems=exact)


SYSTEMS = {
    str(devices): known.KnownTime(devices, 4096, 1.0, 12.0)
    for devices in (8, 32, 64, 128, 512, 1024)
}


@given(
    st.floats(1e-4, 1e-2), st.floats(1e-4, 1e-2), st.floats(0, 1), st.sampled_from(known.EXPONENTS)
)
def test_a_fit_finds_the_costs_that_made_the_times(
    fixed: float, sample: float, overlap: float, exponent: float
) -> None:
    true = Costs(fixed, sample, 4e6, overlap=overlap, exponent=exponent)
    family = make_family(true, SYSTEMS)
    times = list(family.systems.values())
    found = known.fit_costs(family, times, [exponent])
    for each in times:
        assert family.predict(found, each) == pytest.approx(each.seconds, rel=2e-3)


def test_an_exponent_is_found_where_there_is_one_and_only_there() -> None:
    curved = make_family(Costs(0.0, 0.003, 4e6, exponent=0.8), SYSTEMS)
    times = list(curved.systems.values())
    assert known.choose_exponents(curved, times) == known.EXPONENTS
    assert known.fit_costs(curved, times, known.EXPONENTS).exponent == 0.8
    straight = make_family(Costs(0.01, 0.003, 4e6), SYSTEMS)
    times = list(straight.systems.values())
    assert known.fit_costs(straight, times, known.choose_exponents(straight, times)).exponent == 1.0
    assert known.choose_exponents(curved, list(curved.systems.values())[:3]) == known.LINEAR


def test_what_devices_share_is_found_where_sizes_tell_it() -> None:
    shared = {
        "8": known.KnownTime(8, 512, 1.0, 12.0),
        "64": known.KnownTime(64, 512, 1.0, 12.0),
        "128": known.KnownTime(128, 512, 1.0, 12.0),
        "512": known.KnownTime(512, 512, 1.0, 12.0, replica=4),
    }
    family = make_family(Costs(0.002, 0.003, 0.0, divided=0.8), shared)
    assert known.fit_costs(family, list(family.systems.values())).divided == 0.8
    # With three sizes left nobody can tell it, and the assumption stands.
    assert known.fit_costs(family, list(family.systems.values())[1:]).divided == 0.5
    assert 0.8 in known.DIVIDED
    alike = {"8": known.KnownTime(8, 64, 1.0, 10.0), "16": known.KnownTime(16, 128, 1.0, 10.0)}
    family = make_family(Costs(0.01, 0.003, 0.0), alike)
    found = known.fit_costs(family, list(family.systems.values()))
    assert found.fixed_seconds == 0
    assert found.sample_seconds == pytest.approx(0.003 + 0.01 / 8, rel=1e-2)


def test_a_size_is_predicted_without_its_systems() -> None:
    family = make_family(Costs(0.01, 0.003, 4e6), SYSTEMS)
    slow = replace(family.systems["128"], seconds=10 * family.systems["128"].seconds)
    twice = {**family.systems, "128": slow, "128 too": slow}
    found = {each.system: each for each in known.leave_sizes_out(replace(family, systems=twice))}
    assert found["128"].error == pytest.approx(-0.9, abs=1e-3)
    assert found["128 too"].error == pytest.approx(-0.9, abs=1e-3)
    assert [each.from_smaller is None for each in found.values()][:3] == [True, True, False]
    assert {name for name, each in found.items() if each.reach == known.BEYOND} == {"8", "1024"}


@pytest.fixture(scope="module")
def judged() -> Mapping[str, list[published.Judged]]:
    """Judge every published family once."""
    return {
        benchmark: published.judge(known.load_families(benchmark))
        for benchmark in known.list_known()
    }


def test_nine_of_ten_times_are_predicted_within_a_fifth_inside_of_the_fitted_shares(
    judged: Mapping[str, list[published.Judged]],
) -> None:
    every = [family for families in judged.values() for family in families]
    errors = published.count_errors(every)
    inside, beyond = errors[known.INSIDE], errors[known.BEYOND]
    assert (inside.number, inside.within_goal) == (114, 106)
    assert (beyond.number, beyond.within_goal) == (36, 28)
    assert inside.median == pytest.approx(0.046, abs=1e-3)
    assert inside.nine_of_ten == pytest.approx(0.176, abs=2e-3)


def test_rings_between_nodes_miss_as_documented() -> None:
    (family,) = (family for family in known.load_families("resnet50") if family.name == "h100")
    rings = replace(family, network=replace(family.network, shape="nodes"))
    found = {each.system: each for each in known.leave_sizes_out(rings)}
    assert found["eos_n316"].smaller_error == pytest.approx(0.43, abs=0.01)
    assert found["coreweave_n448"].error == pytest.approx(0.22, abs=0.01)


def test_records_are_those_of_today(judged: Mapping[str, list[published.Judged]]) -> None:
    for benchmark, families in judged.items():
        path = ROOT / f"docs/projections/{benchmark}.json"
        recorded = json.loads(path.read_text(encoding="utf-8"))["families"]
        assert recorded.keys() == {family.family.name for family in families}
        for family in families:
            errors = [row["error"] for row in recorded[family.family.name]["systems"]]
            today = [each.error for each in family.predictions]
            assert errors == pytest.approx(today, abs=1e-6), (benchmark, family.family.name)


def test_published_minutes_are_those_of_the_logs() -> None:
    table = ROOT.parent / "shared/published_logs/expected_scores.csv"
    if not table.is_file():
        pytest.skip(f"{table} is not here")
    with table.open(encoding="utf-8") as file:
        scored = {
            (row["results_folder"].split("/")[-2], row["results_folder"].split("/")[-1]): row
            for row in csv.DictReader(file)
        }
    names = {"ssd": "ssd", "resnet50": "resnet", "gnmt": "gnmt", "mask_rcnn": "mask"}
    seen = 0
    for benchmark, short in {**names, "transformer": "transformer"}.items():
        for family in known.load_families(benchmark):
            for name, each in family.systems.items():
                row = scored.get((name, short))
                if row:
                    seen += 1
                    minutes = float(row["olympic_mean_minutes"])
                    assert each.seconds / 60 == pytest.approx(minutes, abs=6e-4)
    assert seen >= 5


def test_a_device_takes_as_long_as_its_peak_and_its_memory_say() -> None:
    assert compare(Speed(100, 1000), Speed(50, 1000)) == pytest.approx((1, 2**0.5, 2))
    faster = compare(Speed(100, 1000), Speed(200, 4000))
    assert faster == pytest.approx((0.25, 8**-0.5, 0.5))
    families = [family for name in known.list_known() for family in known.load_families(name)]
    unknown = {family.device for family in families if find_device(family) is None}
    assert unknown == {"NVIDIA GB300, a GPU"}


def test_published_power_falls_as_devices_wait() -> None:
    """From one node's power, computing and idle, that of 8 and 64 follows within 7%."""
    facts = json.loads((ROOT / "docs/projections/energy.json").read_text(encoding="utf-8"))
    alone = {row["benchmark"]: row for row in facts["rows"] if row["nodes"] == 1}
    errors = {}
    for row in facts["rows"]:
        energy = row["nodes"] * row["watts"] * row["seconds"] / 3.6e6
        assert energy == pytest.approx(row["kilowatt_hours"], rel=1e-3)
        one = alone[row["benchmark"]]
        ideal = one["seconds"] * row["samples"] / one["samples"] / row["nodes"]
        efficiency = ideal / row["seconds"]
        watts = find_watts(one["watts"], facts["idle_watts"], efficiency)
        errors[row["benchmark"], row["nodes"]] = 100 * (watts / row["watts"] - 1)
    assert errors == pytest.approx(
        {
            ("resnet", 1): 0, ("resnet", 8): -3.6, ("retinanet", 1): 0, ("retinanet", 8): -6.6,
            ("llama2_70b_lora", 1): 0, ("llama2_70b_lora", 8): -2.2, ("llama2_70b_lora", 64): -1.6,
        },
        abs=0.06,
    )  # fmt: skip


# The command --------------------------------------------------------------------------------------


def test_published_times_of_devices_also_of_those_that_share_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "p.json", tmp_path / "p.png"
    call = ["transformer", "--published", "--figure", str(figure), "--output", str(out)]
    assert main(["project", *call]) == 0
    said = capsys.readouterr().out
    assert "dgx2h_n30" in said
    assert "12 of 12 times that were not fitted are predicted within 20%" in said
    assert figure.read_bytes().startswith(b"\x89PNG")
    first = json.loads(out.read_text())["families"]["tpu_v3"]["systems"][0]
    assert first["error"] == pytest.approx(-0.018, abs=1e-3)
    assert main(["project", "ssd", "--published"]) == 0
    said = capsys.readouterr().out
    assert "Kumar et al., figure 10" in said
    assert "1.63" in said
    line = ["llama2_70b_lora", "--like", "gb200_5_0", "--devices", "8,64,512,2048"]
    assert main(["project", *line]) == 0
    answers, _, rest = capsys.readouterr().out.partition("Other published")
    assert "512" in answers
    assert "2,048 devices and more would have less work each" in rest


def test_how_long_a_device_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = tmp_path / "d.json", tmp_path / "d.png"
    call = ["resnet50", "--like", "h100", "--peak", "312", "--bandwidth", "2039"]
    call += ["--within", "nvlink3", "--between", "infiniband_hdr", "--devices", "1,8,64,512,2048"]
    call += [
        "--watts", "800", "--idle-watts", "300", "--price", "1.5", "--figure", str(figure),
        "--output", str(out),
    ]  # fmt: skip
    assert main(["project", *call]) == 0
    said = capsys.readouterr().out
    assert "Other published devices, from this family alone" in said
    assert "18 of 18 published times of other devices lie in the range" in said
    assert figure.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(out.read_text())["answers"]
    assert [row["devices"] for row in rows] == [1, 8, 64, 512, 2048]
    powers = []
    for row in rows:
        low, likely, high = row["seconds"].values()
        assert low < likely < high
        hours = likely / 3600
        powers.append(1000 * row["kilowatt_hours"]["likely"] / row["devices"] / hours)
        assert row["cost"]["likely"] == pytest.approx(row["devices"] * hours * 1.5)
    assert powers[0] == pytest.approx(800)
    assert powers == sorted(powers, reverse=True)
    assert 300 < powers[-1] < 600
