"""Rounds, their events, and the peaks of devices; a frozen round stays what it is."""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cepheid.compliance.checks import CHECKS
from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.rules import definition, events, rounds, systems
from cepheid.rules.definition import Definition
from cepheid.rules.documents import find_schema_problem
from cepheid.rules.events import EVENTS, METADATA_TYPES, EventRule, Phase
from cepheid.rules.host import ROOT
from cepheid.rules.systems import Peak, find_peak
from tests import assert_refused
from tests.compliance.asserting import Patch, require
from tests.compliance.builder import write_result


def _rules_of_the_books() -> dict[str, str]:
    found = {}
    for book in ("training.md", "submission.md", "mlperf.md"):
        text = (ROOT / "rules" / book).read_text(encoding="utf-8")
        for section in re.split(r"^(?=### )", text, flags=re.MULTILINE)[1:]:
            found[section.split()[1]] = section
    return found


def test_the_books_number_what_is_checked_without_gaps() -> None:
    """Our own round checks the rules of its own books, without those of MLPerf."""
    checked = {rule for rule, text in _rules_of_the_books().items() if "*Checked" in text}
    assert checked == set(CHECKS)
    assert checked == {rule for name in rounds.names() for rule in rounds.load(name).rules}
    assert set(rounds.load("v1.0").rules) == {rule for rule in checked if rule[0] != "M"}
    rules = list(_rules_of_the_books())
    for letter in "TSM":
        numbers = [int(rule[1:]) for rule in rules if rule[0] == letter]
        assert numbers == list(range(1, len(numbers) + 1))


def test_the_frozen_definitions_of_the_current_round_are_those_that_run() -> None:
    """Else the reference would train by one definition and be judged by another."""
    frozen = definition.FROZEN / rounds.CURRENT
    for path in frozen.glob("*/*"):
        now = definition.BENCHMARKS / path.relative_to(frozen)
        assert now.read_bytes() == path.read_bytes(), f"{path}: `cepheid round freeze` again"


def test_integrity_rules_are_those_that_the_book_says_in_every_round() -> None:
    """As far as MLPerf's submissions allow: T2 is our own vocabulary, their counts are M1's, and
    they have no manifest of ours (S4). M3 to M7 are no errors of what was accepted."""
    text = (ROOT / "rules" / "training.md").read_text(encoding="utf-8")
    assert "Integrity rules (T1 to T5, T15, T19)" in text
    ours = {"T1", "T2", "T3", "T4", "T5", "T15", "T19", "S4", "S5"}
    for name in rounds.names():
        found = {r.id for r in rounds.load(name).rules.values() if r.kind == "integrity"}
        found -= {"M3", "M4", "M5", "M6", "M7"}
        assert found == ours - ({"T2", "S4"} if rounds.load(name).is_mlperf else set())


def test_the_book_says_which_rules_may_be_waived() -> None:
    said = re.search(r"\n((?:[TS][0-9]+|[, ]|to|and)+) may be waived", _rules_of_the_books()["S9"])
    assert said is not None
    words = re.findall(r"([TS])([0-9]+)(?: to [TS]([0-9]+))?", said.group(1))
    listed = {
        f"{letter}{number}"
        for letter, first, last in words
        for number in range(int(first), int(last or first) + 1)
    }
    rules = rounds.load("v1.0").rules
    assert {rule.id for rule in rules.values() if rule.waivable} == listed & set(rules)
    assert not any(rule.waivable and rule.kind == "integrity" for rule in rules.values())


def test_an_unknown_round_gets_a_suggestion() -> None:
    assert_refused(r'no round "v1\.1"; did you mean "v1\.0"', rounds.load, "v1.1")


@pytest.mark.parametrize("name", rounds.names())
def test_a_round_has_the_name_of_its_file(name: str) -> None:
    assert rounds.load(name).name == name


@pytest.mark.parametrize("path", sorted(rounds.FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_round_has_the_form_of_its_schema(path: Path) -> None:
    assert find_schema_problem(yaml.safe_load(path.read_text(encoding="utf-8")), "round") is None


T2 = (ROOT / "rules" / "training.md").read_text(encoding="utf-8").split("### T2")[1].split("###")[0]


def rows(heading: str) -> list[list[str]]:
    """The rows of the tables under T2 that begin with a heading."""
    tables = [table.splitlines() for table in T2.split("\n\n") if table.startswith("|")]
    found = [line for table in tables if table[0].startswith(heading) for line in table[2:]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


ALL = [rule for known in EVENTS.values() for rule in known.values()]


def as_rows(rules: Iterable[EventRule]) -> list[list[str]]:
    return [
        [
            rule.phase.name.lower(), f"`{rule.key}`", rule.count, f"`{rule.event_type}`",
            rule.value, ", ".join(f"`{name}`" for name in rule.metadata) or "–", rule.meaning,
        ]
        for rule in rules
    ]  # fmt: skip


def test_the_rule_book_has_the_tables_of_events() -> None:
    """A vendor complies by the rule book alone, so it says all that the tables in code say."""
    training, generation = EVENTS["train"], EVENTS["generate"]
    *of_book, hyperparameters = rows("| phase |")
    assert of_book == as_rows(training.values())
    own = [rule for key, rule in generation.items() if rule.phase >= Phase.TIMED]
    assert rows("| generate |") == as_rows([generation["weights_digest"], *own])
    shared = [key for key, rule in training.items() if rule.phase < Phase.TIMED]
    shared.remove("weights_digest")  # most trainings start from none
    assert [training[key] for key in shared] == [generation[key] for key in shared]
    rule = events.make_hyperparameter_rule("opt_name")
    assert hyperparameters[0] == rule.phase.name.lower()
    assert hyperparameters[2:4] == [rule.count, f"`{rule.event_type}`"]


def test_the_book_tells_metadata_and_choices_of_every_phase() -> None:
    types = {field.strip("`"): type_name for field, type_name, _ in rows("| field |")}
    assert types.pop("file`, `lineno") == "string, integer"
    asked = {events.CLOCK_METADATA: "number", events.REASON_METADATA: "string"}
    asked |= {events.INTERRUPTED_METADATA: "true"}
    assert types == {**METADATA_TYPES, **events.IMPLEMENTATION_TYPES, **asked}
    meanings = {field.strip("`"): meaning for field, _, meaning in rows("| field |")}
    for name in set(events.CHOICES) & set(METADATA_TYPES):
        assert all(f"`{choice}`" in meanings[name] for choice in events.CHOICES[name])
    for known in EVENTS.values():
        assert {rule.phase for rule in known.values()} >= set(Phase) - {Phase.AFTER}
    assert set(events.CHOICES) <= {rule.key for rule in ALL} | set(METADATA_TYPES)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.key)
def test_an_event_is_described(rule: EventRule) -> None:
    assert events.find_event_type(rule.key) == rule.event_type
    assert rule.key == rule.key.lower()
    assert rule.meaning
    assert set(rule.metadata) <= set(METADATA_TYPES) - {events.CLOCK_METADATA}
    assert rule.key.endswith(("_start", "_stop")) == (rule.event_type != "POINT_IN_TIME")


def test_a_value_has_these_types_only() -> None:
    cases: list[tuple[object, set[str]]] = [
        (None, {"null", "any"}), (True, {"true", "any"}), (False, {"any"}),
        (0, {"integer", "number", "any"}), (1.0, {"number", "any"}), ("", {"string", "any"}),
        ({}, {"object", "any"}), ([], {"any"}),
    ]  # fmt: skip
    every = ("null", "true", "integer", "number", "string", "object", "any")
    for value, types in cases:
        assert {name for name in every if events.has_type(value, name)} == types  # type: ignore[arg-type]


H200 = {"nodes": 2, "accelerators_per_node": 8, "accelerator": "NVIDIA H200"}
V100 = {**H200, "accelerator": "Tesla V100-SXM2-16GB"}
A9 = {
    **H200, "nodes": 1, "accelerator": "Example A9",
    "peak_tflops": {"fp32": {"datasheet": 40.0, "measured": 30.0}, "tf32": {"measured": 90.0}},
}  # fmt: skip
OTHER_DEVICES = (
    "NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 NVL", "NVIDIA H100 PCIe", "Example A100", "", None, 7,
    "AMD Instinct MI355X", "GPU", "H200 NVL GPU", "NVIDIA A100 PCIe", "Radeon HD 2000",
)  # fmt: skip
CPU: dict[str, Any] = {"nodes": 2, "accelerators_per_node": 0, "accelerator": None}
CPU |= {"peak_tflops": {"fp32": {"measured": 0.15}}}


def test_devices_are_known_by_names_and_none_is_guessed() -> None:
    for name, device in [
        ("NVIDIA H200", "NVIDIA H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM4 80 GB"),
        ("Tesla V100-PCIE-32GB", "NVIDIA V100 PCIe"),
        ("Tesla V100-SXM2-16GB", "NVIDIA V100 SXM2"),
        ("TPU v3", "Google TPU v3, a chip"),
        ("TPU v3 TensorCore", "Google TPU v3, a core"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 PCIe 80 GB"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 PCIe 40 GB"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("AMD Instinct MI300X OAM", "AMD Instinct MI300X"),
        ("AMD Radeon Instinct MI25", "AMD Radeon Instinct MI25"),
        ("Intel(R) Gaudi(R) 2 AI Accelerator", "Intel Gaudi 2"),
        ("NVIDIA B200", "NVIDIA B200 SXM"),
        ("NVIDIA GB200", "NVIDIA GB200, a GPU"),
        ("Graphcore GC200", "Graphcore GC200"),
        ("Graphcore Colossus™ GC2", "Graphcore Colossus GC2"),
        ("nvidia h200 (SXM5)", "NVIDIA H200 SXM"),
        ("NVIDIA_H100_SXM5", "NVIDIA H100 SXM"),
        ("NVIDIA A100 SXM4 [80GB]", "NVIDIA A100 SXM4 80 GB"),
        ("NVIDIA\u00a0\u041d200", "NVIDIA H200 SXM"),  # a Cyrillic H after a wide blank
        ("NVIDIA \u0397200", "NVIDIA H200 SXM"),  # a Greek letter
        ("NVIDIA H\u200b2\u00ad00", "NVIDIA H200 SXM"),  # characters that nobody sees
        ("8x NVIDIA H200 GPU", "NVIDIA H200 SXM"),
        ("NVIDIA(R) H200, SXM5 141 GB HBM3e Tensor Core GPUs", "NVIDIA H200 SXM"),
        ("NVlDIA Corporation H2OO", "NVIDIA H200 SXM"),  # letters in place of others and of digits
        *((name, None) for name in OTHER_DEVICES),
    ]:
        found = systems.find_device(name)
        assert (found.device if found else None) == device


def test_numbers_of_devices_have_sources_and_shares_are_told() -> None:
    for known in systems.load_devices():
        assert known.source
        for precision, tflops in known.peak_tflops.items():
            system = {**H200, "nodes": 1, "accelerators_per_node": 1, "accelerator": None}
            system["peak_tflops"] = {precision: {"datasheet": tflops}}
            assert find_peak(system, precision) == Peak(precision, tflops, "datasheet")
    found = systems.compute_share(10**9, 500.0, Peak("bf16", 2.0, "datasheet"))
    assert found.share == pytest.approx(0.25)
    assert str(found) == "25% (bf16, datasheet)"


@pytest.mark.parametrize(
    ("system", "precision", "peak"),
    [
        (H200, "torch.bfloat16", Peak("bf16", 16 * 989.4, "datasheet")),
        ({**H200, "peak_tflops": {"bf16": {"measured": 700.0}}}, "bf16",
         Peak("bf16", 16 * 989.4, "datasheet")),  # which counts before
        (CPU, "float32", Peak("fp32", 2 * 0.15, "measured")),
        (H200, "float32", Peak("tf32", 16 * 494.7, "datasheet")),
        (V100, "fp32", Peak("fp32", 16 * 15.7, "datasheet")),  # it has no units for tf32
        (A9, "fp32", Peak("tf32", 8 * 90.0, "measured")),  # before a datasheet without them
        (CPU, "bf16", None),  # never measured
        (CPU, "int4", None),
        ({**CPU, "peak_tflops": {}}, "fp32", None),
        ({**CPU, "peak_tflops": {"fp32": "fast"}}, "fp32", None),
        ({**CPU, "peak_tflops": {"fp32": {"measured": True}}}, "fp32", None),
        ({**CPU, "peak_tflops": {"fp32": {"measured": 5e-324}}}, "fp32", None),
        ({**CPU, "peak_tflops": {"fp32": {"measured": 10**400}}}, "fp32", None),
        ({**CPU, "peak_tflops": {"fp32": {"datasheet": float("inf")}}}, "fp32", None),
        ({**CPU, "nodes": 0}, "fp32", None),
        ({**CPU, "nodes": "2"}, "fp32", None),
        ({}, "fp32", None),
    ],
)  # fmt: skip
def test_the_peak_is_of_all_devices_or_unknown(
    system: dict[str, Any], precision: str, peak: Peak | None
) -> None:
    assert find_peak(system, precision) == peak


@pytest.mark.parametrize("precision", ["fp32", "torch.bfloat16", "mixed_bfloat16", "int4"])
@pytest.mark.parametrize("system", [CPU, H200], ids=["cores", "accelerators"])
def test_a_bound_needs_no_field_and_is_above_peaks(system: dict[str, Any], precision: str) -> None:
    cores = {"processor_cores_per_node": 8}
    bound = require(systems.find_bound({**system, **cores}, precision))
    peak = find_peak(system, precision)
    assert peak is None or bound.tflops > 5 * peak.tflops
    assert systems.find_bound(system, precision) is None


OUT = Path("out")


@pytest.fixture
def frozen(star_shape: Definition, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A checkout in which the definitions of v1.0 are frozen; returns those of the next round."""
    monkeypatch.setattr(definition, "FROZEN", tmp_path / "frozen")
    shutil.copytree(definition.locate_benchmarks(), tmp_path / "frozen" / "v1.0")
    write_result(OUT, star_shape)
    return definition.locate_benchmarks()


def find_errors_in(judged_in: rounds.Round) -> list[Finding]:
    judgement = judge([package.read(OUT)], judged_in)
    return [finding for finding in judgement.findings if finding.is_error]


def change_definition(benchmarks: Path, what: str) -> None:
    path = benchmarks / "star_shape" / "benchmark.yaml"
    document = yaml.safe_load(path.read_text())
    if what == "target":
        document["scales"]["mini"]["targets"]["rmse"] /= 1e3
    elif what == "scale":
        del document["scales"]["mini"]
    elif what == "renamed":
        path.parent.rename(path.parents[1] / "star_forms")
        return
    elif what == "reference points":
        path.with_name("rcp.json").unlink()
        return
    path.write_text(yaml.safe_dump(document))
    definition._read_document.cache_clear()


@pytest.mark.parametrize("what", ["target", "scale", "renamed", "reference points"])
def test_a_changed_definition_voids_no_result_of_a_frozen_round(what: str, frozen: Path) -> None:
    before = judge([package.read(OUT)], rounds.load("v1.0"))
    change_definition(frozen, what)
    after = judge([package.read(OUT)], rounds.load("v1.0"))
    assert not find_errors_in(rounds.load("v1.0"))
    assert after.findings == before.findings
    assert [r.convergence for r in after.results] == [r.convergence for r in before.results]


@pytest.fixture
def second(frozen: Path, tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """Rounds v1.0 and v1.1, which carries results of the first; returns their folder."""
    folder = tmp_path / "rounds"
    folder.mkdir()
    first = yaml.safe_load((rounds.FOLDER / "v1.0.yaml").read_text())
    for document in (first, first | {"name": "v1.1", "carries": ["v1.0"]}):
        (folder / f"{document['name']}.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.setattr(rounds, "FOLDER", folder)
    rounds.load.cache_clear()
    yield frozen
    rounds.load.cache_clear()


def test_a_round_carries_results_of_the_same_definition_or_nothing(second: Path) -> None:
    path = rounds.FOLDER / "v1.1.yaml"
    content = path.read_text()
    assert not find_errors_in(rounds.load("v1.1"))
    path.write_text(yaml.safe_dump(yaml.safe_load(content) | {"carries": []}))
    rounds.load.cache_clear()
    assert {finding.code for finding in find_errors_in(rounds.load("v1.1"))} == {"T14.round"}
    path.write_text(content)
    rounds.load.cache_clear()
    change_definition(second, "target")
    assert {finding.code for finding in find_errors_in(rounds.load("v1.1"))} == {"T14.definition"}
