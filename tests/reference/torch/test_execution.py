"""What is left open is measured; what is given is obeyed; one rank's choice is everybody's."""

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import pytest
import torch

from cepheid.reference.run import autotune
from cepheid.reference.run.execution import Execution
from cepheid.reference.torch import execution
from cepheid.reference.torch.devices.kinds import Cuda, Processor
from cepheid.reference.torch.execution import Compiled
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules.errors import UserError
from tests.distributed import on_ranks

ALONE = TorchRanks(0, 1, torch.device("cpu"))
SLOW_SECONDS = 0.004


@pytest.fixture(autouse=True)
def bf16_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine multiplies."""
    monkeypatch.setattr(Processor, "list_precisions", lambda device: ("fp32", "bf16"))


class Machine:
    """Some settings take work on it; remembers what it was asked to do."""

    def __init__(
        self, slow: Mapping[str, str], failure: str = "", no_graphs: str = "none here"
    ) -> None:
        self.slow, self.failure, self.no_graphs = slow, failure, no_graphs
        self.seen: list[Execution] = []

    def step(self, how: Execution) -> str:
        """Work for each slow setting."""
        self.seen.append(how)
        until = time.thread_time() + SLOW_SECONDS * sum(
            getattr(how, key) == self.slow[key] for key in self.slow
        )
        while time.thread_time() < until:
            pass
        return {"on": self.failure, "graphs": self.no_graphs}.get(how.compile, "")


@pytest.mark.parametrize(
    ("bound_to", "workers"), [(16, 16), (128, 16)], ids=["16 processors each", "all 128"]
)
def test_loaders_of_a_node_share_its_processors_once(
    bound_to: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two nodes of 8 ranks and 128 processors, whether the launcher binds ranks or not."""
    node = platform.node()
    places = [
        (name, set(range(start, start + bound_to)))
        for name in (node, "another")
        for start in ([0] * 8 if bound_to == 128 else range(0, 128, 16))
    ]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: places[3][1])
    monkeypatch.setattr(TorchRanks, "all_gather_object", lambda *_: places)
    assert execution.count_workers(TorchRanks(3, 16, torch.device("cuda"), 8)) == workers
    assert execution.count_workers(TorchRanks(3, 16, torch.device("cpu"), 8)) == 1


@pytest.mark.parametrize("slow", [("fp32", "off"), ("bf16", "on")])
def test_the_fastest_is_taken_and_the_reason_kept(slow: tuple[str, str]) -> None:
    machine = Machine({"precision": slow[0], "compile": slow[1]})
    settled = execution.autotune(Execution(threads="1"), machine.step, ALONE)
    assert settled.precision == {"fp32": "bf16", "bf16": "fp32"}[slow[0]]
    assert settled.compile == {"off": "on", "on": "off"}[slow[1]]
    assert settled.because["precision"].startswith("fastest step: fp32 ")
    assert "ms, off " in settled.because["compile"]
    assert "threads" not in settled.because


@pytest.mark.parametrize("slow", ["usual", "searched"])
def test_kernels_of_convolutions_are_measured_where_a_device_has_a_choice(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for a result: its later runs take what the first one has chosen."""
    machine = Machine({"convolutions": slow})
    given = Execution("fp32", "off", "1")
    assert execution.autotune(given, machine.step, ALONE) == given
    assert not machine.seen
    monkeypatch.setattr(Processor, "list_convolutions", Cuda.list_convolutions)
    settled = execution.autotune(given, machine.step, ALONE)
    assert settled.convolutions == {"usual": "searched", "searched": "usual"}[slow]
    assert settled.because["convolutions"].startswith("fastest step: usual ")
    machine.seen.clear()
    assert execution.autotune(Execution(**asdict(settled)), machine.step, ALONE) == settled
    assert not machine.seen


def test_noise_does_not_choose_and_the_reason_why_nothing_compiles_is_kept() -> None:
    settled = execution.autotune(
        Execution("fp32", threads="1"), Machine({}, "no C++ compiler").step, ALONE
    )
    assert settled.compile == "off"
    assert settled.because == {"compile": "torch.compile fails: no C++ compiler"}
    assert autotune._pick_value({"fp32": 1.0, "bf16": 0.96}) == "fp32"
    assert autotune._pick_value({"fp32": 1.0, "bf16": 0.90}) == "bf16"


def test_a_users_number_of_threads_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert execution.list_thread_counts(torch.device("cpu")) == ("8", "4")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert execution.list_thread_counts(torch.device("cpu")) == ("8",)


def _autotune_on_this_rank() -> Execution:
    Processor.list_precisions = lambda device: ("fp32", "bf16")  # type: ignore[assignment,method-assign]
    with start_ranks() as ranks:
        # On the first rank bf16 is slow, on the second fp32.
        machine = Machine({"precision": ("bf16", "fp32")[ranks.rank]})
        failure = Machine({}, "" if ranks.is_first else "no C++ compiler").step
        both = execution.autotune(Execution(threads="1", compile="off"), machine.step, ranks)
        none = execution.autotune(Execution("fp32", threads="1"), failure, ranks)
        return both if ranks.is_first else none


def test_ranks_agree_also_with_different_processors() -> None:
    first, second = on_ranks(2, _autotune_on_this_rank)
    assert first.precision == "fp32"
    assert second.compile == "off"
    first, second = on_ranks(2, _pick_threads_on_this_rank)
    assert first == second
    assert first.threads == "2"
    assert first.because["threads"] == "2 ranks share 4 processors, of which 2.0 are idle"


@pytest.mark.parametrize(
    ("usual", "idle", "threads"),
    [
        ("8", 8.0, "8"),
        ("8", 7.8, "8"),
        ("8", 5.0, "5"),
        ("8", 0.4, "1"),
        ("8", 0.0, "1"),
        # A processor for each core, as Slurm may bind them, or two; more threads than processors.
        ("4", 8.0, "4"),
        ("16", 8.0, "16"),
    ],
)
def test_beside_other_work_a_thread_for_each_idle_core(
    usual: str, idle: float, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(execution, "list_thread_counts", lambda device: (usual,))
    monkeypatch.setattr(execution, "measure_idle_processors", lambda: idle)
    monkeypatch.setattr(execution, "usable_processors", lambda: 8)
    chosen = execution.autotune(Execution("fp32", "off"), Machine({}).step, ALONE)
    assert chosen.threads == threads
    reason = "other work runs here: " if idle < 7 else "the only candidate"
    assert chosen.because["threads"].startswith(reason)


def test_the_user_decides_beside_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "measure_idle_processors", lambda: 0.0)
    given = Execution("fp32", "off", "2")
    assert execution.autotune(given, Machine({}).step, ALONE).threads == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(execution, "list_thread_counts", lambda device: ("8",))
    assert execution.autotune(Execution("fp32", "off"), Machine({}).step, ALONE).threads == "8"


def _pick_threads_on_this_rank() -> Execution:
    os.environ.pop("OMP_NUM_THREADS", None)
    with start_ranks() as ranks:
        usual = ("8", "1")[ranks.rank]  # the second rank is bound to one processor
        with (
            patch.object(execution, "list_thread_counts", lambda device: (usual,)),
            patch.object(execution, "measure_idle_processors", lambda: 2.0),
            patch.object(execution, "usable_processors", lambda: (4, 1)[ranks.rank]),
        ):
            return execution.autotune(Execution("fp32", "off"), Machine({}).step, ranks)


# torch.compile with a fall-back that says why -----------------------------------------------------


def double(values: Any) -> Any:
    return values * 2


def failing_compile(function: object, **options: object) -> object:
    def raise_failure(*arguments: object) -> None:
        raise RuntimeError("InvalidCxxCompiler: no C++ compiler found\nmore lines")

    return raise_failure


@pytest.mark.parametrize(
    ("enabled", "insist", "failure"),
    [(True, False, "InvalidCxxCompiler: no C++ compiler found"), (False, True, "")],
)
def test_falls_back_to_eager_and_says_why(
    enabled: bool, insist: bool, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody wants to compile, but then there is nothing to say."""
    monkeypatch.setattr(torch, "compile", failing_compile)
    function = Compiled(double, enabled=enabled, insist=insist)
    assert [function(torch.ones(1)).item() for _ in range(2)] == [2, 2]
    assert function.note == "eager"
    assert function.failure == failure


def test_a_missing_compiler_is_refused_and_a_bug_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", failing_compile)
    with pytest.raises(UserError, match=r"no C\+\+ compiler found.*compile=off"):
        Compiled(double, enabled=True, insist=True)(torch.ones(1))

    def broken(values: Any) -> Any:
        return values @ torch.ones(7, 7)

    with pytest.raises(RuntimeError, match=r"mat1 and mat2|size mismatch"):
        Compiled(broken, enabled=True, insist=False)(torch.ones(2, 3))
