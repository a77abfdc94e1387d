"""Lines that fit: texts and tables for people, in the width of a terminal or in 80 columns.

Whatever a command prints for people goes through ``wrap``, ``fill`` or ``lay_out``. Forms for
programs (JSON, SARIF, CSV, annotations) do not.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

COLUMNS = 80  # of a terminal that nobody has widened, of a pipe and of a file
LEAST = 20  # columns of a line, however narrow a terminal is
GAP = "  "  # between two columns of a table
WORD = re.compile(r"(?:`[^`]*`|\S)+\s*")  # a command between backticks is one word
WHOLE = re.compile(
    r"\s*(?:cepheid|torchrun|srun|pip|python3?|sha256sum) |\s*make [\w-]+(?: [A-Z]+=|\s\s|$)|.*\\$"
)
"""A command that people copy, or a part of one; what it does may follow after two spaces."""
PIECE = r"(?:'[^']*'|\"[^\"]*\"|\S)+"  # of a command
COMMAND = re.compile(rf"\s*({PIECE}(?: {PIECE})*)\s*(.*)")
LABEL = re.compile(r"\s*\S{1,20}\s{2,12}(?=\S)")  # below whose text the rest of the line stands
ITEM = re.compile(r"\s*(?:[-*] |\d+\. )")
PARAGRAPH = re.compile(rf"{ITEM.pattern}|\s*(?:\*[\w ]+[:.]\*|#|```|\|)")  # in Markdown
FILLED = 60  # characters of a line that the next one continues

Rows = Sequence[Sequence[str]]


def count(number: int, thing: str, several: str = "") -> str:
    """Count things in words, with the plural where there are several: ``1 run``, ``2 runs``."""
    return f"{number:,} {thing if number == 1 else several or f'{thing}s'}"


def find_width() -> int:
    """Return the columns of the terminal on standard output, or COLUMNS where it is none.

    The variable COLUMNS decides instead, if it is set.
    """
    return max(shutil.get_terminal_size((COLUMNS, 24)).columns, LEAST)


def wrap(text: str, width: int | None = None, hanging: int = 2) -> str:
    """Break the lines of a text that are longer than ``width``; the rest is indented by more.

    Paths, and commands between backticks, stay whole, even where they are longer than a line. A
    command on a line of its own goes on behind a backslash; what it does follows below it.
    """
    width = find_width() if width is None else width
    lines = text.split("\n")
    return "\n".join(line if len(line) <= width else _break(line, width, hanging) for line in lines)


def fill(text: str, width: int | None = None) -> str:
    """Fill paragraphs anew that somebody broke elsewhere, and lay out the tables of Markdown."""
    lines: list[str] = []
    table: list[list[str]] = []
    for line in [*text.split("\n"), ""]:
        before = lines[-1] if lines else ""
        is_new = (
            not line.strip() or PARAGRAPH.match(line) or WHOLE.match(line) or WHOLE.match(before)
        )
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("| ").split(" | ")])
            continue
        if table:
            lines += lay_out([table[0], *table[2:]], width)
            table = []
        if is_new or len(before) < FILLED:
            lines.append(line)
        else:
            lines[-1] += f" {line.strip()}"
    return wrap("\n".join(lines[:-1]), width, hanging=0)


@lru_cache(maxsize=256)  # many findings say the same
def _break(line: str, width: int, hanging: int) -> str:
    indent = len(line) - len(line.lstrip())
    if WHOLE.match(line) and (found := COMMAND.match(line)):
        below = " " * (indent + 4)
        *parts, last = _fill(" " * indent, found[1], width - 2, below, rf"{PIECE}\s*")
        after_it = _fill(below, found[2], width, below) if found[2] else ()
        return "\n".join([*(f"{part} \\" for part in parts), last, *after_it])
    label, item = LABEL.match(line), ITEM.match(line)
    start = label.end() if label else indent
    after = start if label else indent + (2 if item else hanging)
    return "\n".join(_fill(line[:start], line[start:], width, " " * after))


def _fill(start: str, text: str, width: int, hanging: str = "", word: str = "") -> Iterator[str]:
    """Yield the lines of a text, whose words stay whole; ``word`` is a pattern of its own."""
    line, has_word = start, False
    for piece in (re.compile(word) if word else WORD).findall(text):
        if has_word and len(line) + len(piece.rstrip()) > width:
            yield line.rstrip()
            line = hanging
        line, has_word = line + piece, True
    yield line.rstrip()


def lay_out(rows: Rows, width: int | None = None, keys: int = 1) -> list[str]:
    """Return the lines of a table: its first row is a header, with a rule below.

    Where it is wider than ``width``, cells are broken between their words. Where that is not
    enough, columns follow below the others, each time beside the first ``keys``. Nothing is left
    out, and only a word that is too long by itself is broken.
    """
    width = find_width() if width is None else width
    natural, least = _measure(rows, len), _measure(rows, _measure_longest_word)
    lines: list[str] = []
    for group in _group(least, width, keys):
        part = [[row[column] for column in group] for row in rows]
        widths = _narrow([natural[each] for each in group], [least[each] for each in group], width)
        lines += [*([""] if lines else []), *_draw(part, widths)]
    return lines


def _measure(rows: Rows, measure: Callable[[str], int]) -> list[int]:
    return [max(map(measure, column)) for column in zip(*rows, strict=True)]


def _measure_longest_word(cell: str) -> int:
    return max((len(word.rstrip()) for word in WORD.findall(cell)), default=0)


def _fits(widths: Sequence[int], width: int) -> bool:
    return sum(widths) + len(GAP) * (len(widths) - 1) <= width


def _group(least: Sequence[int], width: int, keys: int) -> Iterator[list[int]]:
    """Yield the columns that stand beside each other, the first ``keys`` in every group."""
    group = [*range(keys)]
    for column in range(keys, len(least)):
        if len(group) > keys and not _fits([least[each] for each in [*group, column]], width):
            yield group
            group = [*range(keys)]
        group.append(column)
    yield group


def _narrow(natural: list[int], least: list[int], width: int) -> list[int]:
    """Return the widths of columns: the widest are narrowed, first down to their longest words."""
    widths = list(natural)
    for floors in (least, [min(each, LEAST // 2) for each in least]):
        while not _fits(widths, width):
            room = [have * (have > floor) for have, floor in zip(widths, floors, strict=True)]
            if not any(room):
                break
            widths[room.index(max(room))] -= 1
    return widths


def _draw(rows: Rows, widths: Sequence[int]) -> Iterator[str]:
    for number, cells in enumerate(rows):
        if number == 1:
            yield GAP.join("-" * width for width in widths)
        broken = [[*_break_cell(cell, width)] for cell, width in zip(cells, widths, strict=True)]
        for line in range(max(map(len, broken))):
            parts = (lines[line] if line < len(lines) else "" for lines in broken)
            yield GAP.join(map(str.ljust, parts, widths)).rstrip()


def _break_cell(cell: str, width: int) -> Iterator[str]:
    is_long = _measure_longest_word(cell) > width
    return _fill("", cell, width, word=rf"\S{{1,{width}}}\s*" if is_long else "")
