"""`cepheid rehearse`: what a device that only pretends to be one sees, and says of benchmarks."""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the reference implementations need the extra torch")


from cepheid.measure.engine.fingerprint_cases import shrink
from cepheid.measure.rehearsal.ledger import COPY, FLOAT64, WAIT, Event, Ledger
from cepheid.measure.rehearsal.play import STEPS, Scene, list_scenes
from cepheid.measure.rehearsal.pretend import KIND
from cepheid.measure.rehearsal.stage import Report, judge, play_on, read_allowed, rehearse
from cepheid.reference.torch.devices.values import to_device
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools.cli import main
from tests import distributed, prepared
from tests.distributed import on_ranks
from tests.processes import cepheid

NAMES = definition.names()
MOST_ALLOWED = 30  # entries of allowed.yaml: lower it when one is gone, and never raise it


def prepare(name: str, data_root: Path) -> None:
    """Prepare the samples of a rehearsal in turns with the other workers."""
    prepared.prepare(shrink(definition.load(name, "mini")).data, data_root)


def show(report: Report) -> str:
    """Return what a failing test should say."""
    lines = [f"{each.place} {each.function}: {each.kind}, {each.what}" for each in report.findings]
    return "\n".join([f"{report.scene}: {report.numbers}", report.failure, *lines])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "galaxy_shape"])
def test_benchmarks_need_nothing_of_a_cpu(name: str, data_root: Path) -> None:
    """No step waits, no device is mixed, and the numbers are those of a CPU (one more: below)."""
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
    assert report.is_fine, show(report)


def look_at_full_scale(name: str, data_root: Path) -> list[str]:
    """Return what is found at full scale; its numbers are compared at the mini scale alone."""
    _, ledger, failure = play_on(1, Scene(name, "full"), data_root, KIND)
    found = [f"{each.place}: {each.what}" for each in judge(ledger, True) if each.is_finding]
    return [*found, *([failure] if failure else [])]


@pytest.mark.promise
@pytest.mark.parametrize("name", NAMES)
def test_benchmarks_need_nothing_of_a_cpu_at_full_scale(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "JOIN_SECONDS", 1800)
    assert on_ranks(1, look_at_full_scale, name, tmp_path) == [[]]


# All benchmarks on two ranks, and the ways to share: those of K-FAC, and once those of all others.
SHARED = {
    (scene.settings, name if name == "kfac" or not scene.settings else ""): scene
    for name in reversed(NAMES)
    for scene in list_scenes(name, "mini", 2, (), None)
}.values()


@pytest.mark.promise
@pytest.mark.parametrize("scene", SHARED, ids=str)
def test_two_ranks_take_the_ways_of_nccl(scene: Scene, data_root: Path) -> None:
    prepare(scene.benchmark, data_root)
    report = rehearse(scene, data_root, 2)
    assert report.is_fine, show(report)


def test_every_way_of_sharing_is_played() -> None:
    assert {scene.benchmark for scene in SHARED} == set(NAMES)
    played = {setting.partition("=")[0] for scene in SHARED for setting in scene.settings}
    ways = ("weight_update", "all_reduce", "spatial_partitions", "tensor_ranks", "pipeline")
    assert played >= set(ways)


def test_the_list_of_allowed_places_only_shrinks() -> None:
    allowed = read_allowed()
    assert len(allowed) <= MOST_ALLOWED
    for (kind, at), why in allowed.items():
        file, _, function = at.partition(" ")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function.rpartition('.')[2]}(" in source, f"{kind}: {at} is no function"
        assert len(why) > 10


# What is seen ------------------------------------------------------------------------------------


def watch_all() -> tuple[dict[str, Counter[Event]], dict[str, str]]:
    """Return the events of each case of ``CASES``, and the errors of each of ``BREAKS``."""
    from cepheid.measure.rehearsal.device import offer
    from cepheid.measure.rehearsal.pretend import pretend

    offer()
    ledger, seen, refused = Ledger(), {}, {}
    with pretend(ledger) as device:
        for name, (case, _) in {**CASES, **BREAKS}.items():
            here = torch.arange(6.0, device=device).view(2, 3)
            ledger.events.clear()
            try:
                with torch.set_grad_enabled(name in BREAKS):
                    case(here)
            except (RuntimeError, TypeError) as error:
                refused[name] = f"{type(error).__name__}: {error}"
            seen[name] = Counter(ledger.events)
    return seen, refused


@cache
def watch() -> tuple[dict[str, Counter[Event]], dict[str, str]]:
    """Return the same from a process of its own, in which torch learns of the device."""
    (watched,) = on_ranks(1, watch_all)
    return watched


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
    "checked on the host": (lambda here: torch.linalg.eigh(here.T @ here), [WAIT]),
    "from the host": (lambda here: torch.ones(3).to(here.device), [COPY]),
    "a constant": (lambda here: torch.tensor([1.0, 2.0], device=here.device), [COPY]),
    "an index of the host": (lambda here: here[torch.tensor([1])], [COPY]),
    "float64": (lambda here: here.double(), [FLOAT64]),
    # What costs nothing:
    "repeats of a known number": (
        lambda here: torch.repeat_interleave(here[0].long(), output_size=3), []
    ),
    "a short copy of pageable memory": (
        lambda here: torch.ones(3).to(here.device, non_blocking=True), [COPY]
    ),
    "a short copy": (
        lambda here: torch.ones(3).pin_memory().to(here.device, non_blocking=True), []
    ),
    "a short copy of a part": (
        lambda here: torch.ones(3, pin_memory=True)[1:].to(here.device, non_blocking=True), []
    ),
    "what moves it": (lambda here: to_device(torch.ones(1, 3).expand(2, 3), here.device), []),
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
    seen, refused = watch()
    assert sorted({event.kind for event in seen[case]}) == sorted(CASES[case][1]), seen[case]
    assert case not in refused, refused[case]


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
    message = watch()[1].get(case, "")
    assert re.search(BREAKS[case][1], message), message


def move_and_train() -> list[Any]:
    """Return whether modules, tied weights, gradients and numbers on the device are right."""
    from cepheid.measure.rehearsal.device import PretendDevice, offer
    from cepheid.measure.rehearsal.pretend import PretendTensor, pretend

    offer()
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
    with pretend(Ledger()) as device:
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


def exchange() -> dict[str, Any]:
    """Return what collectives of the pretend device return, and what they refuse."""
    import torch.distributed as dist

    from cepheid.measure.rehearsal.device import offer
    from cepheid.measure.rehearsal.pretend import pretend
    from cepheid.reference.torch.parallel import mesh
    from cepheid.reference.torch.ranks.distributed import start_ranks

    offer()
    with pretend(Ledger()) as device, start_ranks() as ranks:
        mine = torch.arange(4.0, device=device) + ranks.rank
        parts = [torch.empty_like(mine) for _ in range(2)]
        part, whole = torch.empty(2, device=device), torch.empty(8, device=device)
        swapped = torch.empty_like(mine)
        dist.all_gather(parts, mine)
        mesh._reduce_scatter(part, mine, async_op=True).get_future().wait()
        mesh._all_gather(whole, mine)
        dist.all_to_all_single(swapped, mine)
        if ranks.is_first:
            dist.send(mine + 10, 1)
        else:
            dist.recv(mine, 0)
        with pytest.raises(RuntimeError, match="got a tensor on cpu"):
            dist.all_reduce(torch.ones(1))
        found = {
            "kind": device.type, "gathered": torch.stack(parts), "scattered": part,
            "joined": whole, "swapped": swapped, "received": mine,
            "sum": ranks.sum(torch.ones(2, device=device)),
            "objects": ranks.all_gather_object(ranks.rank),
        }  # fmt: skip
        return {
            name: each.tolist() if isinstance(each, torch.Tensor) else each
            for name, each in found.items()
        }


def test_collectives_follow_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPHEID_DEVICE", "pretend")
    first, second = on_ranks(2, exchange)
    assert first["kind"] == "pretend"
    assert first["gathered"] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert (first["scattered"], second["scattered"]) == ([1, 3], [5, 7])
    assert first["joined"] == [0, 1, 2, 3, 1, 2, 3, 4]
    assert (first["swapped"], second["swapped"]) == ([0, 1, 1, 2], [2, 3, 3, 4])
    assert second["received"] == [10, 11, 12, 13]
    assert first["sum"] == [2, 2]
    assert first["objects"] == [0, 1]


def meet_another_device() -> str:
    """Return what is said where torch has loaded a vendor's plug-in."""
    from cepheid.measure.rehearsal.pretend import offer_device

    torch.utils.rename_privateuse1_backend("acme")
    with pytest.raises(UserError) as told:
        offer_device()
    return str(told.value)


def test_a_plug_in_of_another_device_is_named() -> None:
    (message,) = on_ranks(1, meet_another_device)
    assert "acme" in message
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in message


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


def test_json_has_what_the_table_has(data_root: Path, tmp_path: Path) -> None:
    prepare("galaxy_shape", data_root)
    file = tmp_path / "rehearsal.json"
    told = cepheid("rehearse", "galaxy_shape", "--output", file, "--data", data_root)
    assert told.returncode == 0, told.stderr
    facts = json.loads(file.read_text())
    (shape,) = facts["rehearsals"]
    assert facts["is_fine"]
    assert shape["difference"] == 0
    assert 250 < shape["step_operations"] < 300
    assert {"kind", "place", "why", "times"} <= shape["remarks"][0].keys()


def test_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="no launcher"):
        main(["rehearse", "ssd"])
