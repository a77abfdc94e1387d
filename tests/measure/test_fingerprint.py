"""The fingerprint of a benchmark: equal for equal code, and another one for any other training."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cepheid.benchmarks.resnet50 import task
from cepheid.measure.engine import fingerprint_cases
from cepheid.measure.engine.fingerprint_cases import digest, take_case, take_fingerprint
from cepheid.measure.engine.provenance import Fingerprint, find_difference
from cepheid.reference.run.config import configure
from cepheid.reference.torch.trainer import Trainer
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import main
from tests import prepared

Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    """A fingerprint computes on one thread; the tests that follow have theirs again."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def prepare_data(data_root: Path) -> None:
    """Prepare the data in turns with the other workers, which use the same folders."""
    for name in ("galaxy_shape", "resnet50", "transformer"):
        prepared.prepare(fingerprint_cases.shrink(definition.load(name, "mini")).data, data_root)


def test_equal_code_has_an_equal_fingerprint_and_a_slightly_different_update_another(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ran before."""
    before = take_fingerprint("resnet50", data_root)
    take_fingerprint("transformer", data_root)
    assert take_fingerprint("resnet50", data_root) == before
    assert {"loss 1", "loss 2", "accuracy 1", "accuracy 2"} <= before[1].keys()
    usual = task.WORKLOAD

    def prepare_slightly_different_update(shape: Any, update: Any) -> None:
        usual.prepare_update(shape, update)
        for group in update.groups:
            group["lr"] *= 1 + 1e-6

    other = usual.vary(prepare_update=prepare_slightly_different_update)
    monkeypatch.setattr(task, "WORKLOAD", other)
    now = take_fingerprint("resnet50", data_root)
    assert now[0] != before[0]
    assert find_difference(Fingerprint(*now), Fingerprint(*before), is_same_machine=True)


VALUES = {"loss 1": 2.0, "loss 2": 1.0}


@pytest.mark.parametrize(
    ("now", "on_the_same", "on_another"),
    [
        ({**VALUES, "loss 1": 2.0001}, "other bits; losses and metrics agree within rounding", ""),
        ({**VALUES, "loss 2": 1.01}, *["loss 2 was 1 and is 1.01"] * 2),
        ({"loss 1": 2.0}, *["loss 2 is gone"] * 2),
        ({**VALUES, "loss 3": 1.0}, *["loss 3 is new"] * 2),
    ],
)
def test_only_rounding_may_differ_and_only_on_another_machine(
    now: dict[str, float], on_the_same: str, on_another: str
) -> None:
    pair = Fingerprint("b", now), Fingerprint("a", VALUES)
    assert find_difference(*pair, is_same_machine=True) == on_the_same
    assert find_difference(*pair, is_same_machine=False) == on_another


def test_a_digest_depends_on_content_and_not_on_the_order_in_memory() -> None:
    values = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert digest(values) == digest(values.to(memory_format=torch.channels_last))
    assert digest(values) != digest(values.reshape(2, 3, 4))
    assert digest(values) != digest(values.double())
    assert digest({"a": 1.0, "b": 2.0}) == digest({"b": 2.0, "a": 1.0})
    assert digest({"a": 1.0}) != digest({"a": 1.0000001})


def test_the_command_compares_with_an_earlier_file(
    data_root: Path, tmp_path: Path, capsys: Printed
) -> None:
    kept = tmp_path / "before.json"
    command = ["fingerprint", "resnet50", "--data", str(data_root)]
    assert main([*command, "--output", str(kept)]) == 0
    assert main([*command, "--against", str(kept)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("same bits")
    document = json.loads(kept.read_text())
    assert document.keys() == {"machine", "fingerprints"}
    document["fingerprints"]["resnet50"] = {"digest": "0" * 16, "values": {"loss 1": 9.0}}
    kept.write_text(json.dumps(document))
    assert main([*command, "--against", str(kept)]) == 1
    assert "differs: " in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": {}, "fingerprints": [1]}', "\0"])
def test_a_file_that_is_no_record_is_named_with_the_fix(text: str, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"before\.json: .*--output"):
        main(["fingerprint", "resnet50", "--against", str(path)])


def test_cases_have_names_of_their_own_and_settings_that_the_benchmark_knows() -> None:
    cases = [case for name in definition.names() for case in fingerprint_cases.list_cases(name)]
    assert len(set(map(str, cases))) == len(cases) > 50
    for case in cases:
        small = fingerprint_cases.shrink(definition.load(case.benchmark, "mini"))
        overrides = [f"global_batch_size={fingerprint_cases.BATCH}", *case.settings]
        configure(small, division="open", overrides=overrides)
    assert fingerprint_cases.list_cases("galaxy_generation") == []


def test_all_cases_are_shown_and_kept(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    """Without settings, galaxy_shape has a case on one rank and one on two."""
    monkeypatch.setattr(fingerprint_cases, "SETTINGS", {})
    kept = tmp_path / "before.json"
    command = ["fingerprint", "galaxy_shape", "--cases", "all", "--data", str(data_root)]
    assert main([*command, "--output", str(kept)]) == 0
    assert capsys.readouterr().out.count("resumes 1") == 2
    names = ["galaxy_shape", "galaxy_shape, 1 rank", "galaxy_shape, 2 ranks"]
    assert list(json.loads(kept.read_text())["fingerprints"]) == names


def test_a_state_that_forgets_the_optimizer_does_not_resume(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, case = Trainer.state, fingerprint_cases.Case("galaxy_shape", 1)

    def forget(task: Trainer) -> dict[str, object]:
        state = usual(task)
        return {**state, "optimizer": {**state["optimizer"], "state": {}}}

    assert take_case(case, data_root, fingerprint_cases.ALONE)[1]["resumes"] == 1
    monkeypatch.setattr(Trainer, "state", forget)
    assert take_case(case, data_root, fingerprint_cases.ALONE)[1]["resumes"] == 0
