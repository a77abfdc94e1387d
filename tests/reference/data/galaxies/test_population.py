"""Which galaxies there are: the parametric prior and a COSMOS catalogue."""

import math
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import galsim
import numpy as np
import pytest
from astropy.io import fits

from cepheid.reference.data import galaxies, generators
from cepheid.reference.data.galaxies import SkyParameters, drawing, population
from cepheid.reference.data.galaxies.drawing import Profile
from cepheid.reference.data.store import StoreError
from cepheid.reference.run.config import configure
from cepheid.rules import definition

ROOT = Path(__file__).resolve().parents[4]
COSMOS = ROOT.parent / "shared/data/cosmos_example/real_galaxy_catalog_23.5_example.fits"
SKY = SkyParameters(samples=300)
PERCENTILES = (5, 16, 50, 84, 95)

needs_cosmos = pytest.mark.skipif(
    not COSMOS.exists(), reason=f"needs the example catalogue {COSMOS.name} beside the checkout"
)


@lru_cache(maxsize=1)
def galaxies_of_the_prior() -> dict[str, np.ndarray]:
    """4,000 galaxies of the prior."""
    sky = [galaxies.draw_galaxy(SKY, index) for index in range(4000)]
    return {
        "magnitude": np.array([galaxy.magnitude for galaxy in sky]),
        "redshift": np.array([galaxy.redshift for galaxy in sky]),
        "shape": np.array([math.hypot(galaxy.e1, galaxy.e2) for galaxy in sky]),
        "angle": np.array([math.atan2(galaxy.e2, galaxy.e1) for galaxy in sky]),
        "radius": np.array([galaxy.half_light_radius_arcsec for galaxy in sky]),
        "bulge_fraction": np.array([galaxy.bulge_fraction for galaxy in sky]),
        "offset": np.array([[galaxy.dx_pixels, galaxy.dy_pixels] for galaxy in sky]),
    }


# Parametric prior ---------------------------------------------------------------------------------


def test_sizes_shapes_and_profiles_follow_the_published_quantiles() -> None:
    """Those of 300 COSMOS galaxies: sizes within 8%, shapes within 0.03, in all directions alike.

    Of profiles the Sérsic index of the same concentration, within 0.25 at 50, 84 and 95%.
    """
    prior = galaxies_of_the_prior()
    sizes, shapes = (np.percentile(prior[name], PERCENTILES) for name in ("radius", "shape"))
    np.testing.assert_allclose(sizes, [0.19, 0.26, 0.47, 0.74, 1.06], rtol=0.08)
    np.testing.assert_allclose(shapes, [0.05, 0.11, 0.28, 0.56, 0.64], atol=0.03)
    assert prior["shape"].max() <= population.LARGEST_SHAPE
    assert abs(np.exp(1j * prior["angle"]).mean()) < 0.04
    indices = [1.0, 1.17, 1.38, 1.62, 2.2, 2.9, 3.63, 4.0]
    fractions = [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0]
    found = np.interp(prior["bulge_fraction"], fractions, indices)
    np.testing.assert_allclose(np.percentile(found, (50, 84, 95)), [1.18, 2.67, 3.50], atol=0.25)


def test_counts_redshifts_and_places_follow_their_distributions() -> None:
    prior = galaxies_of_the_prior()
    magnitudes, redshifts, offsets = (prior[name] for name in ("magnitude", "redshift", "offset"))
    assert magnitudes.min() >= 20
    assert magnitudes.max() <= 25.2
    brighter, fainter = ((low < magnitudes) & (magnitudes < low + 1) for low in (23.0, 24.0))
    assert fainter.sum() / brighter.sum() == pytest.approx(10**0.3, rel=0.1)
    # The mean of (z/z0)² exp(−z/z0) is 3 z0; the truncated tails change it by less than 2%.
    faint = magnitudes > 24
    expected = 3 * (0.0417 * magnitudes[faint] - 0.744)
    assert redshifts[faint].mean() == pytest.approx(expected.mean(), rel=0.05)
    assert np.abs(offsets).max() <= 0.5
    np.testing.assert_allclose(offsets.std(axis=0), 1 / math.sqrt(12), rtol=0.03)


@pytest.mark.parametrize(("fraction", "bulge", "disc"), [(0, 1, 2), (1, 1, 2), (0.4, 0.3, 0.5)])
def test_half_light_radius_is_galsims(fraction: float, bulge: float, disc: float) -> None:
    low, high = 0.01, 3.0
    bulge_profile = galsim.Sersic(4, half_light_radius=bulge)
    disc_profile = galsim.Sersic(1, half_light_radius=disc)
    while high - low > 1e-5:
        middle = (low + high) / 2
        inside = fraction * bulge_profile.calculateIntegratedFlux(middle)
        inside += (1 - fraction) * disc_profile.calculateIntegratedFlux(middle)
        low, high = (middle, high) if inside < 0.5 else (low, middle)
    radius = population.compute_half_light_radius(fraction, bulge, disc)
    assert radius == pytest.approx(low, rel=1e-4)


# COSMOS -------------------------------------------------------------------------------------------


@needs_cosmos
def test_galaxies_of_a_catalogue() -> None:
    drawn = galaxies.draw(replace(SKY, catalogue=COSMOS), range(12))
    assert np.isfinite(drawn["stamps"]).all()
    magnitudes = drawn["labels"]["magnitude"]
    assert magnitudes.min() >= 20
    catalogue = galsim.COSMOSCatalog(COSMOS.name, dir=str(COSMOS.parent), use_real=False)
    fitted = [catalogue.getParametricRecord(number) for number in range(len(catalogue))]
    assert set(magnitudes) <= {np.float32(record["mag_auto"]) for record in fitted}


@needs_cosmos
def test_galaxy_of_a_catalogue_is_galsims_parametric_one() -> None:
    """Compared where there is one component, turned back: bulge and disc share a shape here."""
    catalogue = galsim.COSMOSCatalog(COSMOS.name, dir=str(COSMOS.parent), use_real=False)
    sky = replace(SKY, catalogue=COSMOS)
    one = next(
        found
        for found in (galaxies.draw_galaxy(sky, index) for index in range(100))
        if len(found.components) == 1
    )
    number, record = next(
        (number, record)
        for number in range(len(catalogue))
        if (record := catalogue.getParametricRecord(number))["mag_auto"] == one.magnitude
    )
    turned = galsim.Angle(0.5 * math.atan2(one.e2, one.e1), galsim.radians)
    turned -= record["sersicfit"][7] * galsim.radians
    theirs = catalogue.makeGalaxy(number, gal_type="parametric", chromatic=False)
    theirs = theirs.rotate(turned).withFlux(1.0)
    component = one.components[0]
    drawn = Profile(component.sersic_index, component.half_light_radius_arcsec)
    ours = drawing.make_sersic(drawn, (one.e1, one.e2))
    for k in ((0.5, 0.0), (0.0, 1.5), (1.0, -2.0)):
        assert ours.kValue(*k) == pytest.approx(theirs.kValue(*k), abs=1e-5)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A catalogue to damage; its second file is named alike, with _fits at the end."""
    for path in COSMOS.parent.glob(f"{COSMOS.stem}*"):
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path / COSMOS.name


@needs_cosmos
def test_catalogue_is_named_by_its_contents(copied: Path) -> None:
    here = replace(SKY, catalogue=COSMOS)
    assert here.as_json == replace(SKY, catalogue=copied).as_json
    assert str(COSMOS.parent) not in str(here.as_json)
    assert here.folder_name != SKY.folder_name
    with open(copied.with_stem(f"{COSMOS.stem}_fits"), "ab") as file:
        file.write(b" ")
    assert replace(SKY, catalogue=copied).as_json != here.as_json


def test_the_catalogue_that_a_user_has_is_found_and_a_missing_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CEPHEID_COSMOS", raising=False)
    monkeypatch.setattr(galsim.meta_data, "share_dir", str(tmp_path))
    with pytest.raises(StoreError, match=r"there is no COSMOS catalogue .* fix: run `galsim_downl"):
        population.find_catalogue("cosmos")
    for sample in ("23.5", "25.2"):
        path = tmp_path / f"COSMOS_{sample}_training_sample/real_galaxy_catalog_{sample}.fits"
        path.parent.mkdir()
        path.touch()
        assert population.find_catalogue("cosmos") == path
    monkeypatch.setenv("CEPHEID_COSMOS", "/mine/c.fits")
    assert population.find_catalogue("cosmos") == Path("/mine/c.fits")
    read = r"cosmos\.fits: cannot be read .*galsim_download_cosmos"
    assert_refused_catalogue(tmp_path / "cosmos.fits", read)


@needs_cosmos
def test_a_catalogue_of_another_version_is_refused(copied: Path) -> None:
    def cut(kept: slice, columns: slice) -> None:
        second = copied.with_stem(f"{COSMOS.stem}_fits")
        with fits.open(COSMOS.with_name(second.name)) as content:
            rows = content[1].data[kept]
            made = [
                fits.Column(name, rows.columns[name].format, array=rows[name])
                for name in rows.columns.names[columns]
            ]
            fits.BinTableHDU.from_columns(made).writeto(second, overwrite=True)

    cut(slice(90), slice(None))
    assert_refused_catalogue(copied, r"_fits\.fits has 90, .* from one version")
    cut(slice(None), slice(-2))
    lacking = "another version of the catalogue: no column hlr, flux"
    assert_refused_catalogue(copied, lacking)
    copied.write_bytes(b"not FITS")
    assert_refused_catalogue(copied, "not a whole table of a COSMOS catalogue")


@needs_cosmos
def test_a_catalogue_that_was_cut_short_or_damaged_is_refused(copied: Path) -> None:
    file = copied.with_stem(f"{COSMOS.stem}_fits")
    content = file.read_bytes()
    assert SkyParameters(samples=3, catalogue=copied).folder_name
    header = content.replace(b"TFORM2  = '", b"TFORM2  = \xff")
    assert header != content
    for damaged in (content[: len(content) // 2], header):
        file.write_bytes(damaged)
        assert_refused_catalogue(copied, r"_fits\.fits: not a whole table .*; fix: fetch")


def assert_refused_catalogue(path: Path, message: str) -> None:
    """Require that a catalogue is refused where it is named."""
    with pytest.raises(StoreError, match=message):
        _ = SkyParameters(samples=3, catalogue=path).folder_name


@needs_cosmos
def test_a_run_draws_from_the_catalogue_without_editing_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEPHEID_COSMOS", str(COSMOS))
    chosen = definition.load("galaxy_shape", "mini")
    asked = configure(chosen, division="open", overrides=["catalogue=cosmos"], data_root=tmp_path)
    few = {**asked.definition.data, "train_samples": 3, "evaluation_samples": 1}
    sky = galaxies.load(generators.prepare(few, tmp_path))
    assert sky.manifest.parameters["population"]["catalogue"].keys() >= {COSMOS.name}
    assert asked.definition.digest == chosen.digest
    assert asked.execution.own["catalogue"] == "cosmos"
