"""Fixtures for many tests: the data root of a session, benchmarks that exist only in tests."""

import contextlib
import gc
import os
import random
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, settings

from cepheid.rules import definition, extras, rcp
from cepheid.rules.definition import Definition
from tests.compliance import small
from tests.compliance.builder import reference_points

# Triton, which torch brings with CUDA, crashes where TensorFlow was imported before it.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401
# One thread for each of several worker processes; set before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests run on processors, also beside a GPU; those marked `accelerator` ask for it.
os.environ["CEPHEID_DEVICE"] = "cpu"
# A busy machine is no reason to fail: an example may take as long as it likes.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A commit is tried with the same examples each time; `make test-all` draws new ones.
settings.register_profile("commit", settings.get_profile("explore"), derandomize=True)
settings.load_profile("commit")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let no line of a command be broken: tests look for phrases. pytest keeps its own width.

    Studies look for other work on the machine, for two seconds each. Tests do not wait for it.
    """
    usual = psutil.cpu_times_percent
    psutil.cpu_times_percent = lambda interval=None: usual()  # type: ignore[assignment]
    if reporter := config.pluginmanager.get_plugin("terminalreporter"):
        reporter._tw.fullwidth = reporter._tw.fullwidth
    os.environ["COLUMNS"] = "9999"


# Worker processes take the groups in this order: what takes long first, so that many short tests
# are left for the worker that has less to do at the end.
LONG_FIRST = (
    "tests/test_", "tests/leaderboard/test_site_browser", "tests/tools/", "tests/benchmarks/",
    "tests/reference/", "tests/measure/",
)  # fmt: skip


# Their modules import what comes with extras; the tests of other rooms must run without.
ROOMS_OF_EXTRAS = ("accelerator", "benchmarks", "measure", "reference", "second_order")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module of these rooms where a package of an extra that it imports is missing."""
    report = yield
    room = Path(collector.nodeid).parts[1:2]
    call: pytest.CallInfo[Any] | None = getattr(report, "call", None)
    if room and room[0] in ROOMS_OF_EXTRAS and call and call.excinfo:
        cause = call.excinfo.value.__cause__
        name = (cause.name or "") if isinstance(cause, ModuleNotFoundError) else ""
        if extra := extras.EXTRA_OF.get(name.partition(".")[0]):
            report.outcome = "skipped"
            report.longrepr = (collector.nodeid, 0, f"Skipped: needs the extra {extra}")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((n for n, start in enumerate(LONG_FIRST) if item.nodeid.startswith(start)), 9)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported by now stays, so that a collection looks at little else


COLLECT_EVERY_BYTES = 256 * 2**20
_rss_bytes = 0  # of this process after the last collection


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Free the tasks of tests once the process has grown: networks with hooks are cycles, whose
    tensors the collector does not count, so that it came late and the process grew to 4 GB."""
    global _rss_bytes
    if item.nodeid.startswith(("tests/test_", "tests/benchmarks/")):
        process = psutil.Process()
        if process.memory_info().rss > _rss_bytes + COLLECT_EVERY_BYTES:
            gc.collect()
            _rss_bytes = process.memory_info().rss


LOAD_TENSORFLOW = (
    *("_keras_contract.py", "s_keras.py", "_generation_keras.py", "keras/test_backend.py"),
    *("layouts/test_laying_out.py", "layouts/test_subsets.py"),  # they write its records
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker whole files, whose tests share what they prepare; of the contract suite the
    tests of one benchmark, and of TensorFlow all. (xdist's own groups are lost with pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if file.endswith(LOAD_TENSORFLOW):
                return "tensorflow"
            if not file.endswith("_contract.py"):
                return file
            return file + test.partition("[")[2].partition("-")[0].rstrip("]")

    return Groups(config, log)


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Seed all global generators, so that a test draws the same numbers in every run.

    Numbers that differ from run to run make a tolerance fail once in a thousand runs.
    """
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all prepared data of the session, to be read only; the workers share it.

    A test that damages data damages a copy.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "data_root"
    root.mkdir(exist_ok=True)
    return root


@pytest.fixture
def star_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Definition:
    """The mini scale of a benchmark made for tests, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return small.install(tmp_path / "benchmarks", monkeypatch)


@pytest.fixture
def fast_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference points that no result undercuts, whatever was measured for the real benchmarks."""

    wide = [10**power for power in range(2, 7)]  # any result is like these

    def load(name: str, scale: str, judged_in: str | None = None) -> rcp.ReferencePoints:
        return reference_points(definition.load(name, scale), {1: wide, 10**6: wide})

    monkeypatch.setattr(rcp, "load", load)
