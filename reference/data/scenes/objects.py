"""The objects of a scene: what they are, where they lie, and what light each of them sends.

spheroid      an elliptical galaxy: a de Vaucouleurs profile, nearly round, mostly red
edge_on_disc  a disc galaxy seen from its side, often with a small bulge, mostly blue
arc           a distant galaxy that a lens has drawn out along a part of a circle, mostly blue;
              half of the arcs show their lens, a spheroid of its own, at the centre of the circle

Neither colour nor brightness nor size alone says what an object is: their ranges overlap. Round
objects are one class in three, because the mask of a round object is an ellipse in its box, and a
benchmark of masks would measure nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cepheid.reference.data.galaxies import SkyParameters, compute_component_electrons, drawing
from cepheid.reference.data.galaxies.drawing import Optics, Profile
from cepheid.reference.data.galaxies.population import Component, Galaxy

CLASSES = ("spheroid", "edge_on_disc", "arc")
"""The class of label 1, 2 and 3."""
SPHEROID, EDGE_ON_DISC, ARC = 1, 2, 3

# Of the best linear measure of the object's flux in all bands together; log-uniform.
SIGNAL_TO_NOISE_RANGE = (25.0, 400.0)
SPHEROID_RADIUS_ARCSEC = (0.25, 0.9)  # half-light radius, circularised; log-uniform
SPHEROID_AXIS_RATIO = (0.6, 1.0)
DISC_RADIUS_ARCSEC = (0.6, 2.0)  # half-light radius along the major axis; log-uniform
DISC_AXIS_RATIO = (0.08, 0.2)
BULGE_SHARE = (0.0, 0.3)  # of the light of a disc galaxy
BULGE_TO_DISC_RADIUS = 0.2
ARC_RADIUS_ARCSEC = (1.2, 3.2)  # of the circle
ARC_HALF_ANGLE = (0.5, 1.5)  # radians, twice the deviation of its light along the circle
ARC_WIDTH_ARCSEC = (0.08, 0.2)  # half-light radius of the source
ARC_PLACES = 33
LENS_SHARE = 0.5
REDSHIFTS = {SPHEROID: (0.1, 0.7), EDGE_ON_DISC: (0.05, 0.5), ARC: (1.5, 2.8)}
TEMPLATES = {  # with the chance of each
    SPHEROID: {"E": 0.7, "Sbc": 0.3},
    EDGE_ON_DISC: {"Scd": 0.7, "Sbc": 0.3},
    ARC: {"Scd": 0.8, "Sbc": 0.2},
}
MARGIN_PIXELS = 5  # from the edges of the scene to the centre of an object
NEAREST_PIXELS = 6.0  # between two centres
TRIES = 30  # to find a free place; then the scene has one object less


@dataclass(frozen=True)
class Part:
    """A part of an object with one profile and one colour, at one place or along a trail."""

    component: Component
    shape: tuple[float, float]
    offsets_pixels: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class SkyObject:
    """An object of a scene. ``centre_pixels`` is (x, y) from the centre of the scene."""

    label: int
    signal_to_noise: float
    redshift: float
    centre_pixels: tuple[float, float]
    parts: tuple[Part, ...]


def describe_population() -> dict[str, object]:
    """Return the settings for the manifest; a change in any of them makes another dataset."""
    return {
        "classes": list(CLASSES),
        "signal_to_noise_range": list(SIGNAL_TO_NOISE_RANGE),
        "spheroid_radius_arcsec": list(SPHEROID_RADIUS_ARCSEC),
        "spheroid_axis_ratio": list(SPHEROID_AXIS_RATIO),
        "disc_radius_arcsec": list(DISC_RADIUS_ARCSEC),
        "disc_axis_ratio": list(DISC_AXIS_RATIO),
        "bulge_share": list(BULGE_SHARE),
        "arc_radius_arcsec": list(ARC_RADIUS_ARCSEC),
        "arc_half_angle": list(ARC_HALF_ANGLE),
        "arc_width_arcsec": list(ARC_WIDTH_ARCSEC),
        "lens_share": LENS_SHARE,
        "redshifts": {CLASSES[label - 1]: list(limits) for label, limits in REDSHIFTS.items()},
        "templates": {CLASSES[label - 1]: chances for label, chances in TEMPLATES.items()},
    }


# What there is ------------------------------------------------------------------------------------


def draw_objects(
    random: np.random.Generator, sky: SkyParameters, fewest: int, most: int
) -> list[SkyObject]:
    """Draw the objects of a scene, from ``fewest`` to ``most`` of them.

    A crowded scene may have less, because no two centres lie close together.
    """
    count = int(random.integers(fewest, most, endpoint=True))
    objects: list[SkyObject] = []
    for _ in range(TRIES * count):
        if len(objects) >= count:
            break
        found = _draw_one(random, sky, int(random.integers(1, len(CLASSES), endpoint=True)))
        if _is_free(found, objects):
            objects.append(found)
            if found.label == ARC and len(objects) < count and random.random() < LENS_SHARE:
                lens = _draw_lens(random, sky, found)
                is_inside = max(map(abs, lens.centre_pixels)) <= sky.pixels / 2 - MARGIN_PIXELS
                if is_inside and _is_free(lens, objects):
                    objects.append(lens)
    return objects


def _draw_one(random: np.random.Generator, sky: SkyParameters, label: int) -> SkyObject:
    reach = sky.pixels / 2 - MARGIN_PIXELS
    centre = (random.uniform(-reach, reach), random.uniform(-reach, reach))
    template = str(random.choice(list(TEMPLATES[label]), p=list(TEMPLATES[label].values())))
    make = {SPHEROID: _make_spheroid, EDGE_ON_DISC: _make_disc, ARC: _make_arc}[label]
    return SkyObject(
        label=label,
        signal_to_noise=_draw_logarithmic(random, SIGNAL_TO_NOISE_RANGE),
        redshift=random.uniform(*REDSHIFTS[label]),
        centre_pixels=centre,
        parts=make(random, sky, template, np.array(centre)),
    )


def _draw_lens(random: np.random.Generator, sky: SkyParameters, arc: SkyObject) -> SkyObject:
    """Draw a red spheroid at the centre of the circle of an arc."""
    lens = _draw_one(random, sky, SPHEROID)
    centre = _find_centre(*arc.parts[0].offsets_pixels[[0, ARC_PLACES // 2, -1]])
    parts = tuple(replace(part, offsets_pixels=centre[None]) for part in lens.parts)
    return replace(lens, centre_pixels=(float(centre[0]), float(centre[1])), parts=parts)


def _make_spheroid(
    random: np.random.Generator, sky: SkyParameters, template: str, centre: np.ndarray
) -> tuple[Part, ...]:
    radius = _draw_logarithmic(random, SPHEROID_RADIUS_ARCSEC)
    shape = _make_shape(random.uniform(*SPHEROID_AXIS_RATIO), random.uniform(0, math.pi))
    return (_make_part(Component(4.0, template, 1.0, radius), shape, centre),)


def _make_disc(
    random: np.random.Generator, sky: SkyParameters, template: str, centre: np.ndarray
) -> tuple[Part, ...]:
    major = _draw_logarithmic(random, DISC_RADIUS_ARCSEC)
    axis_ratio, angle = random.uniform(*DISC_AXIS_RATIO), random.uniform(0, math.pi)
    bulge = random.uniform(*BULGE_SHARE)
    disc = Component(1.0, template, 1 - bulge, major * math.sqrt(axis_ratio))
    core = Component(4.0, "E", bulge, major * BULGE_TO_DISC_RADIUS)
    return (
        _make_part(disc, _make_shape(axis_ratio, angle), centre),
        _make_part(core, _make_shape(0.7, angle), centre),
    )


def _make_arc(
    random: np.random.Generator, sky: SkyParameters, template: str, centre: np.ndarray
) -> tuple[Part, ...]:
    """Make an arc whose middle is at ``centre``; its light falls off towards both ends."""
    radius = random.uniform(*ARC_RADIUS_ARCSEC) / sky.pixel_scale_arcsec
    half, towards = random.uniform(*ARC_HALF_ANGLE), random.uniform(0, 2 * math.pi)
    steps = np.linspace(-1.5, 1.5, ARC_PLACES)
    angles = towards + half * steps
    circle = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    middle = radius * np.array([math.cos(towards), math.sin(towards)])
    weights = np.exp(-2 * steps**2)
    width = _draw_logarithmic(random, ARC_WIDTH_ARCSEC)
    component = Component(1.0, template, 1.0, width)
    return (Part(component, (0.0, 0.0), centre + circle - middle, weights / weights.sum()),)


def _make_part(component: Component, shape: tuple[float, float], centre: np.ndarray) -> Part:
    return Part(component, shape, centre[None], np.ones(1))


def _make_shape(axis_ratio: float, angle: float) -> tuple[float, float]:
    """Return the reduced shear of an ellipse whose major axis is at ``angle`` from x."""
    size = (1 - axis_ratio) / (1 + axis_ratio)
    return size * math.cos(2 * angle), size * math.sin(2 * angle)


def _find_centre(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray:
    """Return the centre of the circle through three points, (2,)."""
    sides = np.stack([second - first, third - first])
    lengths = (sides**2).sum(axis=1) / 2
    return np.asarray(first + np.linalg.solve(sides, lengths))


def _is_free(found: SkyObject, objects: Sequence[SkyObject]) -> bool:
    distances = (math.dist(found.centre_pixels, other.centre_pixels) for other in objects)
    return min(distances, default=math.inf) >= NEAREST_PIXELS


def _draw_logarithmic(random: np.random.Generator, limits: tuple[float, float]) -> float:
    low, high = limits
    return math.exp(random.uniform(math.log(low), math.log(high)))


# What light it sends ------------------------------------------------------------------------------


def compute_signal(sky: SkyParameters, found: SkyObject) -> np.ndarray:
    """Return the image of an object in units of the sky noise, float64 (bands, y, x).

    Its flux is such that the object has its signal-to-noise ratio if the whole of it is seen.
    """
    optics = Optics(sky.pixels, sky.pixel_scale_arcsec, sky.psf_fwhm_arcsec)
    components = tuple(part.component for part in found.parts)
    galaxy = Galaxy(0.0, found.redshift, components, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    signal = np.zeros((len(sky.bands), sky.pixels, sky.pixels))
    noise = np.sqrt(sky.sky_electrons)
    for part in found.parts:
        component = part.component
        profile = Profile(component.sersic_index, component.half_light_radius_arcsec)
        image = drawing.draw_trail(optics, profile, part.shape, part.offsets_pixels, part.weights)
        electrons = compute_component_electrons(sky, galaxy, component)
        signal += (electrons / noise)[:, None, None] * image
    return np.asarray(signal * (found.signal_to_noise / np.sqrt(np.sum(signal**2))))
