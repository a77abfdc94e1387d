"""Files that appear as a whole, their digests, processors, and messages about mistakes."""

import errno
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cepheid.rules import definition
from cepheid.rules.digests import derive_seed
from cepheid.rules.errors import (
    cannot_read,
    describe_system_error,
    did_you_mean,
    explain_system_error,
    find_meant,
)
from cepheid.rules.host import ROOT, atomic_path, atomic_write, end_on_interruption
from tests.compliance.asserting import Patch
from tests.processes import run


def _write_half(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt


@pytest.mark.parametrize("content", ["größer\n", b"\x00\xff"])
def test_writes_a_file_and_nothing_else(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")
    atomic_write(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_appears_as_a_whole_of_one_process(tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "weights.bin"
    with pytest.raises(KeyboardInterrupt):
        _write_half(path)
    assert not [*tmp_path.iterdir()]
    with atomic_path(path, sync=False) as temporary:
        temporary.write_bytes(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    path = tmp_path / "table.csv"
    with atomic_path(path) as first:
        first.write_text("first")
        monkeypatch.setattr("os.getpid", lambda: 0)
        atomic_write(path, "second")
    assert path.read_text() == "first"


def _lose_the_interruption() -> None:
    """A library that catches whatever is raised while it is imported."""
    with end_on_interruption(1):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except BaseException:
            pass
    print("the interruption was lost")


def test_ctrl_c_is_not_lost_while_modules_are_imported() -> None:
    ended = run("tests.rules.test_host:_lose_the_interruption")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "cepheid: interrupted\n")
    before = signal.getsignal(signal.SIGINT)
    with end_on_interruption(1):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_what_the_system_refused_is_told_in_one_line() -> None:
    for error, says in [
        (OSError(errno.EIO, "x", "a.npy"), "a.npy: Input/output error, EIO; fix: the disk"),
        (OSError(errno.EMFILE, "x"), "the system: Too many open files, EMFILE; fix: raise"),
        (PermissionError(errno.EACCES, "x", "b"), "b: Permission denied, EACCES; fix: ask"),
        (MemoryError(), "Cannot allocate memory, ENOMEM; fix: end other programs"),
        (MemoryError("9 GiB"), "MemoryError: 9 GiB; fix: end other programs"),
        (ImportError("libx.so: failed to map segment from shared object"), "Cannot allocate"),
        (FileNotFoundError(errno.ENOENT, "x", "c"), ""),
        (RuntimeError("cpu: can't allocate memory: 9\nat x"), "MemoryError: cpu: can't allocate"),
        (RuntimeError("a bug"), ""),
        (ImportError("no module x"), ""),
        (ValueError("x"), ""),
    ]:
        told = explain_system_error(error)
        assert told.startswith(says)
        assert bool(told) == bool(says)
        assert "\n" not in told


def test_a_file_that_cannot_be_read_is_named() -> None:
    told = str(cannot_read(Path("x/labels.npy"), OSError(errno.ENOMEM, "")))
    assert told.startswith("x/labels.npy: cannot be read (Cannot allocate memory, ENOMEM; fix: ")
    assert describe_system_error(OSError("odd")) == "odd"


def test_the_seed_never_changes_and_the_rule_book_derives_it() -> None:
    """The value of ``printf '%s\\n%s\\n%s\\n%s\\n0'`` of these, ``| sha256sum | cut -c1-8``."""
    assert derive_seed("nonce", "submitter", "system", "benchmark", 0) == 0xFCC6C9A5
    with pytest.raises(ValueError, match="run index"):
        derive_seed("n", "d", "s", "c", -1)
    rule = (ROOT / "rules" / "training.md").read_text("utf-8").split("### T15")[1].split("###")[0]
    (command,) = re.findall(r"^    (printf .*)$", rule, re.MULTILINE)
    variables = {"nonce": "n1", "submitter": "us", "system": "my box", "k": "4"}
    printed = subprocess.run(
        ["sh", "-c", command], env={**os.environ, **variables}, capture_output=True, check=True
    )
    assert int(printed.stdout, 16) == derive_seed("n1", "us", "my box", "kfac-mini", 4)


# Suggestions: what somebody meant who wrote nearly the right word, or that of another program ----

KFAC = tuple(definition.load("kfac", "mini").hyperparameters)
NAMES = definition.names()
BITS = ("auto", "fp32", "bf16", "fp16")


def test_what_somebody_meant_is_found() -> None:
    for word, known, meant in [
        ("learning_rate", KFAC, "opt_base_learning_rate"), ("lr", KFAC, "opt_base_learning_rate"),
        ("learningRate", KFAC, "opt_base_learning_rate"),
        ("base-lr", KFAC, "opt_base_learning_rate"), ("batchsize", KFAC, "global_batch_size"),
        ("batch-size", KFAC, "global_batch_size"),
        ("batch", (*KFAC, "micro_batch"), "global_batch_size"), ("bs", KFAC, "global_batch_size"),
        ("wd", KFAC, "opt_weight_decay"), ("optimizer", KFAC, "opt_name"),
        ("momentun", KFAC, "opt_momentum"), ("warmup", KFAC, "opt_learning_rate_warmup_epochs"),
        ("dampening", KFAC, "kfac_damping"), ("label-smoothing", KFAC, "label_smoothing"),
        ("thread", ("threads",), "threads"), ("galaxy_shap", NAMES, "galaxy_shape"),
        ("shape", NAMES, "galaxy_shape"), ("GalaxyShape", NAMES, "galaxy_shape"),
        ("resnet", NAMES, "resnet50"), ("resnet-50", NAMES, "resnet50"),
        ("maskrcnn", NAMES, "mask_rcnn"), ("chexnet", NAMES, "chest_xray"),
        ("xray", NAMES, "chest_xray"), ("video", NAMES, "video_prediction"), ("half", BITS, "fp16"),
        ("float32", BITS, "fp32"), ("bf-16", BITS, "bf16"), ("BF16", BITS, "bf16"),
        ("true", ("on", "off"), "on"), ("pytorch", ("torch", "keras"), "torch"),
        ("tensorflow", ("torch", "keras"), "keras"), ("open-division", ("closed", "open"), ""),
        ("min", ("mini", "full"), "mini"), ("small", ("mini", "full"), "mini"), ("", NAMES, ""),
        ("c", ("closed", "open"), ""), ("xyzzy", (*NAMES, *KFAC), ""),
    ]:  # fmt: skip
        assert find_meant(word, known) == meant
        assert did_you_mean(word, known) == (f'; did you mean "{meant}"?' if meant else "")


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_found_by_its_last_words_and_with_a_letter_too_few(name: str) -> None:
    known = tuple(definition.load(name, "mini").hyperparameters)
    for key in known:
        tails = [other for other in known if other.endswith(f"_{key.partition('_')[2]}")]
        assert find_meant(key.partition("_")[2], known) in (tails or [key]), key
        assert find_meant(key.replace("_", "-"), known) == key
        assert find_meant(key[:-1], known).startswith(key[:-1]), key
