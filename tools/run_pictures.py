"""The pictures after a run: made and kept beside the run's log."""

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.run import pictures
from rules.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from reference.run.config import RunConfig


def make(task: Any, config: "RunConfig", path: Path, console: "Console") -> None:
    """Ask the task for its pictures, if it has some. The run counts whatever happens here."""
    if not isinstance(task, pictures.Pictures):
        return
    try:
        pictures.write(path, task.pictures())
        console.print(f"run {config.index}: pictures: {path}", markup=False)
    except ModuleNotFoundError as error:
        console.print(f"run {config.index}: no pictures: {error.name} is not installed")
    except (UserError, OSError) as error:
        console.print(f"run {config.index}: no pictures: {error}; the run counts all the same")
    except Exception:  # our own bug, told as such; it must not cost the runs that are to come
        traceback.print_exc()
        console.print(f"run {config.index}: no pictures, see above; the run counts all the same")
