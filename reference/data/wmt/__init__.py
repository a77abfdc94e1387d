"""Translation text: WMT files or a grammar, subwords, batches of sentences."""

from reference.data.wmt.pairs import folder, parameters_of, prepare, remarks

__all__ = ["folder", "parameters_of", "prepare", "remarks"]
