"""The FITS file as astropy reads it, against the dataset that it was made of."""

import shutil
from pathlib import Path
from typing import Any

import galsim
import numpy as np
import pytest
from astropy.io import fits as astropy_fits

from cepheid.reference.data import galaxies
from cepheid.reference.data.galaxies import Galaxies, SkyParameters, fits
from cepheid.reference.data.galaxies.population import Component, Galaxy
from cepheid.reference.data.store import StoreError

SKY = SkyParameters(samples=7, bands="gri", pixels=32)
TRAIN = 4


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Galaxies:
    folder = tmp_path_factory.mktemp("data") / "sky"
    galaxies.prepare(folder, SKY, processes=1)
    return galaxies.load(folder)


def export(dataset: Galaxies, output: Path) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    fits.export(dataset, SKY, TRAIN, output, lambda done, total: seen.append((done, total)))
    return seen


@pytest.fixture
def opened(dataset: Galaxies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(fits, "CHUNK_ROWS", 3)
    assert export(dataset, tmp_path / "sky.fits") == [
        (3, 14), (6, 14), (7, 14), (10, 14), (13, 14), (14, 14),
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["sky.fits"]
    with astropy_fits.open(tmp_path / "sky.fits") as hdus:
        yield hdus


def test_file_is_valid_and_its_psf_in_the_middle(opened: Any) -> None:
    opened.verify("exception")
    assert [hdu.name for hdu in opened] == ["PRIMARY", "LABELS", "PSF", "STAMPS", "NOISE_FREE"]
    assert Path(opened.filename()).stat().st_size % 2880 == 0
    psf = opened["PSF"].data
    assert psf.sum() == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(psf, psf[::-1, ::-1], atol=1e-6)
    assert opened["PSF"].header["CRPIX1"] == 16.5


def test_images_labels_and_headers_are_the_stored_ones_with_their_units(
    opened: Any, dataset: Galaxies
) -> None:
    noise = np.sqrt(SKY.sky_electrons)[:, None, None]
    for name, stored in (("STAMPS", dataset.stamps), ("NOISE_FREE", dataset.noise_free)):
        assert opened[name].header["BUNIT"] == "electron"
        assert opened[name].data.shape == (7, 3, 32, 32)
        np.testing.assert_allclose(opened[name].data, stored.astype(float) * noise, rtol=1e-6)
    drawn = galaxies.compute_electrons(SKY, galaxies.draw_galaxy(SKY, 5))
    np.testing.assert_allclose(opened["NOISE_FREE"].data[5], drawn, rtol=1e-3, atol=0.01)
    table = opened["LABELS"]
    for name in galaxies.LABELS:
        np.testing.assert_array_equal(table.data[name], dataset.labels[name])
    assert list(table.data["split"]) == ["train"] * 4 + ["evaluation"] * 3
    assert list(table.data["row"]) == list(range(7))
    assert table.columns["half_light_radius_arcsec"].unit == "arcsec"
    for number in range(1, len(table.columns) + 1):
        assert table.header[f"TCOMM{number}"]
    assert "beta the angle of the major axis" in str(table.header["COMMENT"])
    header = opened[0].header
    assert header["DATADIG"] == dataset.manifest.digest
    assert (header["PIXSCALE"], header["PSFFWHM"], header["NROWS"]) == (0.2, 0.65, 7)
    for number, band in enumerate("gri", 1):
        assert header[f"BAND{number}"] == band
        assert header[f"EXPTIME{number}"] == galaxies.LSST_SECONDS[band]
        assert header[f"SKY{number}"] == galaxies.LSST_SKY[band]


def test_zero_points_give_galsims_magnitudes(opened: Any) -> None:
    """Of one template at one redshift, in all bands."""
    f814w = galsim.Bandpass("ACS_wfc_F814W.dat", wave_type="nm").withZeropoint("AB")
    sed = galsim.SED("CWW_Scd_ext_more.sed", "Ang", "flambda").atRedshift(0.7)
    sed = sed.withMagnitude(22.0, f814w)
    shown = Galaxy(22.0, 0.7, (), 0, 0.5, 0, 0, 0, 0)
    electrons = galaxies.compute_component_electrons(SKY, shown, Component(1.0, "Scd", 1.0, 0.5))
    for number, band in enumerate("gri", 1):
        bandpass = galsim.Bandpass(f"LSST_{band}.dat", wave_type="nm").withZeropoint("AB")
        expected = sed.calculateMagnitude(bandpass)
        found = opened[0].header[f"MAGZP{number}"] - 2.5 * np.log10(electrons[number - 1])
        assert found == pytest.approx(expected, abs=0.005)


def test_what_stands_in_the_way_is_told_and_nothing_is_left(
    dataset: Galaxies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "sky.fits"
    output.write_text("mine")
    with pytest.raises(StoreError, match="is there already"):
        export(dataset, output)
    assert output.read_text() == "mine"
    output.unlink()
    with pytest.raises(StoreError, match="/proc/no: cannot be written"):
        export(dataset, Path("/proc/no/sky.fits"))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StoreError, match="not enough disk space"):
        export(dataset, output)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fits.export(dataset, SKY, TRAIN, output, interrupt)
    assert not list(tmp_path.iterdir())
