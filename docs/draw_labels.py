"""Draw docs/galaxy_shape_labels.png: what e1 and e2 look like on a stamp.

    python docs/draw_labels.py

Each stamp is the noise-free r band of the same galaxy with another shape; the line is the ellipse
that the label describes, before the PSF.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from matplotlib import pyplot
from matplotlib.patches import Ellipse

from cepheid.reference.data import galaxies
from cepheid.reference.data.galaxies.population import Component, Galaxy

SHAPES = (-0.4, 0.0, 0.4)
RADIUS_ARCSEC = 1.0
OUTPUT = Path(__file__).with_name("galaxy_shape_labels.png")


def main() -> None:
    """Draw nine stamps: e1 grows to the right, e2 upwards."""
    sky = galaxies.SkyParameters(samples=1, pixels=48)
    figure, axes = pyplot.subplots(3, 3, figsize=(5.4, 5.4), sharex=True, sharey=True)
    for row, e2 in zip(axes, reversed(SHAPES), strict=True):
        for axis, e1 in zip(row, SHAPES, strict=True):
            disc = Component(1.0, "Scd", 1.0, RADIUS_ARCSEC)
            galaxy = Galaxy(21.0, 0.5, (disc,), 0.0, RADIUS_ARCSEC, e1, e2, 0.0, 0.0)
            image = galaxies.compute_electrons(sky, galaxy)[sky.bands.index("r")]
            axis.imshow(np.arcsinh(image / 300), origin="lower", cmap="gray_r")
            axis.add_patch(_make_ellipse(complex(e1, e2), sky))
            axis.set_title(f"e1 = {e1:g}, e2 = {e2:g}".replace("-", "−"), fontsize=8)
            axis.tick_params(labelsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("x (column)", fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("y (row)", fontsize=8)
    figure.tight_layout()
    figure.savefig(OUTPUT, dpi=110)


def _make_ellipse(e: complex, sky: galaxies.SkyParameters) -> Ellipse:
    """Return the ellipse of a shape, at twice the half-light radius.

    Its axis ratio is (1 − |e|)/(1 + |e|), and its angle arg(e)/2.
    """
    ratio = (1 - abs(e)) / (1 + abs(e))
    major = 4 * RADIUS_ARCSEC / sky.pixel_scale_arcsec / ratio**0.5
    centre = (sky.pixels - 1) / 2
    angle = np.degrees(np.angle(e)) / 2
    return Ellipse((centre, centre), major, major * ratio, angle=angle, fill=False, color="C3")


if __name__ == "__main__":
    main()
