"""Translation text from WMT or from a grammar; ``parameters`` says what is stored."""

from pathlib import Path

from cepheid.reference.data.dataset import Dataset
from cepheid.reference.data.wmt.packing import plan
from cepheid.reference.data.wmt.parameters import TextParameters, open_pairs, remark


def remarks(folder: Path) -> list[str]:
    """Return remarks about a prepared dataset: lengths and the pairs that were left out."""
    return remark(load(folder))


DATASET = Dataset(TextParameters, plan, open_pairs, remarks)
load, parameters_of, prepare = DATASET.load, DATASET.parse, DATASET.prepare
