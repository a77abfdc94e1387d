"""The extras of the installation: which package comes with which, and the command that adds them.

A definition names the extras of its benchmark (``Definition.extras``); those of a framework come
with it. Everything that prints a command for an installation takes it from here.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

EXTRA_OF: Mapping[str, str] = MappingProxyType(
    {
        "torch": "torch",
        "mlperf_logging": "torch",
        "filelock": "torch",
        "safetensors": "torch",
        "tensorflow": "keras",
        "keras": "keras",
        "galsim": "galsim",
        "astropy": "galsim",
        "simplejpeg": "imagenet",
        "PIL": "imagenet",
        "sentencepiece": "translation",
        "sacrebleu": "translation",
        "sacremoses": "translation",
        "subword_nmt": "translation",
        "faster_coco_eval": "detection",
        "av": "video",
        "pynvml": "energy",
        "jinja2": "site",
        "matplotlib": "site",
    }
)
"""The extra of each package that is not in the core installation, by the name of its import."""

SITE = "site"  # pictures of a run, pages of the leaderboard


def list_extras(benchmark: Iterable[str], framework: str = "torch") -> tuple[str, ...]:
    """Return all extras that runs with a framework need; ``benchmark`` are the definition's."""
    return tuple(dict.fromkeys((framework, *benchmark, SITE)))


def format_command(extras: Iterable[str], pip: str = "pip") -> str:
    """Return the command that installs the project with some extras, in its checkout."""
    return (
        f"{pip} install -c constraints.txt --config-settings editable_mode=compat "
        f"-e '.[{','.join(extras)}]'"
    )


def explain_missing(package: str) -> str:
    """Return what to do about a package that is not installed; names of modules will do."""
    top = package.partition(".")[0]
    extra = EXTRA_OF.get(top)
    if extra is None:
        return f"{top} is not installed"
    return f"{top} is not installed; it comes with the extra {extra}: {format_command((extra,))}"
