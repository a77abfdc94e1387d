"""The measurement that `cepheid measure speed` adds for benchmarks of simulated galaxies."""

from collections.abc import Mapping
from functools import partial

from cepheid.measure.engine.subject import Measure, Measurement, Subject, describe_comparison
from cepheid.measure.engine.turns import time_each
from cepheid.reference.data import galaxies

GALAXIES = 20  # of each turn


def compare_drawing(subject: Subject) -> Measurement:
    """Compare noise-free images of galaxies with one GalSim drawImage per band."""
    parameters = galaxies.parameters_of(subject.config.definition.data)
    # The same galaxies in each turn: the round that does not count fills the tables.
    some = [galaxies.draw_galaxy(parameters, index) for index in range(GALAXIES)]
    compared = subject.compare(
        f"galaxy of {len(parameters.bands)} bands, without noise",
        "drawImage per band",
        partial(time_each, partial(galaxies.draw_with_galsim, parameters), some),
        partial(time_each, partial(galaxies.compute_electrons, parameters), some),
    )
    return Measurement([describe_comparison(compared)], compared.as_json())


MEASUREMENTS: Mapping[str, Measure] = {"drawing": compare_drawing}
