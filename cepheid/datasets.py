"""The datasets of the benchmarks, for any program: NumPy arrays and a ``Dataset`` of torch.

    >>> train = cepheid.datasets.load("galaxy_shape", split="train")
    >>> train.arrays["stamps"].shape, train[0]["e1"]

What a sample has depends on the data. Sizes are those of the mini scale; ``print(split)`` shows
them for any dataset, and reference/data/README.md says how each came about.

galaxies
    ``stamps`` and ``noise_free`` (6, 64, 64): bands ugrizy, y, x, in units of the band's sky noise;
    ``e1``, ``e2``, ``redshift``, ``magnitude`` (AB, F814W), ``bulge_fraction``,
    ``half_light_radius_arcsec``, ``snr``, and ``dx``, ``dy`` in pixels: scalars
imagenet, radiographs
    ``images`` (y, x, channels), uint8, each of its own size; ``names``, texts; ``height`` and
    ``width`` in pixels; ``label`` or ``findings`` (14,), 0 or 1
scenes
    ``images`` (64, 64, 3), uint8; ``boxes`` (8, 4), corners as shares of the image; ``labels``
    (8,), 0 where there is no object; ``masks`` (8, 512), bits packed as by ``np.packbits``
coco
    ``images``, ``names`` as above; ``objects``, a structured array with a row for each object
videos
    ``frames`` (12, 16, 16, 1), uint8
wmt
    ``source`` and ``target`` (tokens,), int64; ``reference``, the text of an evaluation's sentence

Images of several sizes and sentences need a ``collate_fn`` of yours to become a batch.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cepheid.rules import definition, extras
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.host import IMPORT_ROOT

if TYPE_CHECKING:
    import numpy as np
    from torch.utils.data import Dataset

    _Base = Dataset[dict[str, Any]]
else:
    _Base = object  # _choose_kind adds torch's, which is slow to import

SPLITS = ("train", "evaluation")
TEXTS, TOKENS, IMAGES, OBJECTS = ("names", "reference"), ("source", "target"), "images", "objects"


def load(name: str, split: str = "train", *, scale: str = "mini", root: str = "") -> "Split":
    """Return a split of the dataset of a benchmark; where it is missing, prepare it first.

    ``split`` is "train" or "evaluation", ``scale`` "mini" or "full". Datasets lie in the folder
    ``root``, by default $CEPHEID_DATA, else ``data``; drawing one takes a minute or two at mini
    scale, once. Raises UserError for an unknown name, and where files of others are missing.
    """
    chosen = definition.load(name, scale)
    if split not in SPLITS:
        known = " or ".join(f'"{each}"' for each in SPLITS)
        raise UserError(f'no split "{split}"{did_you_mean(split, SPLITS)} (expected {known})')
    extras.require_for_data(chosen.extras)

    from cepheid.reference.data import generators

    place = Path(root or os.environ.get("CEPHEID_DATA", "data"))
    folder = generators.folder(chosen.data, place)
    if not (folder / "manifest.json").is_file():
        _prepare(name, scale, place, folder)
    return _choose_kind()(chosen, split, folder)


class Split(_Base):
    """A split of a dataset: ``split[i]`` is a sample, a mapping from names to values.

    If torch is installed it is a ``torch.utils.data.Dataset`` too, so that a ``DataLoader`` takes
    it. Values of samples are copies; numbers that are stored in float16 are float32 there.
    """

    def __init__(self, chosen: definition.Definition, split: str, folder: Path) -> None:
        self.definition, self.split, self.folder = chosen, split, folder
        counts = (chosen.train_samples, chosen.evaluation_samples)
        first = counts[0] if split == "evaluation" else 0
        self._rows = range(first, first + counts[SPLITS.index(split)])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[index]
        return {name: read(row) for name, read in self._readers.items()}

    def __repr__(self) -> str:
        chosen, first = self.definition, self[0]
        lines = [f"{chosen.name}, {chosen.scale} scale, {self.split}: {len(self):,} samples"]
        for name, value in first.items():
            what = "text" if isinstance(value, str) else f"{value.dtype} {value.shape}"
            lines.append(f"  {name:<26}{what}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:  # for workers of a DataLoader, which map it again
        return _open_again, (self.definition.name, self.definition.scale, self.split, self.folder)

    @cached_property
    def arrays(self) -> "Mapping[str, np.ndarray]":
        """What has one shape in all samples, (samples, …), as stored: read-only memory maps."""
        rows = slice(self._rows.start, self._rows.stop)
        return MappingProxyType({name: values[rows] for name, values in self._fixed.items()})

    @cached_property
    def _stored(self) -> "Mapping[str, np.ndarray]":
        from cepheid.reference.data import store

        return store.open_arrays(self.folder)

    @cached_property
    def _fixed(self) -> "Mapping[str, np.ndarray]":
        found: dict[str, np.ndarray] = {}
        for name, values in self._stored.items():
            if f"{name}_ends" in self._stored or name.endswith("_ends"):
                continue
            fields = values.dtype.names or ()
            found |= {field: values[field] for field in fields} if fields else {name: values}
        return found

    @cached_property
    def _readers(self) -> Mapping[str, Callable[[int], Any]]:
        """What reads the value of a row, by name."""
        readers: dict[str, Callable[[int], Any]] = {}
        for name in self._stored:
            if f"{name}_ends" in self._stored:
                readers[name] = self._make_ragged_reader(name)
        return readers | {name: _make_reader(values) for name, values in self._fixed.items()}

    def _make_ragged_reader(self, name: str) -> Callable[[int], Any]:
        """Return what reads a value of any length: an image, a text, tokens, or else its bytes."""
        import numpy as np

        from cepheid.reference.data import generators
        from cepheid.reference.data.sentences.batches import TOKEN

        source = generators.find_source(self.definition.data)
        if name == IMAGES:
            decode: Callable[[int], Any] = source.load(self.folder).files.decode
            return decode
        content, ends = self._stored[name], self._stored[f"{name}_ends"]

        def read(row: int) -> Any:
            found = content[ends[row - 1] if row else 0 : ends[row]].tobytes()
            if name in TEXTS:
                return found.decode()
            if name in TOKENS:
                return np.frombuffer(found, TOKEN).astype(np.int64)
            return np.frombuffer(found, source.OBJECT if name == OBJECTS else np.uint8).copy()

        return read


def _make_reader(values: "np.ndarray") -> Callable[[int], Any]:
    import numpy as np

    dtype = np.dtype(np.float32) if values.dtype == np.float16 else values.dtype
    return lambda row: np.array(values[row], dtype)


@cache
def _choose_kind() -> type[Split]:
    """Return the class of splits, which derives from torch's where torch is installed."""
    if not find_spec("torch"):
        return Split
    from torch.utils.data import Dataset

    return type("Split", (Split, Dataset), {"__doc__": Split.__doc__, "__module__": __name__})


def _open_again(name: str, scale: str, split: str, folder: Path) -> Split:
    return _choose_kind()(definition.load(name, scale), split, folder)


def _prepare(name: str, scale: str, root: Path, folder: Path) -> None:
    """Prepare a dataset by `cepheid data`, which shows progress and has processes of its own.

    Its workers would import the program of the user again if they were those of this process.
    """
    line = [sys.executable, "-m", "cepheid.tools.cli", "data", name, "--scale", scale, "--data"]
    paths = os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]))
    changed = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(  # its reason to the program, which a notebook would not show
        [*line, str(root)], env=changed, stderr=subprocess.PIPE, text=True, check=False
    )
    if not (folder / "manifest.json").is_file():
        raise UserError(f"the dataset of {name} could not be prepared:\n{done.stderr.rstrip()}")
