"""S3: code is UTF-8 text that reads as it runs, READMEs have substance, and weights are none."""

import base64
import io
import json
import os
import random
import string
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.carried import find_carriers
from cepheid.compliance.read.texts import OF_TEMPLATE, find_unreadable
from cepheid.rules import definition
from cepheid.rules.documents import FILL_IN
from cepheid.rules.host import ROOT
from tests.compliance.builder import PNG, README, write_result
from tests.compliance.judging import find_all

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
CODE = "benchmarks/galaxy_shape"
WEIGHTS = random.Random(48).randbytes(60_000)  # half of the smallest network, in one byte each
NUMBERS = np.frombuffer(WEIGHTS[: 4 * (len(WEIGHTS) // 4)], np.uint8).tolist()
TEXT = base64.b64encode(WEIGHTS).decode()


def wrap(text: str, width: int, form: str = "{}\n") -> bytes:
    return "".join(form.format(text[at : at + width]) for at in range(0, len(text), width)).encode()


def save(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def pack(file: io.BytesIO) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", WEIGHTS)


DISGUISES: Mapping[str, tuple[str, bytes, str]] = {
    "an array": ("start.npy", save(lambda file: np.save(file, NUMBERS)), "format"),
    "arrays": ("start.npz", save(lambda file: np.savez(file, a=NUMBERS)), "format"),
    "of torch": ("start.pt", save(pack), "format"),
    "of torch, another name": ("START.PTH", save(pack), "format"),
    "a pointer to weights": ("start.safetensors", b"version https://git-lfs.github.com/spec/v1\n",
                             "format"),
    "of Keras": ("start.keras", save(pack), "format"),
    "HDF5": ("start.h5", b"\x89HDF\r\n\x1a\n" + WEIGHTS, "format"),
    "ONNX": ("start.onnx", WEIGHTS, "format"),
    "pickled": ("start.pkl", WEIGHTS, "format"),
    "compressed": ("start.json.gz", WEIGHTS, "format"),
    "no name at all": ("start", WEIGHTS, "binary"),
    "called a table": ("start.csv", WEIGHTS, "binary"),
    "called a library": ("fast.so", b"\x7fELF" + WEIGHTS, "binary"),
    "without a null byte": ("start.txt", WEIGHTS.replace(b"\0", b"\1"), "binary"),
    "in a folder": ("own/deep/start.dat", WEIGHTS, "binary"),
    "behind a picture": ("figure.png", PNG + WEIGHTS, "picture"),
    "in a photograph": ("figure.jpg", b"\xff\xd8\xff\xe0" + WEIGHTS, "picture"),
    "base64 in Python": ("start.py", f'START = "{TEXT}"\n'.encode(), "encoded"),
    "base64 in JSON": ("start.json", json.dumps({"start": TEXT}).encode(), "encoded"),
    "base64 in lines": ("start.txt", wrap(TEXT, 76), "encoded"),
    "base64 in short strings": ("start.py", wrap(TEXT, 60, '    "{}"\n'), "encoded"),
    "base64 in a list": ("start.json", json.dumps([TEXT[at : at + 64] for at in
                         range(0, len(TEXT), 64)]).encode(), "encoded"),
    "base64 of URLs": ("start.py", base64.urlsafe_b64encode(WEIGHTS), "encoded"),
    "base85": ("start.py", base64.b85encode(WEIGHTS), "encoded"),
    "hexadecimal": ("start.py", f"START = bytes.fromhex('{WEIGHTS.hex()}')".encode(), "encoded"),
    "hexadecimal in lines": ("start.yaml", wrap(WEIGHTS.hex(), 72, "- {}\n"), "encoded"),
    "escapes": ("start.py", wrap("".join(f"\\x{byte:02x}" for byte in WEIGHTS), 72, 'b"{}"\n'),
                "encoded"),
    "letters of another script": ("start.txt", "".join(chr(0x4E00 + 9 * byte) for byte in
                                  WEIGHTS).encode(), "encoded"),
    "beside a picture in Markdown": ("README.md", f"![](data:x;base64,{TEXT})".encode(), "encoded"),
    "whole numbers": ("start.json", json.dumps(NUMBERS).encode(), "numbers"),
    "decimals": ("start.py", f"START = {[n / 256 for n in NUMBERS]}".encode(), "numbers"),
    "base85 in lines": ("start.txt", wrap(base64.b85encode(WEIGHTS).decode(), 60), "encoded"),
    "base32 in short lines": ("start.py", wrap(base64.b32encode(WEIGHTS).decode(), 24, "# {}\n"),
                              "encoded"),
    "base64 in short lines": ("start.txt", wrap(TEXT, 36), "encoded"),
    "letters of another script in lines": ("notes.md", wrap("".join(chr(0x4E00 + one) for one in
        np.frombuffer(WEIGHTS, np.uint16).tolist() if one < 0x5000), 40), "encoded"),
    "dots of Braille": ("start.md", wrap("".join(chr(0x2800 + byte) for byte in WEIGHTS), 60),
                        "encoded"),
    "letters of no script": ("start.md", wrap("".join(chr(0xE000 + byte) for byte in WEIGHTS), 60),
                             "encoded"),
    "base85 in a licence": ("LICENSE", wrap(base64.b85encode(WEIGHTS).decode(), 60), "encoded"),
    "hexadecimal in short lines": ("start.py", wrap(WEIGHTS.hex(), 32, "# {}\n"), "numbers"),
    "long numbers": ("start.py", wrap("".join(map(str, NUMBERS)), 39, "{},\n"), "numbers"),
    "underscores": ("start.py", wrap("_".join(map(str, NUMBERS)), 60, "x_{}\n"), "numbers"),
    "other signs between numbers": ("start.txt", wrap("-".join(map(str, NUMBERS)), 40), "numbers"),
    "numbers in names": ("start.py", "\n".join(f"n{n}" for n in NUMBERS).encode(), "numbers"),
    "floating point in hexadecimal": ("start.py", "\n".join(float(n).hex() for n in NUMBERS[:9000])
                                      .encode(), "numbers"),
    "hexadecimal numbers": ("start.h", ", ".join(map(hex, NUMBERS)).encode(), "numbers"),
    "a column": ("start.csv", "\n".join(map(str, NUMBERS)).encode(), "numbers"),
}  # fmt: skip


def submit(tmp_path: Path, files: Mapping[str, bytes], division: str = "closed") -> Path:
    root = tmp_path / "submissions" / "acme"
    write_result(root, MINI, division=division)
    for name, content in files.items():
        path = root / CODE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def find_carried(root: Path) -> list[Finding]:
    return [found for found in find_all(root) if "weights" in found.code]


@pytest.mark.parametrize("place", ["LICENSE", "NOTICE", "README.md", "benchmarks/LICENSE"])
def test_weights_beside_the_folders_of_code_are_found_once(place: str, tmp_path: Path) -> None:
    root = submit(tmp_path, {})
    write_result(root, definition.load("galaxy_vae", "mini"))
    (root / place).write_bytes(wrap(base64.b85encode(WEIGHTS).decode(), 60))
    (found,) = find_carried(root)
    assert found.path == root / place


@pytest.mark.parametrize("name", DISGUISES)
def test_weights_are_found_in_every_disguise(name: str, tmp_path: Path) -> None:
    file, content, how = DISGUISES[name]
    (found,) = find_carried(submit(tmp_path, {file: content}))
    assert (found.code, found.severity) == ("S3.weights", "error")
    assert found.path.as_posix().endswith(f"{CODE}/{file}")
    assert how in {carrier.how for carrier in find_carriers(PurePosixPath(file), content)}


HONEST: Mapping[str, bytes] = {
    "small.bin": WEIGHTS[:4_000],
    "figure.png": PNG,
    "figure.jpg": b"\xff\xd8\xff\xe0" + WEIGHTS[:40_000],
    "requirements.txt": wrap(WEIGHTS.hex(), 64, "name==1.0 --hash=sha256:{}\n"),
    "environment.yaml": wrap(WEIGHTS.hex(), 64, "  sha256: {}\n"),
    "package-lock.json": wrap(TEXT, 88, '"integrity": "sha512-{}",\n'),
    "umlaute.py": "# größere Blöcke für die Übertragung\n".encode("latin-1") * 300,
    "japanese.md": "日本語の説明です。これは重みではありません。\n".encode() * 900,
    "tuned.json": json.dumps(
        [{"m": n, "n": 2 * n, "tile": [64, 128]} for n in range(4000)]
    ).encode(),
    "paths.sh": b"export A=/opt/Vendor12/lib/python3.11/site-packages/Vendor/kernels/Sm90a\n" * 900,
    "locked.txt": wrap(WEIGHTS.hex(), 128, "--hash=sha512:{}\n"),
    "measured.csv": "\n".join(f"{n / 7},{n / 3}" for n in NUMBERS[:900]).encode(),
    "drawn.md": "│ ├── é └── → ✓\n".encode() * 99,
    "rule.py": b"#" + b"=" * 99 + b"\n" + b"#" * 78 + b"\n",
    "empty.py": b"",
}


def test_honest_code_holds_no_weights(tmp_path: Path) -> None:
    assert find_carried(submit(tmp_path, HONEST)) == []
    for path in (ROOT / "benchmarks").rglob("*"):
        if path.suffix in (".py", ".json", ".yaml", ".md"):
            shares = [one.share for one in find_carriers(PurePosixPath(path), path.read_bytes())]
            assert max(shares, default=0) < 0.5, path


def test_open_and_what_starts_from_given_weights_may_ship_some(tmp_path: Path) -> None:
    assert find_carried(submit(tmp_path / "open", {"start.pt": WEIGHTS}, "open")) == []
    root = tmp_path / "given" / "submissions" / "acme"
    write_result(root, definition.load("chest_xray", "mini"))
    (root / "benchmarks" / "chest_xray" / "start.pt").write_bytes(WEIGHTS)
    assert find_carried(root) == []


def test_weights_in_many_small_files_are_found_together(tmp_path: Path) -> None:
    parts = {f"part_{n}.bin": WEIGHTS[3_000 * n : 3_000 * (n + 1)] for n in range(8)}
    (found,) = find_carried(submit(tmp_path, parts))
    assert (found.code, found.path.name) == ("S3.scattered_weights", "galaxy_shape")
    assert "8 files" in found.message


def test_a_hostile_file_takes_no_longer_than_its_size() -> None:
    many = 2**22
    for content in (b"1" * many, b"a" * many, b"0" * many + b"g", b"A1a" * many + b"\xc3\xa9",
                    b"[" * many):  # fmt: skip
        before = os.times().user
        list(find_carriers(PurePosixPath("a.py"), content))
        assert os.times().user - before < 5


PYTHON = "# Données\nprint('trained')\n"
RIGHT_TO_LEFT = f"if True:  # {chr(0x202E)} ;)(drawer\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "submissions" / "acme"
    write_result(root, MINI)
    return root


BAD_TEXTS: Mapping[str, tuple[str, bytes, int, str]] = {
    "another encoding": ("train.py", b"\n\n" + PYTHON.encode("latin-1"), 3, "the byte 0xe9"),
    "of Windows": ("lib/a.cpp", "// “fast”\n".encode("cp1252"), 1, "the byte 0x93"),
    "Japanese": ("run.sh", "echo 訓練\n".encode("shift_jis"), 1, "the byte 0x8c"),
    "UTF-16": ("run.sh", PYTHON.encode("utf-16"), 1, "iconv -f UTF-16"),
    "UTF-16 without a mark": ("run.sh", PYTHON.encode("utf-16-be"), 1, "the byte 0x00"),
    "UTF-32": ("run.sh", PYTHON.encode("utf-32"), 1, "iconv"),
    "NUL bytes": ("train.py", b"a = 1\nb = 2\0\n", 2, "the byte 0x00"),
    "a program": ("Makefile", b"\x7fELF\x02\x01\x01\0", 1, "the byte 0x00"),
    "half a character": ("train.py", "é".encode()[:1], 1, "the byte 0xc3"),
    "a surrogate": ("train.py", b"\xed\xa0\x80", 1, "the byte 0xed"),
    "an overlong slash": ("train.py", b"x\n\xc0\xaf", 2, "the byte 0xc0"),
    "code that is no picture": ("plot.png", b"print()\n", 1, "what its name says"),
    "another kind of picture": ("plot.jpg", PNG, 1, "what its name says"),
    "something behind a picture": ("plot.png", PNG + b"w", 1, "something is behind it"),
    "half a picture": ("plot.png", PNG[:-1], 1, "is damaged"),
    "a picture called code": ("train.py", PNG, 1, "the byte 0x89"),
    "turned around": ("train.py", f"a = 1\n{RIGHT_TO_LEFT}".encode(), 2, "another order"),
    "isolated": ("train.py", f"x = '{chr(0x2066)}'".encode(), 1, "\\u2066"),
    "a README": ("README.md", f"{README}Größe\n".encode("latin-1"), 4, "the byte 0xf6"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_what_is_no_text_is_named(case: str, root: Path) -> None:
    name, content, line, says = BAD_TEXTS[case]
    path = root / CODE / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    (found,) = [one for one in find_all(root) if one.is_error and one.rule == "S3"]
    assert (found.code, found.path, found.line) == ("S3.no_text", path, line)
    assert says in found.text()


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE", "README.md"])
def test_texts_at_the_top_are_texts(name: str, root: Path) -> None:
    (root / name).write_bytes(b"\xa9 acme\n")
    (found,) = [one for one in find_all(root) if one.is_error]
    assert (found.code, found.path) == ("S3.no_text", root / name)


GOOD_TEXTS: Mapping[str, tuple[str, bytes]] = {
    "accents": ("train.py", PYTHON.encode()),
    "a mark": ("train.py", b"\xef\xbb\xbf" + PYTHON.encode()),
    "line ends of Windows": ("train.py", b"a = 1\r\n"),
    "Japanese, Hebrew and a face": ("notes.md", "訓練 שלום 🙂\n".encode()),
    "control characters": ("a.txt", b"\x1b[1mbold\x1b[0m\f\n"),
    "an escape of a direction": ("train.py", rb"mark = '\u202e'"),
    "a drawing": ("plot.svg", b"<svg/>"),
    "a picture": ("plot.PNG", PNG),
    "a photograph": ("plot.jpeg", b"\xff\xd8\xff\xe0\0\x10JFIF"),
    "a paper": ("paper.pdf", b"%PDF-1.7\n\xb5\xed\xae"),
    "an empty module": ("__init__.py", b""),
}


@pytest.mark.parametrize("case", GOOD_TEXTS)
def test_texts_and_pictures_pass(case: str, root: Path) -> None:
    name, content = GOOD_TEXTS[case]
    (root / CODE / name).write_bytes(content)
    assert not [one for one in find_all(root) if one.is_error]


def test_the_code_of_this_repository_is_text() -> None:
    for path in [*ROOT.glob("[bcmrst]*/**/*.py"), *ROOT.glob("submissions/*/benchmarks/**/*")]:
        if path.is_file() and "__pycache__" not in path.parts:
            assert find_unreadable(PurePosixPath(path.name), path.read_bytes()) is None, path


EMPTY_WORDS = {
    "a blank": " \n",
    "a heading": "# The code that ran for this result on a large machine of ours in autumn\n",
    "a few words": "See train.py for everything.\n",
    "one word, often": "fast " * 50,
    "lines and numbers": "1 2 3 | --- | 4 5\n" * 20,
}


@pytest.mark.parametrize("text", EMPTY_WORDS.values(), ids=EMPTY_WORDS)
@pytest.mark.parametrize("division", ["closed", "open"])
def test_a_readme_says_something(division: str, text: str, tmp_path: Path) -> None:
    root = tmp_path / "submissions" / "acme"
    folder = write_result(root, MINI, division=division)
    path = (root / CODE if division == "closed" else folder) / "README.md"
    path.write_text(text)
    (found,) = [one for one in find_all(root) if one.is_error]
    assert (found.code, found.path) == ("S3.thin_readme", path)


def test_a_readme_may_be_written_in_any_script(root: Path) -> None:
    for text in [
        "先准备数据，然后运行训练脚本，每次运行写入一个日志。",
        "データを準備してから、訓練のスクリプトを五回実行します。",
        "เตรียมข้อมูลก่อน แล้วรันสคริปต์การฝึกห้าครั้ง",
        "데이터를 준비한 다음 훈련 스크립트를 다섯 번 실행하고 로그를 저장합니다",
        "حضّر البيانات ثم شغّل برنامج التدريب خمس مرات واحفظ السجلات هنا",
    ]:
        (root / CODE / "README.md").write_text(f"# galaxy_shape\n{text}\n", encoding="utf-8")
        assert not [one for one in find_all(root) if one.is_error]


def test_the_template_alone_says_nothing_of_the_code(root: Path) -> None:
    template = (ROOT / "tools/templates/submission/README.md").read_text()
    lines = [line for line in template.splitlines() if "${fill_in}" not in line]
    assert all(any(line.strip().startswith(each) for line in lines)
               for each in OF_TEMPLATE if each not in ("pip install", ".venv/bin/"))  # fmt: skip
    facts = {"title": "Galaxy shapes", "scale": "mini", "division": "closed", "runs": "5",
             "submitter": "acme", "system": "box", "benchmark": "galaxy_shape",
             "install": ".venv/bin/pip install -c constraints.txt -e ."}  # fmt: skip
    path = root / CODE / "README.md"
    path.write_text(string.Template("\n".join(lines)).substitute(facts))
    assert {one.code for one in find_all(root) if one.is_error} == {"S3.thin_readme"}
    own = "The convolutions are fused with what follows, and batches are read ahead by two threads."
    path.write_text(f"{path.read_text()}\n{own}\n")
    assert not [one for one in find_all(root) if one.is_error]
    path.write_text(f"{path.read_text()}\n{FILL_IN}what else changed\n")
    assert {one.code for one in find_all(root) if one.is_error} == {"S3.unfilled"}
