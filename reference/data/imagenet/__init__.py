"""ImageNet and a small replica of it: layout, packing, decoding, crops."""

from reference.data.imagenet.images import folder, parameters_of, prepare, remarks

__all__ = ["folder", "parameters_of", "prepare", "remarks"]
