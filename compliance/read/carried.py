"""What in a folder of code could hold the weights of a network: binaries, and text that encodes.

The limits come from honest code. Of the 37,000 source files, texts and JSON documents that torch,
TensorFlow, JAX and what they need install, one in a thousand is above them: fonts, tables of
Unicode, serialised programs. The smallest network of a benchmark has 120,000 weights.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from cepheid.compliance.read.contents import Carrier, HowCarried, SubmittedFile

FORMATS = re.compile(
    r"\.(npz|npy|pt|pth|ckpt|safetensors|h5|hdf5|keras|onnx|tflite|pb|gguf|ggml|pkl|pickle|joblib|dill"
    r"|msgpack|weights|caffemodel|mlmodel|zarr|parquet|arrow|feather|zip|tar|tgz|gz|bz2|xz|zst|7z|whl)",
    re.IGNORECASE,
)
"""Suffixes of files of weights, of arrays, and of what packs them."""
LIMITS: Mapping[HowCarried, int] = {
    "format": 1,
    "binary": 4 * 2**10,  # bytes
    "picture": 40 * 2**10,  # bytes; pixels and what is behind them can be weights
    "encoded": 16 * 2**10,  # characters
    "numbers": 20_000,
}
PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8")
READ_BYTES_MAX = 64 * 2**20  # of the code of a submission
UNREADABLE_SHARE_MAX = 0.25  # of bytes that are no UTF-8, in a text of another encoding
RUN_BYTES = 1_000  # without a space, a quotation mark, a comma or a bracket
TOKEN_BYTES = 40
DIGESTS_MAX = 2_000  # of files and packages, in one file

_BETWEEN_RUNS = re.compile(rb"[\s\"',\[\]]+")
_BETWEEN_TOKENS = re.compile(rb"[\s\"',;\[\](){}\\]+")
_DIGEST = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128}")
_HEXADECIMAL = re.compile(rb"(?=[^0-9]*[0-9])[0-9A-Fa-f]+")
_BASE64 = re.compile(rb"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=[^0-9]*[0-9])[A-Za-z0-9+/=]+")
_NUMBER = re.compile(rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|0x[0-9a-fA-F]+")


def list_carriers(root: Path, files: Sequence[SubmittedFile]) -> Iterator[Carrier]:
    """Yield the files below ``benchmarks`` that could hold weights, in the order of their names.

    Beyond a bound on all of them only the names of files are judged.
    """
    left = READ_BYTES_MAX
    for file in sorted(files, key=lambda file: file.name):
        if len(file.name.parts) > 2 and file.name.parts[0] == "benchmarks" and file.sha256:
            with (root / file.name).open("rb") as opened:
                content = opened.read(left)
            left -= len(content)
            yield from find_carriers(file.name, content)


def find_carriers(name: PurePosixPath, content: bytes) -> Iterator[Carrier]:
    """Yield the ways in which a file could hold weights, none where no byte of it looks like it."""
    if FORMATS.fullmatch(name.suffix):
        yield Carrier(name, "format", len(content), 1.0)
    elif _is_binary(content):
        how: HowCarried = "picture" if content.startswith(PICTURES) else "binary"
        yield Carrier(name, how, len(content), len(content) / LIMITS[how])
    else:
        tokens = [token for token in _BETWEEN_TOKENS.split(content) if token]
        numbers = sum(1 for t in tokens if len(t) < TOKEN_BYTES and _NUMBER.fullmatch(t))
        encoded = _measure_encoded(content, [t for t in tokens if len(t) >= TOKEN_BYTES])
        if numbers:
            yield Carrier(name, "numbers", numbers, numbers / LIMITS["numbers"])
        if encoded:
            yield Carrier(name, "encoded", encoded, encoded / LIMITS["encoded"])


def _is_binary(content: bytes) -> bool:
    readable = len(content.decode("utf-8", "ignore").encode())
    return b"\0" in content or readable < (1 - UNREADABLE_SHARE_MAX) * len(content)


def _measure_encoded(content: bytes, long_tokens: Sequence[bytes]) -> int:
    """Return how many characters of a text are no words but stand for other bytes."""
    runs = sum(len(run) for run in _BETWEEN_RUNS.split(content) if len(run) >= RUN_BYTES)
    digests = [token for token in long_tokens if _DIGEST.fullmatch(token)]
    wrapped = sum(
        len(token)
        for token in long_tokens
        if (_HEXADECIMAL.fullmatch(token) or _BASE64.fullmatch(token))
        and (len(digests) > DIGESTS_MAX or not _DIGEST.fullmatch(token))
    )
    return max(runs, wrapped, len(r"\x00") * content.count(rb"\x"))
