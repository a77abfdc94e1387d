"""Compile functions where torch.compile works, and run them eagerly where it does not."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

from cepheid.rules.errors import UserError


class Compiled:
    """A function that runs compiled while ``enabled``, and eagerly otherwise.

    It is compiled at its first call. Where that fails (no C++ compiler, no ``Python.h``), it runs
    eagerly from then on and ``failure`` holds the reason. With ``insist`` it raises UserError
    instead. ``dynamic`` is for arguments whose shapes vary, which would otherwise cause a
    compilation for each shape.
    """

    def __init__(
        self, function: Callable[..., Any], *, enabled: bool, insist: bool, dynamic: bool = False
    ) -> None:
        self._eager, self._dynamic = function, dynamic
        self._compiled: Callable[..., Any] | None = (
            None  # at the first call: loading the compiler takes seconds
        )
        self.enabled, self.insist = enabled, insist
        self.failure = ""

    @property
    def note(self) -> str:
        """``compiled`` or ``eager``."""
        return "compiled" if self.enabled else "eager"

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, compiled if possible."""
        if not self.enabled:
            return self._eager(*arguments)
        if self._compiled is None:
            return self._first_call(*arguments)
        return self._compiled(*arguments)

    def _first_call(self, *arguments: Any) -> Any:
        # The compiler warns about itself, also later, when it compiles the first backward pass.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\._inductor")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled = torch.compile(self._eager, dynamic=self._dynamic)
                result = compiled(*arguments)
            self._compiled = compiled
            return result
        except Exception as error:  # the compiler's tool chain raises many types
            result = self._eager(*arguments)  # an error here is a bug in the function itself
            self.failure = str(error).strip().splitlines()[0][:200]
            if self.insist:
                raise UserError(
                    f"compile=on, but torch.compile fails here: {self.failure} "
                    "(a C++ compiler and Python.h are needed; compile=off runs without)"
                ) from error
            self.enabled = False
            return result
