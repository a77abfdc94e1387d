"""What files of a submission say: code and READMEs are UTF-8 text, and READMEs have substance."""

import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from cepheid.compliance.finding import format_value
from cepheid.compliance.read.carried import FORMATS, READ_BYTES_MAX
from cepheid.compliance.read.contents import README, Flaw, SubmittedFile
from cepheid.rules.documents import FILL_IN

PICTURE_BYTES_MAX = 16 * 2**20  # as of every file that is no log (S5)
PNG = b"\x89PNG\r\n\x1a\n"
SIGNATURES = {
    ".png": PNG, ".jpg": b"\xff\xd8\xff", ".jpeg": b"\xff\xd8\xff",
    ".gif": b"GIF8", ".pdf": b"%PDF-",
}  # fmt: skip
"""How files of documentation begin that are no text."""
WORDS_MIN = 8  # different ones; the shortest of 14 READMEs that were submitted has 58
OF_TEMPLATE = (
    "Submitted by ", "Start with an empty machine, in the root of a checkout",
    "python3 -m venv", "pip install", ".venv/bin/", "submissions/",
    "`run.sh` prepares the data and makes ", "it makes only the missing runs",
)  # fmt: skip
"""How lines of `cepheid new-submission` begin, which say nothing of the code that follows."""
_WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Scripts without blanks between words: two letters of them are about a word.
_WORD = "[\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff]{2}|[^\\W\\d_]{2,}"


def list_flaws(root: Path, files: Sequence[SubmittedFile]) -> Iterator[Flaw]:
    """Yield what is wrong with the texts of a submission, up to a bound on their size."""
    left = READ_BYTES_MAX
    for file in sorted(files, key=lambda file: file.name):
        parts, is_readme = file.name.parts, file.name.name == README
        in_code = len(parts) > 2 and parts[0] == "benchmarks"
        at_top = len(parts) == 1 and file.name.suffix in ("", ".md", ".txt")
        if not file.sha256 or not file.size_bytes or not (in_code or is_readme or at_top):
            continue
        with (root / file.name).open("rb") as opened:
            content = opened.read(left)
        left -= len(content)
        if left <= 0:
            return  # what was cut off is no damage
        flaw = find_unreadable(file.name, content)
        if flaw is None and is_readme and len(parts) > 1:
            flaw = _find_thin(file.name, content.decode("utf-8", "ignore"))
        if flaw:
            yield flaw


def find_unreadable(name: PurePosixPath, content: bytes) -> Flaw | None:
    """Return where a file is no UTF-8 text, or reads in another order than it is executed in."""
    signature = SIGNATURES.get(name.suffix.lower())
    if FORMATS.fullmatch(name.suffix):
        return None  # of weights and archives, S3 judges whether they may be there
    if signature and content.startswith(signature):
        if name.suffix.lower() != ".png" or is_png(content):
            return None
        return Flaw(name, "signature", 1, "a picture is damaged, or something is behind it")
    if signature:
        return Flaw(name, "signature", 1, f"a file {name.suffix.lower()} begins otherwise")
    if content[:2] in _WIDE:
        return Flaw(name, "utf_16", 1, "UTF-16")
    at = content.find(b"\0")
    try:
        turned = _DIRECTIONS.search(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        at, turned = (error.start if at < 0 else min(at, error.start)), None
    if turned:
        line = turned.string.count("\n", 0, turned.start()) + 1
        return Flaw(name, "direction", line, f"the character {format_value(turned[0])}")
    if at < 0:
        return None
    return Flaw(name, "bytes", content.count(b"\n", 0, at) + 1, f"the byte 0x{content[at]:02x}")


def is_png(content: bytes) -> bool:
    """Return True for the chunks of a PNG file, the first IHDR and the last IEND, and no more."""
    if not content.startswith(PNG) or len(content) > PICTURE_BYTES_MAX:
        return False
    at, kinds = len(PNG), list[bytes]()
    while at < len(content) and kinds[-1:] != [b"IEND"]:
        size, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        end = at + 8 + size
        if zlib.crc32(content[at + 4 : end]).to_bytes(4, "big") != content[end : end + 4]:
            return False
        kinds.append(kind)
        at = end + 4
    return at == len(content) and kinds[:1] + kinds[-1:] == [b"IHDR", b"IEND"] and b"IDAT" in kinds


def _find_thin(name: PurePosixPath, text: str) -> Flaw | None:
    """Return why a README tells a reader nothing, if it does not."""
    if FILL_IN in text:
        return Flaw(name, "unfilled", None, "")
    lines = [line.strip() for line in text.splitlines()]
    own = [line for line in lines if not line.startswith(("#", *OF_TEMPLATE))]
    words = {word.casefold() for line in own for word in re.findall(_WORD, line)}
    is_thin = len(words) < WORDS_MIN
    return Flaw(name, "thin", None, f"{len(words)} different words") if is_thin else None
