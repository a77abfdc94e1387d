"""What several files state of one quantity agrees; so do peaks with the datasheets of devices."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks.agreement import JsonSource, Key, find_disagreements
from cepheid.compliance.checks.facts import FACTS
from cepheid.compliance.checks.submission.machine import check_machine
from cepheid.compliance.read.contents import SystemFile
from cepheid.compliance.read.manifest import find_line
from tests.compliance.builder import SYSTEM

SOURCES = ("configuration", "report", "log", "system")
GPUS = {**SYSTEM, "nodes": 2, "accelerators_per_node": 8, "processor_threads_per_node": 128,
        "processor_cores_per_node": 64, "accelerator": "NVIDIA A100-SXM4-80GB",
        "accelerator_memory_gib": 79.25}  # fmt: skip
THREADS = {**SYSTEM, "processor_threads_per_node": 4}
TPU = {"accelerator": "TPU v5e", "accelerator_memory_gib": 16}


def find_keys(contents: Mapping[str, Any]) -> dict[str, str]:
    """Return each key that others contradict, and what was expected."""
    paths = {source: Path(f"{source}.json") for source in SOURCES}
    sources: Any = {name: JsonSource(paths[name], contents[name]) for name in contents}
    found = [one for first in contents for one in find_disagreements(first, **sources)]
    return {str(one.key): one.expected for one in found}


def log(**how: object) -> dict[str, Any]:
    return {"implementation": how}


def own(**settings: object) -> dict[str, object]:
    return {"execution": {"own": settings}}


REPEATED = ("round", "benchmark", "scale", "division", "submitter", "system", "definition_digest",
            "code_digest", "task_digest", "seed")  # fmt: skip
EVENTS = {"round": "submission_round", "benchmark": "submission_benchmark",
          "scale": "submission_scale", "division": "submission_division",
          "submitter": "submission_org", "system": "submission_platform"}  # fmt: skip
OTHERS: list[Any] = ["other", "", 8, True, [7], {}]
CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    *((f"{key}", {file: {key: said}, "log": {EVENTS.get(key, key): 7}})
      for file in ("configuration", "report") for key in REPEATED for said in OTHERS),
    ("run", {"report": {"run": 2}, "log": {"number": 1}}),
    ("seeds", {"configuration": {"seeds": "derived"},
               "log": {"seed": {"origin": "given"}, "number": 0}}),
    ("hyperparameters.a", {"configuration": {"hyperparameters": {"a": 1}}, "log": {"a": 2}}),
    ("hyperparameters.a.b", {"configuration": {"hyperparameters": {"a.b": 1}}, "log": {}}),
    ("hyperparameters.*", {"configuration": {"hyperparameters": {"*": 1}}, "log": {"*": "1"}}),
    ("framework", {"configuration": {"framework": "keras"}, "log": log(framework="torch 2.13")}),
    *((f"execution.{key}", {"configuration": {"execution": {key: "fp32"}},
                            "log": log(execution={key: "bf16"})})
      for key in ("precision", "compile", "threads", "micro_batch")),
    ("execution.own", {"configuration": own(a="1"), "log": log(**own(a="2"))}),
    ("execution.own", {"configuration": own(), "log": log(**own(a="2"))}),
    ("execution.own", {"configuration": own(a="auto", b="1"), "log": log(**own(a="2"))}),
    ("execution.precision", {"configuration": {"execution": {"precision": "fp32"}},
                             "log": log(precision="bfloat16")}),
    ("execution.threads", {"configuration": {"execution": {"threads": "4"}},
                           "log": log(threads_per_rank=2)}),
    # a log in itself
    ("implementation.precision", {"log": {**log(precision="int3"),
                                          "submission_division": "closed"}}),
    *(("implementation.precision", {"log": log(precision=ran, execution={"precision": asked})})
      for ran, asked in (("bfloat16", "fp32"), ("float32", "bf16"), ("fp16", "bf16"),
                         ("torch.float64", "fp32"), ("mixed_float16", "fp32"), ("fp8", "fp16"))),
    ("implementation.threads_per_rank", {"log": log(threads_per_rank=1,
                                                      execution={"threads": "2"})}),
    ("implementation.device", {"log": log(framework="torch 2.13.0+cpu", device="cuda:0")}),
    ("implementation.weights", {"log": {**log(weights="beef"), "weights_digest": "dead" * 16}}),
    *((f"implementation.execution.own.{key}", {"log": log(ranks=6, **own(**{key: parts}))})
      for key, parts in (
        ("pipeline", "4"), ("pipeline", "4:1f1b:8"), ("pipeline", "12:gpipe:24"),
        ("pipeline_stages", "5"), ("tensor_ranks", "4"), ("tensor_ranks", "0"),
        ("spatial_partitions", "2x2"), ("spatial_partitions", "4"), ("all_reduce", "mesh:4"))),
    # a log and the system that is described
    *(("implementation.framework", {"log": log(framework=name), "system": SYSTEM})
      for name in ("jax", "torch 2.9.1", "jax on torch 1.0", "")),
    ("implementation.framework", {"log": log(framework="keras 3.15 on tensorflow 2.21"),
                                  "system": {**SYSTEM, "framework": "keras 3.15", "software":
                                             {"tensorflow": "2.20.0"}}}),
    *(("implementation.device", {"log": log(device=device), "system": GPUS})
      for device in ("cpu", "CPU:0", "NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe", "H100 SXM",
                     "Some GPU 40 GB")),
    *(("implementation.device", {"log": log(device=device), "system": SYSTEM})
      for device in ("cuda", "NVIDIA GPU", "tpu v3", "xpu:1")),
    *(("implementation.ranks", {"log": log(ranks=ranks), "system": system})
      for ranks, system in ((0, SYSTEM), (-1, SYSTEM), (9, SYSTEM), (1, GPUS), (17, GPUS),
                            (10**30, GPUS))),
    *(("implementation.ranks_per_node", {"log": log(ranks=16, ranks_per_node=each),
                                         "system": GPUS}) for each in (4, 7, 16)),
    *((f"implementation.{key}", {"log": log(**{key: value}), "system": GPUS})
      for key, value in (
        ("nodes", 1), ("nodes", 3), ("processor_cores_per_node", 32),
        ("processor_threads_per_node", 64), ("accelerators_per_node", 4),
        ("accelerator_memory_gib", 40), ("memory_gib_per_node", 512), ("number_of_nodes", 4),
        ("memory_gib_per_node", 9.0), ("nodes", "3"), ("memory_gib_per_node", "512.0"))),
    ("implementation.processor_sockets_per_node",
     {"log": log(processor_sockets_per_node=2),
      "system": {**SYSTEM, "processor_sockets_per_node": 1}}),
    ("implementation.numa_nodes_per_node",
     {"log": log(numa_nodes_per_node=2), "system": {**SYSTEM, "numa_nodes_per_node": 1}}),
    *(("implementation.threads_per_rank", {"log": log(ranks=ranks, threads_per_rank=threads),
                                           "system": system})
      for ranks, threads, system in (
        (1, 5, THREADS), (1, 17, THREADS), (4, 5, THREADS), (1, 64, SYSTEM), (1, 5, SYSTEM),
        (16, 129, GPUS), (16, 65, {**GPUS, "accelerators_per_node": 8,
                                   "processor_threads_per_node": 64}))),
    *(("model_parameters", {"log": {"model_parameters": 25_600_000}, "system": system})
      for system in ({**SYSTEM, "memory_gib_per_node": 0.02},
                     {**GPUS, "accelerator_memory_gib": 0.001},
                     {**GPUS, "memory_gib_per_node": 0.01})),
    # a description in itself
    ("processor_sockets_per_node", {"system": {**SYSTEM, "processor_sockets_per_node": 4}}),
    *(("processor_threads_per_node", {"system": {**SYSTEM, "processor_threads_per_node": threads}})
      for threads in (1, 33)),
    ("accelerator_memory_gib", {"system": {**SYSTEM, "accelerator_memory_gib": 80}}),
    ("accelerator_max_watts", {"system": {**SYSTEM, "accelerator_max_watts": 700}}),
    ("accelerator_interconnect", {"system": {**SYSTEM, "accelerator_interconnect": "NVLink"}}),
    *(("accelerator_memory_gib", {"system": {**GPUS, "accelerator_memory_gib": memory}})
      for memory in (40, 160, 63, 8)),
    *(("framework", {"system": {**SYSTEM, "software": software}})
      for software in ({"torch": "2.9.1"}, {"Torch": "2.13.1+cu12"})),
]  # fmt: skip
AGREEMENTS: list[dict[str, Any]] = [
    {"configuration": {"hyperparameters": {"a": 0.1, "b": "adam"}, "seeds": "given, from 7"},
     "log": {"a": 0.10000000149, "b": "adam", "number": 3}},
    {"configuration": {"seeds": "derived"}, "log": {"seed": {"origin": "derived"}, "number": 3}},
    {"configuration": {"execution": {"precision": "auto", "threads": "auto", "micro_batch": "auto",
                                     "own": {"parts_at_once": "auto"}}},
     "log": log(precision="bfloat16", threads_per_rank=2,
                execution={"precision": "bf16", "threads": "1", "micro_batch": "whole",
                           "own": {"parts_at_once": "2"}})},
    {"configuration": {"execution": {"threads": "1", "own": {"parts_at_once": "auto"}}},
     "log": log(threads_per_rank=2)},
    {"log": log(precision="tf32", execution={"precision": "fp32"})},
    {"log": {**log(precision="int7", execution={"precision": "fp32"}),
             "submission_division": "open"}},
    {"log": log(ranks=8, **own(pipeline="4:1f1b:8", tensor_ranks="2", all_reduce="mesh:4",
                               spatial_partitions="2x2", mesh_rows="auto"))},
    {"log": {**log(weights="dead", device="TPU v3", framework="torch 2.13.0+cpu"),
             "weights_digest": "dead" * 16}},
    {"log": log(framework="torch 2.13.0+cpu", device="cpu", ranks=8, threads_per_rank=1,
                memory_gib_per_node=7.8), "system": SYSTEM},
    {"log": log(nodes="1", memory_gib_per_node="7.8"), "system": SYSTEM},
    {"log": log(framework="torch 2.13.0+cpu", device="TPU v3", ranks=1), "system": {
        **SYSTEM, "accelerators_per_node": 1, "accelerator": "TPU v3",
        "accelerator_memory_gib": 16}},
    *({"log": log(threads_per_rank=used, execution={"threads": threads, "own":
                                                    {"parts_at_once": parts}}), "system": SYSTEM}
      for threads, parts, used in (("1", "2", 2), ("2", "1", 2), ("2", "2", 2), ("1", "auto", 1),
                                   ("9" * 5000, "1", 1))),
    # what `cepheid run` writes of JAX, and what programs from scratch may
    *({"log": log(framework=framework, device=device, ranks=1),
       "system": {**SYSTEM, "framework": framework, "accelerators_per_node": devices,
                  "software": {"jax": "0.10.2", "jaxlib": "0.10.2"}, **(TPU if devices else {})}}
      for framework in ("jax 0.10.2", "keras 3.15.1 on jax 0.10.2", "JAX",
                        "flax 0.12.0 on jax 0.10.2")
      for devices, device in ((0, "cpu"), (0, "TFRT_CPU_0"), (0, "AMD EPYC, 2 chips"),
                              (8, "TPU v5 lite"), (8, "TPU_0(process=0,(0,0,0,0))"),
                              (4, "NVIDIA A100-SXM4-40GB"), (1, "cuda:0"))),
    {"log": log(ranks=8, threads_per_rank=2), "system": THREADS},  # four ranks for each core
    {"log": log(ranks=16, ranks_per_node=8, threads_per_rank=16, device="cuda"), "system": GPUS},
    {"log": log(ranks=15, ranks_per_node=8, device="NVIDIA A100 80GB"), "system": GPUS},
    {"log": {**log(nodes=2, device="NVIDIA A100-SXM4-80GB"), "model_parameters": 10**9},
     "system": GPUS},
    *({"system": {**GPUS, "accelerator": name, "accelerator_memory_gib": memory}}
      for name, memory in (("NVIDIA H100 80GB HBM3", 79.6), ("Tesla V100-SXM2-32GB", 31.7),
                           ("NVIDIA H200 141 GB", 139.8), ("MI300X", 192), ("A30", 24),
                           ("A100-SXM4-80GB MIG 3g.40gb", 40), ("A100-SXM4-40GB", 40))),
    {"system": {**SYSTEM, "software": {"torch": "2.13.0+cu126", "numpy": "2.4.6"}}},
]  # fmt: skip


@pytest.mark.parametrize(("key", "contents"), CONTRADICTIONS)
def test_what_others_contradict_is_found(key: str, contents: dict[str, Any]) -> None:
    assert key in find_keys(contents)
    assert all(find_keys(contents).values())


@pytest.mark.parametrize("contents", AGREEMENTS)
def test_what_agrees_is_not(contents: dict[str, Any]) -> None:
    assert find_keys(contents) == {}


def test_each_row_of_the_table_has_a_contradiction_and_takes_any_value() -> None:
    tested = {key for key, _ in CONTRADICTIONS}
    keys = {str(Key.parse(fact.first)) for fact in FACTS}
    assert keys <= tested, keys - tested
    for fact in FACTS:
        count = len(fact.others.split())
        for said in ANYTHING[1:]:
            for values in itertools.islice(itertools.product(ANYTHING, repeat=count), 900):
                expected = fact.relation(said, *values)
                assert expected is None or isinstance(expected, str)


ANYTHING: list[Any] = [None, True, -1, 0, 10**400, 1e308, "", "auto", "4:x", "9" * 5000, [],
                       ["torch"], {}, {"own": 1}, {"torch": 7}]  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1])
def test_the_line_of_a_key_is_where_it_stands(indent: int | None, tmp_path: Path) -> None:
    content = {"a": {"b": "c", "x": [{"c": 1}, "b"]}, "b": {'é"{': [{"c": 2}], "c": 3}, "c": "{"}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content, indent=indent))
    lines = path.read_text().splitlines()
    for names in (("a",), ("a", "b"), ("b",), ("b", 'é"{'), ("b", "c"), ("c",)):
        line = find_line(path, names)
        assert line is not None
        assert json.dumps(names[-1]) + ":" in lines[line - 1]
    expected = (1, 1) if indent is None else (len(lines) - 3, len(lines) - 1)
    assert (find_line(path, ("b", "c")), find_line(path, ("c",))) == expected
    for absent in (("d",), ("a", "c"), ("b", "c", "d"), ("c", "c")):
        assert find_line(path, absent) is None
    assert find_line(tmp_path / "none.json", ("a",)) is None


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


@pytest.mark.parametrize(
    "fields",
    [
        {**H200, "peak_tflops": {"bf16": {"datasheet": 989.0}, "fp8": {"datasheet": 1979.0}},
         "memory_gb_per_second": {"datasheet": 4800}},  # rounded
        {**H200, "peak_tflops": {"bf16": {"measured": 790.0, "datasheet": 989.4},
                                 "fp64": {"datasheet": 66.9}},
         "memory_gb_per_second": {"measured": 4100, "datasheet": 4800}},
        # A core alone has a higher clock than all together, and the measured peak is that of one.
        {"peak_tflops": {"fp32": {"measured": 0.2, "datasheet": 0.15}}},
    ],
)  # fmt: skip
def test_honest_peaks_contradict_nothing(fields: dict[str, Any]) -> None:
    assert find_messages(**fields) == []


def test_narrower_numbers_are_not_slower() -> None:
    unknown = {"accelerators_per_node": 1, "accelerator": "Example A9"}
    peaks = {"fp32": {"datasheet": 90.0}, "bf16": {"datasheet": 60.0}}
    (message,) = find_messages(**unknown, peak_tflops=peaks)
    assert "fp32 has 90" in message
    peaks["bf16"] = {"datasheet": 90.0}
    assert find_messages(**unknown, peak_tflops=peaks) == []
    assert find_messages(peak_tflops={"fp32": {"datasheet": 2.0}, "bf16": {"datasheet": 1.0}}) == []
