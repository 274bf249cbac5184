"""`lamina evaluate`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina_index.commands.options import (
    AcceptCompatible,
    Device,
    DeviceName,
    EncoderName,
    Fusion,
    LexicalWeight,
    Mode,
    Precision,
    PrecisionName,
    RerankerFolder,
    print_json,
)
from lamina_index.search_options import (
    DEFAULT_FUSION,
    DEFAULT_LEXICAL_WEIGHT,
    DEFAULT_RERANK,
    MAX_RERANK,
    SearchOptions,
)

if TYPE_CHECKING:
    from lamina_index.encoder import OnnxEncoder
    from lamina_index.evaluate import Retriever
    from lamina_index.evaluation_inputs import EvaluationInputs
    from lamina_index.reranker import OnnxReranker

app = typer.Typer(add_completion=False, rich_markup_mode=None)

KEY_VARIABLE = "LAMINA_KEY"


@app.command()
def evaluate(
    context: typer.Context,
    beir: Annotated[Path | None, typer.Option(help="Folder in BEIR's layout.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="TSV or JSONL with a header: id first, and a text column.")
    ] = None,
    qrels: Annotated[
        Path | None,
        typer.Option(help="TSV or JSONL: query id, document id, grade if there is one."),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Documents to embed and search exactly: id and text.")
    ] = None,
    text_field: Annotated[
        str | None,
        typer.Option(help="Text column of the corpus and distractors; text, or the only other."),
    ] = None,
    quora: Annotated[
        Path | None,
        typer.Option(help="Quora's quora_duplicate_questions.tsv; downloaded if it is not there."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Only these judgements (BEIR: which file; default test).")
    ] = None,
    collection: Annotated[
        Path | None, typer.Option(help="Measure this collection folder, as it would be served.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help=f"Measure a running service; its key is read from {KEY_VARIABLE}."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The service's collection.")] = None,
    encoder: EncoderName = "default",
    precision: Precision = None,
    device: Device = "auto",
    accept_compatible: AcceptCompatible = None,
    mode: Mode = "dense",
    fusion: Fusion = DEFAULT_FUSION,
    lexical_weight: LexicalWeight = DEFAULT_LEXICAL_WEIGHT,
    rerank: RerankerFolder = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_RERANK,
            help=f"How many hits are reranked, {DEFAULT_RERANK} with --rerank; with --url by the "
            "service's own reranker.",
        ),
    ] = None,
    distractors: Annotated[
        list[Path] | None, typer.Option(help="More documents to search, relevant to nothing.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the intervals and of the Quora split.")] = 0,
    keep_self: Annotated[
        bool, typer.Option("--keep-self", help="A hit with the query's own id counts as any other.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON only.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for JSON, Markdown, picture and the values of every query."),
    ] = None,
) -> None:
    """Measure retrieval on judged queries: MRR@10, nDCG@10, recall, MAP, each with an interval."""
    given = _given(context)
    _check_usage(given.keys())
    from lamina_index.evaluate import evaluate as measure
    from lamina_index.evaluation_report import (
        report_values,
        terminal_lines,
        terminal_table,
        warnings_of,
        write_report,
    )

    if output is not None:
        with _writing(output):  # now, not after minutes of work
            output.mkdir(parents=True, exist_ok=True)
    options = SearchOptions(
        mode=mode,
        fusion=fusion,
        lexical_weight=lexical_weight,
        rerank=DEFAULT_RERANK if rerank is not None and depth is None else depth,
    )
    with ExitStack() as stack:
        inputs = _inputs(given, seed=seed, keep_self=keep_self)
        if url is not None:
            retriever = _of_service(stack, url, name or "", options)
        else:
            accept = accept_compatible
            loaded = stack.enter_context(_loaded_encoder(encoder, precision, device, accept))
            reranker = None if rerank is None else _loaded_reranker(rerank, device)
            retriever = _of_encoder(stack, loaded, inputs, collection, options, reranker)
        found = measure(inputs.judged, retriever, seed=seed, keep_self=keep_self)
    values = report_values(found, sources=inputs.sources, command=_command_line(given))
    for warning in warnings_of(values):
        typer.echo(f"lamina: {warning}", err=True)
    if output is not None:
        with _writing(output):
            write_report(output, found, values)
    if json:
        print_json(values)
    else:
        from rich.console import Console

        typer.echo("\n".join(terminal_lines(values)))
        Console().print(terminal_table(values))


def _check_usage(given: Set[str]) -> None:
    """Refuse options that do not go together.

    Raises:
        BadParameter: Naming them.
    """
    rules = [
        (
            len(given & {"beir", "queries", "quora"}) != 1,
            "give one of --beir, --queries and --quora",
        ),
        (("queries" in given) != ("qrels" in given), "--queries and --qrels go together"),
        ("corpus" in given and "queries" not in given, "--corpus goes with --queries"),
        ("split" in given and "quora" in given, "--quora has one split only"),
        (len(given & {"collection", "url"}) == 2, "give --collection or --url, not both"),
        (("url" in given) != ("name" in given), "--url and --name go together"),
        (
            "url" in given
            and bool(given & {"encoder", "precision", "device", "accept_compatible"}),
            "with --url the service's own encoder counts; no --encoder, --precision or --device",
        ),
        (
            bool(given & {"collection", "url"}) and bool(given & {"corpus", "distractors"}),
            "--corpus and --distractors do not go with --collection and --url: build them in",
        ),
        (
            bool(given & {"mode", "fusion", "lexical_weight"})
            and not given & {"collection", "url"},
            "--mode, --fusion and --lexical-weight go with --collection and --url",
        ),
        (
            "rerank" in given and "collection" not in given,
            "--rerank goes with --collection; with --url give --depth for the service's reranker",
        ),
        (
            "depth" in given and not given & {"rerank", "url"},
            "--depth goes with --rerank, or with --url for the service's own reranker",
        ),
        (
            "queries" in given and not given & {"corpus", "collection", "url"},
            "say what to search: --corpus, --collection or --url",
        ),
    ]
    for broken, message in rules:
        if broken:
            raise typer.BadParameter(message)


def _inputs(given: Mapping[str, Any], *, seed: int, keep_self: bool) -> EvaluationInputs:
    """Read what `_check_usage` has found to go together."""
    from lamina_index import evaluation_inputs as reading

    split, text_field = given.get("split"), given.get("text_field")
    if "beir" in given:
        inputs = reading.inputs_from_beir(given["beir"], split=split, keep_self=keep_self)
    elif "quora" in given:
        inputs = _quora_inputs(given["quora"], given.get("output"), seed)
    else:
        inputs = reading.inputs_from_files(
            given["queries"],
            given["qrels"],
            given.get("corpus"),
            split=split,
            text_field=text_field,
            keep_self=keep_self,
        )
    return reading.with_distractors(inputs, given.get("distractors", ()), text_field=text_field)


def _quora_inputs(release: Path, output: Path | None, seed: int) -> EvaluationInputs:
    from lamina_index.evaluation_inputs import inputs_from_quora
    from lamina_index.quora_split import build_split, find_release

    built = build_split(find_release(release), seed=seed)
    if output is not None:
        with _writing(output):
            built.write(output / "quora")
    return inputs_from_quora(release, built)


def _of_service(stack: ExitStack, url: str, name: str, options: SearchOptions) -> Retriever:
    from lamina_index.retrievers import ServiceRetriever
    from lamina_index.service_client import ServiceClient

    client = stack.enter_context(ServiceClient(url, key=os.environ.get(KEY_VARIABLE)))
    return ServiceRetriever(client, name, options)


def _of_encoder(
    stack: ExitStack,
    encoder: OnnxEncoder,
    inputs: EvaluationInputs,
    collection: Path | None,
    options: SearchOptions,
    reranker: OnnxReranker | None,
) -> Retriever:
    if collection is not None:
        from lamina_index.retrievers import CollectionRetriever

        return stack.enter_context(CollectionRetriever(collection, encoder, options, reranker))
    from lamina_index.exact_corpus import ExactCorpus

    assert inputs.corpus is not None  # by _check_usage
    with _progress() as advance:
        return ExactCorpus(encoder, inputs.corpus, progress=advance)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Tell the user what keeps the folder from being written."""
    from lamina_index.errors import EvaluationError

    try:
        yield
    except OSError as error:
        raise EvaluationError(f"{folder}: cannot be written ({error.strerror})") from error


@contextmanager
def _loaded_encoder(
    name: str, precision: PrecisionName | None, device: DeviceName, accept: float | None
) -> Iterator[OnnxEncoder]:
    from lamina_index.encoder import OnnxEncoder

    encoder = OnnxEncoder.load(name, precision=precision, device=device, accept=accept)
    yield encoder
    encoder.close()


def _loaded_reranker(folder: Path, device: DeviceName) -> OnnxReranker:
    from lamina_index.reranker import OnnxReranker

    return OnnxReranker.load(folder, device=device, threads=1)  # queries are spread over the CPUs


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Show how many documents are embedded; quiet where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("embedding"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.advance(task, count)


def _given(context: typer.Context) -> dict[str, Any]:
    """Give the options that are not at their default, by name, in the order of the help.

    With a service, what the environment says of the encoder is left out: it may be there for the
    service itself, and is not asked here.
    """
    of_service = bool(context.params["url"])
    return {
        parameter.name: value
        for parameter in context.command.params
        if parameter.name and (value := context.params[parameter.name])
        if value != parameter.get_default(context)
        if not (of_service and _is_from_environment(context, parameter.name))
    }


def _is_from_environment(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _command_line(given: Mapping[str, Any]) -> str:
    """Write the options so that the report can be repeated."""
    from lamina_index.disk import shown_path

    words = ["lamina", "evaluate"]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [option] if item is True else [option, shown_path(str(item))]
    return shlex.join(words)
