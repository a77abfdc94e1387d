"""Which device a rank takes: what torch finds, what a vendor brings, or what the user names."""

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from cepheid.reference.machine.accelerators import DEVICE, DEVICE_MODULE, find_offered
from cepheid.reference.torch.device import Device
from cepheid.reference.torch.devices.kinds import Processor, find_class, register
from cepheid.rules.errors import UserError

AUTO = "auto"
ENTRY_POINTS = "cepheid.devices"


def choose_device(local_rank: int = 0) -> Device:
    """Return the device of the rank with this number on its node; it becomes torch's current one.

    Ranks take devices in turn. Whether two of them would take the same one, all ranks of a node
    find out together: each may see one only, and another one. Raises UserError as ``find_devices``.
    """
    devices = find_devices()
    device = devices[local_rank % len(devices)]
    register(device)
    device.use()
    return device


def list_accelerators() -> Sequence[Device]:
    """Return the accelerators that this process may use, none where it computes on processors.

    Raises UserError as ``find_devices``.
    """
    return [device for device in find_devices() if device.is_accelerator]


def find_devices() -> Sequence[Device]:
    """Return the devices that this process may use, of one kind.

    CEPHEID_DEVICE names the kind. By default it is a vendor's own, else the accelerator of torch,
    else the processors. Raises UserError for a kind that is not there, and where the machine has
    accelerators that torch cannot use and nobody asked for the processors.
    """
    asked = os.environ.get(DEVICE, "") or AUTO
    if asked == "cpu":
        return Processor.find_all()
    known = list_vendors(asked)
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None:
        known.setdefault(accelerator.type, find_class(accelerator.type))
    for kind, chosen in known.items():
        if asked in (AUTO, kind) and (devices := chosen.find_all()):
            return devices
    if asked != AUTO:
        raise UserError(
            f"the device {asked} was asked for (--device or {DEVICE}), but torch "
            f"{torch.__version__} can use none here; it can use "
            f"{', '.join(['cpu', *(kind for kind in known if known[kind].find_all())])}; fix: "
            "install a build of torch for this device and its driver, or give its vendor's module "
            "(docs/your-device.md), or choose cpu"
        )
    if unusable := find_unusable():
        raise UserError(
            f"this machine has accelerators ({unusable}), but torch {torch.__version__} can use "
            "none of them; fix: install a build of torch for them and their driver, or choose the "
            f"processors with --device cpu or {DEVICE}=cpu"
        )
    return Processor.find_all()


def find_unusable() -> str:
    """Return the accelerators of this machine that torch cannot use, "" where there are none."""
    found = None if torch.accelerator.is_available() else find_offered(os.environ)
    return str(found or "")


def list_vendors(asked: str) -> dict[str, type[Device]]:
    """Return the devices of vendors by kind: of CEPHEID_DEVICE_MODULE, and of entry points.

    Only those that are asked for are imported. Raises UserError where that fails.
    """
    found: dict[str, type[Device]] = {}
    if path := os.environ.get(DEVICE_MODULE):
        given = import_device_class(Path(path))
        found[given.KIND] = given
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        if entry.name in found or asked not in (AUTO, entry.name):
            continue
        try:
            found[entry.name] = _check_class(entry.load(), f"the entry point {entry.value}")
        except Exception as error:  # whatever the vendor's code raises
            raise UserError(
                f"the device {entry.name} ({entry.value}) cannot be imported: "
                f"{type(error).__name__}: {error}; fix: repair or uninstall its package, or choose "
                f"another device with --device or {DEVICE}"
            ) from error
    return found


@lru_cache(maxsize=8)
def import_device_class(path: Path) -> type[Device]:
    """Return the class ``DEVICE`` of a vendor's module.

    Raises UserError where there is no such file or class, and whatever its code raises.
    """
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"--device-module {path}: expected a Python file (docs/your-device.md)")
    # Byte code beside the source would run next time, whatever the source says then.
    sys.dont_write_bytecode = True
    specification = importlib.util.spec_from_file_location("submitted_device", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return _check_class(getattr(module, "DEVICE", None), f"--device-module {path}: DEVICE")


def _check_class(found: Any, what: str) -> type[Device]:
    """Return the class of a vendor's devices. Raises UserError for anything else."""
    is_device = isinstance(found, type) and issubclass(found, Device)
    if is_device and re.fullmatch("(?!(cpu|auto)$)[a-z][a-z0-9_]*", found.KIND):
        return found
    raise UserError(
        f"{what}: expected a subclass of cepheid.reference.torch.device.Device whose KIND is a "
        "word of small letters, digits and _, and not auto or cpu (docs/your-device.md)"
    )
