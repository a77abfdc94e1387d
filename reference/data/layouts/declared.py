"""The layouts in which people have the datasets, declared; ``laying_out`` reads the declarations.

A dataset has parts, and a part may lie in several forms, of which the first one that is there is
taken. A form says where to look (a glob below the folder that is given), what becomes of it, and
under which name. Names are those in which the dataset is distributed, so that the same bytes are
prepared whatever the form was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cepheid.reference.data.layouts import containers
from cepheid.reference.data.layouts.containers import ReadSamples


@dataclass(frozen=True)
class Link:
    """A folder or file that stays where it is: linked as ``to``; files under their names for "".

    A folder must hold something that matches one of ``holds``.
    """

    glob: str
    to: str = ""
    holds: Sequence[str] = ("*",)


@dataclass(frozen=True)
class Unpack:
    """Archives, of whose members those that match ``pattern`` are written as ``to``.

    A member's name begins with that of its archive. They are of no use without a part that gives
    what they ``need``.
    """

    glob: str
    pattern: str
    to: str
    need: str = ""


@dataclass(frozen=True)
class Shards:
    """Shards of labelled images, which are written into class folders below ``to``."""

    glob: str
    read: ReadSamples
    to: str


Form = Link | Unpack | Shards


@dataclass(frozen=True)
class Part:
    """A part of a dataset and its forms. ``is_needed`` is False where another part may have it.

    ``gives`` is what images of another part may need.
    """

    title: str
    forms: Sequence[Form]
    is_needed: bool = True
    gives: str = ""


IMAGE = r"[\w.-]+\.(?:JPEG|jpeg|JPG|jpg|png)"
CLASS_FOLDERS = ("*/",)
LABELS = "the labels of the validation images"
KAGGLE = "ILSVRC/Data/CLS-LOC"
KAGGLE_ZIP = "imagenet-object-localization-challenge.zip"
DEVKIT = r"(meta\.mat|ILSVRC2012_validation_ground_truth\.txt)"


def _list_shards(names: Sequence[str], to: str) -> list[Shards]:
    """Return the three kinds of shards of a split, which has one of these names."""
    kinds = (
        ("**/{}-*.parquet", containers.read_parquet_images),
        ("**/*{}*-of-?????", containers.read_tfrecord),
        ("**/*{}*.tar", containers.read_webdataset),
    )
    return [Shards(glob.format(name), read, to) for glob, read in kinds for name in names]


IMAGENET = (
    Part(
        "training images",
        (
            Unpack("train/n*.tar", rf"(\w+)\.tar/({IMAGE})", r"train/\1/\2"),
            Link("train", "train", CLASS_FOLDERS),
            Link(f"{KAGGLE}/train", "train"),
            Unpack(KAGGLE_ZIP, rf"[^/]+/{KAGGLE}/train/(\w+)/({IMAGE})", r"train/\1/\2"),
            Unpack(
                "ILSVRC2012_img_train.tar", rf"[^/]+/(?:.*/)?(\w+)\.tar/({IMAGE})", r"train/\1/\2"
            ),
            *_list_shards(("train",), "train"),
        ),
    ),
    Part(
        "validation images",
        (
            Link("val", "val", (*CLASS_FOLDERS, "*.JPEG")),
            Link(f"{KAGGLE}/val", "val"),
            Unpack(KAGGLE_ZIP, rf"[^/]+/{KAGGLE}/val/({IMAGE})", r"val/\1"),
            Unpack("ILSVRC2012_img_val.tar", rf"[^/]+/(?:.*/)?({IMAGE})", r"val/\1", LABELS),
            *_list_shards(("validation", "val"), "val"),
        ),
    ),
    *(
        Part(f"labels in {name}", (Link(name, name),), is_needed=False, gives=LABELS)
        for name in ("val.txt", "imagenet_2012_validation_synset_labels.txt", "devkit")
    ),
    Part(
        "Kaggle's labels",
        (
            Link("LOC_val_solution.csv", "LOC_val_solution.csv"),
            Unpack(KAGGLE_ZIP, r"[^/]+/(LOC_val_solution\.csv)", r"\1"),
        ),
        is_needed=False,
        gives=LABELS,
    ),
    Part(
        "labels of the devkit",
        (
            Link("ILSVRC2012_devkit_t12", "ILSVRC2012_devkit_t12"),
            Unpack("ILSVRC2012_devkit_t12.tar.gz", rf".*/{DEVKIT}", r"devkit/data/\1"),
        ),
        is_needed=False,
        gives=LABELS,
    ),
)
COCO = (
    Part(
        "annotations",
        (
            Link("annotations", "annotations"),
            Unpack(
                "annotations_trainval2017.zip",
                r".*/(instances_(?:train|val)2017\.json)",
                r"annotations/\1",
            ),
        ),
    ),
    *(
        Part(
            f"images of {part}",
            (
                Link(part, part),
                Link(f"images/{part}", part),
                Unpack(f"**/{part}.zip", rf".*/({IMAGE})", rf"{part}/\1"),
            ),
        )
        for part in ("train2017", "val2017")
    ),
)
TABLE, LISTS = "Data_Entry_2017*.csv", ("train_val_list.txt", "test_list.txt")
RADIOGRAPHS = (
    Part(
        "table",
        (Link(f"**/{TABLE}"), Unpack("*.zip", r".*/(Data_Entry_2017(?:_v2020)?\.csv)", r"\1")),
    ),
    *(
        Part(f"list {name}", (Link(f"**/{name}"), Unpack("*.zip", f".*/({name})", r"\1")))
        for name in LISTS
    ),
    Part(
        "radiographs",
        (
            Link("images", "images"),
            *(
                Unpack(glob, rf".*/({IMAGE})", r"images/\1")
                for glob in ("images_*.tar.gz", "images_*.zip", "*.zip")
            ),
        ),
        is_needed=False,
    ),
    *(
        Part(f"folder {name}", (Link(name, name),), is_needed=False)
        for name in (f"images_{number:03}" for number in range(1, 13))
    ),
)
KITTI = tuple(
    Part(
        f"frames of {part}",
        (
            Link(part, part),
            Unpack(
                "**/data_tracking_image_2.zip",
                rf"[^/]+/({part}/image_02/\d{{4}}/\d{{6}}\.png)",
                r"\1",
            ),
        ),
    )
    for part in ("training", "testing")
)


def _list_text(test: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts of a dataset of WMT: any archive or folder may have any of its files."""
    corpus = r"(?:.*/)?([\w.-]+\.de-en\.(?:en|de))"
    return (
        Part("corpora", (Link("**/*.de-en.??"),), is_needed=False),
        Part("archives", (Unpack("**/*.t*gz", corpus, r"\1"),), is_needed=False),
        *test,
    )


SGML = r"newstest2014-deen-(?:src\.en|ref\.de)\.sgm"
WMT16 = _list_text(
    (
        Part(
            "test set",
            (
                Link("**/newstest2014-deen-???.??.sgm"),  # sacrebleu's folder too, below raw/
                Unpack("**/*.t*gz", rf"(?:.*/)?({SGML})", r"\1"),
            ),
        ),
    )
)
WMT17 = _list_text(
    (
        *(
            Part(
                f"test set, {language}",
                (
                    Link(f"**/newstest2014.{language}"),
                    Link(f"**/wmt14_full.en-de.{side}", f"newstest2014.{language}"),
                ),
            )
            for language, side in (("en", "src"), ("de", "ref"))
        ),
    )
)

PARTS: Mapping[str, Sequence[Part]] = MappingProxyType(
    {
        "ILSVRC2012": IMAGENET,
        "COCO2017": COCO,
        "ChestX-ray14": RADIOGRAPHS,
        "KITTI": KITTI,
        "WMT16": WMT16,
        "WMT17": WMT17,
    }
)
"""The parts of each dataset that is distributed, by ``data.source`` of a definition."""
