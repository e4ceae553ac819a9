"""The ladder: each rung against the one below it, against torch's own module, and against its definition."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as torch_attention

import attention.modules
from attention import (
    CausalAttention,
    CrossAttention,
    MultiHeadAttention,
    RawSelfAttention,
    SelfAttention,
    SimplifiedSelfAttention,
    StackedMultiHeadAttention,
    attention_by_loops,
    causal_mask,
    combine_masks,
    padding_mask,
)

D_IN, D_OUT, HEADS = 6, 8, 4


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def assert_same(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def every_rung():
    """Each rung in float64, with inputs: a batch of 2, of 5 tokens (and 7 keys where they may differ)."""
    x, other = draw(2, 5, D_IN), draw(2, 7, D_IN)
    rungs = {
        "simplified": (SimplifiedSelfAttention(), (x,)),
        "self": (SelfAttention(D_IN, D_OUT), (x,)),
        "raw": (RawSelfAttention(D_IN, D_OUT), (x,)),
        "causal": (CausalAttention(D_IN, D_OUT, context_length=9), (x,)),
        "cross": (CrossAttention(D_IN, D_OUT), (x, other, other)),
        "stacked": (StackedMultiHeadAttention(D_IN, D_OUT, HEADS), (x, other, other)),
        "multi-head": (MultiHeadAttention(D_IN, D_OUT, HEADS, bias=True), (x, other, other)),
        "causal multi-head": (MultiHeadAttention(D_IN, D_OUT, HEADS, causal=True), (x,)),
    }
    return {name: (module.double(), inputs) for name, (module, inputs) in rungs.items()}


RUNGS = pytest.mark.parametrize("rung", list(every_rung()))


class TestEveryRung:
    @RUNGS
    def test_each_example_as_if_alone(self, rung):
        module, inputs = every_rung()[rung]
        together = module(*inputs)
        for example in range(2):
            alone = module(*(tensor[example : example + 1] for tensor in inputs))
            assert_same(together[example : example + 1], alone)
            unbatched = module(*(tensor[example] for tensor in inputs))
            assert_same(together[example], unbatched)

    @RUNGS
    def test_calls_the_one_function(self, rung, monkeypatch):
        module, inputs = every_rung()[rung]
        calls = []

        def spy(*args, **kwargs):
            calls.append(args)
            return original(*args, **kwargs)

        original = attention.modules.scaled_dot_product_attention
        monkeypatch.setattr(attention.modules, "scaled_dot_product_attention", spy)
        module(*inputs)
        assert len(calls) == (HEADS if rung == "stacked" else 1)

    @RUNGS
    def test_steps_end_in_the_output_and_nothing_is_stored(self, rung):
        module, inputs = every_rung()[rung]
        before = {name: copy.copy(vars(part)) for name, part in module.named_modules()}
        steps, output = module.steps(*inputs), module(*inputs)
        if rung == "stacked":
            assert torch.equal(torch.cat([head.output for head in steps], dim=-1), output)
        else:
            assert torch.equal(steps.output, output)
        assert {name: vars(part) for name, part in module.named_modules()} == before

    @RUNGS
    def test_steps_are_kept_unless_told_otherwise(self, rung):
        module, inputs = every_rung()[rung]

        def heads(steps):
            return steps[0] if rung == "stacked" else getattr(steps, "heads", steps)

        kept, left_out = heads(module.steps(*inputs)), heads(module.steps(*inputs, keep_steps=False))
        assert kept.scores.shape == kept.scaled.shape == kept.masked.shape == kept.weights.shape
        assert left_out.scores is left_out.scaled is left_out.masked is None
        assert torch.equal(kept.weights, left_out.weights)

    @RUNGS
    def test_gradcheck(self, rung):
        module, inputs = every_rung()[rung]
        inputs = [tensor[:1, :3].clone().requires_grad_() for tensor in inputs]
        assert torch.autograd.gradcheck(module, inputs)

    @RUNGS
    def test_on_whatever_device(self, rung, monkeypatch):
        module, inputs = every_rung()[rung]

        def spy(*args, **kwargs):
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            assert len(tensors) == (4 if "causal" in rung else 3)  # with the mask, made on the same device
            assert all(tensor.is_meta for tensor in tensors)
            return original(*args, **kwargs)

        original = attention.modules.scaled_dot_product_attention
        monkeypatch.setattr(attention.modules, "scaled_dot_product_attention", spy)
        assert module.to("meta")(*(tensor.to("meta") for tensor in inputs)).is_meta

    @pytest.mark.parametrize("rung", ["causal", "causal multi-head"])
    def test_a_future_token_changes_no_earlier_output(self, rung):
        module, (x,) = every_rung()[rung]
        changed = x.clone()
        changed[:, 3:] += 10.0
        before, after = module(x), module(changed)
        assert torch.equal(after[:, :3], before[:, :3])
        assert not torch.isclose(after[:, 3:], before[:, 3:]).any()

    @pytest.mark.parametrize("rung", ["causal", "causal multi-head"])
    def test_no_gradient_from_the_past_to_the_future(self, rung):
        module, (x,) = every_rung()[rung]
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(module(x)[:, :3].sum(), x)
        assert (gradient[:, 3:] == 0).all()
        assert (gradient[:, :3] != 0).all()

    @pytest.mark.parametrize("rung", ["simplified", "self", "raw"])
    def test_permuted_tokens_give_permuted_outputs(self, rung):
        module, (x,) = every_rung()[rung]
        order = torch.tensor([3, 0, 4, 2, 1])
        assert_same(module(x[:, order]), module(x)[:, order])

    @pytest.mark.parametrize("rung", ["cross", "stacked", "multi-head"])
    def test_permuted_keys_give_the_same_output(self, rung):
        module, (x, other, _) = every_rung()[rung]
        order = torch.tensor([3, 0, 6, 5, 4, 2, 1])
        assert_same(module(x, other[:, order], other[:, order]), module(x, other, other))
        assert not torch.isclose(module(x, other[:, order], other), module(x, other, other)).all()


class TestSimplified:
    def test_definition(self):
        x = draw(5, 3)
        assert_same(SimplifiedSelfAttention()(x), torch.softmax(x @ x.T, dim=-1) @ x)

    def test_by_hand(self):
        # with r * r = ln 3, [0] scores 0 and 0, and [r] scores 0 and ln 3: weights 1/2, 1/2 and 1/4, 3/4
        r = torch.tensor(3.0).log().sqrt().item()
        steps = SimplifiedSelfAttention().steps(torch.tensor([[0.0], [r]]))
        torch.testing.assert_close(steps.weights, torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
        torch.testing.assert_close(steps.output, torch.tensor([[0.5 * r], [0.75 * r]]))

    def test_no_weights(self):
        assert list(SimplifiedSelfAttention().parameters()) == []


class TestSelf:
    def test_definition(self):
        module, x = SelfAttention(D_IN, D_OUT).double(), draw(5, D_IN)
        query, key, value = (x @ layer.weight.T for layer in (module.W_query, module.W_key, module.W_value))
        assert_same(module(x), torch_attention(query, key, value))

    def test_three_projections_without_bias(self):
        parameters = dict(SelfAttention(D_IN, D_OUT).named_parameters())
        assert list(parameters) == ["W_query.weight", "W_key.weight", "W_value.weight"]
        assert all(parameter.shape == (D_OUT, D_IN) for parameter in parameters.values())


class TestRaw:
    def test_definition(self):
        module, x = RawSelfAttention(D_IN, D_OUT).double(), draw(5, D_IN)
        assert_same(module(x), torch_attention(x @ module.W_query, x @ module.W_key, x @ module.W_value))

    def test_matrices_are_as_on_paper(self):
        parameters = dict(RawSelfAttention(D_IN, D_OUT).named_parameters())
        assert list(parameters) == ["W_query", "W_key", "W_value"]
        assert all(parameter.shape == (D_IN, D_OUT) for parameter in parameters.values())

    @pytest.mark.parametrize("d_out", [D_OUT, D_IN])  # a square matrix gives no shape error if not transposed
    def test_weights_go_from_linear_to_raw(self, d_out):
        linear, raw, x = (
            SelfAttention(D_IN, d_out).double(),
            RawSelfAttention(D_IN, d_out).double(),
            draw(5, D_IN),
        )
        expected = linear(x)
        assert not torch.isclose(raw(x), expected).any()
        raw.copy_from(linear)
        assert_same(raw(x), expected)
        assert_same(linear(x), expected)

    @pytest.mark.parametrize("d_out", [D_OUT, D_IN])
    def test_weights_go_from_raw_to_linear(self, d_out):
        linear, raw, x = (
            SelfAttention(D_IN, d_out).double(),
            RawSelfAttention(D_IN, d_out).double(),
            draw(5, D_IN),
        )
        expected = raw(x)
        raw.copy_to(linear)
        assert_same(linear(x), expected)
        assert_same(raw(x), expected)

    def test_they_stay_trainable_and_apart(self):
        linear, raw, x = SelfAttention(D_IN, D_OUT), RawSelfAttention(D_IN, D_OUT), torch.randn(5, D_IN)
        raw.copy_from(linear)
        expected = linear(x)
        with torch.no_grad():
            raw.W_value.add_(1.0)
        assert torch.equal(linear(x), expected)
        raw(x).sum().backward()
        assert all(parameter.grad is not None for parameter in raw.parameters())


class TestCausal:
    def test_definition(self):
        module, x = CausalAttention(D_IN, D_OUT, context_length=9).double(), draw(2, 5, D_IN)
        expected = torch_attention(module.W_query(x), module.W_key(x), module.W_value(x), is_causal=True)
        assert_same(module(x), expected)

    def test_mask_is_a_buffer_that_is_neither_trained_nor_saved(self):
        module = CausalAttention(D_IN, D_OUT, context_length=9)
        assert [name for name, _ in module.named_buffers()] == ["mask"]
        assert module.mask.shape == (9, 9)
        weights = ["W_query.weight", "W_key.weight", "W_value.weight"]
        assert [name for name, _ in module.named_parameters()] == weights
        assert list(module.state_dict()) == weights

    def test_weights_fit_another_context_length_and_self_attention(self):
        module, x = CausalAttention(D_IN, D_OUT, context_length=9), torch.randn(5, D_IN)
        shorter, unmasked = CausalAttention(D_IN, D_OUT, context_length=5), SelfAttention(D_IN, D_OUT)
        shorter.load_state_dict(module.state_dict())
        unmasked.load_state_dict(module.state_dict())
        assert torch.equal(shorter(x), module(x))
        assert torch.equal(unmasked(x)[-1:], module(x)[-1:])

    def test_mask_off_is_self_attention(self):
        module, plain, x = (
            CausalAttention(D_IN, D_OUT, 9, causal=False),
            SelfAttention(D_IN, D_OUT),
            draw(2, 5, D_IN),
        )
        plain.load_state_dict(module.state_dict())
        assert torch.equal(module.double()(x), plain.double()(x))
        module.causal = True
        assert not torch.isclose(module(x)[:, :-1], plain(x)[:, :-1]).any()

    def test_as_long_as_the_context_and_one_longer(self):
        module = CausalAttention(D_IN, D_OUT, context_length=9)
        assert module(torch.randn(1, 9, D_IN)).shape == (1, 9, D_OUT)
        with pytest.raises(ValueError, match=r"\b10\b.*\b9\b"):
            module(torch.randn(1, 10, D_IN))


class TestDropout:
    @pytest.mark.parametrize(
        "make",
        [
            lambda p: CausalAttention(D_IN, D_OUT, 40, dropout=p),
            lambda p: StackedMultiHeadAttention(D_IN, D_OUT, HEADS, dropout=p),
            lambda p: MultiHeadAttention(D_IN, D_OUT, HEADS, dropout=p),
        ],
        ids=["causal", "stacked and cross", "multi-head"],
    )
    def test_in_training_only(self, make):
        module, plain, x = make(0.25).double(), make(0.0).double(), draw(2, 40, D_IN)
        plain.load_state_dict(module.state_dict())

        def weights(module):
            steps = module.steps(x)
            return steps[1].weights if isinstance(steps, list) else getattr(steps, "heads", steps).weights

        assert torch.equal(module.eval()(x), plain(x))

        dropped, full = weights(module.train()), weights(plain)
        survives = dropped != 0
        assert_same(dropped[survives], full[survives] / 0.75)
        # 1,600 allowed pairs and more: the standard deviation of the share is 0.011 at most
        assert survives.sum() / (full != 0).sum() == pytest.approx(0.75, abs=0.05)
        assert ((dropped.sum(-1) - 1).abs() > 0.01).any()
        assert not torch.isclose(module(x), plain(x)).all()

    @pytest.mark.parametrize("p", [-0.1, 1.5])
    def test_not_a_probability(self, p):
        for make in (
            lambda: CausalAttention(D_IN, D_OUT, 9, dropout=p),
            lambda: CrossAttention(D_IN, D_OUT, dropout=p),
            lambda: StackedMultiHeadAttention(D_IN, D_OUT, HEADS, dropout=p),
            lambda: MultiHeadAttention(D_IN, D_OUT, HEADS, dropout=p),
        ):
            with pytest.raises(ValueError, match=f"between 0 and 1; got {p}"):
                make()


class TestCross:
    def test_definition_with_other_lengths_and_widths(self):
        module = CrossAttention(D_IN, D_OUT, d_key_value_in=3, d_value=5).double()
        x, keys, values = draw(2, 4, D_IN), draw(2, 7, 3), draw(2, 7, 3)
        expected = torch_attention(module.W_query(x), module.W_key(keys), module.W_value(values))
        assert module(x, keys, values).shape == (2, 4, 5)
        assert_same(module(x, keys, values), expected)

    def test_mask(self):
        module, x, other = CrossAttention(D_IN, D_OUT).double(), draw(2, 4, D_IN), draw(2, 7, D_IN)
        mask = padding_mask(torch.tensor([[1] * 7, [1] * 5 + [0] * 2]))[:, 0]
        masked = module(x, other, other, mask)
        assert_same(masked[0], module(x, other, other)[0])
        assert_same(masked[1], module(x[1], other[1, :5], other[1, :5]))

    def test_three_times_the_same_is_self_attention(self):
        cross, plain, x = CrossAttention(D_IN, D_OUT), SelfAttention(D_IN, D_OUT), torch.randn(2, 5, D_IN)
        plain.load_state_dict(cross.state_dict())
        assert torch.equal(cross(x, x, x), plain(x))

    def test_a_value_for_each_key(self):
        with pytest.raises(ValueError, match=r"key \(7, 8\), value \(6, 8\)"):
            CrossAttention(D_IN, D_OUT)(torch.zeros(5, D_IN), torch.zeros(7, D_IN), torch.zeros(6, D_IN))


class TestBackToTheInputWidth:
    x = torch.randn(5, 2)

    def test_side_by_side_is_wider(self):
        # three heads of two values where the input had two: six, and what comes next is built for six
        stacked = StackedMultiHeadAttention(2, 2, num_heads=3)
        assert stacked.output_width == 6
        assert stacked(self.x).shape == (5, 6)

    def test_a_fully_connected_layer(self):
        stacked = StackedMultiHeadAttention(2, 2, num_heads=3)
        assert nn.Sequential(stacked, nn.Linear(stacked.output_width, 2))(self.x).shape == (5, 2)
        assert MultiHeadAttention(2, 6, num_heads=3, out_width=2)(self.x).shape == (5, 2)

    def test_narrower_values(self):
        stacked = StackedMultiHeadAttention(2, 2, num_heads=2, d_value=1)
        assert stacked.output_width == 2
        assert stacked(self.x).shape == (5, 2)
        assert stacked.steps(self.x)[1].scaled.shape == (5, 5)

    def test_narrower_heads(self):
        assert StackedMultiHeadAttention(2, 1, num_heads=2)(self.x).shape == (5, 2)


def split_from(stacked, **options):
    """A MultiHeadAttention holding the heads of a stack, and an output projection that changes nothing."""
    first = stacked.heads[0].W_query
    num_heads = len(stacked.heads)
    width = num_heads * first.out_features
    split = MultiHeadAttention(
        first.in_features,
        width,
        num_heads,
        d_key_value_in=stacked.heads[0].W_key.in_features,
        dtype=torch.float64,
        **options,
    )
    state = {
        f"{role}.weight": torch.cat([getattr(head, role).weight for head in stacked.heads])
        for role in ("W_query", "W_key", "W_value")
    }
    split.load_state_dict(state | {"out_proj.weight": torch.eye(width)})
    return split


class TestStackedIsSplit:
    def test_self_attention(self):
        stacked, x = StackedMultiHeadAttention(D_IN, 2, HEADS).double(), draw(2, 5, D_IN)
        split = split_from(stacked)
        assert_same(split(x), stacked(x))
        heads = split.steps(x).heads
        for index, head in enumerate(stacked.steps(x)):
            assert_same(heads.weights[:, index], head.weights)
            assert_same(heads.output[:, index], head.output)

    def test_causal(self):
        stacked, x = StackedMultiHeadAttention(D_IN, 2, HEADS).double(), draw(2, 5, D_IN)
        assert_same(split_from(stacked, causal=True)(x), stacked(x, mask=causal_mask(5)))
        assert_same(split_from(stacked)(x, mask=causal_mask(5)), stacked(x, mask=causal_mask(5)))

    def test_cross_attention_with_padding(self):
        stacked = StackedMultiHeadAttention(D_IN, 2, HEADS, d_key_value_in=3).double()
        x, keys, values = draw(2, 5, D_IN), draw(2, 7, 3), draw(2, 7, 3)
        mask = padding_mask(torch.tensor([[1] * 7, [1] * 4 + [0] * 3]))
        assert_same(split_from(stacked)(x, keys, values, mask), stacked(x, keys, values, mask[:, 0]))

    def test_values_are_made_from_the_keys_input_if_not_given(self):
        stacked, x, other = StackedMultiHeadAttention(D_IN, 2, HEADS).double(), draw(5, D_IN), draw(7, D_IN)
        for module in (stacked, split_from(stacked)):
            assert torch.equal(module(x, other), module(x, other, other))
            assert torch.equal(module(x), module(x, x, x))

    def test_heads_differ(self):
        stacked, x = StackedMultiHeadAttention(D_IN, 2, HEADS).double(), draw(5, D_IN)
        first, second, *_ = stacked.steps(x)
        assert not torch.isclose(first.weights, second.weights).all()


def torchs_own(num_heads, **options):
    """An ``nn.MultiheadAttention``, 8 wide, with biases that aren't 0, as a lost one wouldn't show then."""
    theirs = nn.MultiheadAttention(8, num_heads, batch_first=True, dtype=torch.float64, **options)
    if theirs.in_proj_bias is not None:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    return theirs


def from_torch(theirs, **options):
    """Our module holding the weights of an ``nn.MultiheadAttention``."""
    ours = MultiHeadAttention(
        theirs.embed_dim,
        theirs.embed_dim,
        theirs.num_heads,
        d_key_value_in=theirs.kdim,
        bias=theirs.in_proj_bias is not None,
        dtype=torch.float64,
        **options,
    )
    if theirs.in_proj_weight is not None:
        weights = theirs.in_proj_weight.chunk(3)
    else:
        weights = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
    roles = ("W_query", "W_key", "W_value")
    state = {f"{role}.weight": weight for role, weight in zip(roles, weights, strict=True)}
    state["out_proj.weight"] = theirs.out_proj.weight
    if theirs.in_proj_bias is not None:
        state |= {f"{r}.bias": b for r, b in zip(roles, theirs.in_proj_bias.chunk(3), strict=True)}
        state["out_proj.bias"] = theirs.out_proj.bias
    ours.load_state_dict(state)
    return ours


class TestAgainstTorchsModule:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
    def test_self_attention(self, bias, num_heads):
        theirs = torchs_own(num_heads, bias=bias)
        x = draw(2, 5, 8)
        ours = from_torch(theirs)
        output, weights = theirs(x, x, x, average_attn_weights=False)
        steps = ours.steps(x)
        assert_same(steps.output, output)
        assert_same(steps.heads.weights, weights)

    def test_causal_and_padded(self):
        theirs = torchs_own(4)
        x = draw(2, 5, 8)
        tokens = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
        blocked = ~torch.ones(5, 5).tril().bool()  # True = may not attend, there
        ours = from_torch(theirs, causal=True)
        output, weights = theirs(
            x, x, x, attn_mask=blocked, key_padding_mask=tokens == 0, average_attn_weights=False
        )
        steps = ours.steps(x, mask=padding_mask(tokens))
        assert_same(steps.output, output)
        assert_same(steps.heads.weights, weights)

    def test_cross_attention(self):
        theirs = torchs_own(4, kdim=3, vdim=3)
        x, keys, values = draw(2, 5, 8), draw(2, 7, 3), draw(2, 7, 3)
        output, weights = theirs(x, keys, values, average_attn_weights=False)
        steps = from_torch(theirs).steps(x, keys, values)
        assert_same(steps.output, output)
        assert_same(steps.heads.weights, weights)

    def test_gradients_of_all_weights(self):
        theirs = torchs_own(4)
        ours, x = from_torch(theirs), draw(2, 5, 8)
        ours(x).square().sum().backward()
        theirs(x, x, x)[0].square().sum().backward()
        parts = ours.W_query, ours.W_key, ours.W_value
        assert_same(torch.cat([part.weight.grad for part in parts]), theirs.in_proj_weight.grad)
        assert_same(torch.cat([part.bias.grad for part in parts]), theirs.in_proj_bias.grad)
        assert_same(ours.out_proj.weight.grad, theirs.out_proj.weight.grad)
        assert_same(ours.out_proj.bias.grad, theirs.out_proj.bias.grad)


class TestMultiHead:
    def test_steps(self):
        module = MultiHeadAttention(D_IN, D_OUT, HEADS, bias=True, out_width=3).double()
        x, other = draw(2, 5, D_IN), draw(2, 7, D_IN)
        steps = module.steps(x, other)
        assert steps.query.shape == (2, HEADS, 5, 2)
        assert steps.key.shape == steps.value.shape == (2, HEADS, 7, 2)
        assert steps.heads.weights.shape == (2, HEADS, 5, 7)
        assert steps.context.shape == (2, 5, D_OUT)
        assert steps.output.shape == (2, 5, 3)
        # head h holds columns 2 h and 2 h + 1 of each projection, and fills the same columns of the context
        for head in range(HEADS):
            columns = slice(2 * head, 2 * head + 2)
            assert torch.equal(steps.query[:, head], module.W_query(x)[..., columns])
            assert torch.equal(steps.key[:, head], module.W_key(other)[..., columns])
            assert torch.equal(steps.value[:, head], module.W_value(other)[..., columns])
            assert torch.equal(steps.context[..., columns], steps.heads.output[:, head])
        assert torch.equal(steps.output, module.out_proj(steps.context))

    def test_heads_are_what_the_loops_compute(self):
        module, x = MultiHeadAttention(D_IN, D_OUT, HEADS, causal=True, scale=0.3).double(), draw(2, 5, D_IN)
        steps = module.steps(x)
        weights, output = attention_by_loops(steps.query, steps.key, steps.value, causal_mask(5), scale=0.3)
        assert_same(steps.heads.weights, weights)
        assert_same(steps.heads.output, output)

    def test_names_of_parameters(self):
        def names(**options):
            return [name for name, _ in MultiHeadAttention(D_IN, D_OUT, HEADS, **options).named_parameters()]

        roles = ["W_query", "W_key", "W_value", "out_proj"]
        assert names() == [f"{role}.weight" for role in roles]
        assert names(bias=True) == [f"{role}.{kind}" for role in roles for kind in ("weight", "bias")]
        assert names(out_bias=True) == [*names(), "out_proj.bias"]
        assert names(bias=True, out_bias=False) == names(bias=True)[:-1]

    def test_scale_for_a_layer(self):
        # as GPT-2 may scale layer 2, the third: 1 / sqrt(head_dim) / 3
        x = draw(2, 5, D_IN)
        module = MultiHeadAttention(D_IN, D_OUT, HEADS, scale=2**-0.5 / 3).double()
        steps = module.steps(x)
        assert_same(
            steps.heads.output, torch_attention(steps.query, steps.key, steps.value, scale=2**-0.5 / 3)
        )
        unscaled = module.steps(x).heads.scores
        assert_same(steps.heads.scaled, unscaled / (3 * 2**0.5))

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_padded_is_as_alone(self, side):
        module, x = MultiHeadAttention(D_IN, D_OUT, HEADS, bias=True, causal=True).double(), draw(2, 6, D_IN)
        tokens = torch.tensor([[1] * 6, [1] * 4 + [0] * 2 if side == "right" else [0] * 2 + [1] * 4])
        real = slice(0, 4) if side == "right" else slice(2, 6)
        padded = module(x, mask=padding_mask(tokens))
        assert_same(padded[1, real], module(x[1, real]))
        assert_same(padded[0], module(x[0]))
        assert padded.isfinite().all()

    def test_a_mask_for_each_head(self):
        module, x = MultiHeadAttention(D_IN, D_OUT, HEADS).double(), draw(2, 5, D_IN)
        mask = torch.rand(2, HEADS, 5, 5) < 0.5
        weights = module.steps(x, mask=mask).heads.weights
        assert torch.equal(weights != 0, mask)

    def test_causal_combines_with_the_mask(self):
        module, x = MultiHeadAttention(D_IN, D_OUT, HEADS, causal=True).double(), draw(2, 5, D_IN)
        plain = MultiHeadAttention(D_IN, D_OUT, HEADS).double()
        plain.load_state_dict(module.state_dict())
        mask = torch.rand(2, HEADS, 5, 5) < 0.7
        assert torch.equal(module(x, mask=mask), plain(x, mask=combine_masks(mask, causal_mask(5))))

    def test_causal_with_a_cache(self):
        module, x = MultiHeadAttention(D_IN, D_OUT, HEADS, causal=True).double(), draw(2, 6, D_IN)
        assert_same(module(x[:, 4:], x), module(x)[:, 4:])

    @pytest.mark.parametrize(("width", "num_heads"), [(1600, 48), (8, 3), (8, 0), (8, -2), (4, 8)])
    def test_heads_that_do_not_divide_the_width(self, width, num_heads):
        with pytest.raises(ValueError, match=rf"\b{width}\b.*{num_heads}\b"):
            MultiHeadAttention(width, width, num_heads, device="meta")

    @pytest.mark.parametrize("lengths", [(5, 5), (2, 5)])
    def test_context_length(self, lengths):
        module = MultiHeadAttention(D_IN, D_OUT, HEADS, context_length=4)
        module(torch.zeros(4, D_IN), torch.zeros(4, D_IN))
        with pytest.raises(ValueError, match=r"\b5\b.*\b4\b"):
            module(torch.zeros(lengths[0], D_IN), torch.zeros(lengths[1], D_IN))

    def test_made_on_meta_without_random_numbers_then_given_weights(self):
        source, x = MultiHeadAttention(D_IN, D_OUT, HEADS, bias=True, causal=True), torch.randn(2, 5, D_IN)
        state = torch.get_rng_state()
        empty = MultiHeadAttention(D_IN, D_OUT, HEADS, bias=True, causal=True, device="meta")
        assert torch.equal(torch.get_rng_state(), state)
        empty.load_state_dict(source.state_dict(), assign=True)
        assert torch.equal(empty(x), source(x))

    def test_dtype(self):
        module = MultiHeadAttention(D_IN, D_OUT, HEADS, dtype=torch.float64)
        assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}
