"""What all generators share between the ``data`` section of a definition and the dataset."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

from cepheid.reference.data import store
from cepheid.reference.data.store import Manifest, StoreError
from cepheid.rules.errors import did_you_mean


class Parameters:
    """What decides the samples of a dataset: a generator's frozen dataclass is a subclass.

    It has the settings of the ``data`` section of a definition as fields, and raises StoreError
    for values that make no sense.
    """

    generator: ClassVar[str]
    train_samples: int
    evaluation_samples: int

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Parse the ``data`` section of a definition. Raises StoreError for an unknown setting."""
        return cls(**select_settings(cls.generator, cls, data))

    @property
    def rows(self) -> int:
        """Return the number of samples of both splits."""
        return self.train_samples + self.evaluation_samples

    @property
    def title(self) -> str:
        """Return what a reader sees first in the name of the folder, such as ``scenes-8000``."""
        return f"{self.generator}-{self.rows}"

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        raise NotImplementedError

    @property
    def folder_name(self) -> str:
        """Return the name of the folder of the dataset: the title and a digest of ``as_json``."""
        text = json.dumps(self.as_json, sort_keys=True).encode()
        return f"{self.title}-{hashlib.sha256(text).hexdigest()[:8]}"


def select_settings(generator: str, kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``data`` section without its generator; ``kind`` is the class of its parameters.

    Raises StoreError for a setting that ``kind`` does not have.
    """
    asked = {key: value for key, value in data.items() if key != "generator"}
    known = [field.name for field in fields(kind)]
    for key in asked:
        if key not in known:
            raise StoreError(
                f"data.{key}: {generator} has no such setting{did_you_mean(key, known)}"
            )
    return asked


def read_manifest(generator: str, folder: Path) -> Manifest:
    """Return the manifest of a prepared dataset of this generator.

    Raises StoreError if it is missing or damaged, or if another generator made the data.
    """
    manifest = store.read_manifest(folder)
    if manifest.generator != generator:
        raise StoreError(
            f"{folder}: holds data of generator {manifest.generator!r}, expected {generator!r}"
        )
    return manifest


def read_existing(generator: str, folder: Path, parameters: Mapping[str, Any]) -> Manifest:
    """Return the manifest of ``folder``. Raises StoreError if it holds another dataset."""
    manifest = store.read_manifest(folder)
    asked = store.convert_to_json(parameters)
    found = {key: manifest.parameters.get(key) for key in asked}
    difference = store.find_first_difference(found, asked)
    if manifest.generator != generator or difference:
        raise StoreError(
            f"{folder}: holds another dataset ({difference}). Prepare into another folder, or "
            f"delete this one."
        )
    return manifest
