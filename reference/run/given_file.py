"""The file of the weights from which a training starts, for all frameworks."""

import hashlib
from pathlib import Path

from cepheid.rules.errors import UserError
from cepheid.rules.installation import NO_WEIGHTS


def read_given_file(path: Path, digest: str) -> tuple[bytes, str]:
    """Return the content of a file and its SHA-256, which begins with ``digest``.

    Raises UserError where the file is missing or another one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: the training starts from these weights, and they cannot be read "
            f"({error.strerror}); fix: put the file there{NO_WEIGHTS}"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if not found.startswith(digest):
        raise UserError(
            f"{path}: its SHA-256 begins with {found[: len(digest)]}, expected {digest}; "
            "fix: put the file there that the definition names"
        )
    return content, found
