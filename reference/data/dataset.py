"""The engine of datasets: a generator declares what differs, and this prepares, finds and loads it.

A generator is a package of ``cepheid.reference.data`` with a ``DATASET``. It declares its settings
(a subclass of ``Parameters``), what there is to write (``plan``), and what a program sees of it
(``open``).
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from cepheid.reference.data import disk, preparation, store
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import Manifest, OnProgress, StoreError
from cepheid.rules.errors import did_you_mean


class Parameters:
    """What decides the samples of a dataset: a generator's frozen dataclass is a subclass.

    It has the settings of the ``data`` section of a definition as fields, and raises StoreError
    for values that make no sense. ``version`` is to be raised by every change that stores something
    else. ``recorded`` are the settings that the manifest has, in this order. Settings often include
    a ``source``: what is drawn, or which files are read. ``sources`` are those that there are,
    ``distributed`` those of which a user puts the files into a folder of that name. With
    ``is_subset`` these files need not be complete: a run of ``--limit`` only tries them.
    """

    generator: ClassVar[str]
    version: ClassVar[int] = 1
    recorded: ClassVar[tuple[str, ...]]
    sources: ClassVar[tuple[str, ...]] = ()
    distributed: ClassVar[tuple[str, ...]] = ()
    is_named_by_source: ClassVar[bool] = False

    train_samples: int
    evaluation_samples: int

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Parse the ``data`` section of a definition. Raises StoreError for an unknown setting."""
        return cls(**select_settings(cls.generator, cls, data))

    def check_source(self, before: str = "", joint: str = " or ") -> None:
        """Raise StoreError for an unknown source; the message lists those that there are."""
        source = getattr(self, "source", "")
        if source not in self.sources:
            known = before + joint.join(self.sources)
            raise StoreError(f"data.source is {source!r}, expected {known}")

    def check_samples(self) -> None:
        """Raise StoreError if there is nothing to train on or to evaluate."""
        if min(self.train_samples, self.evaluation_samples) < 1:
            raise StoreError("data.train_samples or evaluation_samples is below 1")

    @property
    def rows(self) -> int:
        """Return the number of samples of both splits."""
        return self.train_samples + self.evaluation_samples

    @property
    def title(self) -> str:
        """Return what a reader sees first in the name of the folder, such as ``scenes-8000``."""
        source = [getattr(self, "source", "")] if self.is_named_by_source else []
        return "-".join([self.generator, *source, str(self.rows)])

    def describe(self) -> dict[str, Any]:
        """Return what else decides the samples, such as constants of what is drawn."""
        return {}

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        settings = {name: getattr(self, name) for name in self.recorded}
        facts = {"generator_version": self.version, **settings, **self.describe()}
        if getattr(self, "is_subset", False):
            facts["is_subset"] = True
        return store.convert_to_json(facts)

    @property
    def folder_name(self) -> str:
        """Return the name of the folder of the dataset: the title and a digest of ``as_json``."""
        text = json.dumps(self.as_json, sort_keys=True).encode()
        return f"{self.title}-{hashlib.sha256(text).hexdigest()[:8]}"

    @property
    def may_have_fewer(self) -> bool:
        """Whether the dataset may have fewer training samples than asked for."""
        return False

    def find_distributed_files(self, folder: Path) -> Path | None:
        """Return where a user puts the files of the dataset ``folder``; None if all is drawn."""
        source = getattr(self, "source", "")
        return folder.with_name(source) if source in self.distributed else None

    def find_unreadable(self, folder: Path) -> str:
        """Return why the distributed files of the dataset ``folder``, if any, cannot be read."""
        source = self.find_distributed_files(folder)
        if source is None or not source.exists():
            return ""
        if not source.is_dir():
            return f"{source}: is a file; put or link the folder with the distributed files there"
        if not os.access(source, os.R_OK | os.X_OK):
            return f"{source}: cannot be read; fix: ask its owner for the permission"
        return ""


def select_settings(generator: str, kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``data`` section without its generator; ``kind`` is the class of its parameters.

    Raises StoreError for a setting that ``kind`` does not have.
    """
    known = [field.name for field in fields(kind)]
    left_out = {"generator", "is_subset"} - {*known}  # what is drawn needs no mark: it is complete
    asked = {key: value for key, value in data.items() if key not in left_out}
    for key in asked:
        if key not in known:
            raise StoreError(
                f"data.{key}: {generator} has no such setting{did_you_mean(key, known)}"
            )
    return asked


@dataclass(frozen=True)
class Work:
    """A preparation that begins: its folder, and the processes that it may use.

    ``on_progress`` is called with rows done and rows in all.
    """

    folder: Path
    rows: int
    processes: int | None
    on_progress: OnProgress

    def report_part(self, part: int, parts: int) -> OnProgress:
        """Return the progress of one of several parts of the work, which count equally."""
        return lambda done, total: self.on_progress(
            (part * total + done) * self.rows // (parts * total), self.rows
        )


@dataclass(frozen=True)
class Opened:
    """A prepared folder: its manifest, and its arrays as they are mapped."""

    folder: Path
    manifest: Manifest
    arrays: Mapping[str, np.memmap]

    @property
    def splits(self) -> dict[str, int]:
        """Return the numbers of samples of both splits, by their names."""
        return {
            name: self.manifest.parameters[name] for name in ("train_samples", "evaluation_samples")
        }


Asked = TypeVar("Asked", bound=Parameters)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Dataset(Generic[Asked, Found]):
    """A dataset as its generator declares it.

    ``plan`` returns what there is to write; it may read or draw files first, and raises StoreError
    where they are missing or damaged. ``open`` turns the arrays into what a program uses.
    ``remark`` comments on a prepared folder.
    """

    kind: type[Asked]
    plan: Callable[[Asked, Work], Contents]
    open: Callable[[Opened], Found]
    remark: Callable[[Path], Sequence[str]] = lambda folder: ()

    def parse(self, data: Mapping[str, Any]) -> Asked:
        """Parse the ``data`` section of a definition."""
        return self.kind.parse(data)

    def prepare(
        self,
        folder: Path,
        parameters: Asked,
        processes: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Manifest:
        """Prepare ``folder``; continue an interrupted preparation, or return if it is finished.

        Raises StoreError as ``preparation.prepare`` and ``plan`` do. A place that cannot be
        written, is full, or belongs to another preparation is refused before there is a plan, which
        may take hours.
        """
        if not folder.exists():
            if problem := parameters.find_unreadable(folder):
                raise StoreError(problem)
            with disk.explain_disk_errors(folder), disk.lock_folder(folder):
                disk.require_space(folder.parent, 0, "Free some, or prepare on another disk.")
            report = on_progress or (lambda done, total: None)
            work = Work(folder, parameters.rows, processes, report)
            contents = self.plan(parameters, work)
            preparation.prepare(
                folder,
                self.kind.generator,
                parameters.as_json,
                contents.rows or parameters.rows,
                contents,
                processes,
                work.report_part(contents.parts - 1, contents.parts),
            )
        return self.check(folder, parameters)

    def check(self, folder: Path, parameters: Asked) -> Manifest:
        """Return the manifest of ``folder``. Raises StoreError if it holds another dataset."""
        manifest = store.read_manifest(folder)
        asked = parameters.as_json
        found = {key: manifest.parameters.get(key) for key in asked}
        if parameters.may_have_fewer and found["train_samples"]:
            asked["train_samples"] = min(asked["train_samples"], found["train_samples"])
        difference = store.find_first_difference(found, asked)
        if manifest.generator != self.kind.generator or difference:
            raise StoreError(
                f"{folder}: holds another dataset ({difference}). Prepare into another folder, or "
                f"delete this one."
            )
        return manifest

    def load(self, folder: Path) -> Found:
        """Map a prepared dataset. Raises StoreError if it is missing, damaged or something else."""
        manifest = store.read_manifest(folder)
        if manifest.generator != self.kind.generator:
            raise StoreError(
                f"{folder}: holds data of generator {manifest.generator!r}, "
                f"expected {self.kind.generator!r}"
            )
        return self.open(Opened(folder, manifest, store.open_arrays(folder)))
