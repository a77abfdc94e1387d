"""What a program read, compared with what is there: agreement, and the mistake by its name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cepheid.reference.data import preparation, readers, store
from cepheid.reference.data.columns import Fixed, Ragged
from cepheid.reference.data.preparation import Contents, Layout
from cepheid.rules.errors import UserError

TEXTS = [bytes([65 + row] * (2 * row + 2)) for row in range(6)]
ENDS = np.cumsum([len(text) for text in TEXTS])


def draw(rows: range) -> dict[str, Any]:
    numbers = np.array(rows)
    stamps = np.sin(numbers[:, None] * 40 + np.arange(32)).astype(np.float16)
    labels = np.zeros(len(rows), [("e1", np.float32), ("e2", np.float32), ("snr", np.float32)])
    labels["e1"], labels["e2"], labels["snr"] = np.cos(numbers), np.sin(numbers), numbers
    return {
        "stamps": stamps.reshape(-1, 2, 4, 4),
        "labels": labels,
        "texts": b"".join(TEXTS[rows.start : rows.stop]),
    }


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    labels = draw(range(1))["labels"].dtype
    columns: Layout = {
        "stamps": Fixed(np.dtype(np.float16), (2, 4, 4)),
        "labels": Fixed(labels),
        "texts": Ragged(ENDS),
    }
    preparation.prepare(folder, "numbers", {}, 6, Contents(columns, draw), processes=1)
    return folder


def compare(dataset: Path, **read: Any) -> list[tuple[str, bool]]:
    path = dataset.parent / "read.npz"
    np.savez(path, **read)
    return list(readers.compare(dataset, path))


def test_a_reader_that_is_right(dataset: Path) -> None:
    arrays = store.open_arrays(dataset)
    labels = np.stack([arrays["labels"]["e1"], arrays["labels"]["e2"]], 1)
    lines = compare(
        dataset,
        stamps=arrays["stamps"][:4].astype(np.float32),
        labels=labels[:3],
        texts_2=np.frombuffer(TEXTS[2], np.uint16),
        texts_0=np.frombuffer(TEXTS[0], np.uint8),
    )
    assert [line for line, agrees in lines if not agrees] == []
    assert lines[0][0] == "stamps: 4 rows as in the dataset"
    assert compare(dataset, labels=arrays["labels"][:2])[0][1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda stamps: stamps.swapaxes(-1, -2), "the last two axes are swapped"),
        (lambda stamps: stamps[..., ::-1], "the last axis runs backwards"),
        (lambda stamps: stamps[:, ::-1], "the second axis runs backwards"),
        (lambda stamps: stamps.byteswap(), "the bytes of each number are swapped"),
        (lambda stamps: stamps.astype(np.float32) * 4, "every number is 4 times"),
        (lambda stamps: np.roll(stamps, -2, axis=0), "begins with row 2, not with row 0"),
        (lambda stamps: stamps[:, :1], "has the shape (4, 1, 4, 4), expected (4, 2, 4, 4)"),
        (lambda stamps: stamps + (stamps == stamps.max()), "differs first at ["),
    ],
)
def test_a_mistake_is_named(dataset: Path, change: Any, says: str) -> None:
    stamps = np.array(store.open_arrays(dataset)["stamps"][:4])
    ((line, agrees),) = compare(dataset, stamps=change(stamps))
    assert not agrees
    assert says in line


def test_arrays_that_the_dataset_lacks_are_named(dataset: Path) -> None:
    lines = compare(dataset, images=np.zeros(3), texts_9=np.zeros(3), texts_1=np.zeros(3))
    assert not any(agrees for _, agrees in lines)
    assert "there are stamps, labels, texts_0, texts_1 …, texts_ends" in lines[0][0]
    bad = dataset.parent / "bad.npz"
    for content in (b"PK nothing", b"", b"PK\3\4 cut short"):
        bad.write_bytes(content)
        with pytest.raises(UserError, match=r"not an \.npz file"):
            list(readers.compare(dataset, bad))
    np.savez(bad, stamps=np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"not an \.npz file of plain arrays"):
        list(readers.compare(dataset, bad))
