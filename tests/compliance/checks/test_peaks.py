"""S2: peaks of a known device are the maker's; those of any other are the submitter's to state."""

from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks.submission.machine import check_machine
from cepheid.compliance.read.contents import SystemFile
from tests.compliance.builder import SYSTEM

H200 = {"accelerators_per_node": 8, "accelerator": "NVIDIA H200"}


def find_messages(**fields: Any) -> list[str]:
    system = SystemFile(Path("box.json"), "box", {**SYSTEM, **fields})
    found = list(check_machine(system))
    assert {one.code for one in found} <= {"S2.contradiction"}
    return [f"{one.message}, expected {one.expected}" for one in found]


@pytest.mark.parametrize(
    "fields",
    [
        {"peak_tflops": {"bf16": {"datasheet": 1979.0}}},  # with sparsity
        {"peak_tflops": {"bf16": {"measured": 1000.0}}},  # the table has the datasheet
        {"memory_gb_per_second": {"datasheet": 9600}},
        {"memory_gb_per_second": {"measured": 4801}},
    ],
)
def test_a_known_device_has_the_peaks_of_its_datasheet(fields: dict[str, Any]) -> None:
    (message,) = find_messages(**H200, **fields)
    (name,) = fields
    assert message.startswith(f"{name} contradicts rules/devices.yaml, which has NVIDIA H200 SXM")


def test_a_datasheet_may_round() -> None:
    stated = {"bf16": {"datasheet": 989.0}, "fp8": {"datasheet": 1979.0}}
    assert find_messages(**H200, peak_tflops=stated, memory_gb_per_second={"datasheet": 4800}) == []


def test_honest_peaks_of_a_known_device() -> None:
    peaks = {"bf16": {"measured": 790.0, "datasheet": 989.4}, "fp64": {"datasheet": 66.9}}
    memory = {"measured": 4100, "datasheet": 4800}
    assert find_messages(**H200, peak_tflops=peaks, memory_gb_per_second=memory) == []


def test_a_processor_may_be_faster_than_its_datasheet() -> None:
    """A core alone has a higher clock than all together, and the measured peak is that of one."""
    assert find_messages(peak_tflops={"fp32": {"measured": 0.2, "datasheet": 0.15}}) == []


def test_narrower_numbers_are_not_slower() -> None:
    unknown = {"accelerators_per_node": 1, "accelerator": "Example A9"}
    peaks = {"fp32": {"datasheet": 90.0}, "bf16": {"datasheet": 60.0}}
    (message,) = find_messages(**unknown, peak_tflops=peaks)
    assert "fp32 has 90" in message
    peaks["bf16"] = {"datasheet": 90.0}
    assert find_messages(**unknown, peak_tflops=peaks) == []
    assert find_messages(peak_tflops={"fp32": {"datasheet": 2.0}, "bf16": {"datasheet": 1.0}}) == []
