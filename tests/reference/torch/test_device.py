"""Which device a rank takes, and that no other module tells kinds of accelerators apart."""

import re
from importlib import metadata
from pathlib import Path

import pytest
import torch

from cepheid.reference.machine import accelerators
from cepheid.reference.machine.accelerators import Accelerators
from cepheid.reference.run.config import configure
from cepheid.reference.run.execution import Execution
from cepheid.reference.torch import backend, device, execution
from cepheid.reference.torch.devices import kinds
from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.devices.values import classes
from cepheid.reference.torch.ranks import choice
from cepheid.reference.torch.ranks.distributed import TorchRanks, plan_ranks, start_ranks
from cepheid.rules import definition, systems
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from tests import assert_refused
from tests.tasks import create, take_samples

PAGE = ROOT / "docs" / "your-device.md"
ROOMS = ("rules", "reference", "benchmarks", "measure", "second_order", "tools")
# These read what vendors' tools say, list what their kernels refuse, and help a user; no step
# depends on it. Keras chooses the device itself.
SAY_SO = {"reference/machine/accelerators.py"}


def test_no_other_module_knows_one_kind_of_accelerator() -> None:
    """A vendor changes a subclass of ``Device``, and nothing else."""
    named = re.compile(r"is_cuda|torch\.(xpu|mps|hpu)\b|\bcuda\b")
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"reference/torch/devices/kinds.py", *SAY_SO}


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test leave a class or a variable behind."""
    for kind, known in classes.items():  # changes of an item are undone
        monkeypatch.setitem(classes, kind, known)
    for name in (accelerators.DEVICE, accelerators.DEVICE_MODULE):
        monkeypatch.delenv(name, raising=False)
    choice.import_device_class.cache_clear()


def offer(kind: str, count: int, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let torch find accelerators; return the list of those that become current."""
    taken: list[object] = []
    for name, value in {
        "current_accelerator": lambda check_available=False: torch.device(kind) if count else None,
        "is_available": lambda: count > 0,
        "device_count": lambda: count,
        "set_device_index": taken.append,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, value)
    return taken


@pytest.mark.parametrize("asked", ["", "auto", "own"])
@pytest.mark.parametrize(
    ("kind", "backend_name"), [("cuda", "nccl"), ("xpu", "xccl"), ("mps", "gloo"), ("hpu", "gloo")]
)
def test_ranks_take_accelerators_in_turn(
    kind: str, backend_name: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = offer(kind, 2, monkeypatch)
    monkeypatch.setenv("CEPHEID_DEVICE", kind if asked == "own" else asked)
    taken = [choice.choose_device(local_rank).place for local_rank in range(3)]
    assert taken == current == [torch.device(kind, place) for place in (0, 1, 0)]
    assert find_device(taken[0]).backend == backend_name
    assert len(choice.list_accelerators()) == 2


def test_processors_may_be_asked_for_beside_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = offer("cuda", 2, monkeypatch)
    monkeypatch.setenv("CEPHEID_DEVICE", "cpu")
    with start_ranks() as ranks:
        assert ranks.device.type == "cpu"
        assert ranks.accelerator is None
    assert not choice.list_accelerators()
    assert not taken
    assert find_device(ranks.device).backend == "gloo"


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_peaks_of_any_device_are_measured(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "SECONDS", 0.0)
    for made in (device.Device, kinds.Processor):
        monkeypatch.setattr(made, "matrix_side", 8)
        monkeypatch.setattr(made, "copied_bytes", 2**10)
    peaks = backend.measure_peaks(find_device(torch.device(kind)))
    assert peaks["peak_tflops"]["fp32"]["measured"] > 0
    assert peaks["memory_gb_per_second"]["measured"] > 0


@pytest.mark.parametrize("asked", ["cuda", "tpu", "xpu", "CPU", "cuda:1"])
def test_a_device_that_is_not_there_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPHEID_DEVICE", asked)
    assert_refused(f"{asked} was asked for .* it can use cpu; fix", choice.choose_device)


GPUS = Accelerators(8, "NVIDIA H100 80GB HBM3", driver="NVIDIA 535.54.03 (CUDA 12.2)")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", ""),
        ("CUDA_VISIBLE_DEVICES", "-1"),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles"),
        ("NVIDIA_VISIBLE_DEVICES", "void"),
        ("CEPHEID_DEVICE", "cpu"),
    ],
)
def test_no_run_takes_processors_beside_gpus_that_torch_cannot_use_unless_a_user_says_so(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits a week for a GPU that idles because of its driver."""
    monkeypatch.setattr(accelerators, "find_nvidia", lambda: GPUS)
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    assert_refused(r"\(8 × NVIDIA H100 .*CUDA 12\.2\)\), but .*--device cpu", choice.choose_device)
    monkeypatch.setenv(variable, value)
    assert choice.choose_device().kind == "cpu"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """Return the file of the example of the page."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "acme_device.py"
    file.write_text(code, encoding="utf-8")
    return file


@pytest.mark.parametrize("asked", ["", "acme"])
def test_the_example_of_the_page_trains_as_a_processor(
    example: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor = train_once(TorchRanks(0, 1, torch.device("cpu")))
    monkeypatch.setenv("CEPHEID_DEVICE", asked)
    monkeypatch.setenv("CEPHEID_DEVICE_MODULE", str(example))
    with start_ranks() as ranks:
        assert ranks.accelerator == "Acme One"
        assert ranks.device_code == example
        assert dict(ranks.libraries) == {"acme": "1.0"}
        assert train_once(ranks) == on_processor
        find_device(ranks.device).release()


def train_once(ranks: TorchRanks) -> list[float]:
    """Return the weights after two steps on noise."""
    settings = ("compile=off", "precision=fp32")
    chosen = definition.load("galaxy_shape", "mini")
    config = configure(chosen, seed=3, data_root=Path("none"), overrides=settings)
    task = create(config, ranks)
    task.build()
    take_samples(task, 8)
    task.model.train()
    for _ in range(2):
        task.step_on_noise(task.execution)
        task.apply_gradients()
    return [float(each.detach().cpu().double().sum()) for each in task.model.parameters()]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("DEVICE = None", "DEVICE: expected a subclass"),
        ("class Other: pass\nDEVICE = Other", "DEVICE: expected a subclass"),
        ("{import}class Own(Device): KIND = 'cpu'\nDEVICE = Own", "not auto or cpu"),
        ("{import}class Own(Device): KIND = 'My Device'\nDEVICE = Own", "not auto or cpu"),
        ("{import}class Own(Device): pass\nDEVICE = Own", "not auto or cpu"),
        (None, "expected a Python file"),
    ],
)
def test_a_module_without_a_device_is_refused(
    code: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "device.py"
    if code is not None:
        line = "from cepheid.reference.torch.device import Device\n"
        file.write_text(code.replace("{import}", line), encoding="utf-8")
    assert_refused(message, choice.import_device_class, file)


class EntryPoint:
    """An entry point of a package that is not installed."""

    name, value = "acme", "acme_device:Acme"

    def __init__(self, loaded: object) -> None:
        self.loaded = loaded

    def load(self) -> object:
        """Return what it stands for, or raise it."""
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


@pytest.mark.parametrize("asked", ["", "acme", "cpu"])
def test_an_entry_point_is_a_device(
    example: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = choice.import_device_class(example)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [EntryPoint(acme)])
    monkeypatch.setenv("CEPHEID_DEVICE", asked)
    assert choice.choose_device().kind == ("cpu" if asked == "cpu" else "acme")


def test_an_entry_point_that_is_broken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(ImportError("libacme.so: no such file"))]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    assert_refused(r"acme_device:Acme.*libacme.*fix: repair or uninstall", choice.choose_device)
    monkeypatch.setenv("CEPHEID_DEVICE", "cpu")
    assert choice.choose_device().kind == "cpu"


# What float32 means -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["galaxy_shape", "galaxy_generation"])
def test_tf32_is_refused_where_nothing_multiplies_so(name: str, tmp_path: Path) -> None:
    chosen = definition.load(name, "mini")
    config = configure(chosen, seed=3, data_root=tmp_path, overrides=("precision=tf32",))
    with pytest.raises(UserError, match="precision=tf32: cpu does not multiply in TF32; fix"):
        create(config, TorchRanks(0, 1, torch.device("cpu")))
    with plan_ranks(2, 2) as planned:
        assert create(config, planned)


@pytest.mark.parametrize("name", ["tf32", "fp32", "bf16", "auto"])
def test_all_products_in_float32_multiply_alike(name: str) -> None:
    """By torch's defaults convolutions and LSTMs round on GPUs, and products of matrices do not."""
    before = torch.backends.cudnn.allow_tf32
    gpu = kinds.Cuda(torch.device("cuda", 0))
    try:
        gpu.use_precision(name)
        expected = "tf32" if name == "tf32" else "ieee"
        assert set(gpu.describe_products()["fp32_precision"].values()) == {expected}
    finally:
        gpu.use_precision("fp32")
        torch.backends.cudnn.allow_tf32 = before


def test_cudnn_searches_for_kernels_where_that_was_faster() -> None:
    gpu, processor = kinds.Cuda(torch.device("cuda", 0)), kinds.Processor(torch.device("cpu"))
    before = torch.backends.cudnn.benchmark
    try:
        for way in gpu.list_convolutions():
            execution.use_settings(Execution(convolutions=way), gpu)
            assert torch.backends.cudnn.benchmark == (way == "searched")
    finally:
        torch.backends.cudnn.benchmark = before
    assert processor.list_convolutions() == ("usual",)


@pytest.mark.parametrize(
    ("capability", "hip", "expected"),
    [
        ((7, 5), None, ("fp32",)),
        ((8, 0), None, ("bf16", "tf32", "fp32")),
        ((9, 4), "6.4", ("bf16", "fp32")),
    ],
)
def test_precisions_that_are_tried(
    capability: tuple[int, int], hip: str | None, expected: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    native = "bf16" in expected
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert kinds.Cuda(torch.device("cuda", 0)).list_precisions() == expected


def test_logs_name_the_precision_so_that_its_peak_is_found() -> None:
    logged = {"auto": "float32", "fp32": "float32", "tf32": "tf32", "bf16": "bfloat16"}
    assert {name: execution.name_precision(Execution(name)) for name in logged} == logged
    assert set(logged.values()) <= set(systems.PRECISIONS)


def test_a_gpu_without_float64_sums_on_the_host() -> None:
    apple = kinds.Mps(torch.device("meta"))
    assert apple.to_device(torch.ones(2, dtype=torch.float64)).dtype == torch.float32
    sums = kinds.Mps(torch.device("cpu")).make_sums(3)
    assert (sums.dtype, sums.device.type) == (torch.float64, "cpu")
