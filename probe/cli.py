"""The command line: ``python -m probe verify|attend|heads|effect|export|reproduce|models``, and more.

The commands of analyses that need no shape of their own follow from their signatures: masks, trace, find and
every one that is added.

Results go to stdout, everything else to stderr. Exit code 0: all is well; 1: a check failed; 2: bad input.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from probe.files.disk import expanded

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


def _kinds() -> dict[str, Any]:
    """The kinds of results, as the command line calls them."""
    import probe  # whose analyses fill the registry
    from probe.analyses.result import RESULTS

    assert probe
    return {name.replace(" ", "-"): kind for name, kind in RESULTS.items()}


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="bert, gpt2, a bundled model, a local folder or a full Hub id, owner/model or "
        "owner/model@revision. See: models.",
    ),
]
TheText = Annotated[str, typer.Argument(metavar="TEXT", help="The text, in quotes.")]
Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="One text or several, each in quotes.")
]
TextsFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "--texts",
        metavar="FILE",
        parser=expanded,
        help="Also every line of this UTF-8 file; empty lines are skipped.",
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="LABEL",
        help="Of a classifier: whose change counts, by name or number; default: the likeliest.",
    ),
]
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
    texts: Texts = None,
    pair: Pair = None,
    file: TextsFile = None,
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

    given = _given(texts, file, pair)
    if target is not None and len(given) != 1:
        raise typer.BadParameter("--target goes with exactly one text.")
    targets = None if target is None else [target]
    report = probe.verify(_load(model, device, dtype), given, targets, truncate=truncate)
    _print(report.to_dict() if as_json else str(report))
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

    if all_heads and not as_json:
        raise typer.BadParameter("--all goes with --json.")
    if all_heads and kind is not None:
        raise typer.BadParameter("--kind goes with one head, not with --all.")
    loaded = _load(model, device, dtype)
    if kind is None and loaded.has_target:
        kind = "cross"
    heads: Any = None if all_heads else [(layer, head) if kind is None else (kind, layer, head)]
    run = probe.attend(loaded, _with(text, pair), heads, target=target, truncate=truncate)
    _print(run.to_dict() if as_json else str(run))


@app.command()
def heads(
    model: ModelName,
    texts: Texts = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="MEASURE", help="Largest first, by a column's title.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="Only so many heads.")] = None,
    pair: Pair = None,
    file: TextsFile = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Measure every head: entropy, distance, weight on the previous token, induction and more.

    Of several texts, the means over them.
    """
    import probe

    given = _one_or_all(texts, file, pair)
    with _progress() as progress:
        loaded = _load(model, device, dtype)
        measures: Any = probe.measure_heads(loaded, given, truncate=truncate, progress=progress)
    rows = "rows" if isinstance(measures, probe.OverTexts) else "heads"
    ranked = getattr(measures, rows) if sort is None else measures.ranked(sort)
    measures = replace(measures, **{rows: ranked[:top]})
    _print(measures.to_dict() if as_json else str(measures))


@app.command()
def effect(
    model: ModelName,
    texts: Texts = None,
    layer: Annotated[int | None, typer.Option(help="Layer, counted from 0; default: every head.")] = None,
    head: Annotated[int | None, typer.Option(help="Head, counted from 0; default: all of the layer.")] = None,
    how: How = "zero",
    label: Label = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many heads to list.")] = 10,
    pair: Pair = None,
    file: TextsFile = None,
    as_json: AsJson = False,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Change a head and say what becomes of the model's output; without --layer rank every head by that.

    Of several texts, the means over them.
    """
    import probe

    if head is not None and layer is None:
        raise typer.BadParameter("--head goes with --layer.")
    given = _one_or_all(texts, file, pair)
    asked: dict[str, Any] = {"how": how, "label": label, "truncate": truncate}
    result: Any
    with _progress() as progress:
        loaded = _load(model, device, dtype)
        if layer is None:
            result = probe.rank_heads(loaded, given, **asked, progress=progress)
        else:
            heads: Any = [layer if head is None else (layer, head)]
            result = probe.ablate(loaded, given, heads, **asked, progress=progress)
    _print(result.to_dict() if as_json else result.told(top))


@app.command()
def export(
    model: ModelName,
    *,
    texts: Texts = None,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=expanded,
            help="Ends in .json, .npz, .csv, .parquet, .html, .xlsx, .png, .svg or .pdf: the format.",
        ),
    ],
    texts_file: TextsFile = None,
    what: Annotated[
        str | None,
        typer.Option(
            "--what",
            metavar="RESULT",
            help=f"{', '.join(_kinds())}; by default trace for .xlsx, else run.",
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
    whole_model: Annotated[
        bool, typer.Option("--whole-model", help="For masks: the other mask in every layer.")
    ] = False,
    how: How = "zero",
    label: Label = None,
    k: Annotated[int, typer.Option("--k", min=1, help="For predictions: how many words to name.")] = 5,
    second: Annotated[
        str | None, typer.Option("--second", metavar="TEXT", help="For texts: the other text.")
    ] = None,
    from_word: Annotated[
        str | None, typer.Option("--from", metavar="WORD", help="For found: the word that attends.")
    ] = None,
    to_word: Annotated[
        str | None, typer.Option("--to", metavar="WORD", help="For found: the word that is attended to.")
    ] = None,
    versus: Annotated[
        str | None, typer.Option("--versus", metavar="WORD", help="For found: a second target.")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="For pictures: words instead of tokens.")] = False,
    hide_special: Annotated[
        bool, typer.Option("--hide-special", help="For pictures: without special tokens.")
    ] = False,
    target: Target = None,
    pair: Pair = None,
    device: Device = None,
    dtype: Dtype = "float32",
    truncate: Truncate = False,
) -> None:
    """Write a result to a file that says where it comes from; reproduce makes it again."""
    import probe
    from probe.analyses.asking import asked, takes_several
    from probe.files.formats import FORMATS

    if head is not None and layer is None:
        raise typer.BadParameter("--head goes with --layer.")
    what = what or ("trace" if file.suffix.lower() == ".xlsx" else "run")
    has_kind = head is not None and what in ("run", "comparison")
    if kind is not None and not has_kind:
        raise typer.BadParameter("--kind goes with --layer and --head of a run or a comparison.")
    if what not in _kinds():
        raise typer.BadParameter(f"--what is one of {', '.join(_kinds())}, not {what}.")
    analysis = _kinds()[what].analysis
    given = _one_or_all(texts, texts_file, pair)
    if isinstance(given, list) and (what == "run" or not takes_several(analysis)):
        raise typer.BadParameter(f"a {what} is of one text.")
    loaded = _load(model, device, dtype)
    if has_kind and kind is None and loaded.has_target:
        kind = "cross"
    place = layer or 0, head or 0
    chosen: Any = None if layer is None else [layer if head is None else (layer, head)]
    if kind is not None:
        chosen = [(kind, layer, head)]
    if what == "ablation" and chosen is None:
        chosen = [place]
    given_for = {
        **{name: given for name in ("text", "text_or_texts", "first")},
        **{"layer": place[0], "head": place[1], "query": query, "heads": chosen, "target": target},
        **{"whole_model": whole_model, "how": how, "label": label, "k": k, "second": second},
        "truncate": truncate,
        **{"from_word": from_word, "to_word": to_word, "versus": versus},
    }
    arguments = {}
    for name, parameter in asked(analysis).items():
        if given_for.get(name) is None and parameter.default is parameter.empty:
            raise typer.BadParameter(f"--what {what} needs --{name.removesuffix('_word')}.")
        if given_for.get(name) is not None:
            arguments[name] = given_for[name]
    one: dict[str, Any] = {"layer": layer, "head": head, "kind": kind} if what == "comparison" else {}
    result = analysis(loaded, **arguments)
    probe.export(result, file, model=loaded, words=words, hide_special=hide_special, **one)
    beside = FORMATS[file.suffix.lower().removeprefix(".")].beside is not None
    _tell(f"Wrote {file}{f', and its manifest beside it, {file}.json' if beside else ''}.")


@app.command()
def reproduce(
    file: Annotated[Path, typer.Argument(metavar="FILE", parser=expanded, help="A file that export wrote.")],
    load: Annotated[
        bool,
        typer.Option("--load", help="Load, or download, the model that the file names if it is not bundled."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the numbers in an exported file again, and say whether they still hold."""
    import probe

    result = probe.reproduce(file, load=load)
    _print(result.to_dict() if as_json else str(result))
    if not result.holds:
        raise typer.Exit(1)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List what the short and bundled names stand for on this machine."""
    from probe.display import terminal
    from probe.display.data import Column, Table
    from probe.models.names import available

    rows = available()
    names = ("name", "model", "source")
    table = Table(tuple(Column(name, [row[name] for row in rows]) for name in names))
    _print(rows if as_json else terminal.rendered(table).rstrip())


def _command_of(kind: Any) -> Callable[..., None]:
    """The command of an analysis, by its signature and docstring."""
    from probe.analyses.asking import asked, first_line, parameter_docs, takes_several

    analysis = kind.analysis
    about = {**parameter_docs(analysis), **_USUAL_HELP}
    positional: dict[str, tuple[Any, Any]] = {"model": (ModelName, Parameter.empty)}
    options: dict[str, tuple[Any, Any]] = {}
    for name, parameter in asked(analysis).items():
        flag, help_text = f"--{name.replace('_', '-')}", about.get(name, "").split(". ")[0]
        needed = parameter.default is Parameter.empty
        if name == "text":
            several = takes_several(analysis)
            positional[name] = (Texts, None) if several else (TheText, Parameter.empty)
            options |= {"pair": (Pair, None), **({"file": (TextsFile, None)} if several else {})}
        elif name in ("layer", "head"):
            options[name] = (Layer if name == "layer" else Head), 0
        elif name in ("target", "truncate"):
            options[name] = (Target, None) if name == "target" else (Truncate, False)
        elif "int" in str(parameter.annotation):
            options[name] = (
                Annotated[int, typer.Option(flag, help=help_text)],
                0 if needed else parameter.default,
            )
        elif needed:
            metavar = name.removesuffix("_word").upper()
            positional[name] = (
                Annotated[str, typer.Argument(metavar=metavar, help=help_text)],
                Parameter.empty,
            )
        elif parameter.annotation == "bool":
            options[name] = Annotated[bool, typer.Option(flag, help=help_text)], parameter.default
        else:
            option = typer.Option(flag, metavar="WORD", help=help_text)
            options[name] = Annotated[str | None, option], parameter.default
    top = Annotated[int | None, typer.Option("--top", min=1, help="Only so many rows of a table.")]
    options |= {"top": (top, 10 if kind.command == "find" else None), "as_json": (AsJson, False)}
    options |= {"device": (Device, None), "dtype": (Dtype, "float32")}

    def command(**given: Any) -> None:
        taken = dict(given)
        named = taken.pop("model"), taken.pop("device"), taken.pop("dtype")
        top, as_json, pair = taken.pop("top"), taken.pop("as_json"), taken.pop("pair", None)
        with _progress() as progress:
            if takes_several(analysis):
                taken["text"] = _one_or_all(taken["text"], taken.pop("file"), pair)
                taken["progress"] = progress
            elif "text" in taken:
                taken["text"] = _with(taken["text"], pair)
            result = analysis(_load(*named), **taken)
        _print(result.to_dict() if as_json else result.told(top))
        if result.own_report is not None and not result.own_report.passed:
            raise typer.Exit(1)

    every = {**positional, **options}
    command.__doc__ = first_line(analysis)
    command.__annotations__ = {name: hint for name, (hint, _) in every.items()}
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for name, (hint, default) in every.items()
        ]
    )
    return command


_USUAL_HELP = {"whole_model": "Put every layer under the other mask, not only this head."}


def _load(name: str, device: str | None, dtype: str) -> Any:
    import probe
    from probe.models.loading import DTYPES

    known: dict[str, Any] = {str(known).removeprefix("torch."): known for known in DTYPES}
    if dtype not in known:
        raise typer.BadParameter(f"--dtype is one of {', '.join(known)}, not {dtype}.")
    return probe.load(name, device=device, dtype=known[dtype])


def _with(text: str, pair: str | None) -> Any:
    return text if pair is None else (text, pair)


def _given(texts: list[str] | None, file: Path | None, pair: str | None) -> list[Any]:
    """All texts of a command, with the second sentence of the only one if there is one."""
    given: list[Any] = [*(texts or []), *(_lines(file) if file else [])]
    if not given:
        raise typer.BadParameter("give a text, or --file.")
    if pair is not None:
        if len(given) != 1:
            raise typer.BadParameter("--pair goes with exactly one text.")
        given = [(given[0], pair)]
    return given


def _one_or_all(texts: list[str] | None, file: Path | None, pair: str | None) -> Any:
    """The text of a command; a list where there are several, or a file of them."""
    given = _given(texts, file, pair)
    return given[0] if len(given) == 1 and file is None else given


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """What to call with how much is done and how much there is: a line for who waits longer than a second."""
    shown, start = sys.stderr.isatty(), time.monotonic()
    written = False

    def progress(done: int, total: int) -> None:
        nonlocal written
        if shown and time.monotonic() - start > 1.0 and total > 1:
            written = True
            sys.stderr.write(f"\r{done} of {total} done")
            sys.stderr.flush()

    try:
        yield progress
    finally:
        if written:
            sys.stderr.write("\r\033[K")  # the line is gone when there is something to read


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
        from probe.analyses.result import strictly_plain

        text = json.dumps(strictly_plain(result), ensure_ascii=False, allow_nan=False, indent=2)
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


for _kind in _kinds().values():
    if _kind.command:
        app.command(_kind.command)(_command_of(_kind))


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
    except SystemExit as ended:
        text = _taken_for_an_option(sys.argv[1:])
        if ended.code == 2 and text is not None:
            _tell(f'A text that begins with "-" goes last, behind two dashes: ... -- "{text}"')
        raise
    sys.exit(0)


def _taken_for_an_option(arguments: list[str]) -> str | None:
    """The first argument that begins with "-" and has not the form of an option, if there is one."""
    for one in arguments:
        if one == "--":
            return None
        if one.startswith("-") and not re.fullmatch(r"-[a-zA-Z]?|--[a-z][a-z-]*(=.*)?", one, re.DOTALL):
            return one
    return None
