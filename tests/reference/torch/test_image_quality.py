"""Similarity of images, compared with scikit-image."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.reference.torch.image_quality import compute_psnr, compute_ssim


def test_similarity_and_signal_are_those_of_scikit_image() -> None:
    metrics = pytest.importorskip("skimage.metrics", reason="needs scikit-image")
    random = np.random.default_rng(0)
    true, predicted = random.random((2, 20, 24))
    predicted = 0.5 * true + 0.5 * predicted
    _, expected = metrics.structural_similarity(
        true, predicted, data_range=1, gaussian_weights=True, sigma=1.5,
        use_sample_covariance=False, full=True,
    )  # fmt: skip
    found = compute_ssim(torch.from_numpy(predicted), torch.from_numpy(true))
    assert float(found) == pytest.approx(expected.mean(), rel=1e-6)
    psnr = metrics.peak_signal_noise_ratio(true, predicted, data_range=1)
    found = compute_psnr(torch.from_numpy(predicted), torch.from_numpy(true))
    assert float(found) == pytest.approx(psnr, rel=1e-9)
