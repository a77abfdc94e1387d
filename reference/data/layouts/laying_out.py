"""Lay a dataset out as it is distributed, from whatever layout somebody has it in.

Folders are linked, so that nothing is copied. Archives and shards are unpacked beside the prepared
data, into the folder in which preparing looks for the files; it may be deleted afterwards. An
interrupted unpacking continues: files that are there in full are not written again.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, assert_never

from cepheid.reference.data import disk
from cepheid.reference.data.layouts import containers
from cepheid.reference.data.layouts.containers import Member, Sample
from cepheid.reference.data.layouts.declared import PARTS, Form, Link, Part, Shards, Unpack
from cepheid.reference.data.store import OnProgress, StoreError
from cepheid.rules.host import atomic_write

MARK = ".laid-out.json"  # what was laid out there, and whether all of it was
SAFE = re.compile(r"\w[\w.-]{0,99}(?:/\w[\w.-]{0,99}){0,4}", re.ASCII)
UNFINISHED = ".unfinished"
SHARD = re.compile(r"-\d+-of-(\d+)(?=\.|$)")  # the name says how many there are
MB = 10**6
Item = TypeVar("Item", Member, Sample)


@dataclass(frozen=True)
class _Found:
    """A part, the form in which it lies, and the files or folders of that form."""

    part: Part
    form: Form
    paths: Sequence[Path]

    @property
    def copied_bytes(self) -> int:
        """The bytes of the containers that have to be unpacked."""
        return 0 if isinstance(self.form, Link) else sum(path.stat().st_size for path in self.paths)


@dataclass
class _Progress:
    """Bytes of containers that are read, of all."""

    report: OnProgress
    total: int
    before: int = 0

    def read_all(self, found: _Found, read: Callable[[Path], Iterator[Item]]) -> Iterator[Item]:
        """Yield what ``read`` yields of each container, and report how far it is."""
        for path in found.paths:
            for item in read(path):
                yield item
                self.report((self.before + item.done) // MB, max(self.total // MB, 1))
            self.before += path.stat().st_size


def lay_out(
    source: str,
    given: Path,
    target: Path,
    on_progress: OnProgress,
    prepared_share: float = 0,
    is_subset: bool = False,
) -> Sequence[str]:
    """Lay the dataset ``source`` out at ``target``, from what lies in the folder ``given``.

    Returns a line for each part: in which form it was there. ``on_progress`` is called with MB.
    Preparing will need ``prepared_share`` of the unpacked bytes beside them. Of a subset shards may
    be missing. Raises StoreError where ``given`` has none of the known layouts, where an archive is
    damaged, where ``target`` holds something else, or where the disk is too small.
    """
    if not given.is_dir():
        what = "is a file" if given.exists() else "there is no such folder"
        raise StoreError(f"{given}: {what}; give the folder with the dataset")
    if given.resolve() == target.resolve():
        return [f"{given}: is where preparing looks for the files; nothing to lay out"]
    found = _recognise(source, given, is_subset)
    total = sum(each.copied_bytes for each in found)
    files = sum(len(each.paths) for each in found)
    mark = {"source": str(given.resolve()), "is_complete": True, "files": files, "bytes": total}
    if _read_mark(target) == mark:
        return [f"{target}: was laid out before"]
    with disk.explain_disk_errors(target, "start again; what is unpacked is kept"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with disk.lock_folder(target):
            _begin(target, {**mark, "is_complete": False})
            there = sum(path.lstat().st_size for path in target.rglob("*") if _is_copy(path))
            disk.require_space(
                target,
                max(0, total - there) + int(prepared_share * total),
                "Free some, or unpack the archives on another disk and give --source that folder.",
            )
            progress = _Progress(on_progress, total)
            for each in found:
                _take(each, target, progress)
            atomic_write(target / MARK, json.dumps(mark))
    return [_describe(each, given) for each in found]


def _is_copy(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _recognise(source: str, given: Path, is_subset: bool) -> list[_Found]:
    """Return the parts that are there. Raises StoreError where one is missing or cut short."""
    found = []
    if source not in PARTS:
        raise StoreError(
            f"{given}: other layouts of {source} than the distributed one are not known (known: "
            f"those of {', '.join(PARTS)}). Put the files into the data folder as they unpack."
        )
    for part in PARTS[source]:
        for form in part.forms:
            if paths := _find_paths(form, given):
                _check_files(form, paths, is_subset)
                found.append(_Found(part, form, paths))
                break
        else:
            if part.is_needed:
                raise StoreError(_explain_missing(f"no {part.title}", source, given, [part]))
    if not found:
        raise StoreError(_explain_missing("nothing", source, given, PARTS[source]))
    there = {each.part.gives for each in found}
    for need in (each.form.need for each in found if isinstance(each.form, Unpack)):
        if need and need not in there and not is_subset:
            givers = [part for part in PARTS[source] if part.gives == need]
            raise StoreError(_explain_missing(f"nothing with {need}", source, given, givers))
    return found


def _check_files(form: Form, paths: Sequence[Path], is_subset: bool) -> None:
    """Raise StoreError where a file is cut short or, by the names of the others, is missing."""
    if isinstance(form, Link):
        return
    for path in paths:
        containers.check_end(path)
    numbers = [int(shard[1]) for path in paths if (shard := SHARD.search(path.name))]
    if len(paths) < max(numbers, default=0) and not is_subset:
        raise StoreError(
            f"{paths[0].parent}: {len(paths):,} of {max(numbers):,} files like {paths[0].name}. "
            "Fetch the others, or try with --limit."
        )


def _explain_missing(what: str, source: str, given: Path, parts: Sequence[Part]) -> str:
    forms = [form for part in parts for form in part.forms]
    for path in (given, *(path for form in forms for path in given.glob(form.glob))):
        if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            return f"{path}: cannot be read; fix: ask its owner for the permission"
    looked = ", ".join(dict.fromkeys(form.glob for form in forms))
    return f"{given}: {what} of {source}; looked for {looked}. docs/your-data.md lists the layouts."


def _find_paths(form: Form, given: Path) -> list[Path]:
    paths = sorted(given.glob(form.glob))
    if not isinstance(form, Link):
        return [path for path in paths if path.is_file()]
    return [
        path
        for path in paths
        if path.is_file() or any(any(path.glob(inner)) for inner in form.holds)
    ]


def _describe(found: _Found, given: Path) -> str:
    first = found.paths[0].relative_to(given)
    more = f" and {len(found.paths) - 1:,} more" if len(found.paths) > 1 else ""
    how = "linked" if isinstance(found.form, Link) else "unpacked"
    return f"{found.part.title}: {how} from {first}{more}"


def _read_mark(target: Path) -> Mapping[str, object] | None:
    try:
        return json.loads((target / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _begin(target: Path, mark: Mapping[str, object]) -> None:
    """Create the folder, or continue in it. Raises StoreError where it holds something else."""
    before = _read_mark(target)
    if target.exists() and (before is None or before["source"] != mark["source"]):
        was = f"was laid out from {before['source']}" if before else "is already there"
        raise StoreError(f"{target}: {was}. Leave out --source to use it, or move it away.")
    target.mkdir(exist_ok=True)
    atomic_write(target / MARK, json.dumps(mark))


def _take(found: _Found, target: Path, progress: _Progress) -> None:
    form = found.form
    match form:
        case Link():
            for path in found.paths:
                _link(path, target / (form.to or path.name))
        case Unpack():
            _unpack(found, form, target, progress)
        case Shards():
            _unpack_shards(found, form, target, progress)
        case _:
            assert_never(form)


def _unpack(found: _Found, form: Unpack, target: Path, progress: _Progress) -> None:
    """Write the members that match; where an archive is damaged, nothing of it is kept."""
    pattern, container, written = re.compile(form.pattern), Path(), list[Path]()
    try:
        for member in progress.read_all(found, containers.read_archive):
            if member.container != container:
                container, written = member.container, []
            if match := pattern.fullmatch(member.name):
                written.append(target / match.expand(form.to))
                _write(target, match.expand(form.to), member.size, member.read_pieces())
    except StoreError:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _link(path: Path, link: Path) -> None:
    """Link a file or folder; of two files with one name the first one stays."""
    if not os.path.lexists(link):
        link.symlink_to(path.resolve())


def _write(target: Path, name: str, size: int, pieces: Iterable[bytes]) -> None:
    """Write a file, unless it is there already. Raises StoreError for an unsafe name."""
    if not SAFE.fullmatch(name) or ".." in name:
        raise StoreError(f"{name[:200]!r}: is no name that a dataset has; fetch it again")
    path = target / name
    if path.is_symlink() or (path.is_file() and path.stat().st_size == size):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + UNFINISHED), "wb") as file:
        file.writelines(pieces)
    Path(file.name).replace(path)


def _unpack_shards(found: _Found, form: Shards, target: Path, progress: _Progress) -> None:
    """Write labelled images into class folders.

    Raises StoreError where labels contradict the order of the classes' names.
    """
    classes: dict[int, str] = {}
    trained = target / "train"
    if form.to != "train" and trained.is_dir():
        classes = dict(enumerate(sorted(path.name for path in trained.iterdir() if path.is_dir())))
    for number, sample in enumerate(progress.read_all(found, form.read)):
        folder = sample.class_name or classes.get(sample.label) or f"class{sample.label:05}"
        if classes.setdefault(sample.label, folder) != folder:
            raise StoreError(
                f"{found.paths[0].parent}: {sample.name[:80]!r} of {folder} has the label "
                f"{sample.label}, which is that of {classes[sample.label]}. Labels must be in the "
                "order of the classes' names."
            )
        name = f"{form.to}/{folder}/{_name_image(sample, number)}"
        _write(target, name, len(sample.content), [sample.content])
    ordered = [classes[label] for label in sorted(classes)]
    if ordered != sorted(ordered):
        raise StoreError(
            f"{found.paths[0]}: its labels are not in the order of the classes' names, as those of "
            "the dataset are. Convert it again with the usual labels."
        )


def _name_image(sample: Sample, number: int) -> str:
    """Return the name that an image has where it is distributed, or a number for none.

    HuggingFace's names end with the class, which the distributed ones do not.
    """
    name = sample.name.rpartition("/")[2]
    stem = name.rpartition(".")[0] if "." in name else name
    if sample.class_name and stem.endswith(f"_{sample.class_name}"):
        stem = stem.removesuffix(f"_{sample.class_name}")
    return f"{stem or f'{number:08}'}.JPEG"
