"""Where this code lies: in a checkout, whose files a command may write, or in an installation."""

from importlib import metadata
from pathlib import Path

from cepheid.rules.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
"""The folder with the rooms: the root of a checkout, or ``cepheid`` in site-packages."""

IS_CHECKOUT = (ROOT / "cepheid" / "rules").is_dir()
NO_WEIGHTS = "" if IS_CHECKOUT else "; an installation has no weights, a checkout has them"
"""What a message about a missing file of weights adds."""

IMPORT_ROOT = ROOT if IS_CHECKOUT else ROOT.parent
"""The folder from which another process imports ``cepheid``."""
FIGURE_STYLE = ROOT / "rules" / "figures.mplstyle"  # for matplotlib.rc_context(fname=…)


def require_checkout(what: str) -> None:
    """Raise UserError in an installation, where ``what`` would be written among its files."""
    if not IS_CHECKOUT:
        raise UserError(
            f"{what} is written into a checkout of Cepheid, and this is an installation ({ROOT}); "
            "clone the repository and run the same command there"
        )


def read_licence() -> str:
    """Return the text of the project's licence."""
    if IS_CHECKOUT:
        return (ROOT / "LICENSE").read_text(encoding="utf-8")
    files = metadata.files("cepheid") or []
    (path,) = (file for file in files if file.name == "LICENSE")
    return path.read_text(encoding="utf-8")
