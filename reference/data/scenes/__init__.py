"""Simulated pieces of sky with several objects each: the generator `scenes` of definitions.

A definition's ``data.generator`` names this package; ``cepheid.reference.data`` says what it must
provide.
"""

from cepheid.reference.data.scenes.objects import CLASSES
from cepheid.reference.data.scenes.sky import (
    SceneParameters,
    Scenes,
    draw,
    load,
    parameters_of,
    prepare,
)
from cepheid.reference.data.scenes.truth import make_truth

__all__ = [
    "CLASSES",
    "SceneParameters",
    "Scenes",
    "draw",
    "load",
    "make_truth",
    "parameters_of",
    "prepare",
]
