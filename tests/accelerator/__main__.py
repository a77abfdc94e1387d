"""`make first-gpu`: in ten minutes, say what holds on the first accelerator that somebody has.

The tests run in a process beside this one: a kernel that fails may end it, or spoil all that comes
later. Then the other tests go on in a new one.

Exit code 0: all that was tried holds; 1: something does not; 2: there is no accelerator.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cepheid.reference.torch.backend import measure_peaks
from cepheid.reference.torch.device import Device
from tests.accelerator import find

MINUTES = 10
SHOWN = 12  # lines of what went wrong
FOLDER = Path(__file__).resolve().parent
BEGUN, VERDICTS = "begun", {"passed": "holds", "failed": "FAILS", "skipped": "not tried"}


SUMMARY = {"holds": "hold", "FAILS": "fail", "not tried": "were not tried"}


class Journal:
    """A file with a line for each test that began, and one for its verdict."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, word: str, test: str) -> None:
        """Add a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{word}\t{test}\n")

    def read(self) -> dict[str, str]:
        """Return the last word on each test."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return {test: word for word, _, test in (line.partition("\t") for line in lines)}


class Speaker:
    """Says of each test whether it holds, and tries none after the time is over."""

    def __init__(self, journal: Journal, seconds: float) -> None:
        self.journal, self.deadline = journal, time.monotonic() + seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what was tried before, and what needs no accelerator; whole runs come last."""
        known = self.journal.read()
        items[:] = [
            item
            for item in items
            if item.get_closest_marker("accelerator") and item.nodeid not in known
        ]
        items.sort(key=lambda item: "whole_run" in item.nodeid)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what there is no time for."""
        if time.monotonic() > self.deadline:
            pytest.skip(f"{MINUTES} minutes are over")
        self.journal.note(BEGUN, item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print one line for each test: what it says, and how long it took."""
        if report.when != "call" and report.passed:
            return
        verdict, why = VERDICTS[report.outcome], ""
        if report.skipped and isinstance(report.longrepr, tuple):
            why = f" ({report.longrepr[2].removeprefix('Skipped: ')})"
        self.journal.note(verdict, report.nodeid)
        say(verdict, report.nodeid, why or f" ({report.duration:.1f} s)")
        if report.failed:
            print("\n".join(f"    {line}" for line in report.longreprtext.splitlines()[-SHOWN:]))


def say(verdict: str, test: str, more: str) -> None:
    """Print the verdict on a test."""
    print(f"  {verdict:<10} {name_test(test)}{more}", flush=True)


def name_test(test: str) -> str:
    """Return what a test says, and of which benchmark or setting it says so."""
    function, _, cases = test.partition("::")[2].removesuffix("]").partition("[")
    cases = re.sub(r"-?\b(accelerators?)$", "", cases)  # that is what all are about
    sentence = function.removeprefix("test_").replace("_", " ")
    return f"{sentence}: {cases}" if cases else sentence


def name_untried() -> str:
    """Return what would be tried here, without repeating it for each benchmark."""
    files = (FOLDER / f"test_{name}.py" for name in ("steps", "ranks", "runs"))
    lines = "\n".join(path.read_text(encoding="utf-8") for path in files)
    names = re.findall(r"^def (test_\w+)", lines, re.MULTILINE)
    return "".join(f"  {'not tried':<10} {name_test(f'::{name}')}\n" for name in names)


def describe(device: Device) -> Iterator[str]:
    """Yield name, libraries, precisions and peaks of the device, a line each."""
    libraries = ", ".join(f"{name} {version}" for name, version in device.versions.items())
    yield f"device:     {device.name} (--device {device.kind}), torch {torch.__version__}"
    yield f"libraries:  {libraries or 'none that torch names'}"
    yield f"precisions: {', '.join(device.list_precisions())}; ranks speak {device.backend}"
    peaks = measure_peaks(device)
    tflops = [f"{name} {each['measured']:,}" for name, each in peaks["peak_tflops"].items()]
    memory = peaks["memory_gb_per_second"]["measured"]
    yield f"measured:   {', '.join(tflops)} TFLOP/s; memory {memory:,} GB/s"


def try_all(journal: Journal, deadline: float) -> None:
    """Run all tests, in a new process after each one that ended its own."""
    while True:
        seconds = deadline - time.monotonic()
        command = [sys.executable, "-m", "tests.accelerator", str(journal.path), str(seconds)]
        try:
            code = subprocess.run(command, timeout=max(0.0, seconds) + 60).returncode
            why = f": it ended its process ({code})"
        except subprocess.TimeoutExpired:
            code, why = -1, ": it did not end"
        unfinished = [test for test, word in journal.read().items() if word == BEGUN]
        for test in unfinished:
            journal.note(VERDICTS["failed"], test)
            say(VERDICTS["failed"], test, why)
        if code in (0, 1, 5) or not unfinished:
            return


def main() -> int:
    """Print what the accelerator is and what holds on it."""
    started = time.monotonic()
    found, why_none = find()
    if not found:
        print(name_untried(), end="")
        print(
            f"first-gpu: {why_none}; nothing was tried. `cepheid rehearse` shows without an "
            "accelerator what can be shown; CEPHEID_DEVICE_MODULE=FILE names a device of your own "
            "(docs/your-device.md)",
            file=sys.stderr,
        )
        return 2
    for line in describe(found[0]):
        print(line, flush=True)
    print(f"what holds, for at most {MINUTES} minutes and the run that is under way then:")
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal")
        journal.path.touch()
        try_all(journal, started + 60 * MINUTES)
        counts = Counter(journal.read().values())
        failed = [test for test, word in journal.read().items() if word == VERDICTS["failed"]]
    told = [f"{counts[word]} {summary}" for word, summary in SUMMARY.items() if counts[word]]
    print(f"{', '.join(told)}; {(time.monotonic() - started) / 60:.1f} minutes")
    if failed:
        print(f"what fails: {'; '.join(map(name_test, failed))}")
        print(f"one alone: python -m pytest -m accelerator '{failed[0]}'")
    return int(counts[VERDICTS["failed"]] > 0 or not counts[VERDICTS["passed"]])


def run_tests(journal: str, seconds: str) -> int:
    """Run the tests in this process."""
    quiet = ["-pno:terminal", "-pno:cacheprovider", "--override-ini=addopts=--strict-markers"]
    speaker = Speaker(Journal(Path(journal)), float(seconds))
    return int(pytest.main([str(FOLDER), *quiet], plugins=[speaker]))


if __name__ == "__main__":
    sys.exit(run_tests(*sys.argv[1:]) if sys.argv[1:] else main())
