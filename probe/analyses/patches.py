"""Where a position of a model of images looks in the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probe.analyses.result import strictly_plain
from probe.display.data import Axis, Panel, Sheet
from probe.errors import ProbeError


@dataclass(frozen=True, eq=False)
class PatchWeights:
    """One query's weights over the patches of a picture. Given by ``Run.patches`` and ``Rollout.patches``.

    Attributes
    ----------
    title : whose weights they are.
    query : what the query is called.
    weights : (rows, columns), the top row of the picture first.
    special : the weight on each key that is no patch, by its name: "[CLS]", registers. With ``weights`` they
        sum to 1.
    """

    title: str
    query: str
    weights: Tensor
    special: dict[str, float]

    @classmethod
    def of(
        cls,
        title: str,
        weights: Tensor,
        sides: tuple[tuple[str, ...], tuple[str, ...]],
        grid: tuple[int, int] | None,
        query: int,
    ) -> PatchWeights:
        """From a map, (Tq, Tk), and what its queries and keys are called: a key that is no patch in brackets.

        Raises
        ------
        ProbeError
            If the keys are no patches, ``grid`` being None, or there is no such query.
        """
        queries, keys = sides
        if grid is None:
            raise ProbeError(
                f"{title}: its keys are no patches of a picture. Look at the whole map: weights."
            )
        if not isinstance(query, int) or isinstance(query, bool) or not 0 <= query < len(queries):
            raise ProbeError(f"There is no position {query!r} here: they count from 0 to {len(queries) - 1}.")
        apart = [key.startswith("[") for key in keys]
        patches = weights[query, [index for index, one in enumerate(apart) if not one]]
        special = {keys[index]: float(weights[query, index]) for index, one in enumerate(apart) if one}
        return cls(title, queries[query], patches.unflatten(0, grid), special)

    @property
    def summary(self) -> str:
        """How the weight is shared out, in one line."""
        apart = "".join(f", {weight:.1%} on {name}" for name, weight in self.special.items())
        share = float(self.weights.sum())
        return f"{self.title}, query {self.query}: {share:.1%} of the weight on the picture{apart}."

    def sheet(self) -> Sheet:
        """The picture's patches as one panel; its scale reaches to the largest weight."""
        rows, columns = self.weights.shape
        axes = Axis.numbered("row", rows), Axis.numbered("column", columns)
        largest = float(self.weights.nan_to_num(0.0).max())
        panel = Panel(
            f"From {self.query}", "weight", self.weights, *axes, note="patches", ends=(0.0, largest or 1.0)
        )
        return Sheet(self.title, (panel,), (self.summary,))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        plain: dict[str, Any] = strictly_plain({**vars(self), "summary": self.summary})
        return plain

    def __str__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        from probe.display import notebook

        return notebook.html([self.summary], texts=(), map_sets=(), sheet=self.sheet(), tables=())
