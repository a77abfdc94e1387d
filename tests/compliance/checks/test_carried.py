"""S3: weights that lie beside code in any disguise are found, and honest code is none."""

import base64
import io
import json
import os
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.carried import find_carriers
from cepheid.rules import definition
from cepheid.rules.host import ROOT
from tests.compliance.builder import PNG, write_result
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


LONG = 2**22


@pytest.mark.parametrize(
    "content",
    [b"1" * LONG, b"a" * LONG, b"0" * LONG + b"g", b"A1a" * LONG + b"\xc3\xa9", b"[" * LONG],
)
def test_a_hostile_file_takes_no_longer_than_its_size(content: bytes) -> None:
    before = os.times().user
    list(find_carriers(PurePosixPath("a.py"), content))
    assert os.times().user - before < 5
