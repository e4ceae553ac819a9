"""The softmax against torch's own, against paper, and where torch's own and the naive one give up."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import naive_softmax, softmax

INF = math.inf
VARIANTS = pytest.mark.parametrize("function", [softmax, naive_softmax])


@VARIANTS
def test_on_paper(function):
    # exp(ln 1), exp(ln 2), exp(ln 5) of their sum, 8
    shares = function(torch.tensor([0.0, math.log(2), math.log(5)], dtype=torch.float64))
    assert shares.tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=1e-15)


@VARIANTS
@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((3, 5), 0), ((3, 5), -1), ((2, 3, 4, 5), 1)])
def test_equals_torch(function, shape, dim):
    scores = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(function(scores, dim), torch.softmax(scores, dim), rtol=0, atol=1e-15)


def test_last_dimension_is_the_default():
    scores = torch.arange(6.0).reshape(2, 3) ** 2
    torch.testing.assert_close(softmax(scores), torch.softmax(scores, dim=-1))
    assert softmax(scores).sum(-1).tolist() == pytest.approx([1, 1])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4) | st.just(-INF), min_size=1, max_size=8).filter(
        lambda row: any(score > -INF for score in row)
    ),
    st.floats(-1e4, 1e4),
)
def test_any_scores_up_to_ten_thousand(row, shift):
    scores = torch.tensor(row, dtype=torch.float64)
    shares = softmax(scores)
    assert shares.sum().item() == pytest.approx(1, abs=1e-14)
    assert all(share == 0.0 for share, score in zip(shares.tolist(), row, strict=True) if score == -INF)
    torch.testing.assert_close(shares, torch.softmax(scores, -1), rtol=1e-13, atol=0)
    # adding a constant to all scores changes nothing; the sum itself is rounded to about 4e-12 at this size
    torch.testing.assert_close(softmax(scores + shift), shares, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes(dtype):
    scores = torch.tensor(
        [[1e4, 1e4, -1e4], [-1e4, -1e4, -INF], [-INF, 1e4, -INF], [-INF, -1e4, -INF]], dtype=dtype
    )
    assert softmax(scores).tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 88.0), (torch.float64, 709.0)])
def test_the_naive_form_overflows_where_softmax_does_not(dtype, largest):
    def scores(*numbers):
        return torch.tensor(numbers, dtype=dtype)

    # exp(88.72) is the largest float32, exp(709.78) the largest float64
    assert naive_softmax(scores(largest, 0.0))[0] == 1
    assert naive_softmax(scores(largest + 1, 0.0))[0].isnan()
    assert softmax(scores(largest + 1, 0.0)).tolist() == [1.0, pytest.approx(0, abs=1e-38)]
    # far below zero every exponential is lost
    assert naive_softmax(scores(-800.0, -800.0)).isnan().all()
    assert softmax(scores(-800.0, -800.0)).tolist() == [0.5, 0.5]


class TestRowsWithNothingToShare:
    scores = torch.tensor([[-INF, -INF, -INF], [0.0, -INF, 0.0], [-INF, -INF, -INF]])

    def test_zeros_where_torch_gives_nan(self):
        assert torch.softmax(self.scores, -1)[0].isnan().all()
        assert softmax(self.scores).tolist() == [[0, 0, 0], [0.5, 0, 0.5], [0, 0, 0]]

    def test_gradient_is_zero_there_and_torchs_elsewhere(self):
        ours = self.scores.clone().requires_grad_()
        upstream = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
        softmax(ours).backward(upstream)
        # on paper: share * (upstream - sum of share * upstream), with 0.5 * 4 + 0.5 * 6 = 5
        assert ours.grad.tolist() == [[0, 0, 0], [-0.5, 0, 0.5], [0, 0, 0]]

    def test_along_another_dimension(self):
        assert softmax(self.scores.T, dim=0).T.tolist() == [[0, 0, 0], [0.5, 0, 0.5], [0, 0, 0]]

    def test_no_keys_at_all(self):
        assert softmax(torch.empty(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("score", [math.nan, INF])
def test_nan_and_infinity_are_not_hidden(score):
    assert softmax(torch.tensor([score, 0.0])).isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
class TestHalfPrecision:
    def test_computed_in_float32_and_rounded_once(self, dtype):
        generator = torch.Generator().manual_seed(1)
        scores = (8 * torch.randn(20, 50, generator=generator)).to(dtype)
        assert softmax(scores).dtype == dtype
        exact = torch.softmax(scores.double(), -1).to(dtype)
        # float32 is fine enough to round the same way but for a rare tie; sums in half precision are not
        assert (softmax(scores) != exact).float().mean() < 0.01

    def test_a_sum_beyond_float16(self, dtype):
        # 2 ** 17 equal scores: their exponentials sum to 131,072, where float16 ends at 65,504
        shares = softmax(torch.zeros(2**17, dtype=dtype))
        assert (shares == 2.0**-17).all()


def test_whole_numbers_are_refused():
    with pytest.raises(TypeError, match=r"floating-point .* torch\.int64"):
        softmax(torch.tensor([2, 1, -1]))


def test_gradients():
    scores = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores[0, 1] = -INF
    scores.requires_grad_()
    assert torch.autograd.gradcheck(softmax, (scores,))
    assert torch.autograd.gradcheck(lambda x: softmax(x, 0), (scores,))
    assert torch.autograd.gradgradcheck(softmax, (scores,))


def test_the_input_is_left_alone():
    scores = torch.tensor([1.0, 2.0, -INF])
    softmax(scores)
    assert scores.tolist() == [1.0, 2.0, -INF]
