"""S3: code is UTF-8 text that reads as it runs, pictures are pictures, READMEs have substance."""

import string
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from cepheid.compliance.read.texts import OF_TEMPLATE, find_unreadable
from cepheid.rules import definition
from cepheid.rules.documents import FILL_IN
from cepheid.rules.host import ROOT
from tests.compliance.builder import PNG, README, write_result
from tests.compliance.judging import find_all

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
CODE = "benchmarks/galaxy_shape"
PYTHON = "# Données\nprint('trained')\n"
RIGHT_TO_LEFT = f"if True:  # {chr(0x202E)} ;)(drawer\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "submissions" / "acme"
    write_result(root, MINI)
    return root


NO_TEXTS: Mapping[str, tuple[str, bytes, int, str]] = {
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


@pytest.mark.parametrize("case", NO_TEXTS)
def test_what_is_no_text_is_named(case: str, root: Path) -> None:
    name, content, line, says = NO_TEXTS[case]
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


TEXTS: Mapping[str, tuple[str, bytes]] = {
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


@pytest.mark.parametrize("case", TEXTS)
def test_texts_and_pictures_pass(case: str, root: Path) -> None:
    name, content = TEXTS[case]
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


@pytest.mark.parametrize(
    "text",
    [
        "先准备数据，然后运行训练脚本，每次运行写入一个日志。",
        "データを準備してから、訓練のスクリプトを五回実行します。",
        "เตรียมข้อมูลก่อน แล้วรันสคริปต์การฝึกห้าครั้ง",
        "데이터를 준비한 다음 훈련 스크립트를 다섯 번 실행하고 로그를 저장합니다",
        "حضّر البيانات ثم شغّل برنامج التدريب خمس مرات واحفظ السجلات هنا",
    ],
)
def test_a_readme_may_be_written_in_any_script(text: str, root: Path) -> None:
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
