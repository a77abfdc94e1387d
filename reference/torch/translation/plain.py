"""What plain implementations that the reference is timed against have in common."""

import sys

import torch

from cepheid.reference.torch.translation.task import TranslationTask


class PlainTranslation(TranslationTask):
    """A task that takes all sentences in one pass and has torch's default Adam, for steps only."""

    @property
    def pass_tokens(self) -> int:
        """The most tokens of a pass: no limit."""
        return sys.maxsize

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam with all parameters in one group."""
        self.parallel = self.model
        return torch.optim.Adam(self.model.parameters())

    def predict_noise(self) -> None:
        """Do nothing: only steps are compared."""
