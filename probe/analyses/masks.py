"""The same trained head under both masks: what the causal mask takes away, or would take away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attention import scaled_dot_product_attention
from probe.analyses.asking import analysis
from probe.analyses.result import Origin, Result, named, of_text, pair_table
from probe.display.data import Axis, Column, Numbers, Panel, Sheet, Table, array
from probe.display.nonfinite import nonfinite
from probe.models.computing import computing
from probe.models.loading import Model, resolve
from probe.models.visibility import allowed_keys
from probe.running.inputs import encode_for
from probe.running.recording import Recording, record
from probe.running.tokens import Span, Text

Direction = Literal["causal", "bidirectional"]


@dataclass(frozen=True, eq=False, repr=False)
class MaskComparison(Result, what="masks"):
    """One head under the causal mask, and without it.

    From the same queries and keys, unless ``whole_model``: then every layer of a second run was under the
    other mask, and so were the layers that this head's queries and keys come from. Where the head's layer has
    a sliding window, the window stays: without the causal mask it reaches as far ahead as back.

    Attributes
    ----------
    layer, head : which head.
    text, tokens, spans, special, truncated : as in a ``Run``.
    causal, bidirectional : (T, T) attention weights on the CPU, [query, key].
    moved
        (T,), the weight each query moves: half the sum of the absolute differences of its two rows. From the
        same queries and keys that is the weight the query puts on later tokens when it may, with or without
        a window. With ``whole_model`` it is at least that: the rows come from other queries and keys, and
        weight moves among the earlier tokens too.
    trained_with : "causal" or "bidirectional", the mask the model was trained with.
    window : how many tokens a query of this layer sees each way, itself included; None if there is no window.
    """

    also_in_dict = ("labels", "summary")

    layer: int
    head: int
    text: Text
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    truncated: str | None
    causal: Tensor
    bidirectional: Tensor
    moved: Tensor
    trained_with: Direction
    whole_model: bool
    window: int | None

    @property
    def labels(self) -> dict[Direction, str]:
        """A caption for each of the two."""
        other: Direction = "bidirectional" if self.trained_with == "causal" else "causal"
        window = "" if self.window is None else f" within the window of {self.window}"
        return {
            self.trained_with: f"{self.trained_with}{window}, as the model was trained",
            other: f"{other}{window}, not what the model was trained with",
        }

    @property
    def later(self) -> Tensor:
        """(T,), the weight each query puts on later tokens without the causal mask."""
        return self.bidirectional.triu(1).sum(-1)

    def allowed(self, direction: Direction) -> Tensor:
        """One of the two masks: (T, T), bool, True = may attend."""
        length = len(self.tokens)
        allowed = allowed_keys(length, causal=direction == "causal", window=self.window)
        return torch.ones(length, length, dtype=torch.bool) if allowed is None else allowed

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        problem = nonfinite(self.model_name, (self.causal, self.bidirectional))
        if problem:
            return problem
        window = "" if self.window is None else f" and a window of {self.window}, which stays"
        scope = "the other mask in every layer" if self.whole_model else "the other mask in this layer only"
        return (
            f"Layer {self.layer}, head {self.head} of {self.model_name}, trained with the "
            f"{self.trained_with} mask{window} ({scope}): without the causal mask a query has "
            f"{float(self.later.mean()):.1%} of its weight on later tokens, on average; "
            f"{float(self.moved.mean()):.1%} of the weight moves."
        )

    def blocks(self) -> Numbers:
        """Both maps, and the weight that moves."""
        return {name: array(getattr(self, name)) for name in ("causal", "bidirectional", "moved")}

    def table(self) -> Table:
        """A row for each pair of query and key."""
        return pair_table(
            named(self.tokens), named(self.tokens), causal=self.causal, bidirectional=self.bidirectional
        )

    def printed(self) -> tuple[Table, ...]:
        """How much weight each query has on later tokens once it may look at them."""
        most = self.bidirectional.argmax(-1).tolist()
        largest = [
            f"{key} {self.tokens[key]} ({float(self.bidirectional[query, key]):.3f})"
            for query, key in enumerate(most)
        ]
        columns = (
            Column("query", range(len(self.tokens))),
            Column("token", self.tokens),
            Column("weight moved", self.moved.tolist(), digits=".4f"),
            Column("on later tokens", self.later.tolist(), digits=".4f"),
            Column("largest without the mask on", largest),
        )
        return (Table(columns),)

    def _sheet(self) -> Sheet:
        first, second = self.labels
        maps = {"causal": self.causal, "bidirectional": self.bidirectional}
        sees = _sees(self.window)
        axes = Axis("query", self.tokens), Axis("key", self.tokens)

        def mask(kind: Direction) -> Panel:
            name = f"{kind} mask"
            return Panel(f"The {name}", name, self.allowed(kind), *axes, "mask", sees[kind])

        def head(kind: Direction) -> Panel:
            return Panel(
                f"The head under the {kind} mask",
                f"under {kind}",
                maps[kind],
                *axes,
                note=self.labels[kind],
                masked=~self.allowed(kind),
            )

        moved = Panel(
            "Weight that moved, per query",
            "moved",
            self.moved,
            *axes,
            "bars",
            f"from the {first} to the {second} mask",
        )
        change = Panel(
            "Weight that moved, per cell",
            "change",
            maps[second] - maps[first],
            *axes,
            "change",
            f"under {second} minus under {first}",
        )
        title = f"{self.model_name} ({self.source}), layer {self.layer}, head {self.head}"
        panels = (mask(first), mask(second), moved, head(first), head(second), change)
        return Sheet(title, panels, (self.summary,))


def _sees(window: int | None) -> dict[Direction, str]:
    """What each mask lets a query see, in words."""
    if window is None:
        return {
            "causal": "a query sees itself and what came before",
            "bidirectional": "a query sees every token",
        }
    return {
        "causal": f"this layer has a window: a query sees the last {window} tokens, itself included",
        "bidirectional": f"this layer has a window: a query sees itself and {window - 1} tokens on each side",
    }


@analysis(MaskComparison, command="masks")
def compare_masks(
    model: Model | str,
    text: Text,
    layer: int,
    head: int,
    *,
    whole_model: bool = False,
    truncate: bool = False,
) -> MaskComparison:
    """Put one trained head under the mask it was trained with and under the other.

    The two are causal and bidirectional, and only that is changed. A layer that sees a sliding window of w
    tokens (Mistral's; some of Qwen2's) keeps it: its other mask allows the w - 1 tokens before a query and
    the w - 1 after it.

    Parameters
    ----------
    layer, head : which head, both counted from 0.
    whole_model
        False: one run of the model; only this head's mask is changed, its queries and keys stay those of the
        run. True: a second run with the other mask in every layer, each with its own window, so that this
        head also sees what the layers before it make of the other mask.

    Raises
    ------
    ProbeError
        If there is no such model, layer or head, or the text can't be taken.
    """
    model = resolve(model)
    model.check_head(layer, head)
    recording = record(model, [encode_for(model, text, truncate=truncate)])
    return masks_of(recording, layer, head, other=rerun_masked(recording) if whole_model else None)


def rerun_masked(recording: Recording) -> Recording:
    """The same text through the whole model again, under the mask it was not trained with."""
    return record(recording.model, recording.encodings, causal=not recording.causal)


def masks_of(
    recording: Recording, layer: int, head: int, *, other: Recording | None = None
) -> MaskComparison:
    """``compare_masks`` for a run of a single text that has been recorded already.

    ``other`` is the run under the other mask, from ``rerun_masked``; without it the head's queries and keys
    stay as they are and only its mask is changed.
    """
    model, (encoding,) = recording.model, recording.encodings
    model.check_head(layer, head)
    runs = {model.causal: recording, not model.causal: other or recording}
    maps = {causal: _weights(run, layer, head, causal=causal) for causal, run in runs.items()}
    return MaskComparison(
        layer=layer,
        head=head,
        **of_text(encoding, "spans", "special"),
        causal=maps[True],
        bidirectional=maps[False],
        moved=(maps[True] - maps[False]).abs().sum(-1) / 2,
        trained_with="causal" if model.causal else "bidirectional",
        whole_model=other is not None,
        window=model.sites[layer].window,
        origin=Origin.of(model, "eager"),
    )


def _weights(recording: Recording, layer: int, head: int, *, causal: bool) -> Tensor:
    """One head's weights (T, T) under a mask, from the queries and keys of a run."""
    seen, site = recording.layers[layer], recording.model.sites[layer]
    query, key, value = (part[0, head] for part in (seen.query, seen.key, seen.value))  # (T, head_dim)
    mask = allowed_keys(len(query), causal=causal, window=site.window, device=query.device)
    with computing(query.device, tuple(recording.attention_mask.shape)):
        steps = scaled_dot_product_attention(query, key, value, mask=mask, scale=site.scale, keep_steps=False)
    return steps.weights.cpu()
