"""The extras of the installation: which packages come with which, and the command that adds them.

A definition names the extras of its benchmark (``Definition.extras``); those of a framework come
with it. Everything that prints a command for an installation takes it from here.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType

from cepheid.rules.errors import UserError
from cepheid.rules.host import IS_CHECKOUT, KERAS_BACKENDS, find_backend

SITE = "site"  # pictures of a run, pages of the leaderboard

NUMBERS = ("numpy", "scipy")  # of scores, data and pictures; the core has no use for them

PACKAGES_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "score": NUMBERS,
        "mlperf": ("mlperf_logging",),
        "torch": ("torch", "mlperf_logging", "filelock", "safetensors", *NUMBERS),
        "keras": ("keras", "tensorflow", "mlperf_logging", "filelock", "safetensors", *NUMBERS),
        "jax": ("keras", "jax", "mlperf_logging", "filelock", "safetensors", *NUMBERS),
        "galsim": ("galsim", "astropy", *NUMBERS),
        "imagenet": ("simplejpeg", "PIL", *NUMBERS),
        "translation": ("sacrebleu", "sacremoses", "sentencepiece", "subword_nmt", *NUMBERS),
        "detection": ("faster_coco_eval", *NUMBERS),
        "parquet": ("pyarrow", *NUMBERS),
        "energy": ("pynvml",),
        SITE: ("jinja2", "markupsafe", "matplotlib", *NUMBERS),
    }
)
"""The packages that our code imports and the core lacks, by extra, with the names of imports."""

EXTRA_OF: Mapping[str, str] = MappingProxyType(
    {package: extra for extra, packages in reversed([*PACKAGES_OF.items()]) for package in packages}
)
"""The extra that a package comes with; of several, the first."""


def list_extras(
    benchmark: Iterable[str], framework: str = "torch", backend: str = ""
) -> tuple[str, ...]:
    """Return all extras that runs with a framework need; ``benchmark`` are the definition's."""
    own = KERAS_BACKENDS[backend or find_backend()] if framework == "keras" else (framework,)
    return tuple(dict.fromkeys((*own, *benchmark, SITE)))


def format_command(extras: Iterable[str], pip: str = "pip") -> str:
    """Return the command that installs the project with some extras, for a checkout or without."""
    names = ",".join(extras)
    if not IS_CHECKOUT:
        return f"{pip} install 'cepheid[{names}]'"
    return (
        f"{pip} install -c constraints.txt --config-settings editable_mode=compat -e '.[{names}]'"
    )


def require(*packages: str) -> None:
    """Raise UserError with everything to install if one of the packages is missing."""
    if missing := find_missing(packages):
        raise UserError(explain_missing(*missing))


def require_for_runs(benchmark: Iterable[str], framework: str = "torch", backend: str = "") -> None:
    """Raise UserError with everything to install if runs of a benchmark lack a package.

    A run needs no ``site``, which draws its pictures; but it is named if something else is missing.
    """
    extras = list_extras(benchmark, framework, backend)
    needed = [package for extra in extras if extra != SITE for package in PACKAGES_OF[extra]]
    if find_missing(needed):
        missing = find_missing([*needed, *PACKAGES_OF[SITE]])
        raise UserError(explain_missing(*missing, among=extras))


def require_for_data(benchmark: Iterable[str]) -> None:
    """Raise UserError with everything to install if preparing a dataset lacks a package."""
    extras = tuple(benchmark)
    packages = [package for extra in extras for package in PACKAGES_OF[extra]]
    if missing := find_missing(["filelock", "numpy", *packages]):
        raise UserError(explain_missing(*missing, among=extras))


def explain_missing(*packages: str, among: Iterable[str] = ()) -> str:
    """Return what to do about packages that are not installed; names of modules will do.

    A package of several extras comes with the first one in ``among``, if one of those has it.
    """
    names = [package.partition(".")[0] for package in packages]
    verb = "is" if len(names) == 1 else "are"
    text = f"{_join(names)} {verb} not installed"
    chosen = [extra for extra in among if extra in PACKAGES_OF]
    found = {
        next((extra for extra in chosen if name in PACKAGES_OF[extra]), EXTRA_OF.get(name, ""))
        for name in names
    } - {""}
    if not found:
        return text
    extras = sorted(found, key=list(PACKAGES_OF).index)
    they = "it comes" if len(names) == 1 else "they come"
    kind = "extra" if len(extras) == 1 else "extras"
    return f"{text}; {they} with the {kind} {_join(extras)}: {format_command(extras)}"


def find_missing(packages: Iterable[str]) -> list[str]:
    """Return the packages that are not installed, each once."""
    return [package for package in dict.fromkeys(packages) if not _is_installed(package)]


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # ValueError: there is a module without a specification
        return False


def _join(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
