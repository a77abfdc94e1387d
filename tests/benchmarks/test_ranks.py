"""Ranks that share an update, images or a model train as one rank does.

The contract suite has the ranks that share a batch; pipelines and tensors of the transformer are in
tests/reference/torch/parallel.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tasks import assert_ranks_agree, configure_small

GENTLE = "opt_base_learning_rate=0.002"  # so that what differs by rounding stays so
SENTENCES = f"opt_learning_rate_warmup_samples=0 {GENTLE}"  # without the former hardly any moves


@dataclass(frozen=True)
class Case:
    """A benchmark on some ranks, the settings by which they share work, and those of one rank."""

    benchmark: str
    ranks: int
    shared: str
    settings: str = ""
    is_slow: bool = True

    def __str__(self) -> str:
        return f"{self.benchmark} on {self.ranks}, {self.shared}"


CASES = (
    Case("resnet50", 4, "weight_update=sharded all_reduce=two_level",
         "opt_name=lars model_bn_span=4 opt_base_learning_rate=0.05", is_slow=False),
    Case("ssd", 4, "weight_update=sharded all_reduce=two_level", f"model_bn_span=4 {GENTLE}"),
    Case("transformer", 4, "weight_update=overlapped all_reduce=mesh",
         f"pass_tokens=512 global_batch_size=40 {SENTENCES}", is_slow=False),
    Case("gnmt", 2, "weight_update=sharded", f"global_batch_size=16 {SENTENCES}"),
    Case("gnmt", 2, "weight_update=overlapped", f"global_batch_size=16 {SENTENCES}"),
    Case("ssd", 2, "spatial_partitions=2", GENTLE, is_slow=False),
    Case("ssd", 4, "spatial_partitions=4", GENTLE),
    Case("ssd", 4, "spatial_partitions=2x2", GENTLE),
    Case("ssd", 4, "spatial_partitions=2", f"model_bn_span=4 {GENTLE}"),
    Case("resnet50", 2, "spatial_partitions=2", is_slow=False),
    Case("resnet50", 4, "spatial_partitions=4"),
    Case("resnet50", 4, "spatial_partitions=2x2", f"model_variant=d {GENTLE}"),
    Case("resnet50", 4, "spatial_partitions=2", "model_bn_span=4"),
    Case("resnet50", 4, "spatial_partitions=2 weight_update=sharded"),
    Case("mask_rcnn", 2, "pipeline=2:1f1b:2", GENTLE, is_slow=False),
    Case("mask_rcnn", 2, "pipeline=2:gpipe:4", GENTLE),
    Case("mask_rcnn", 4, "pipeline=2:1f1b:2", GENTLE),
    Case("mask_rcnn", 2, "spatial_partitions=2", GENTLE, is_slow=False),
    Case("mask_rcnn", 4, "spatial_partitions=4", GENTLE),
    Case("mask_rcnn", 4, "spatial_partitions=2", GENTLE),
)  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=str(case), marks=[pytest.mark.slow] * case.is_slow) for case in CASES],
)
def test_ranks_that_share_the_work_train_as_one(case: Case, data_root: Path) -> None:
    arguments = (case.benchmark, data_root, *case.settings.split())
    assert_ranks_agree(case.ranks, configure_small, *arguments, shared=case.shared.split())
