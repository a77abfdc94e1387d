"""What is measured of ranks that share a model: the formula of the bubble, bytes that are kept."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch import nn

from cepheid.measure.studies.sharing.shared_models import SavedBytes, predict_bubble


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 8), (4, 4)])
def test_bubble_of_equal_stages(stages: int, micro_batches: int) -> None:
    formula = (stages - 1) / (micro_batches + stages - 1)
    assert predict_bubble([0.3] * stages, micro_batches) == pytest.approx(formula)


def test_a_slow_stage_makes_the_others_wait_with_any_number_of_micro_batches() -> None:
    assert predict_bubble([1.0, 3.0], 1000) == pytest.approx(1 / 3, abs=1e-3)


def test_kept_bytes_are_those_between_forward_and_backward() -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Sigmoid())
    saved = SavedBytes({parameter.data_ptr() for parameter in layers.parameters()})
    inputs = torch.randn(4, 8)
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        for _ in range(2):  # one after the other
            layers(inputs).sum().backward()
        assert saved.most == 3 * inputs.nbytes  # inputs and the two results, each once
        first, second = layers(inputs).sum(), layers(inputs).sum()
        assert saved.most == 5 * inputs.nbytes
        (first + second).backward()
