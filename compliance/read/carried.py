"""What in a folder of code could hold the weights of a network: binaries, and text that encodes.

The limits come from honest code. Of the 37,000 source files, texts and JSON documents that torch,
TensorFlow, JAX and what they need install, one in a thousand is above them: fonts, tables of
Unicode, serialised programs. The smallest network of a benchmark has 120,000 weights.

Whatever the alphabet, what encodes them cannot be packed: random bytes in base32, base85 or letters
of another script keep two thirds of their size and more, where code keeps a quarter, and only
tables of random numbers and of Unicode more than a half.
"""

import re
import zlib
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
WINDOW_BYTES, WINDOW_BYTES_MIN = 16 * 2**10, 2**12  # of text that is packed by itself
PACKED_SHARE_MAX = 0.6  # of a window; 3 of 9,000 honest files have more, and no code
DIGITS_OF_NUMBER = 20  # of the longest that a program prints,
DIGITS_OF_WEIGHT = 3  # and of a weight among others

_BETWEEN_RUNS = re.compile(rb"[\s\"',\[\]]+")
_BETWEEN_TOKENS = re.compile(rb"[\s\"',;\[\](){}\\]+")
_DIGEST = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128}")
_HEXADECIMAL = re.compile(rb"(?=[^0-9]*[0-9])[0-9A-Fa-f]+")
_BASE64 = re.compile(rb"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=[^0-9]*[0-9])[A-Za-z0-9+/=]+")
_NAMED_DIGEST = re.compile(rb"sha[0-9]{1,3}[-:=][A-Za-z0-9+/=]{40,}|\b[0-9a-f]{40,128}\b")
_SYMBOL = re.compile(r"[^\w\s\x00-\x7f]")  # of no script, such as dots of Braille
_NUMBER = re.compile(rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|0x[0-9a-fA-F]+")


def list_carriers(root: Path, files: Sequence[SubmittedFile]) -> Iterator[Carrier]:
    """Yield the files that could hold weights, in the order of their names.

    They lie below ``benchmarks``, or are texts at the top such as a licence. Beyond a bound on all
    of them only the names of files are judged.
    """
    left = READ_BYTES_MAX
    for file in sorted(files, key=lambda file: file.name):
        is_text = len(file.name.parts) == 1 and file.name.suffix != ".json"
        if (is_text or file.name.parts[0] == "benchmarks") and file.sha256:
            with (root / file.name).open("rb") as opened:
                content = opened.read(left)
            left -= len(content)
            yield from find_carriers(file.name, content)


def find_carriers(name: PurePosixPath, content: bytes) -> Iterator[Carrier]:
    """Yield the way in which most of a file could be weights, none where no byte looks like it."""
    how: HowCarried
    if FORMATS.fullmatch(name.suffix):
        yield Carrier(name, "format", len(content), 1.0)
    elif _is_binary(content):
        how = "picture" if content.startswith(PICTURES) else "binary"
        yield Carrier(name, how, len(content), len(content) / LIMITS[how])
    else:
        tokens = [token for token in _BETWEEN_TOKENS.split(content) if token]
        plain = _NAMED_DIGEST.sub(b"", content, DIGESTS_MAX)
        numbers = _count_numbers(plain, [token for token in tokens if len(token) < TOKEN_BYTES])
        encoded = _measure_encoded(content, [t for t in tokens if len(t) >= TOKEN_BYTES])
        encoded = max(encoded, _measure_dense(plain), _count_symbols(content))
        found: Mapping[HowCarried, int] = {"numbers": numbers, "encoded": encoded}
        how = max(found, key=lambda each: found[each] / LIMITS[each])
        if found[how]:
            yield Carrier(name, how, found[how], found[how] / LIMITS[how])


def _is_binary(content: bytes) -> bool:
    readable = len(content.decode("utf-8", "ignore").encode())
    return b"\0" in content or readable < (1 - UNREADABLE_SHARE_MAX) * len(content)


def _count_digits(content: bytes) -> int:
    return len(content) - len(content.translate(None, b"0123456789"))


def _count_numbers(plain: bytes, tokens: Sequence[bytes]) -> int:
    """Return how many weights the numbers of a text could be, whatever stands between them."""
    numbers = [token for token in tokens if _NUMBER.fullmatch(token)]
    longer = sum(max(0, len(number) - DIGITS_OF_NUMBER) for number in numbers)
    others = _count_digits(plain) - _count_digits(b"".join(numbers))
    return len(numbers) + (longer + max(0, others)) // DIGITS_OF_WEIGHT


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


def _measure_dense(plain: bytes) -> int:
    """Return how many bytes of a text lie in windows that hardly become smaller when packed."""
    windows = (plain[at : at + WINDOW_BYTES] for at in range(0, len(plain), WINDOW_BYTES))
    large = (window for window in windows if len(window) >= WINDOW_BYTES_MIN)
    return sum(
        len(one) for one in large if len(zlib.compress(one, 1)) > PACKED_SHARE_MAX * len(one)
    )


def _count_symbols(content: bytes) -> int:
    text = "" if content.isascii() else content.decode("utf-8", "ignore")
    return sum(1 for _ in _SYMBOL.finditer(text))
