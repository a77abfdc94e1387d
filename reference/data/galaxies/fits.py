"""A dataset of galaxies as one FITS file, for astronomers' own tools.

What is in it, beside an empty primary HDU whose header says how the sky was observed:

    LABELS      table, one row per galaxy: ``row``, ``split`` (train or evaluation), and the labels
    PSF         float32 (y, x): the PSF of all bands, seen through the pixels, at unit flux
    STAMPS      float32 (row, band, y, x): noisy images in electrons, sky mean subtracted
    NOISE_FREE  float32, the same shape: what STAMPS are a Poisson draw of

FITS counts axes from the fastest: x is NAXIS1, y NAXIS2, the band NAXIS3, the row NAXIS4. Stamps
are the stored ones times the band's sky noise, so they carry the rounding of float16.

The file is written in pieces, a chunk of rows at a time, under a temporary name.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import galsim
import numpy as np
from astropy.io import fits

from cepheid.reference.data import galaxies
from cepheid.reference.data.disk import explain_disk_errors, require_space
from cepheid.reference.data.galaxies import Galaxies, SkyParameters
from cepheid.reference.data.store import StoreError, split_rows
from cepheid.rules.host import atomic_path

CHUNK_ROWS = 100
PIXEL_BYTES = 4
IMAGE_MEANINGS = {
    "STAMPS": "noisy images, sky mean subtracted",
    "NOISE_FREE": "expected electrons without the sky",
}
LABEL_UNITS = {
    "magnitude": "mag",
    "half_light_radius_arcsec": "arcsec",
    "dx": "pixel",
    "dy": "pixel",
}
LABEL_MEANINGS = {
    "e1": "reduced shear of the galaxy; > 0: long along x",
    "e2": "the same; > 0: long where x and y increase together",
    "redshift": "true redshift",
    "magnitude": "AB, HST F814W, of the whole galaxy",
    "bulge_fraction": "share of the F814W light in the bulge",
    "half_light_radius_arcsec": "before the PSF, F814W, circularised",
    "snr": "of the r-band flux through a matched filter",
    "dx": "centroid in x minus the centre of the stamp",
    "dy": "centroid in y minus the centre of the stamp",
}
CONVENTIONS = (
    "e = e1 + i e2 = (1 - q)/(1 + q) exp(2 i beta): q is the axis ratio,",
    "minor to major, beta the angle of the major axis from x towards y.",
    "It is a reduced shear (GalSim's g), not a distortion. Lensing by the",
    "reduced shear g makes it (e + g)/(1 + conj(g) e).",
)


def export(
    sky: Galaxies,
    parameters: SkyParameters,
    train_samples: int,
    output: Path,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write the dataset to ``output``, which must not exist yet; it appears in one step.

    Rows [0, ``train_samples``) are for training, the others for evaluation. ``on_progress`` is
    called with images written and images in all. Raises StoreError if ``output`` exists, the disk
    is full or cannot be written.
    """
    if output.exists() or output.is_symlink():
        raise StoreError(f"{output}: is there already; delete it or give another --output")
    with explain_disk_errors(output, "export again"):
        output.parent.mkdir(parents=True, exist_ok=True)
        needed = 2 * sky.stamps.size * PIXEL_BYTES + sky.labels.nbytes
        require_space(output.parent, needed, "Free some, or give an --output on another disk.")
        with atomic_path(output) as temporary:
            small = [
                _make_primary(sky, parameters),
                _make_labels(sky, train_samples),
                _make_psf(parameters),
            ]
            fits.HDUList(small).writeto(temporary, overwrite=True)
            images = {"STAMPS": sky.stamps, "NOISE_FREE": sky.noise_free}
            done, total = 0, sum(map(len, images.values()))
            for name, stored in images.items():
                for count in _append(temporary, name, stored, parameters):
                    done += count
                    on_progress(done, total)


def _append(path: Path, name: str, stored: np.ndarray, parameters: SkyParameters) -> Iterator[int]:
    """Append an image extension chunk by chunk; yield the rows of each chunk once it is written.

    The path is passed as a string because astropy uses only the last part of a Path.
    """
    image = fits.StreamingHDU(str(path), _make_image_header(name, stored, parameters))
    for rows in split_rows(len(stored), CHUNK_ROWS):
        image.write(_convert_to_electrons(stored[rows.start : rows.stop], parameters))
        yield len(rows)
    image.close()


def compute_zero_points(parameters: SkyParameters) -> dict[str, float]:
    """Return the AB magnitude in each band that gives one electron in the whole exposure."""
    found = {}
    for band, seconds in zip(parameters.bands, parameters.exposure_seconds, strict=True):
        bandpass = galsim.Bandpass(f"LSST_{band}.dat", wave_type="nm").withZeropoint("AB")
        seen = parameters.collecting_area_cm2 * seconds
        found[band] = float(bandpass.zeropoint + 2.5 * math.log10(seen))
    return found


def _make_primary(sky: Galaxies, parameters: SkyParameters) -> fits.PrimaryHDU:
    """Make the primary unit, which has no data and describes how the sky was observed.

    Quantities that differ between bands have one keyword for each band.
    """
    header = fits.Header()
    header["ORIGIN"] = ("cepheid", "simulated galaxies, drawn with GalSim")
    header["NROWS"] = (len(sky.labels), "galaxies")
    header["BANDS"] = (parameters.bands, "LSST bands, in the order of NAXIS3")
    header["PIXSCALE"] = (parameters.pixel_scale_arcsec, "[arcsec] side of a pixel")
    header["PSFFWHM"] = (parameters.psf_fwhm_arcsec, "[arcsec] of the Kolmogorov PSF, all bands")
    header["AREA"] = (parameters.collecting_area_cm2, "[cm2] collecting area")
    points = compute_zero_points(parameters)
    for number, band in enumerate(parameters.bands, 1):
        seconds = parameters.exposure_seconds[number - 1]
        electrons = parameters.sky_electrons[number - 1]
        header[f"BAND{number}"] = (band, f"plane {number} of NAXIS3")
        header[f"EXPTIME{number}"] = (float(seconds), f"[s] total exposure, {band}")
        header[f"SKY{number}"] = (float(electrons), f"[electron/pixel] mean sky, {band}")
        header[f"MAGZP{number}"] = (round(points[band], 4), f"[mag] AB of one electron, {band}")
    header["SEED"] = (parameters.seed, "of the sky")
    header["DATADIG"] = sky.manifest.digest
    header["COMMENT"] = "DATADIG is the digest of the dataset, as `cepheid data` prints it."
    for line in CONVENTIONS:
        header["COMMENT"] = line
    return fits.PrimaryHDU(header=header)


def _make_labels(sky: Galaxies, train_samples: int) -> fits.BinTableHDU:
    row = np.arange(len(sky.labels), dtype=np.int32)
    split = np.where(row < train_samples, "train", "evaluation")
    columns = [fits.Column("row", "J", array=row), fits.Column("split", "10A", array=split)]
    columns += [
        fits.Column(name, "E", unit=LABEL_UNITS.get(name), array=np.asarray(sky.labels[name]))
        for name in galaxies.LABELS
    ]
    table = fits.BinTableHDU.from_columns(columns, name="LABELS")
    meanings = {"row": "of the dataset, counted from 0", "split": "train or evaluation"}
    for number, column in enumerate(columns, 1):
        meaning = {**meanings, **LABEL_MEANINGS}[column.name]
        table.header.set(f"TCOMM{number}", meaning, after=f"TFORM{number}")
    for line in CONVENTIONS:
        table.header["COMMENT"] = line
    return table


def _make_psf(parameters: SkyParameters) -> fits.ImageHDU:
    psf = galsim.Kolmogorov(fwhm=parameters.psf_fwhm_arcsec)
    side, scale = parameters.pixels, parameters.pixel_scale_arcsec
    drawn = psf.drawImage(nx=side, ny=side, scale=scale, dtype=np.float32)
    hdu = fits.ImageHDU(drawn.array, name="PSF")
    _add_frame(hdu.header, parameters)
    return hdu


def _make_image_header(name: str, stored: np.ndarray, parameters: SkyParameters) -> fits.Header:
    header = fits.Header()
    header["XTENSION"] = "IMAGE"
    header["BITPIX"] = -8 * PIXEL_BYTES
    header["NAXIS"] = stored.ndim
    for number, length in enumerate(reversed(stored.shape), 1):
        header[f"NAXIS{number}"] = length
    header["PCOUNT"] = 0
    header["GCOUNT"] = 1
    header["EXTNAME"] = (name, IMAGE_MEANINGS[name])
    header["BUNIT"] = "electron"
    _add_frame(header, parameters)
    header["CTYPE3"], header["CTYPE4"] = "BAND", "ROW"
    return header


def _add_frame(header: fits.Header, parameters: SkyParameters) -> None:
    """Add coordinates in arcseconds from the centre of the stamp along both axes."""
    for number, name in ((1, "X"), (2, "Y")):
        header[f"CTYPE{number}"] = name
        header[f"CUNIT{number}"] = "arcsec"
        header[f"CDELT{number}"] = parameters.pixel_scale_arcsec
        header[f"CRPIX{number}"] = (parameters.pixels + 1) / 2
        header[f"CRVAL{number}"] = 0.0


def _convert_to_electrons(stored: np.ndarray, parameters: SkyParameters) -> np.ndarray:
    """Return the values in electrons, float32 of the same shape.

    The stored values are in units of the sky noise of their band.
    """
    noise = np.sqrt(np.array(parameters.sky_electrons))[:, None, None]
    return np.asarray(stored.astype(np.float64) * noise, dtype=np.float32)
