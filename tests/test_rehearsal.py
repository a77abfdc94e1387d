"""`cepheid rehearse`: what a device that only pretends to be one sees, and says of benchmarks."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the reference implementations need the extra torch")


from cepheid.measure.rehearsal.ledger import COPY, FLOAT64, REFUSED, WAIT, Event, Ledger
from cepheid.measure.rehearsal.play import STEPS, Scene, list_scenes
from cepheid.measure.rehearsal.refusals import find_missing, list_refusals
from cepheid.measure.rehearsal.stage import Report, read_allowed, rehearse
from cepheid.measure.studies.fingerprint_cases import shrink
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools.cli import main
from tests import prepared
from tests.distributed import on_ranks
from tests.processes import cepheid

NAMES = definition.names()
MOST_ALLOWED = 22  # entries of allowed.yaml: lower it when one is gone, and never raise it
SHARING = [
    scene for name in NAMES for scene in list_scenes(name, "mini", 2, (), None) if scene.settings
]


def prepare(name: str, data_root: Path) -> None:
    """Prepare the samples of a rehearsal in turns with the other workers."""
    prepared.prepare(shrink(definition.load(name, "mini")).data, data_root)


def show(report: Report) -> str:
    """Return what a failing test should say."""
    lines = [f"{each.place} {each.function}: {each.kind}, {each.what}" for each in report.findings]
    return "\n".join([f"{report.scene}: {report.numbers}", report.failure, *lines])


@pytest.mark.parametrize("name", NAMES)
def test_benchmarks_need_nothing_of_a_cpu(name: str, data_root: Path) -> None:
    """No step waits, no device is mixed, and the numbers are those of a CPU."""
    prepare(name, data_root)
    (report,) = on_ranks(1, rehearse, Scene(name), data_root, 1)
    assert report.is_fine, show(report)
    if report.steps:
        assert report.operations[STEPS] > 100
        assert all(place.part != STEPS or place.why for place in report.remarks if place.is_judged)


@pytest.mark.promise
@pytest.mark.parametrize("name", NAMES)
def test_benchmarks_need_no_float64(name: str, data_root: Path) -> None:
    prepare(name, data_root)
    (report,) = on_ranks(1, rehearse, Scene(name), data_root, 1, False)
    assert report.is_same, show(report)
    assert not [each for each in report.findings if each.kind == FLOAT64], show(report)


@pytest.mark.promise
@pytest.mark.parametrize("name", NAMES)
def test_benchmarks_need_nothing_of_a_cpu_at_full_scale(name: str, tmp_path: Path) -> None:
    (report,) = on_ranks(1, rehearse, Scene(name, "full"), tmp_path, 1)
    assert report.is_fine, show(report)


@pytest.mark.promise
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_take_the_ways_of_nccl(name: str, data_root: Path) -> None:
    prepare(name, data_root)
    report = rehearse(Scene(name), data_root, 2)
    assert report.is_fine, show(report)


@pytest.mark.promise
@pytest.mark.parametrize("scene", SHARING, ids=str)
def test_ranks_share_in_the_ways_of_nccl(scene: Scene, data_root: Path) -> None:
    prepare(scene.benchmark, data_root)
    report = rehearse(scene, data_root, 2)
    assert report.is_fine, show(report)


def test_the_list_of_allowed_places_only_shrinks() -> None:
    allowed = read_allowed()
    assert len(allowed) <= MOST_ALLOWED
    for (kind, at), why in allowed.items():
        file, _, function = at.partition(" ")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function.rpartition('.')[2]}(" in source, f"{kind}: {at} is no function"
        assert len(why) > 10


# What is seen, in a process of its own: torch can learn of one such device in a process.


def watch(name: str) -> Counter[Event]:
    """Return the events of one case of ``CASES`` on the pretend device."""
    from cepheid.measure.rehearsal.device import PretendDevice, offer
    from cepheid.measure.rehearsal.pretend import pretend

    offer(PretendDevice)
    ledger = Ledger()
    with pretend(ledger) as device, torch.no_grad():
        here = torch.arange(6.0, device=device).view(2, 3)
        ledger.events.clear()
        CASES[name][0](here)
    return ledger.events


def read_first(values: Any) -> float:
    """Wait for a value, on a line that has a name."""
    return float(values[0, 0])


CASES: dict[str, tuple[Any, list[str]]] = {
    "item": (read_first, [WAIT]),
    "bool": (lambda here: bool(here.sum()), [WAIT]),
    "tolist": (lambda here: here.tolist(), [WAIT]),
    "nonzero": (lambda here: here.nonzero(), [WAIT]),
    "unique": (lambda here: here.unique(), [WAIT]),
    "equal": (lambda here: torch.equal(here, here), [WAIT]),
    "a slice by a value": (lambda here: here[: here[0, 1].long()], [WAIT]),
    "a mask": (lambda here: here[here > 2], [WAIT]),
    "the shape of a mask": (lambda here: here.masked_select(here > 2), [WAIT]),
    "repeats": (lambda here: here.repeat_interleave(here[:, 0].long(), dim=0), [WAIT]),
    "to the host": (lambda here: here.cpu(), [WAIT]),
    "into a tensor of the host": (lambda here: torch.empty(2, 3).copy_(here), [WAIT]),
    "checked on the host": (lambda here: torch.linalg.eigh(here.T @ here), [WAIT, REFUSED]),
    "from the host": (lambda here: torch.ones(3).to(here.device), [COPY]),
    "a constant": (lambda here: torch.tensor([1.0, 2.0], device=here.device), [COPY]),
    "an index of the host": (lambda here: here[torch.tensor([1])], [COPY]),
    "float64": (lambda here: here.double(), [FLOAT64]),
    "integers": (lambda here: here.long() @ here.long().T, [REFUSED]),
    # What costs nothing:
    "repeats of a known number": (
        lambda here: torch.repeat_interleave(here[0].long(), output_size=3), []
    ),
    "a short copy": (lambda here: torch.ones(3).to(here.device, non_blocking=True), []),
    "a short copy back": (
        lambda here: torch.empty(2, 3).copy_(here, non_blocking=True), []
    ),
    "a scalar of the host": (lambda here: here * torch.tensor(2.0), []),
    "an index of the device": (lambda here: here[torch.ones(1, dtype=int, device=here.device)], []),
    "a choice": (lambda here: torch.where(here > 2, here, 0.0), []),
    "shapes": (lambda here: here.to("meta"), []),
    "a sorted part": (lambda here: here.argsort(stable=True)[:1], []),
    "work on the host": (lambda here: torch.ones(2).tolist(), []),
    "a view": (lambda here: here.view(-1).data, []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_costs_time_is_seen(case: str) -> None:
    (events,) = on_ranks(1, watch, case)
    assert sorted({event.kind for event in events}) == sorted(CASES[case][1]), events


def break_rules(name: str) -> str:
    """Return the message of the error that a case of ``BREAKS`` raises."""
    from cepheid.measure.rehearsal.device import PretendDevice, offer
    from cepheid.measure.rehearsal.pretend import pretend

    offer(PretendDevice)
    with pretend(Ledger()) as device:
        here = torch.arange(6.0, device=device).view(2, 3)
        try:
            BREAKS[name][0](here)
        except (RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


BREAKS: dict[str, tuple[Any, str]] = {
    "a sum": (lambda here: here + torch.ones(2, 3), "MixedDevicesError.*add.*cpu"),
    "a product": (lambda here: torch.ones(2, 2) @ here, "MixedDevicesError.*mm"),
    "joined": (lambda here: torch.cat([here, torch.ones(1, 3)]), "MixedDevicesError.*cat"),
    "a layer of the host": (torch.nn.Linear(3, 1), "MixedDevicesError.*addmm"),
    "NumPy": (lambda here: here.numpy(), "TypeError.*can't convert"),
    "a generator of the host": (
        lambda here: here.normal_(generator=torch.Generator()), "MixedDevicesError.*generator"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BREAKS)
def test_what_an_accelerator_refuses_is_refused(case: str) -> None:

    (message,) = on_ranks(1, break_rules, case)
    assert re.search(BREAKS[case][1], message), message


def move_and_train() -> list[Any]:
    """Return whether modules, tied weights, gradients and numbers on the device are right."""
    from cepheid.measure.rehearsal.device import PretendDevice, offer
    from cepheid.measure.rehearsal.pretend import PretendTensor, pretend

    offer(PretendDevice)
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LSTM(3, 3), torch.nn.Linear(3, 3))
    network[2].weight = network[0].weight
    inputs = torch.randn(4, 3)

    def step(values: Any) -> Any:
        hidden, _ = network[1](network[0](values))
        loss = network[2](hidden).square().mean()
        loss.backward()
        return loss

    first, grads = step(inputs), [each.grad.clone() for each in network.parameters()]
    network.zero_grad()
    ledger = Ledger()
    with pretend(ledger) as device:
        network.to(device)
        second = step(inputs.to(device, non_blocking=True))
        again = [each.grad for each in network.parameters()]
        network[0].weight.data = torch.zeros(3, 3, device=device)
        zeros = float(network[2].weight.detach().abs().sum())
        replay = PretendDevice(device).capture(lambda: second.detach().add_(1))
        replay()
    assert all(isinstance(each, PretendTensor) for each in again)
    near = all(torch.allclose(one, two.held) for one, two in zip(grads, again, strict=True))
    after = float(second.held.detach())
    return [near, zeros, round(after - float(first.detach()), 4), network[2].weight.is_leaf]


def test_networks_move_and_train_as_on_a_cpu() -> None:
    """Also with weights that are tied, with LSTMs, and where ``data`` is replaced."""
    assert on_ranks(1, move_and_train) == [[True, 0.0, 2.0, True]]


def test_kernels_are_known_as_torch_lists_them() -> None:
    aten = torch.ops.aten
    missing = {
        str(each): list(find_missing(each._schema.name, each._overloadname))
        for each in (aten._linalg_eigh.default, aten.add.Tensor, aten.convolution.default)
    }
    assert missing == {
        "aten._linalg_eigh.default": ["MPS"], "aten.add.Tensor": [], "aten.convolution.default": [],
    }  # fmt: skip


@pytest.mark.parametrize(("saved", "of_input", "count"), [(0, 0, 1), (1, 0, 0), (0, 1, 0)])
def test_cuda_wants_statistics_of_batch_norms(saved: int, of_input: int, count: int) -> None:
    operation = torch.ops.aten.native_batch_norm_backward.default
    values = torch.ones(2, 3) if saved else None
    mask = [bool(of_input), True, True]
    args = [None, None, None, None, None, values, values, False, 1e-5, mask]
    told = list(list_refusals(operation, "native_batch_norm_backward", args))
    assert len(told) == count, told


# The command:

TASK = '''
"""A task with a fault."""
import torch
from cepheid.benchmarks.galaxy_shape.task import WORKLOAD as OURS

def compute_loss(shape, network, inputs, targets):
    loss = OURS.compute_loss(shape, network, inputs, targets)
    {fault}
    return loss

WORKLOAD = OURS.vary(compute_loss=compute_loss)
'''
FAULTS = {
    "loss = loss * float(loss.detach() > 0)": "wait: _local_scalar_dense",
    "loss = loss + torch.tensor([0.0], device=loss.device).sum()": "copy: a copy",
    "loss = loss + torch.zeros(2).mul(loss).sum()": "MixedDevicesError",
    "loss = loss + 0.01 * (loss.device.type == 'pretend')": "DIFFER BY",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_ones_own_task_are_told_with_their_lines(
    fault: str, data_root: Path, tmp_path: Path
) -> None:
    prepare("galaxy_shape", data_root)
    path = tmp_path / "my_task.py"
    path.write_text(TASK.format(fault=fault))
    options = ["galaxy_shape", "--task", path, "--data", data_root]
    told = cepheid("rehearse", *options)
    assert told.returncode == 1, told.stderr
    assert FAULTS[fault] in told.stdout
    assert ("my_task.py:8" in told.stdout) == ("DIFFER" not in FAULTS[fault]), told.stdout


def test_json_has_what_the_table_has(data_root: Path) -> None:
    prepare("galaxy_shape", data_root)
    told = cepheid("rehearse", "galaxy_shape", "--json", "--data", data_root)
    assert told.returncode == 0, told.stderr
    facts = json.loads(told.stdout)
    (shape,) = facts["rehearsals"]
    assert facts["is_fine"]
    assert shape["difference"] == 0
    assert 250 < shape["step_operations"] < 300
    assert {"kind", "place", "why", "times"} <= shape["remarks"][0].keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["galaxy_shap"], "galaxy_shape"),
        (["--set", "threads=1"], "one benchmark"),
        (["ssd", "gnmt", "--task", "x.py"], "one benchmark"),
        (["ssd", "--task", "x.py"], "no such file"),
        (["ssd", "--scale", "huge"], "huge"),
        (["ssd", "--ranks", "0"], "--ranks"),
    ],
)
def test_wrong_use_is_told_before_anything_is_played(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(["rehearse", *options])
