"""The drawn pictures: the same ones everywhere, and not to be told apart by their pixels alone."""

import hashlib

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cepheid.reference.data.image_files import decoding, shapes
from cepheid.reference.data.image_files.shapes import CLASSES, Picture
from cepheid.reference.data.image_files.threads import resize

PIXELS = 32
TRAIN, EVALUATION = 2400, 600


def test_pictures_are_the_recorded_ones() -> None:
    """Other bytes need another GENERATOR_VERSION, and another data_digest in the definition."""
    files = [shapes.encode_picture(20260101, Picture(label, 7)) for label in range(len(CLASSES))]
    found = hashlib.sha256(b"".join(files)).hexdigest()
    assert found == "8dc809a01150f10731b65073461fe25302477719630be0623438aa7182153aba"


def test_each_picture_is_another() -> None:
    pictures = {
        shapes.encode_picture(seed, Picture(label, number))
        for seed in (1, 2)
        for label in range(len(CLASSES))
        for number in range(3)
    }
    assert len(pictures) == 2 * len(CLASSES) * 3


def test_sizes_colours_and_places_vary() -> None:
    pictures = [
        shapes.draw_picture(1, Picture(number % len(CLASSES), number)) for number in range(60)
    ]
    sides = np.array([picture.shape[:2] for picture in pictures])
    assert sides.min() >= shapes.SMALLEST_PIXELS
    assert sides.max() <= shapes.LARGEST_PIXELS
    assert len({tuple(side) for side in sides}) > 40
    means = np.array([picture.mean((0, 1)) for picture in pictures])
    assert (means.std(axis=0) > 30).all()


@pytest.mark.slow
def test_linear_model_on_pixels_learns_next_to_nothing() -> None:
    """Measured: linear 0.100, which is little more than guessing, convolutional 0.735."""
    images, labels = _set()
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * PIXELS**2, len(CLASSES)))
    assert _accuracy(linear, images, labels, epochs=15, rate=1e-3) < 0.25
    assert _accuracy(_convolutional(), images, labels, epochs=12, rate=3e-3) > 0.65


def _set() -> tuple[Tensor, Tensor]:
    """Centres of the pictures, (n, 3, PIXELS, PIXELS), about standardised, and labels."""
    count = TRAIN + EVALUATION
    labels = np.arange(count) % len(CLASSES)
    images = []
    for number, label in enumerate(labels):
        whole = decoding.decode(shapes.encode_picture(1, Picture(int(label), number)), 0)
        images.append(resize(whole, [0, 0, whole.shape[1], whole.shape[0]], PIXELS))
    stacked = torch.stack(images).permute(0, 3, 1, 2).float()
    return stacked / 64 - 2, torch.from_numpy(labels)


def _convolutional() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64, 96):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 4, len(CLASSES)))


def _accuracy(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, rate: float) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    for _ in range(epochs):
        model.train()
        for rows in torch.randperm(TRAIN).split(60):
            pictures = images[rows].flip(3) if torch.rand(()) < 0.5 else images[rows]
            loss = nn.functional.cross_entropy(model(pictures), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        guessed = model(images[TRAIN:]).argmax(1)
    return float((guessed == labels[TRAIN:]).float().mean())
