"""The nested loops against torch, so that they can be trusted as a reference."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from attention import attention_by_loops, causal_mask


def test_on_paper():
    # scores 0 and ln 3 for the first query, ln 3 and 0 for the second: weights 1/4 and 3/4, 3/4 and 1/4
    log3 = torch.tensor(3.0, dtype=torch.float64).log()
    query = torch.eye(2, dtype=torch.float64)
    key = torch.tensor([[0.0, log3], [log3, 0.0]], dtype=torch.float64)
    value = torch.tensor([[4.0, 8.0, 0.0], [0.0, 8.0, 4.0]], dtype=torch.float64)
    weights, output = attention_by_loops(query, key, value, scale=1.0)
    torch.testing.assert_close(weights, torch.tensor([[1, 3], [3, 1]]).double() / 4)
    torch.testing.assert_close(output, torch.tensor([[1.0, 8, 3], [3, 8, 1]]).double())


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_equals_torch(leading, masked, scale):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(*leading, *size, dtype=torch.float64, generator=generator)
        for size in [(3, 4), (5, 4), (5, 6)]
    )
    mask = causal_mask(3, 5) if masked else None
    weights, output = attention_by_loops(query, key, value, mask, scale)
    expected = torch_attention(query, key, value, mask, scale=scale)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-13)
    # values of the identity show the weights
    identity = torch.eye(5, dtype=torch.float64).expand(*leading, 5, 5)
    expected = torch_attention(query, key, identity, mask, scale=scale)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-13)


def test_a_mask_of_its_own_for_each_example():
    query, key, value = torch.randn(3, 2, 2, 3, 4)  # each (2 texts, 2 heads, 3 tokens, 4 wide)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool()[:, None, None, :]
    weights, output = attention_by_loops(query, key, value, mask)
    torch.testing.assert_close(output.float(), torch_attention(query, key, value, mask))
    assert (weights[0, :, :, 2] == 0).all()
    assert (weights[1, :, :, 0] == 0).all()


def test_rows_alone_are_the_rows_of_the_whole():
    query, key, value = torch.randn(3, 6, 4)
    weights, output = attention_by_loops(query, key, value, causal_mask(6))
    some = [1, 4]
    some_weights, some_output = attention_by_loops(query[some], key, value, causal_mask(6)[some])
    assert torch.equal(some_weights, weights[some])
    assert torch.equal(some_output, output[some])


def test_float64_whatever_comes_in():
    query, key, value = torch.randn(3, 4, 2).half().requires_grad_()
    weights, output = attention_by_loops(query, key, value)
    assert weights.dtype == output.dtype == torch.float64
    expected = torch_attention(query.double(), key.double(), value.double())
    torch.testing.assert_close(output, expected.detach(), rtol=0, atol=1e-14)


def test_large_scores():
    query = torch.tensor([[1e4], [-1e4]])
    weights, _ = attention_by_loops(query, torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 1))
    assert weights.tolist() == [[1, 0], [0, 1]]


def test_nothing_to_attend_to():
    query, key, value = torch.randn(3, 2, 4)
    mask = torch.tensor([[False, False], [True, False]])
    weights, output = attention_by_loops(query, key, value, mask)
    assert weights.tolist() == [[0, 0], [1, 0]]
    torch.testing.assert_close(output, torch.stack([torch.zeros(4), value[0]]).double(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "shapes",
    [((2, 3, 4), (3, 4), (3, 4)), ((3, 4), (3, 5), (3, 4)), ((3, 4), (3, 4), (2, 4))],
    ids=["leading", "width", "number"],
)
def test_shapes_that_do_not_fit(shapes):
    with pytest.raises(ValueError, match=r"query \(.*\), key \(.*\), value \("):
        attention_by_loops(*(torch.zeros(shape) for shape in shapes))
