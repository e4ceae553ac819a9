"""A head as a spreadsheet that computes: inputs and weights as numbers, everything after them as formulas.

The formulas are plain ones that Excel, LibreOffice and Google Sheets all know. A cell stands at the same
address in every sheet of T x T numbers, so the way of one weight can be followed from sheet to sheet.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
import xlsxwriter
from torch import Tensor
from xlsxwriter.utility import xl_col_to_name, xl_range_abs, xl_rowcol_to_cell

from attention.examples import MaskedScores, ProjectedSentence
from probe.display.nonfinite import nonfinite
from probe.errors import ProbeError
from probe.models.families import Role
from probe.running.head_numbers import HeadNumbers, Normalised

# More formulas than this make a spreadsheet program slow, and few people would read them.
MAX_TOKENS = 128
# Stands for minus infinity, which spreadsheets don't have: exp of it is 0 all the same.
MINUS_INFINITY = -1e23

# Where the numbers of every sheet begin: below titles and column names, beside row names.
_ROW, _COLUMN = 3, 2
_SWITCH = "mask_in_use"


def workbook_bytes(numbers: HeadNumbers) -> bytes:
    """The content of the file that ``to_workbook`` writes.

    Raises
    ------
    ProbeError
        If there are more than ``MAX_TOKENS`` tokens.
    """
    if len(numbers.tokens) > MAX_TOKENS:
        raise ProbeError(
            f"The text has {len(numbers.tokens)} tokens; a workbook takes at most {MAX_TOKENS}, as it has "
            "several formulas for each pair of them. Give a shorter text."
        )
    of_values = numbers.value_weight, numbers.value_bias
    problem = nonfinite(
        numbers.title, (numbers.inputs, numbers.scaled_scores, numbers.model_weights, *of_values)
    )
    if problem:
        raise ProbeError(f"A workbook can't be made: {problem}")
    # Text that looks like a formula, a number or a link stays text.
    options = {"strings_to_formulas": False, "strings_to_numbers": False, "strings_to_urls": False}
    content = io.BytesIO()
    with xlsxwriter.Workbook(content, {**options, "in_memory": True}) as book:
        _Writer(book, numbers).write()
    return content.getvalue()


def example_numbers(example: ProjectedSentence | MaskedScores) -> HeadNumbers:
    if isinstance(example, MaskedScores):
        scores = torch.tensor(example.scaled_scores, dtype=torch.float64)
        return HeadNumbers(
            title=f'The example "{" ".join(example.tokens)}", from its scaled scores on',
            tokens=example.tokens,
            causal=True,
            scale=1.0,
            # The example has no scores where the mask forbids; 0 stands there for want of another.
            scaled=scores.masked_fill(scores.isinf(), 0.0),
        )

    def matrix(rows: Sequence[Sequence[float]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    return HeadNumbers(
        title=f'The example "{" ".join(example.tokens)}"',
        tokens=example.tokens,
        causal=False,
        scale=len(example.W_key) ** -0.5,
        inputs=matrix(example.encodings),
        query_weight=matrix(example.W_query),
        key_weight=matrix(example.W_key),
        value_weight=matrix(example.W_value),
    )


class _Writer:
    def __init__(self, book: Any, numbers: HeadNumbers) -> None:
        self.book, self.numbers = book, numbers
        self.bold = book.add_format({"bold": True})
        self.input = book.add_format({"bg_color": "#FFF6D6", "border": 1, "bold": True})
        self.token = book.add_format({"bold": True, "align": "right"})
        self.formats: dict[str, Any] = {}
        self.about = book.add_worksheet("About")
        self.names: list[tuple[str, str]] = []

    def write(self) -> None:
        numbers = self.numbers
        count = len(numbers.tokens)
        scaled = numbers.scaled_scores
        if numbers.inputs is None:
            self._sheet(
                "scaled", "Scaled scores, given; a row for each query, a column for each key.", scaled
            )
            value = torch.zeros(count, 0, dtype=torch.float64)
        else:
            query, key, value = self._vectors()
            scores = query @ key.T
            width = query.shape[1]
            self._scalar("scale", "What the scores are multiplied with.", numbers.scale, 4)
            if numbers.window is not None:
                about = "How many tokens a query sees, itself included, back and (if it may) ahead."
                self._scalar("window", about, numbers.window, 5)
            self._sheet(
                "scores",
                "Dot product of a query vector (row) with a key vector (column).",
                scores,
                formula=lambda i, j: f"=SUMPRODUCT({_row('query', i, width)},{_row('key', j, width)})",
            )
            self._sheet(
                "scaled",
                "Scores times scale.",
                scaled,
                formula=lambda i, j: f"={_cell('scores', i, j)}*scale",
            )
        self._attention(scaled, value)
        self._about()

    def _vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs and the three weight matrices with their biases; query, key and value as formulas."""
        numbers = self.numbers
        assert numbers.inputs is not None
        width = numbers.inputs.shape[1]
        self._sheet(
            "inputs",
            "What the layer's attention is given: a row a token.",
            numbers.inputs,
            columns=_counted(width),
        )
        turns = numbers.frequencies is not None
        roles: tuple[Role, ...] = ("query", "key")
        for role in roles:
            changes = turns or numbers.norm(role) is not None
            self._projection(role, f"projected_{role}" if changes else role)
        self._projection("value", "value")
        if turns:
            self._rotations()
        for role in roles:
            before = f"projected_{role}"
            norm = numbers.norm(role)
            if norm is not None:
                before = f"normalised_{role}" if turns else role
                self._normalised(role, norm, before)
            if turns:
                self._turned(role, before)
        return numbers.vectors("query"), numbers.vectors("key"), numbers.vectors("value")

    def _projection(self, role: Role, name: str) -> None:
        """The weights of one role, and their product with the inputs, called ``name``."""
        numbers = self.numbers
        assert numbers.inputs is not None
        width = numbers.inputs.shape[1]
        weight, bias = getattr(numbers, f"{role}_weight"), getattr(numbers, f"{role}_bias")
        head_dim = weight.shape[0]
        # The bias is one more column, so that a row holds all that one number of the product needs.
        bias = torch.zeros(head_dim, dtype=torch.float64) if bias is None else bias
        whose, readers = "The head's", ""
        if numbers.key_head is not None and role != "query":
            key_head, heads = numbers.key_head
            whose, readers = f"Key and value head {key_head}'s", f" ({heads} heads read it)"
        self._sheet(
            f"W_{role}",
            f"{whose} {role} weights{readers}: a row for each number of the {role} vector, bias last.",
            torch.cat([weight, bias[:, None]], dim=1),
            rows=_counted(head_dim),
            columns=[*_counted(width), "bias"],
        )
        following = "turned" if numbers.norm(role) is None else "normalised"
        before = "" if name == role else f", before they are {following}"
        self._sheet(
            name,
            f"{role.capitalize()} vectors{before}: input times {role} weights, plus bias.",
            numbers.projected(role),
            columns=_counted(head_dim),
            formula=lambda i, j: (
                f"=SUMPRODUCT({_row('inputs', i, width)},{_row(f'W_{role}', j, width)})"
                f"+{_cell(f'W_{role}', j, width)}"
            ),
        )

    def _rotations(self) -> None:
        """By how much each pair of numbers is turned at each position."""
        frequencies, angles = self.numbers.frequencies, self.numbers.angles
        assert frequencies is not None and angles is not None
        pairs = [f"pair {index}" for index in range(len(frequencies))]
        which = "2 i and 2 i + 1" if self.numbers.interleaved else f"i and i + {len(frequencies)}"
        self._sheet(
            "position",
            "Where each token stands.",
            torch.arange(len(self.numbers.tokens))[:, None],
            columns=["position"],
            digits="0",
        )
        self._sheet(
            "frequency",
            "How far each pair of numbers turns from one position to the next, in radians. Pair i is the "
            f"numbers {which}.",
            frequencies[None],
            rows=["frequency"],
            columns=pairs,
            digits="0.00000000E+00",
        )
        self._sheet(
            "angle",
            "Position times frequency, in radians.",
            angles,
            formula=lambda i, j: f"={_cell('position', i, 0)}*{_cell('frequency', 0, j)}",
            digits="0.00000000",
            columns=pairs,
        )
        for name, function, values in (("cosine", "COS", angles.cos()), ("sine", "SIN", angles.sin())):
            self._sheet(
                name,
                f"{name.capitalize()} of the angle.",
                values,
                formula=lambda i, j, function=function: f"={function}({_cell('angle', i, j)})",  # type: ignore[misc]
                columns=pairs,
            )

    def _normalised(self, role: Role, norm: Normalised, name: str) -> None:
        """The vectors of one role brought to one size, called ``name``."""
        numbers, projected = self.numbers, f"projected_{role}"
        sizes, values = numbers.sizes(role), numbers.normalised(role)
        assert sizes is not None
        width = values.shape[1]
        about = f"What each {role} vector is divided by: the root of its mean square and epsilon."
        if norm.of_all_heads is None:
            if "epsilon" not in dict(self.names):
                self._scalar("epsilon", "Added to the mean square of a query or key.", norm.eps, 6)
        else:
            about = (
                f"What each {role} vector is divided by: the root of the mean square over all heads as one, "
                "given, as the other heads' weights are not here. It stays if an input is changed."
            )
        self._sheet(
            f"{role}_size",
            about,
            sizes[:, None],
            columns=["size"],
            formula=None
            if norm.of_all_heads is not None
            else lambda i, _: f"=SQRT(SUMSQ({_row(projected, i, width)})/{width}+epsilon)",
        )
        self._sheet(
            f"{role}_gain",
            f"What each number of a {role} vector is multiplied with after the division.",
            norm.gain[None],
            rows=["gain"],
            columns=_counted(width),
        )
        self._sheet(
            name,
            f"{role.capitalize()} vectors, normalised: divided by their size, times gain.",
            values,
            columns=_counted(width),
            formula=lambda i, j: (
                f"={_cell(projected, i, j)}/{_cell(f'{role}_size', i, 0)}*{_cell(f'{role}_gain', 0, j)}"
            ),
        )

    def _turned(self, role: Role, before: str) -> None:
        """The vectors of one role turned by their positions: (a, b) -> (a cos - b sin, b cos + a sin)."""
        numbers, values = self.numbers, self.numbers.vectors(role)
        assert numbers.frequencies is not None
        pairs = [numbers.pair(pair) for pair in range(len(numbers.frequencies))]
        turning = {a: (pair, "-", b) for pair, (a, b) in enumerate(pairs)}
        turning |= {b: (pair, "+", a) for pair, (a, b) in enumerate(pairs)}

        def formula(i: int, j: int) -> str:
            if j not in turning:
                return f"={_cell(before, i, j)}"
            pair, sign, other = turning[j]
            return (
                f"={_cell(before, i, j)}*{_cell('cosine', i, pair)}"
                f"{sign}{_cell(before, i, other)}*{_cell('sine', i, pair)}"
            )

        width, turned = values.shape[1], 2 * len(pairs)
        stays = "" if turned == width else f" Numbers from {turned} on stay."
        which = "2 i and 2 i + 1" if numbers.interleaved else f"i and i + {len(pairs)}"
        self._sheet(
            role,
            f"{role.capitalize()} vectors, turned by their positions: numbers {which}, called a "
            f"and b, become a cos - b sin and b cos + a sin.{stays}",
            values,
            columns=_counted(width),
            formula=formula,
        )

    def _attention(self, scaled: Tensor, value: Tensor) -> None:
        """From scaled scores to weights and contexts, as formulas."""
        numbers, count = self.numbers, len(self.numbers.tokens)
        allowed = numbers.allowed
        forbidden = torch.zeros(count, count, dtype=torch.float64).masked_fill(~allowed, MINUS_INFINITY)
        masked = scaled + forbidden
        maximum = masked.amax(1, keepdim=True)
        exponentials = (masked - maximum).exp()
        sums = exponentials.sum(1, keepdim=True)
        weights = numbers.weights
        self._sheet(
            "mask",
            f"Added to the scaled scores: 0 where a query may attend, else {MINUS_INFINITY:.0E}, which "
            "stands for minus infinity.",
            forbidden,
            formula=lambda i, j: f"=IF({self._may(i, j)},0,{MINUS_INFINITY:.0E})",
            digits="0E+00",
        )
        self._sheet(
            "masked",
            "Scaled scores plus mask.",
            masked,
            formula=lambda i, j: f"={_cell('scaled', i, j)}+{_cell('mask', i, j)}",
            digits="General",
        )
        self._sheet(
            "row_maximum",
            "The largest masked score of each row: subtracted before the exponential, it cancels later.",
            maximum,
            columns=["maximum"],
            formula=lambda i, _: f"=MAX({_row('masked', i, count)})",
        )
        self._sheet(
            "exponentials",
            "exp(masked - row maximum).",
            exponentials,
            formula=lambda i, j: f"=EXP({_cell('masked', i, j)}-{_cell('row_maximum', i, 0)})",
        )
        self._sheet(
            "row_sum",
            "Sum of each row of exponentials.",
            sums,
            columns=["sum"],
            formula=lambda i, _: f"=SUM({_row('exponentials', i, count)})",
        )
        self._sheet(
            "weights",
            "Attention weights: exponential divided by the sum of its row. Each row sums to 1.",
            weights,
            formula=lambda i, j: f"={_cell('exponentials', i, j)}/{_cell('row_sum', i, 0)}",
            scale=True,
        )
        if value.shape[1]:
            self._sheet(
                "context",
                "Context vectors: the values, weighted by a row of weights and added up.",
                weights @ value,
                columns=_counted(value.shape[1]),
                formula=lambda i, j: (
                    f"=SUMPRODUCT(TRANSPOSE({_row('weights', i, count)}),{_column('value', j, count)})"
                ),
                array=True,
            )
        if numbers.model_weights is not None:
            own = numbers.model_weights.double()
            self._sheet("model_weights", "What the model itself computed, as numbers.", own, scale=True)
            self._sheet(
                "difference",
                "Weights minus the model's own: rounding, as long as inputs and mask are the model's.",
                weights - own,
                formula=lambda i, j: f"={_cell('weights', i, j)}-{_cell('model_weights', i, j)}",
                digits="0.0E+00",
            )

    def _may(self, i: int, j: int) -> str:
        """Whether query i may attend to key j, as a formula."""
        direction = f'OR({_SWITCH}="bidirectional",{j}<={i})'
        return direction if self.numbers.window is None else f"AND({direction},{abs(i - j)}<window)"

    def _sheet(
        self,
        name: str,
        about: str,
        values: Tensor,
        *,
        formula: Callable[[int, int], str] | None = None,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        digits: str = "0.0000000",
        scale: bool = False,
        array: bool = False,
    ) -> None:
        """One sheet of numbers or formulas, with its titles, its name, and the panes frozen beside them.

        ``values`` are (rows, columns) cells, of which the first stands at (_ROW, _COLUMN). Rows and columns
        are called as the tokens if nothing else is given.
        """
        rows, columns = rows or self.numbers.tokens, columns or self.numbers.tokens
        sheet = self.book.add_worksheet(name)
        number = self._format(digits)
        sheet.write_string(0, 0, about, self.bold)
        for j, title in enumerate(columns):
            sheet.write_number(1, _COLUMN + j, j)
            sheet.write_string(2, _COLUMN + j, title, self.token)
        for i, title in enumerate(rows):
            sheet.write_number(_ROW + i, 0, i)
            sheet.write_string(_ROW + i, 1, title, self.token)
        for i, row in enumerate(values.tolist()):
            for j, value in enumerate(row):
                place = _ROW + i, _COLUMN + j
                if formula is None:
                    sheet.write_number(*place, value, number)
                elif array:
                    sheet.write_array_formula(*place, *place, "{" + formula(i, j) + "}", number, value)
                else:
                    sheet.write_formula(*place, formula(i, j), number, value)
        last = _ROW + len(rows) - 1, _COLUMN + len(columns) - 1
        sheet.freeze_panes(_ROW, _COLUMN)
        sheet.set_column(1, 1, 14)
        sheet.set_column(_COLUMN, last[1], 12)
        if scale:
            colours = {"type": "2_color_scale", "min_color": "#FFFFFF", "max_color": "#2F6DB5"}
            sheet.conditional_format(_ROW, _COLUMN, *last, colours)
        self.book.define_name(name, f"={name}!{xl_range_abs(_ROW, _COLUMN, *last)}")
        self.names.append((name, about))

    def _scalar(self, name: str, about: str, value: float, row: int) -> None:
        """One number on the first sheet, with a name."""
        self.about.write_string(row, 0, name, self.bold)
        self.about.write_number(row, 1, value, self.input)
        self.about.write_string(row, 2, about)
        self.book.define_name(name, f"=About!{xl_rowcol_to_cell(row, 1, True, True)}")
        self.names.append((name, about))

    def _about(self) -> None:
        sheet, numbers = self.about, self.numbers
        trained = "causal" if numbers.causal else "bidirectional"
        sheet.set_column(0, 0, 18)
        sheet.set_column(1, 1, 26)
        sheet.set_column(2, 2, 100)
        sheet.write_string(0, 0, numbers.title, self.book.add_format({"bold": True, "font_size": 14}))
        lead = "All after inputs and weights is formulas: change a yellow cell or any input, and see."
        sheet.write_string(1, 0, lead)
        sheet.write_string(3, 0, "mask in use", self.bold)
        sheet.write_string(3, 1, trained, self.input)
        sheet.write_string(3, 2, f'"causal" or "bidirectional"; as trained: {trained}.')
        sheet.data_validation(3, 1, 3, 1, {"validate": "list", "source": ["causal", "bidirectional"]})
        self.book.define_name(_SWITCH, "=About!$B$4")
        row = 7 if "epsilon" in dict(self.names) else 6
        sheet.write_string(row, 0, "defined name", self.bold)
        sheet.write_string(row, 2, "what it is", self.bold)
        for name, about in self.names:
            row += 1
            sheet.write_string(row, 0, name)
            sheet.write_string(row, 2, about)
        row += 2
        for label, entry in numbers.provenance:
            sheet.write_string(row, 0, label, self.bold)
            sheet.write_string(row, 1, entry)
            row += 1

    def _format(self, digits: str) -> Any:
        if digits not in self.formats:
            self.formats[digits] = self.book.add_format({"num_format": digits})
        return self.formats[digits]


def _counted(count: int) -> list[str]:
    return [f"dim {index}" for index in range(count)]


def _cell(sheet: str, i: int, j: int) -> str:
    """Row i, column j of a block."""
    return f"{sheet}!{xl_rowcol_to_cell(_ROW + i, _COLUMN + j)}"


def _row(sheet: str, i: int, width: int) -> str:
    """The first ``width`` cells of row i of a block."""
    first, last = xl_col_to_name(_COLUMN), xl_col_to_name(_COLUMN + width - 1)
    return f"{sheet}!${first}{_ROW + i + 1}:${last}{_ROW + i + 1}"


def _column(sheet: str, j: int, count: int) -> str:
    """The first ``count`` cells of column j of a block."""
    name = xl_col_to_name(_COLUMN + j)
    return f"{sheet}!{name}${_ROW + 1}:{name}${_ROW + count}"
