"""Segments reversed by a tape give what autograd gives, and hand out memory that nobody else holds."""

import pytest
import torch
from layer_cases import CASES, adjacency, graph, layer, randn, split
from scipy import sparse

from executor.kernels.edges.sparse import from_scipy
from executor.layers.tape import Sum, Tape, Transposed

OWNED = 18


def both_ways(made, segment, inputs, learned):
    """Outputs and gradients of inputs and parameters: on a tape, then under autograd, with the same incoming rows."""
    with torch.no_grad():
        tape = Tape([inputs[k] for k in learned])
        out = segment(*inputs, call=tape)
        tape.end([out])
        incoming = randn(*out.shape, seed=9)
        taped = [out, *tape.backward([incoming]), *(parameter.grad for parameter in made.parameters())]
    made.zero_grad(set_to_none=True)
    leaves = [rows.clone().requires_grad_() if k in learned else rows for k, rows in enumerate(inputs)]
    again = segment(*leaves)
    again.backward(incoming)
    wanted = [again.detach(), *(leaves[k].grad for k in learned), *(p.grad for p in made.parameters())]
    made.zero_grad(set_to_none=True)
    return taped, wanted


@pytest.mark.parametrize("activation", [True, False])
@pytest.mark.parametrize(("kind", "order"), CASES)
def test_every_segment_equals_autograd(kind, order, activation):
    made = layer(kind, 7, 5, order, activation=activation)
    local, degree = split(graph(), OWNED)
    over, x = adjacency(local, degree), randn(30, 7)
    segments = []
    if made.spec.has_prepare:
        segments.append((made.prepare, [x], [0]))
    width = 5 if made.spec.has_prepare else 7
    rows = randn(30, width, seed=2)
    segments.append((lambda *r, **o: made.aggregate(over, *r, **o), [rows[:OWNED], rows[OWNED:]], [0, 1]))
    own = [x[:OWNED]] if made.spec.uses_own_rows else []
    segments.append((made.update, [randn(OWNED, width, seed=4), *own], list(range(1 + len(own)))))
    for segment, inputs, learned in segments:
        taped, wanted = both_ways(made, segment, inputs, learned)
        for got, expected in zip(taped, wanted, strict=True):
            assert (got is None) == (expected is None)
            if got is not None:
                assert torch.equal(got, expected)


def test_constant_sparse_rows_equal_autograd():
    made = layer("gcn", 40, 5, "transform-first", sparse_input=True)
    dense = torch.where(randn(30, 40) > 1, randn(30, 40, seed=1), 0)
    taped, wanted = both_ways(made, made.prepare, [from_scipy(sparse.csr_array(dense.numpy()), torch.float64)], [])
    assert len(taped) == 3
    assert torch.equal(taped[0], wanted[0])
    assert torch.equal(taped[1], wanted[1])


def test_parameters_gradients_add_up_where_they_lie():
    made, x = layer("gcn", 7, 5), randn(30, 7)
    place = torch.ones(7, 5, dtype=torch.float64)
    made.weight.grad, made.bias.grad = place, torch.zeros(5, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(2):
            tape = Tape([])
            tape.end([made.update(x, call=tape)])
            tape.backward([torch.zeros(30, 5, dtype=torch.float64)])
    assert made.weight.grad is place
    assert torch.equal(place, torch.ones(7, 5, dtype=torch.float64))


def test_what_is_handed_out_shares_no_memory():
    a, b, incoming = randn(4, 3), randn(4, 3, seed=1), randn(4, 3, seed=2)
    tape = Tape([a, b])
    tape.end([tape(Sum, a, b)])
    first, second = tape.backward([incoming])
    assert len({tensor.data_ptr() for tensor in (first, second, incoming)}) == 3
    assert torch.equal(first, incoming)
    assert torch.equal(second, incoming)


def test_an_output_that_is_an_input_passes_its_gradient_on_as_a_copy():
    x, incoming = randn(4, 3), randn(4, 3, seed=2)
    tape = Tape([x])
    tape.end([x])
    (gradient,) = tape.backward([incoming])
    assert torch.equal(gradient, incoming)
    assert gradient.data_ptr() != incoming.data_ptr()


def test_gradients_of_a_tensor_used_twice_add_up_and_of_an_unused_one_are_none():
    x, unused = randn(3, 3), randn(3, 3, seed=1)
    tape = Tape([x, unused])
    tape.end([tape(Sum, tape(Sum, x, x), tape(Transposed, x))])
    incoming = randn(3, 3, seed=5)
    gradient, none = tape.backward([incoming])
    torch.testing.assert_close(gradient, 2 * incoming + incoming.t())
    assert none is None


def test_an_output_without_an_incoming_gradient_adds_nothing():
    x, y = randn(3, 3), randn(3, 3, seed=1)
    tape = Tape([x, y])
    tape.end([tape(Transposed, x), tape(Transposed, y)])
    first, second = tape.backward([None, torch.ones(3, 3, dtype=torch.float64)])
    assert first is None
    assert torch.equal(second, torch.ones(3, 3, dtype=torch.float64))
