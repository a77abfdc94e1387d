"""Broken variants that benchmarks of translation share."""

from dataclasses import replace

import numpy as np

from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.data.wmt.pairs import Tokens
from cepheid.reference.torch.translation.task import TranslationTask


class ShuffledTargets(TranslationTask):
    """Training targets belong to other sources: only German can be learnt, not the content."""

    def open_data(self) -> None:
        """Open the data, then permute the training targets."""
        super().open_data()
        train, target = self.definition.train_samples, self.pairs.target
        order = np.arange(len(target.ends))
        order[:train] = make_generator(self.config.seed, "shuffled targets").permutation(train)
        rows = [target.row(int(row)) for row in order]
        dealt = Tokens(np.concatenate(rows), np.cumsum([len(row) for row in rows]))
        self.pairs = replace(self.pairs, target=dealt)
        self.batches = self.make_batches()
