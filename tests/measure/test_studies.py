"""The table of all studies: what each refuses before anything is measured, and its help."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from cepheid.measure.engine.study import Study
from cepheid.measure.studies import formats, packings
from cepheid.measure.studies.packings import PACKINGS, Packing, is_installed
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import MEASUREMENTS, main

pytest.importorskip("torch", reason="measuring needs the extra torch")
pytest.importorskip("matplotlib", reason="the figures need the extra site")

# Files alone, numbers alone, and bits that are compared with those of another day.
COMPUTE_AS_THEY_ARE = ("formats", "project", "resolution", "fingerprint", "baselines")


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_help_says_what_is_measured_and_how(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    study: Study = import_module(MEASUREMENTS[name][0]).STUDY
    with pytest.raises(SystemExit):
        main([name, "--help"])
    printed = capsys.readouterr().out
    assert study.name == name
    assert " ".join(study.description.split()) in " ".join(printed.split())
    assert "exit codes: 0" in printed
    assert ("--device KIND" in printed) == (name not in COMPUTE_AS_THEY_ARE)


# Formats: what is read is what was written, and nothing is left behind ---------------------------

CONTENTS = [bytes([number]) * (number * 37 % 11 + 1) for number in range(60)]


@pytest.mark.parametrize("way", PACKINGS, ids=lambda way: way.name)
def test_what_is_read_is_what_was_written(
    way: Packing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_installed(way):
        pytest.skip(f"{way.package} is not installed")
    monkeypatch.setattr(packings, "SHARD_FILES", 25)
    way.write(tmp_path, CONTENTS)
    formats.drop_from_caches(tmp_path)
    assert [bytes(content) for content in way.read(tmp_path, None)] == CONTENTS
    order = [7, 0, 59, 7, 31]
    if not way.only_in_order:
        read = way.read(tmp_path, order)
        assert [bytes(content) for content in read] == [CONTENTS[place] for place in order]


def test_prints_a_table_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(formats, "is_installed", lambda way: not way.package)
    data = tmp_path / "data"
    out = tmp_path / "formats.json"
    arguments = ["formats", "--data", str(data), "--files", "20", "--rounds", "2"]
    assert main([*arguments, "--output", str(out)]) == 0
    found = json.loads(out.read_text())
    printed = capsys.readouterr().out
    assert f"MB, on {found['storage']};" in " ".join(printed.split())
    assert {len(row["cold_in_order"]) for row in found["formats"]} == {2}
    assert "LMDB: left out, lmdb is not installed" in printed
    assert "cold, random order" in printed
    assert sum(line.startswith("raw file and index  2 ") for line in printed.splitlines()) == 1
    assert not list(data.iterdir())


@pytest.mark.parametrize("name", ["folder of files", "RecordIO and index", "WebDataset shards"])
def test_several_readers_read_all_of_it_once(name: str, tmp_path: Path) -> None:
    way = next(each for each in PACKINGS if each.name == name)
    if not is_installed(way):
        pytest.skip(f"{way.package} is not installed")
    rates = formats.measure_reading(way, CONTENTS, tmp_path, rounds=1, readers=2)
    assert len(rates.cold_shared) == 1  # what was read is compared with what was written
    assert rates.cold_shared[0] > 0
    assert rates.files == {"folder of files": 60, "RecordIO and index": 2}.get(name, 1)
    assert not list(tmp_path.iterdir())


def test_what_is_read_in_order_only_is_shared_by_files(tmp_path: Path) -> None:
    way = next(each for each in PACKINGS if each.only_in_order)
    for number in range(5):
        (tmp_path / f"{number}.tar").write_bytes(bytes(number))
    parts = [formats._find_part(way, tmp_path, range(60), (place, 2)) for place in (0, 1)]
    assert [order for _, order in parts] == [None, None]
    names = [sorted(path.name for path in folder.iterdir()) for folder, _ in parts]
    assert names == [["0.tar", "2.tar", "4.tar"], ["1.tar", "3.tar"]]


def test_records_of_recordio_are_those_of_mxnet(tmp_path: Path) -> None:
    """The words of dmlc/recordio.h: 0xced7230a, the length, the content, zeros up to four bytes."""
    way = next(each for each in PACKINGS if each.name == "RecordIO and index")
    way.write(tmp_path, [b"abcde", b""])
    first, second = b"\x0a\x23\xd7\xce\x05\0\0\0abcde\0\0\0", b"\x0a\x23\xd7\xce\0\0\0\0"
    assert (tmp_path / "all.rec").read_bytes() == first + second
    assert (tmp_path / "all.idx").read_text() == "0\t0\n1\t16\n"


def test_too_little_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(UserError, match=r"1 MB free, .* needed"):
        main(["formats", "--data", str(tmp_path), "--files", "20"])
    assert not list(tmp_path.iterdir())
