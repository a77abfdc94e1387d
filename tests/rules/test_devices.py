"""Peaks of devices: which names are known, and which peak a run is compared with."""

from typing import Any

import pytest

from cepheid.rules.devices import Peak, compute_share, find_device, find_peak, load_devices

H200 = {"nodes": 2, "accelerators_per_node": 8, "accelerator": "NVIDIA H200"}
CPU: dict[str, Any] = {
    "nodes": 2,
    "accelerators_per_node": 0,
    "accelerator": None,
    "peak_tflops": {"fp32": {"measured": 0.15}},
}


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H200", "NVIDIA H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM4 80 GB"),
        ("Tesla V100-PCIE-32GB", "NVIDIA V100 PCIe"),
        ("Tesla V100-SXM2-16GB", "NVIDIA V100 SXM2"),
        ("TPU v3", "Google TPU v3, a chip"),
        ("Graphcore Colossus™ GC2", "Graphcore Colossus GC2"),
    ],
)
def test_known_names(name: str, device: str) -> None:
    found = find_device(name)
    assert found is not None
    assert found.device == device


@pytest.mark.parametrize(
    "name",
    ["NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 NVL", "NVIDIA H100 PCIe", "Example A100", "", None, 7],
)
def test_other_devices_are_not_guessed(name: object) -> None:
    assert find_device(name) is None


def test_every_number_has_a_source_and_a_known_precision() -> None:
    for known in load_devices():
        assert known.source
        for precision, tflops in known.peak_tflops.items():
            system = {**H200, "nodes": 1, "accelerators_per_node": 1, "accelerator": None}
            system["peak_tflops"] = {precision: {"datasheet": tflops}}
            peak = find_peak(system, precision)
            assert peak == Peak(precision, tflops, "datasheet")


def test_the_peak_is_that_of_all_devices() -> None:
    assert find_peak(H200, "torch.bfloat16") == Peak("bf16", 16 * 989.4, "datasheet")
    assert find_peak(CPU, "float32") == Peak("fp32", 2 * 0.15, "measured")


def test_float32_may_use_units_for_tf32() -> None:
    assert find_peak(H200, "float32") == Peak("tf32", 16 * 494.7, "datasheet")
    assert find_peak({**H200, "accelerator": "Tesla V100-SXM2-16GB"}, "fp32") == Peak(
        "fp32", 16 * 15.7, "datasheet"
    )


def test_measured_units_for_tf32_count_before_a_datasheet_without_them() -> None:
    described = {"fp32": {"datasheet": 40.0, "measured": 30.0}, "tf32": {"measured": 90.0}}
    system = {**H200, "nodes": 1, "accelerator": "Example A9", "peak_tflops": described}
    assert find_peak(system, "fp32") == Peak("tf32", 8 * 90.0, "measured")


@pytest.mark.parametrize(
    ("system", "precision"),
    [
        (CPU, "bf16"),  # never measured
        (CPU, "int4"),
        ({**CPU, "peak_tflops": {}}, "fp32"),
        ({**CPU, "peak_tflops": {"fp32": "fast"}}, "fp32"),
        ({**CPU, "peak_tflops": {"fp32": {"measured": True}}}, "fp32"),
        ({**CPU, "peak_tflops": {"fp32": {"measured": 5e-324}}}, "fp32"),
        ({**CPU, "peak_tflops": {"fp32": {"measured": 10**400}}}, "fp32"),
        ({**CPU, "peak_tflops": {"fp32": {"datasheet": float("inf")}}}, "fp32"),
        ({**CPU, "nodes": 0}, "fp32"),
        ({**CPU, "nodes": "2"}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_an_unknown_peak_stays_unknown(system: dict[str, Any], precision: str) -> None:
    assert find_peak(system, precision) is None


def test_a_datasheet_counts_before_a_measurement() -> None:
    described = {"bf16": {"measured": 700.0}}
    peak = find_peak({**H200, "nodes": 1, "peak_tflops": described}, "bf16")
    assert peak == Peak("bf16", 8 * 989.4, "datasheet")


def test_the_share() -> None:
    found = compute_share(10**9, 500.0, Peak("bf16", 2.0, "datasheet"))
    assert found.share == pytest.approx(0.25)
    assert str(found) == "25% (bf16, datasheet)"
