"""The command line: ``python -m probe verify|attend|masks|trace|heads|find|effect|export|reproduce|models``.

Results go to stdout, everything else to stderr. Exit code 0: all is well; 1: a check failed; 2: bad input.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

# What transformers has to say of a checkpoint, ``load`` says in an error or a warning of its own. The
# variable is read when transformers is imported, which is after this.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Attention of pretrained models, checked head by head against attention computed from scratch. "
    "Layers, heads and positions count from 0, special tokens included.",
    epilog="Exit code 0: all is well; 1: a check failed; 2: bad input.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import probe

        _print(f"attention-probe {probe.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _expanded(path: str) -> Path:
    """A path; ``~`` is the home folder, in quotes too, which keep the shell from saying so."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # of an unknown user
        return Path(path)


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="bert, gpt2, a bundled model, a local folder or a full Hub id. See: models."
    ),
]
TheText = Annotated[str, typer.Argument(metavar="TEXT", help="The text, in quotes.")]
Pair = Annotated[
    str | None, typer.Option("--pair", metavar="TEXT", help="Second sentence, for models like BERT.")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="TEXT", help="What a model with an encoder and a decoder is to produce, like T5."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of a table.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps ...; default: the GPU if there is one.")]
Dtype = Annotated[str, typer.Option(help="float32, float64, float16 or bfloat16.")]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut a text that is longer than the model takes, and say so.")
]
How = Annotated[
    str,
    typer.Option("--how", metavar="WAY", help='zero: switched off; mean: set to its mean; or "other mask".'),
]
Layer = Annotated[int, typer.Option(help="Layer, counted from 0.")]
Head = Annotated[int, typer.Option(help="Head, counted from 0.")]


@app.command()
def verify(
    model: ModelName,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="One text or several, in quotes.")
    ] = None,
    pair: Pair = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            parser=_expanded,
            help="Also check every line of this UTF-8 file; empty lines are skipped.",
        ),
    ] = None,
    target: Target = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Compute every head again, from the model's weights or from its queries and keys, and compare.

    From the weights where it is known where they lie; the report says which it was.
    """
    import probe

    given: list[Any] = [*(texts or []), *(_lines(file) if file else [])]
    if not given:
        raise typer.BadParameter("give a text, or --file.")
    if pair is not None:
        if len(given) != 1:
            raise typer.BadParameter("--pair goes with exactly one text.")
        given = [(given[0], pair)]
    if target is not None and len(given) != 1:
        raise typer.BadParameter("--target goes with exactly one text.")
    targets = None if target is None else [target]
    report = probe.verify(_load(model, device, dtype), given, targets, truncate=truncate)
    _print(report.to_dict() if as_json else str(report).rstrip())
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def attend(
    model: ModelName,
    text: TheText,
    layer: Layer = 0,
    head: Head = 0,
    all_heads: Annotated[bool, typer.Option("--all", help="With --json: all heads of all layers.")] = False,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="With --target: encoder, decoder or cross (from the target to the text; the default).",
        ),
    ] = None,
    target: Target = None,
    pair: Pair = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Print one head's attention weights: a row for each query, a column for each key."""
    import probe
    from probe.display.terminal import weights_table

    if all_heads and not as_json:
        raise typer.BadParameter("--all goes with --json.")
    if all_heads and kind is not None:
        raise typer.BadParameter("--kind goes with one head, not with --all.")
    loaded = _load(model, device, dtype)
    if kind is None and loaded.has_target:
        kind = "cross"
    heads: Any = None if all_heads else [(layer, head) if kind is None else (kind, layer, head)]
    run = probe.attend(loaded, _with(text, pair), heads, target=target, truncate=truncate)
    _print(run.to_dict() if as_json else weights_table(run, layer, head, kind).rstrip())


@app.command()
def masks(
    model: ModelName,
    text: TheText,
    layer: Layer = 0,
    head: Head = 0,
    whole_model: Annotated[
        bool, typer.Option("--whole-model", help="Put every layer under the other mask, not only this head.")
    ] = False,
    pair: Pair = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Put one trained head under the causal and the bidirectional mask."""
    import probe

    comparison = probe.compare_masks(
        _load(model, device, dtype),
        _with(text, pair),
        layer,
        head,
        whole_model=whole_model,
        truncate=truncate,
    )
    _print(comparison.to_dict() if as_json else str(comparison).rstrip())


@app.command()
def trace(
    model: ModelName,
    text: TheText,
    query: Annotated[int, typer.Option(help="Position of the query's token, counted from 0.")] = 0,
    layer: Layer = 0,
    head: Head = 0,
    pair: Pair = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Follow one query of one head, number by number."""
    import probe

    result = probe.trace(
        _load(model, device, dtype), _with(text, pair), layer, head, query, truncate=truncate
    )
    _print(result.to_dict() if as_json else str(result).rstrip())


@app.command()
def heads(
    model: ModelName,
    text: TheText,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="MEASURE", help="Largest first, by a column's title.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="Only so many heads.")] = None,
    pair: Pair = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Measure every head: entropy, distance, weight on the previous token, induction and more."""
    import probe
    from probe.display.terminal import measures_table

    measures = probe.measure_heads(_load(model, device, dtype), _with(text, pair), truncate=truncate)
    shown = (measures.heads if sort is None else measures.ranked(sort))[:top]
    _print(replace(measures, heads=shown).to_dict() if as_json else measures_table(measures, shown).rstrip())


@app.command()
def find(
    model: ModelName,
    text: TheText,
    from_word: Annotated[
        str, typer.Argument(metavar="FROM", help='The word that attends; "it#2": the second.')
    ],
    to_word: Annotated[str, typer.Argument(metavar="TO", help="The word that is attended to.")],
    versus: Annotated[
        str | None, typer.Option("--versus", metavar="WORD", help="A second target to compare with.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many heads to list.")] = 10,
    pair: Pair = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Rank the heads by the weight that links two words of a text."""
    import probe
    from probe.display.terminal import found_table

    found = probe.find_heads(
        _load(model, device, dtype), _with(text, pair), from_word, to_word, versus, truncate=truncate
    )
    _print(found.to_dict() if as_json else found_table(found, top).rstrip())


@app.command()
def effect(
    model: ModelName,
    text: TheText,
    layer: Annotated[int | None, typer.Option(help="Layer, counted from 0; default: every head.")] = None,
    head: Annotated[int | None, typer.Option(help="Head, counted from 0; default: all of the layer.")] = None,
    how: How = "zero",
    top: Annotated[int, typer.Option("--top", min=1, help="How many heads to list.")] = 10,
    pair: Pair = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Change a head and say what becomes of the model's output; without --layer rank every head by that."""
    import probe

    if head is not None and layer is None:
        raise typer.BadParameter("--head goes with --layer.")
    loaded, given = _load(model, device, dtype), _with(text, pair)
    result: Any
    if layer is None:
        ranking = probe.rank_heads(loaded, given, how, truncate=truncate)  # type: ignore[arg-type]
        result = ranking if as_json else replace(ranking, ablations=ranking.ablations[:top])
    else:
        heads: Any = [layer if head is None else (layer, head)]
        result = probe.ablate(loaded, given, heads, how, truncate=truncate)  # type: ignore[arg-type]
    _print(result.to_dict() if as_json else str(result))


@app.command()
def export(
    model: ModelName,
    text: TheText,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=_expanded,
            help="Ends in .json, .npz, .csv, .parquet, .html, .xlsx, .png, .svg or .pdf: the format.",
        ),
    ],
    what: Annotated[
        str | None,
        typer.Option(
            help="run, trace, masks, comparison, report, measures, rollout, ablation, ranking, predictions "
            "or from-scratch; by default trace for .xlsx, else run."
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Layer, counted from 0; default: all, or 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Head, counted from 0; default: all, or 0.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="With --target and a layer and head: encoder, decoder or cross (the default).",
        ),
    ] = None,
    query: Annotated[int, typer.Option(help="For a trace: position of the query's token.")] = 0,
    target: Target = None,
    pair: Pair = None,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Write a result to a file that says where it comes from; reproduce makes it again."""
    import probe
    from probe.files.formats import FORMATS

    if head is not None and layer is None:
        raise typer.BadParameter("--head goes with --layer.")
    what = what or ("trace" if file.suffix.lower() == ".xlsx" else "run")
    has_kind = head is not None and what in ("run", "comparison")
    if kind is not None and not has_kind:
        raise typer.BadParameter("--kind goes with --layer and --head of a run or a comparison.")
    loaded, given = _load(model, device, dtype), _with(text, pair)
    if has_kind and kind is None and loaded.has_target:
        kind = "cross"
    place = layer or 0, head or 0
    chosen: Any = None if layer is None else [layer if head is None else (layer, head)]
    if kind is not None:
        chosen = [(kind, layer, head)]
    makers: dict[str, Callable[[], Any]] = {
        "run": lambda: probe.attend(loaded, given, chosen, target=target, truncate=truncate),
        "trace": lambda: probe.trace(loaded, given, *place, query, truncate=truncate),
        "masks": lambda: probe.compare_masks(loaded, given, *place, truncate=truncate),
        "comparison": lambda: probe.compare(loaded, given, target, truncate=truncate),
        "report": lambda: probe.verify(loaded, given, target, truncate=truncate),
        "measures": lambda: probe.measure_heads(loaded, given, truncate=truncate),
        "rollout": lambda: probe.rollout(loaded, given, truncate=truncate),
        "ablation": lambda: probe.ablate(loaded, given, chosen or [place], truncate=truncate),
        "ranking": lambda: probe.rank_heads(loaded, given, truncate=truncate),
        "predictions": lambda: probe.predict(loaded, given, truncate=truncate),
        "from-scratch": lambda: probe.run_from_scratch(loaded, given, target=target, truncate=truncate),
    }
    if what not in makers:
        raise typer.BadParameter(f"--what is one of {', '.join(makers)}, not {what}.")
    one: dict[str, Any] = {"layer": layer, "head": head, "kind": kind} if what == "comparison" else {}
    probe.export(makers[what](), file, model=loaded, **one)
    beside = FORMATS[file.suffix.lower().removeprefix(".")].beside is not None
    _tell(f"Wrote {file}{f', and its manifest beside it, {file}.json' if beside else ''}.")


@app.command()
def reproduce(
    file: Annotated[Path, typer.Argument(metavar="FILE", parser=_expanded, help="A file that export wrote.")],
    as_json: AsJson = False,
) -> None:
    """Make the numbers in an exported file again, and say whether they still hold."""
    import probe

    result = probe.reproduce(file)
    _print(result.to_dict() if as_json else str(result))
    if not result.holds:
        raise typer.Exit(1)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List what the short and bundled names stand for on this machine."""
    from probe.display.terminal import models_table
    from probe.models.names import available

    rows = available()
    _print(rows if as_json else models_table(rows).rstrip())


def _load(name: str, device: str | None, dtype: str) -> Any:
    import probe
    from probe.models.loading import DTYPES

    known: dict[str, Any] = {str(known).removeprefix("torch."): known for known in DTYPES}
    if dtype not in known:
        raise typer.BadParameter(f"--dtype is one of {', '.join(known)}, not {dtype}.")
    return probe.load(name, device=device, dtype=known[dtype])


def _with(text: str, pair: str | None) -> Any:
    return text if pair is None else (text, pair)


def _lines(file: Path) -> list[str]:
    import probe

    try:
        # Not splitlines, which would also cut at form feeds and other characters of a text.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise probe.ProbeError(f"{file} is not UTF-8 text: save it as UTF-8.") from None
    except OSError as error:
        raise probe.ProbeError(f"{file} can't be read: {error.strerror}.") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise probe.ProbeError(f"{file} holds no text.")
    return lines


def _print(result: Any) -> None:
    """To stdout, as UTF-8 whatever the terminal's locale."""
    if isinstance(result, str):
        text = result
    else:
        from probe.analyses.checks.report import finite

        text = json.dumps(finite(result), ensure_ascii=False, allow_nan=False, indent=2)
    try:
        sys.stdout.buffer.write(text.encode("utf-8", errors="replace") + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read it has seen enough (head, say). Python flushes once more at the end: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(message: str) -> None:
    """One line on stderr, whatever the terminal's locale."""
    line = f"{message}\n".encode(sys.stderr.encoding or "utf-8", errors="backslashreplace")
    sys.stderr.buffer.write(line)
    sys.stderr.flush()


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    _tell(f"Warning: {message}")


def main() -> NoReturn:
    """Run the command line; an error meant for people is one line on stderr and exit code 2."""
    from probe.errors import ProbeError

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            app()
    except ProbeError as error:
        _tell(f"Error: {error.told('command')}")
        sys.exit(2)
    sys.exit(0)
