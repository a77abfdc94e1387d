"""`cepheid data` as its user meets it."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("galsim", reason="needs the extra galsim")
pytest.importorskip("simplejpeg", reason="needs the extra imagenet")

from cepheid.reference.data import generators, imagenet
from cepheid.reference.run.config import configure
from cepheid.reference.session.observer import adopt_counts
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools import prepare_data
from tests import assert_refused, tiny
from tests.compliance.asserting import Patch, Printed, assert_says, call_tool
from tests.reference.data import pictures
from tests.reference.data.layouts.replicas import archives, write_imagenet

COSMOS = ROOT.parent / "shared/data/cosmos_example/real_galaxy_catalog_23.5_example.fits"
FEW = {"train_samples": 6, "evaluation_samples": 2}


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: Patch) -> Path:
    """Definitions: ``galaxy_shape`` with eight galaxies."""
    folder = tmp_path_factory.mktemp("benchmarks")
    tiny.install(folder, monkeypatch, "galaxy_shape", "full", data=FEW, data_digest=None)
    return folder


def test_other_data_are_told(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    folder = tmp_path / "benchmarks"
    tiny.install(folder, monkeypatch, "galaxy_shape", "full", data=FEW, data_digest="0" * 64)
    assert prepare_data.main(["galaxy_shape", "--data", str(tmp_path)]) == 1
    assert "not the reference's data" in capsys.readouterr().out


def test_prepares_then_verifies_then_finds_damage(tmp_path: Path) -> None:
    arguments = ["galaxy_shape", "--data", str(tmp_path)]
    assert_refused("no such folder", prepare_data.main, [*arguments, "--verify"])
    assert "8 samples of galaxies" in call_tool(prepare_data.main, arguments)
    assert call_tool(prepare_data.main, [*arguments, "--verify"]).count("verifying: done") == 1
    (stamps,) = tmp_path.glob("*/stamps.npy")
    content = bytearray(stamps.read_bytes())
    content[-5] ^= 1
    stamps.write_bytes(content)
    assert_refused(r"stamps\.npy", prepare_data.main, [*arguments, "--verify"])


def test_exports_what_it_prepared(tmp_path: Path) -> None:
    output = tmp_path / "sky.fits"
    where = ["--data", str(tmp_path / "data"), "--output", str(output)]
    assert f"{output}: " in call_tool(prepare_data.main, ["galaxies", "--export", "fits", *where])
    assert output.read_bytes().startswith(b"SIMPLE  =")
    before = output.stat()
    with pytest.raises(UserError, match="already exists"):
        prepare_data.main(["galaxy_shape", "--export", "fits", *where])
    assert output.stat() == before


def test_an_own_catalogue_is_prepared(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CEPHEID_COSMOS", str(tmp_path / "none.fits"))
    command = ["galaxy_shape", "--data", str(tmp_path), "--set", "catalogue=cosmos"]
    assert_refused(r"none\.fits: cannot be read", prepare_data.main, command)
    if not COSMOS.is_file():
        pytest.skip(f"needs {COSMOS}")
    monkeypatch.setenv("CEPHEID_COSMOS", str(COSMOS))
    printed = call_tool(prepare_data.main, command)
    assert_says(printed, "8 samples of galaxies", "other data: the definition has no digest")
    assert prepare_data.main([*command, "--verify"]) == 0


def test_a_generator_stands_for_benchmarks_of_one_set(tmp_path: Path, monkeypatch: Patch) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    alone = {**FEW, "neighbours": 0}
    tiny.write(same, "galaxy_shape", data=alone)
    tiny.install(same, monkeypatch, "galaxy_bnn", data=alone)
    assert prepare_data._find_benchmark("galaxies", "mini") == "galaxy_bnn"
    assert prepare_data._find_benchmark("galaxies", "full") == "galaxies"  # which is then refused
    tiny.write(other, "galaxy_shape", data=FEW)
    tiny.install(other, monkeypatch, "galaxy_bnn", data={**FEW, "pixels": 32})
    assert prepare_data._find_benchmark("galaxies", "mini") == "galaxies"


@pytest.fixture
def few_images(monkeypatch: Patch, tmp_path_factory: pytest.TempPathFactory) -> None:
    few = {"train_samples": pictures.TRAIN, "evaluation_samples": pictures.EVALUATION}
    data = {**few, "classes": len(pictures.CLASSES)}
    tiny.install(tmp_path_factory.mktemp("few"), monkeypatch, "resnet50", "full", data=data)


@pytest.mark.usefixtures("few_images")
def test_packs_names_what_is_unusual_and_verifies(tmp_path: Path) -> None:
    source = pictures.write_set(tmp_path)
    (source / "train/n01/train_000.JPEG").write_bytes(pictures.jpeg(0, "L"))
    printed = call_tool(prepare_data.main, ["resnet50", "--data", str(tmp_path)])
    assert f"{pictures.TRAIN + pictures.EVALUATION} samples of imagenet" in printed
    assert "unusual images, which are used: 1 grey" in printed
    assert "remarks.txt" in printed
    assert prepare_data.main(["resnet50", "--data", str(tmp_path), "--verify"]) == 0


@pytest.mark.usefixtures("few_images")
def test_missing_set_damaged_image_and_export_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no such folder\. Put ImageNet there"):
        prepare_data.main(["resnet50", "--data", str(tmp_path)])
    damaged = pictures.write_set(tmp_path) / "train/n01/train_000.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:500])
    with pytest.raises(UserError, match=r"damaged: 1 of 18 images(.|\n)*train_000\.JPEG"):
        prepare_data.main(["resnet50", "--data", str(tmp_path)])
    with pytest.raises(UserError, match="has no galaxies"):
        prepare_data.main(["resnet50", "--data", str(tmp_path), "--export", "fits"])


@pytest.mark.usefixtures("few_images")
def test_data_in_another_layout_are_prepared_of_it(tmp_path: Path) -> None:
    archives(write_imagenet(tmp_path), tmp_path / "given")
    command = ["resnet50", "--data", str(tmp_path / "data"), "--source", str(tmp_path / "given")]
    said = call_tool(prepare_data.main, command)
    assert "training images: unpacked from ILSVRC2012_img_train.tar" in said
    assert f"{pictures.TRAIN + pictures.EVALUATION} samples of imagenet" in said
    shutil.rmtree(tmp_path / "data" / imagenet.REAL)
    assert "unpacked" not in call_tool(prepare_data.main, command)


@pytest.mark.parametrize("name", [n for n in definition.names() if "full" in definition.scales(n)])
def test_a_file_in_place_of_a_folder_and_a_place_to_be_read_only_are_told_at_once(
    tmp_path: Path, monkeypatch: Patch, name: str
) -> None:
    monkeypatch.undo()  # the definitions as they are
    source = generators.find_distributed_files(definition.load(name, "full").data, tmp_path)
    with pytest.raises(UserError, match=r"/proc/x: cannot be written|no such (file|folder)"):
        prepare_data.main([name, "--data", "/proc/x"])
    if source:
        source.write_text("")
        with pytest.raises(UserError, match=f"{source.name}: is a file; put or link the folder"):
            prepare_data.main([name, "--data", str(tmp_path)])
        problem = generators.find_problem(definition.load(name, "full").data, tmp_path)
        assert f"{source.name}: is a file" in problem


def test_what_is_left_of_text_is_used(tmp_path: Path, monkeypatch: Patch) -> None:
    """The definition of uncounted text runs unedited; its number is what organisers freeze."""
    pytest.importorskip("sacremoses", reason="needs the extra translation")
    from tests.reference.data.wmt import replica
    from tests.reference.data.wmt.test_distributed import ALL_KEPT, ASKED, OF_EACH, TEST

    facts: dict[str, Any] = {"vocabulary": 400, "merges": 150, "longest_tokens": 400}
    facts |= {"train_samples": ALL_KEPT + 2, "evaluation_samples": TEST}
    facts |= {"train_files": list(ASKED.train_files)}
    tiny.install(tmp_path / "benchmarks", monkeypatch, "gnmt", "full", data=facts)
    replica.write_replica(tmp_path / "WMT16", OF_EACH, TEST)
    said = call_tool(prepare_data.main, ["gnmt", "--data", str(tmp_path), "--propose-digest"])
    assert f"note: {ALL_KEPT} training samples are left, {ALL_KEPT + 2} are defined" in said
    assert f"data: {{…, train_samples: {ALL_KEPT}, evaluation_samples: {TEST}}}" in said
    config = configure(definition.load("gnmt", "full"), data_root=tmp_path)
    assert adopt_counts(config).definition.train_samples == ALL_KEPT
    digest = re.search(r"data_digest:\s+([0-9a-f]{64})", said)
    assert digest
    for frozen, code in ((digest[1], 0), ("0" * 64, 1)):  # the whole of it, as one writes it down
        proposed = {"data": {**facts, "train_samples": ALL_KEPT}, "data_digest": frozen}
        tiny.install(tmp_path / frozen, monkeypatch, "gnmt", "full", **proposed)
        assert prepare_data.main(["gnmt", "--data", str(tmp_path)]) == code
    with pytest.raises(UserError, match="leave out --limit and --set"):
        prepare_data.main(["gnmt", "--data", str(tmp_path), "--propose-digest", "--limit", "2"])
