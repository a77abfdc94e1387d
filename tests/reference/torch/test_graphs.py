"""Steps that the pretend device repeats as graphs: their numbers, and who has none."""

import re
from pathlib import Path

import pytest
import torch

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.fingerprint_cases import configure_small
from cepheid.measure.engine.turns import make_task
from cepheid.measure.rehearsal.ledger import Ledger
from cepheid.measure.rehearsal.play import Scene
from cepheid.measure.rehearsal.stage import rehearse
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.rules import definition
from tests.distributed import on_ranks
from tests.processes import cepheid
from tests.test_rehearsal import NAMES, prepare, show

SEVERAL = "the passes of this task differ"
NO_GRAPH = dict.fromkeys(
    ("gnmt", "mask_rcnn", "ssd", "transformer", "video_prediction"), SEVERAL
) | {"kfac": "a preconditioner decides"}
TRAINED = [name for name in NAMES if definition.load(name, "mini").kind == "train"]


@pytest.mark.parametrize(
    "name",
    [name if name == "galaxy_shape" else pytest.param(name, marks=pytest.mark.promise)
     for name in TRAINED],
)  # fmt: skip
def test_a_graph_repeats_the_step(name: str, data_root: Path) -> None:
    """What is captured of noise has the numbers of real steps, and is launched at once."""
    prepare(name, data_root)
    scene = Scene(name, settings=("compile=graphs",))
    if name in NO_GRAPH:
        told = cepheid("rehearse", name, "--set", "compile=graphs", "--data", data_root)
        assert told.returncode == 2
        assert re.search(f"compile=graphs: {NO_GRAPH[name]}.*fix: choose", told.stderr)
        return
    (report,) = on_ranks(1, rehearse, scene, data_root, 1)
    assert report.is_fine, show(report)
    assert report.step_operations < 140, report.step_operations


GALAXIES = ("galaxy_shape", "galaxy_bnn", "galaxy_vae")


def find_ways(data_root: Path) -> list[str]:
    """Return by what the gradients of the galaxy benchmarks are averaged."""
    with start_ranks() as ranks:
        configs = [configure_small(name, data_root) for name in GALAXIES]
        made = [make_task(config, ranks, is_warm=False, inputs="") for config in configs]
    return [type(task.sharing.network).__name__ for task in made]


def test_gradients_of_galaxies_travel_while_the_backward_pass_runs(data_root: Path) -> None:
    for name in GALAXIES:
        prepare(name, data_root)
    assert on_ranks(2, find_ways, data_root) == [["DistributedDataParallel"] * len(GALAXIES)] * 2


def test_a_variant_with_another_loss_is_not_taken_for_static() -> None:
    workload = import_task(definition.load("galaxy_shape", "mini"), "torch").WORKLOAD
    assert workload.is_static
    assert workload.vary(prepare_update=print).is_static
    assert not workload.vary(compute_loss=print).is_static
    assert not workload.vary(compute_loss=print).averages_early


def repeat(waits: bool) -> list[float] | str:
    """Return what a graph has added up, or what the device says where it ``waits``."""
    from cepheid.measure.rehearsal.device import PretendDevice, offer
    from cepheid.measure.rehearsal.pretend import pretend

    offer()
    with pretend(Ledger()) as place:
        total, more = torch.zeros(2, device=place), torch.ones(2, device=place)
        steps = [1.0]

        def run() -> None:
            total.add_(more * steps[0])
            if waits:
                float(total[0])

        try:
            replay = PretendDevice(place).capture(run)
        except RuntimeError as error:
            return str(error)
        found = [float(total[0])]
        for steps[0], factor in ((5.0, 1.0), (5.0, 3.0)):
            more.fill_(factor)
            replay()
            found.append(float(total[0]))
    return found


def test_a_graph_reads_memory_and_nothing_of_python() -> None:
    assert on_ranks(1, repeat, False) == [[1.0, 2.0, 5.0]]
    (told,) = on_ranks(1, repeat, True)
    assert "which no graph can have" in told
