"""The layouts in which people have the datasets, read from ``layouts.yaml`` for ``laying_out``.

A dataset has parts, and a part may lie in several forms, of which the first one that is there is
taken. A form says where to look (a glob below the folder that is given), what becomes of it, and
under which name. Names are those in which the dataset is distributed, so that the same bytes are
prepared whatever the form was.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cepheid.reference.data.layouts import containers
from cepheid.reference.data.layouts.containers import ReadSamples
from cepheid.rules.documents import parse_yaml


@dataclass(frozen=True)
class Link:
    """A folder or file that stays where it is: linked as ``to``; files under their names for "".

    A folder must hold something that matches one of ``holds``.
    """

    glob: str
    to: str = ""
    holds: Sequence[str] = ("*",)


@dataclass(frozen=True)
class Unpack:
    """Archives, of whose members those that match ``pattern`` are written as ``to``.

    A member's name begins with that of its archive. They are of no use without a part that gives
    what they ``need``.
    """

    glob: str
    pattern: str
    to: str
    need: str = ""


@dataclass(frozen=True)
class Shards:
    """Shards of labelled images, which are written into class folders below ``to``."""

    glob: str
    read: ReadSamples
    to: str


Form = Link | Unpack | Shards


@dataclass(frozen=True)
class Part:
    """A part of a dataset and its forms. ``is_needed`` is False where another part may have it.

    ``gives`` is what images of another part may need.
    """

    title: str
    forms: Sequence[Form]
    is_needed: bool = True
    gives: str = ""


IMAGE = r"[\w.-]+\.(?:JPEG|jpeg|JPG|jpg|png)"
KINDS_OF_SHARDS = (
    ("**/{}-*.parquet", containers.read_parquet_images),
    ("**/*{}*-of-?????", containers.read_tfrecord),
    ("**/*{}*.tar", containers.read_webdataset),
)


def _read_part(forms: Sequence[Mapping[str, Any]], **about: Any) -> Part:
    return Part(forms=tuple(form for each in forms for form in _read_forms(**each)), **about)


def _read_forms(shards: Sequence[str] = (), to: str = "", **about: Any) -> Sequence[Form]:
    """Return a form, or the three kinds of shards of a split, which has one of these names."""
    if shards:
        return [Shards(glob.format(n), read, to) for glob, read in KINDS_OF_SHARDS for n in shards]
    return [Unpack(to=to, **about) if "pattern" in about else Link(to=to, **about)]


def _read() -> Iterator[tuple[str, tuple[Part, ...]]]:
    text = Path(__file__).with_name("layouts.yaml").read_text(encoding="utf-8")
    for source, parts in parse_yaml(text.replace("<image>", IMAGE)).items():
        names = [(part, name) for part in parts for name in part.pop("for", [""])]
        filled = (json.loads(json.dumps(part).replace("<it>", name)) for part, name in names)
        yield source, tuple(_read_part(**part) for part in filled)


PARTS: Mapping[str, Sequence[Part]] = MappingProxyType(dict(_read()))
"""The parts of each dataset that is distributed, by ``data.source`` of a definition."""
