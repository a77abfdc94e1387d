"""Information matrices as a library: against dense matrices of tiny networks, and its page."""

import doctest
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from cepheid.rules.host import ROOT
from cepheid.second_order import KFAC, Options, information
from cepheid.second_order.information.blocks import Block
from tests.second_order import assert_misused

CLASSES = 3


def make_network() -> nn.Sequential:
    torch.manual_seed(4)
    network = nn.Sequential(
        nn.Conv2d(2, 2, 2, bias=False),
        nn.BatchNorm2d(2),
        nn.Tanh(),
        nn.Flatten(),
        nn.PReLU(),
        nn.Linear(8, CLASSES),
    )
    network(torch.randn(20, 2, 3, 3))  # other statistics than 0 and 1
    return network


def make_data(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches, of unequal sizes where nothing is said."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 2, 3, 3, generator=generator),
            torch.randint(CLASSES, (size,), generator=generator),
        )
        for size in sizes or (4, 5, 6)
    ]


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - functional.one_hot(targets, CLASSES)).square().sum(1)


def _dense_fisher(
    model: nn.Module, data: list[tuple[Tensor, Tensor]], hessian: Callable[[Tensor], Tensor]
) -> Tensor:
    """E[Jᵀ H J] over all parameters, an output of a sample at a time."""
    model.eval()
    parameters = list(model.parameters())
    total, count = torch.zeros(()), 0
    for inputs, _ in data:
        for sample in inputs:
            outputs = model(sample[None])[0]
            rows = []
            for output in outputs:
                parts = torch.autograd.grad(output, parameters, retain_graph=True)
                rows.append(torch.cat([part.flatten() for part in parts]))
            jacobian = torch.stack(rows)
            total = total + jacobian.T @ hessian(outputs.detach()) @ jacobian
            count += 1
    model.train()
    return total / count


def _softmax_hessian(logits: Tensor) -> Tensor:
    p = logits.softmax(0)
    return p.diag() - torch.outer(p, p)


def _flatten(vectors: dict[str, Tensor], model: nn.Module) -> Tensor:
    return torch.cat([vectors[name].flatten() for name, _ in model.named_parameters()])


def _random_vectors(model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(9)
    return {name: torch.randn_like(p) for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["softmax", "squares"])
def test_products_are_those_of_the_dense_matrix(kind: str) -> None:
    model, data = make_network(), make_data()
    if kind == "softmax":
        products = information.FisherProducts(model, data)
        dense = _dense_fisher(model, data, _softmax_hessian)
    else:
        products = information.FisherProducts(model, iter(data), _squares)
        dense = _dense_fisher(model, data, lambda outputs: 2 * torch.eye(CLASSES))
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    vectors = _random_vectors(model)
    found = _flatten(products.multiply(vectors), model)
    assert torch.allclose(found, dense @ _flatten(vectors, model), rtol=1e-4, atol=1e-5)
    assert products.size == len(dense)
    wanted = torch.linalg.eigvalsh(dense).flip(0)[:3].tolist()
    assert products.find_largest_eigenvalues(3) == pytest.approx(wanted, rel=1e-3)
    assert all(torch.equal(value, statistics[name]) for name, value in model.named_buffers())
    assert model[1].training


@pytest.mark.parametrize("fisher", ["exact", "gauss_newton"])
def test_blocks_are_those_of_the_dense_matrix_where_kronecker_is_exact(fisher: str) -> None:
    """With one input for all samples, and for batch norms with one position, nothing is lost."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, CLASSES))
    inputs = torch.randn(1, 4).expand(5, 4)
    data = [(inputs[:2], torch.tensor([0, 1])), (inputs[2:], torch.tensor([2, 0, 1]))]
    blocks = information.fisher_blocks(model, data, fisher=fisher)  # type: ignore[arg-type]
    dense = _dense_fisher(model, data, _softmax_hessian)
    ends = [0]
    for parameter in model.parameters():
        ends.append(ends[-1] + parameter.numel())
    # Weight and bias of a Linear lie side by side in a row of its block.
    for name, first in (("0", 0), ("3", 4)):
        found = blocks.blocks[name]
        weight, bias = range(ends[first], ends[first + 1]), range(ends[first + 1], ends[first + 2])
        columns = len(weight) // len(bias)
        order = [
            place
            for row in range(len(bias))
            for place in (*weight[row * columns : (row + 1) * columns], bias[row])
        ]
        assert torch.allclose(found.to_dense(), dense[order][:, order], rtol=1e-3, atol=1e-6)
    norm = blocks.blocks["1"].to_dense()
    own = dense[ends[2] : ends[4], ends[2] : ends[4]]
    same_channel = torch.eye(3).repeat(2, 2).bool()
    assert torch.allclose(norm[same_channel], own[same_channel], rtol=1e-3, atol=1e-6)
    assert not norm[~same_channel].any()


def test_operations_are_those_of_the_dense_blocks() -> None:
    model = make_network()
    blocks = information.fisher_blocks(model, make_data())
    assert blocks.samples == 4 + 5 + 6
    vectors = _random_vectors(model)
    products, directions = blocks.multiply(vectors), blocks.solve(vectors, 0.01)
    diagonal, inverses = blocks.find_diagonal(), blocks.find_inverse_diagonal(0.01)
    assert set(products) == set(blocks.parameters) == set(vectors) - {"4.weight"}
    total, values = 0.0, []
    for name, block in blocks.blocks.items():
        dense = block.to_dense()

        def flat(of: dict[str, Tensor], block: Block = block) -> Tensor:
            joined: Tensor = block.layer.join([of[each] for each in block.names])
            return joined.flatten()

        vector, damped = flat(vectors), dense + 0.01 * torch.eye(len(dense))
        assert torch.allclose(flat(products), dense @ vector, rtol=1e-3, atol=1e-5), name
        wanted = torch.linalg.solve(damped, vector)
        assert torch.allclose(flat(directions), wanted, rtol=1e-3, atol=1e-3), name
        assert torch.allclose(flat(diagonal), dense.diagonal(), rtol=1e-4, atol=1e-7), name
        wanted = torch.linalg.inv(damped).diagonal()
        assert torch.allclose(flat(inverses), wanted, rtol=1e-3), name
        total += float(vector @ dense @ vector)
        values += [(value, name) for value in torch.linalg.eigvalsh(dense).tolist()]
    assert float(blocks.compute_quadratic(vectors)) == pytest.approx(total, rel=1e-4)
    for found, expected in zip(
        blocks.find_largest_eigenvalues(5), sorted(values, reverse=True)[:5], strict=True
    ):
        assert found[0] == pytest.approx(expected[0], rel=1e-3)


def test_empirical_and_sampled_blocks() -> None:
    model, data = make_network(), make_data()
    empirical = information.fisher_blocks(model, data, fisher="empirical").blocks["5"]
    model.eval()
    total, count = torch.zeros(()), 0
    for inputs, targets in data:
        for sample, target in zip(inputs, targets, strict=True):
            logits = model(sample[None])
            gradient = logits.detach().softmax(1)[0] - functional.one_hot(target, CLASSES)
            total, count = total + torch.outer(gradient, gradient), count + 1
    assert torch.allclose(empirical.outputs, total / count, atol=1e-6)  # type: ignore[attr-defined]
    exact, sampled = (
        information.fisher_blocks(model, data, fisher=kind, samples=number).blocks["5"].to_dense()  # type: ignore[arg-type]
        for kind, number in (("exact", 1), ("sampled", 300))
    )
    assert torch.allclose(exact, sampled, rtol=0.2, atol=0.02)


def test_a_model_stays_as_it_was() -> None:
    model, data = make_network(), make_data(4)
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    information.fisher_blocks(model, data)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not model[1].training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("overlap", [False, True])
def test_a_preconditioner_of_the_model_does_not_see_these_passes(overlap: bool) -> None:
    directions = []
    for is_asked in (False, True):
        model = make_network()
        kfac = KFAC(model, Options(overlap=overlap, average_decay=0, skip=("4",)))
        for inputs, targets in make_data(4, 5):
            model.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            if is_asked:
                blocks = information.fisher_blocks(model, make_data(4))
                products = information.FisherProducts(model, make_data(4))
                products.multiply(blocks.multiply(_random_vectors(model)))
            kfac.step()
        directions.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        kfac.remove()
    assert all(torch.equal(*pair) for pair in zip(*directions, strict=True))


def test_an_elastic_penalty_is_the_quadratic_form_and_its_gradient_the_product() -> None:
    model = make_network()
    blocks = information.fisher_blocks(model, make_data())
    for is_diagonal in (False, True):
        penalty = information.ElasticPenalty(model, blocks, 3.0, is_diagonal)
        assert penalty().item() == 0
        moves = _random_vectors(model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(moves[name])
        model.zero_grad()
        penalty().backward()
        diagonal = blocks.find_diagonal()
        products = (
            {name: diagonal[name] * moves[name] for name in diagonal}
            if is_diagonal
            else blocks.multiply(moves)
        )
        for name, parameter in model.named_parameters():
            if name == "4.weight":  # without a block
                assert parameter.grad is None
                continue
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad, 3 * products[name], rtol=1e-3, atol=1e-4)


def test_saliencies_say_by_how_much_a_quadratic_loss_rises() -> None:
    """Of a linear model with squares, the loss is quadratic and its Hessian is the block."""
    torch.manual_seed(7)
    model = nn.Linear(3, 1, bias=False)
    inputs = torch.randn(40, 3)
    best = model.weight.detach().clone()
    data = [(inputs, inputs @ best[0])]

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).square()

    blocks = information.fisher_blocks(model, data, fisher="gauss_newton", losses=losses)
    alone = information.compute_saliencies(model, blocks)["weight"][0]
    adapting = information.compute_saliencies(model, blocks, damping=1e-9)["weight"][0]
    for place in range(3):
        pruned = best.clone()
        pruned[0, place] = 0
        outputs = functional_call(model, {"weight": pruned}, (inputs,))
        rise = float(losses(outputs, data[0][1]).mean())
        assert float(alone[place]) == pytest.approx(rise, rel=1e-3)
        others = [column for column in range(3) if column != place]
        fitted = torch.linalg.lstsq(inputs[:, others], data[0][1][:, None])[0]
        rise = float((inputs[:, others] @ fitted - data[0][1][:, None]).square().mean())
        assert float(adapting[place]) == pytest.approx(rise, rel=1e-3)


def test_what_has_no_block_is_named() -> None:
    make, model, data = information.fisher_blocks, make_network(), make_data(4)
    model[5].register_module("spare", nn.Linear(2, 2))  # which is not called
    assert make(model, data, skip=("0",)).left_out == {
        "0": "skipped by name",
        "4": "no factors for PReLU",
        "5.spare": "no sample reached it",
    }
    refusing = {"unsupported": "refuse"}
    assert_misused(r'layer "4" \(PReLU\) is not supported', make, model, data, **refusing)
    words = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    data = [(torch.arange(4), torch.zeros(4, dtype=torch.long))]
    blocks = make(words, data)
    assert list(blocks.blocks) == ["1"]
    assert blocks.left_out == {"0": "no block for Embedding"}
    assert_misused("no block for Embedding; fix: skip it", make, words, data, **refusing)


def test_bad_input_is_named() -> None:
    model, data, other = make_network(), make_data(4), nn.Linear(2, 2)
    make, blocks = information.fisher_blocks, information.fisher_blocks(model, data)
    products, vectors = information.FisherProducts(model, data), _random_vectors(model)
    assert_misused("data has no samples; fix: give batches", make, model, [])
    assert_misused("data has no samples", information.FisherProducts, model, [])
    losses = {"fisher": "empirical", "losses": lambda f, t: functional.cross_entropy(f, t)}
    assert_misused(r'expected \(4,\).* fix: use reduction="none"', make, model, data, **losses)
    assert_misused(r'the vector has no "0\.weight"', blocks.multiply, {})
    assert_misused("damping is 0", blocks.solve, vectors, 0)
    wrong, short = {"0.weigth": torch.ones(1)}, {"0.weight": torch.ones(2)}
    named = r'"0\.weigth" is no parameter that is trained; did you mean'
    assert_misused(named, products.multiply, wrong)
    assert_misused("choose a number from 1 to", products.find_largest_eigenvalues, 10_000)
    assert_misused("choose 1 or more", blocks.find_largest_eigenvalues, 0)
    named = r'the vector has shape \(2,\) for "0\.weight", expected'
    assert_misused(named, products.multiply, short)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert_misused(r'has NoneType for "0\.weight".*call backward', blocks.solve, gradients, 1.0)
    assert_misused("strength is -1", information.ElasticPenalty, model, blocks, -1)
    for use in (information.ElasticPenalty, information.compute_saliencies):
        assert_misused(r'the blocks have "0\.weight", which the model lacks', use, other, blocks)


class Both(nn.Linear):
    """A layer with two outputs."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(inputs), inputs


def test_what_has_no_meaning_and_settings_without_effect_are_refused() -> None:
    make, data, nan = information.fisher_blocks, make_data(4), float("nan")
    model, (inputs, targets) = make_network(), data[0]
    assert_misused("batch 1 of data is no pair", make, model, [(inputs, targets), inputs])
    assert_misused("outputs of the model are not finite", make, model, [(inputs * nan, targets)])
    assert_misused("data has no samples", make, model, [(inputs[:0], targets[:0])])
    unequal = [(inputs, targets[:2])]
    assert_misused("batch 0 of data has 4 inputs and 2 targets", make, model, unequal)
    losses, idle = functional.cross_entropy, {"fisher": "empirical", "samples": 4}
    assert_misused('losses have no effect with fisher="exact"', make, model, data, losses=losses)
    assert_misused("samples is 4, but nothing is drawn", make, model, data, **idle)
    rows, places = (torch.ones(2, 3), torch.zeros(2)), (torch.ones(2, 5, 3), torch.zeros(2))
    both = nn.Sequential(nn.Linear(3, 3), Both(3, 2))
    assert_misused("the model returned tuple, expected a tensor", make, both, [rows])
    assert_misused('"LSTM": no factors for LSTM', make, nn.LSTM(3, 4), [places])
    one = "a softmax of one logit is always 1"
    assert_misused(one, make, nn.Linear(3, 1), [rows])
    for outputs, batch, message in (
        (CLASSES, places, r"outputs of shape \(2, 5, 3\), expected logits"),
        (1, rows, one),
        (CLASSES, (nan * rows[0], rows[1]), "outputs of the model are not finite"),
    ):
        products = information.FisherProducts(nn.Linear(3, outputs), [batch])
        assert_misused(message, products.multiply, {})


def test_products_with_losses_take_outputs_of_any_shape() -> None:
    """A vector that moves all classes of all positions alike changes no probability."""
    model = nn.Linear(3, CLASSES)
    batch = torch.randn(2, 5, 3), torch.zeros(2, 5, dtype=torch.long)
    products = information.FisherProducts(
        model,
        [batch],
        lambda outputs, targets: functional.cross_entropy(
            outputs.transpose(1, 2), targets, reduction="none"
        ).sum(1),
    )
    moved = products.multiply({"bias": torch.ones(CLASSES)})
    assert float(moved["bias"].abs().max()) < 1e-6
    assert float(products.multiply({"bias": torch.tensor([1.0, 0, 0])})["bias"][0]) > 0.1


@pytest.mark.parametrize(("name", "least"), [("kfac.md", 15), ("information.md", 25)])
def test_the_examples_of_a_page_print_what_it_says(name: str, least: int) -> None:
    page = ROOT / "docs" / name
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert len(test.examples) > least
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test, out=said.append).failed == 0, "".join(said)
