"""Simulated pieces of sky with several objects each: the generator `scenes` of definitions.

A definition's ``data.generator`` names this package; ``reference.data`` says what it must provide.
"""

from reference.data.scenes.objects import CLASSES
from reference.data.scenes.sky import (
    SceneParameters,
    Scenes,
    draw,
    load,
    parameters_of,
    prepare,
)
from reference.data.scenes.truth import make_truth

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
