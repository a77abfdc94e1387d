"""Broken variants that several benchmarks share; ``benchmarks/<name>/broken.py`` mixes them in."""

import numpy as np

from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.torch.task import TorchTask


class Frozen(TorchTask):
    """The weights stay as initialised."""

    def apply_gradients(self) -> None:
        """Count the samples and change nothing."""
        self.samples += self.config.global_batch_size
        self.optimizer.zero_grad()


class ShuffledLabels(TorchTask):
    """Training labels belong to other samples: only the prior can be learnt."""

    labels: np.ndarray

    def open_data(self) -> None:
        """Open the data, then permute the training labels."""
        super().open_data()
        order = make_generator(self.config.seed, "shuffled labels").permutation(self.training_rows)
        self.labels = np.concatenate([self.labels[order], self.labels[self.evaluation_rows]])
