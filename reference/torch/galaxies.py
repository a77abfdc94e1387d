"""The base of the galaxy benchmarks on torch: tensors of the stamps, Adam and its update."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.reference.galaxies.shapes import ShapeTask
from cepheid.reference.galaxies.task import GalaxyTask
from cepheid.reference.run.report import Table
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d
from cepheid.reference.torch.pieces import Piece, Pieces
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.task import TorchTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TorchGalaxyTask(GalaxyTask, TorchTask):
    """A task on torch that trains on stamps of galaxies."""

    ranks: TorchRanks
    fused_optimizer: bool | None = True  # None: torch's own choice

    def parameters_by_prefix(self) -> Mapping[str, Iterable[nn.Parameter]]:
        """Return the trained parameters, by the prefix of their hyperparameters."""
        return {"opt_": self.model.parameters()}

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam with a group of parameters for each prefix."""
        groups = [{"params": list(part)} for part in self.parameters_by_prefix().values()]
        options = self.hyperparameters.torch_options
        return torch.optim.Adam(groups, fused=self.fused_optimizer, **options)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the next ``read_batch`` as tensors on this rank's device, in the same shapes."""
        inputs, targets = self.read_batch(self.samples)
        return self.to_device(inputs), self.to_device(targets)

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return ``make_noise_arrays`` as tensors, in the same shapes; ``generator`` is unused."""
        inputs, targets = self.make_noise_arrays(count)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def unite(self, pieces: Pieces, is_alone: bool) -> Generator[Piece, None, None]:
        """Yield the pieces of a step; the norm of the inputs takes the moments of all of them.

        It needs no gradient of its inputs, so that they pass through it twice and nothing else.
        """
        is_one_batch = len(pieces) == 1 and (not is_alone or self.ranks.world_size == 1)
        norms = [each for each in self.model.modules() if isinstance(each, GroupBatchNorm2d)]
        with ExitStack() as stack:
            for norm in [] if is_one_batch else norms:
                passes = (partial(self.predict, piece.inputs) for piece in pieces)
                with self.phase("forward"):
                    stack.enter_context(norm.unite(passes, is_alone))
            yield from pieces

    def prepare_update(self) -> None:
        """Clip the gradients and set the rates of the step that completes ``samples``."""
        groups = self.optimizer.param_groups
        for prefix, group in zip(self.parameters_by_prefix(), groups, strict=True):
            norm = self.hyperparameters.clip_norm(prefix)
            torch.nn.utils.clip_grad_norm_(group["params"], norm)
            self.repair_gradients(group["params"])
            group["lr"] = self.learning_rate_of(prefix)

    def repair_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leave the clipped gradients of a part as they are."""


class TorchShapeTask(ShapeTask, TorchGalaxyTask):
    """A task whose network predicts means (n, d) and scale matrices (n, d, d) of shapes."""

    def predict(self, stamps: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return means (n, d) and scale matrices (n, d, d) for stamps (n, bands, y, x)."""
        mean, scale = super().predict(stamps)
        return mean, scale

    @torch.no_grad()
    def estimate_batch(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n, d) and scale matrices (n, d, d) of one evaluation batch of stamps."""
        mean, scale = self.compiled_predict(self.to_device(stamps))
        return mean.cpu().numpy(), scale.cpu().numpy()

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return shear bias, PSF leakage, and errors by signal-to-noise and size."""
        self.model.eval()
        return super().report(on_progress)

    def pictures(self) -> "Figure":
        """Return a figure of the estimates of some galaxies of the evaluation set."""
        self.model.eval()
        return super().pictures()
