"""`lamina export`: any sentence-transformers or Hugging Face encoder -> an encoder folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from lamina_training.commands.training_extra import quiet_transformers, training_extra

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def export(
    origin: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DIR|HF_ID",
            help="A training run's model or another folder, a model hub's id, or "
            "all-MiniLM-L6-v2 (fetched without a hub).",
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
    name: Annotated[str | None, typer.Option(help="The encoder's name.")] = None,
    compare: Annotated[
        bool,
        typer.Option(
            help="Score and time a run's layer attention, kept and stripped, on its dev data."
        ),
    ] = True,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the dev data, instead of the run's."),
    ] = None,
    cache: Annotated[
        Path,
        typer.Option(envvar="LAMINA_WEIGHTS", help="Folder that keeps fetched weights."),
    ] = Path("weights"),
) -> None:
    """Export an encoder to ONNX with pooling inside, and prove that the graphs agree with torch.

    Writes the graphs, tokenizer, encoder.json (with probes that are re-checked wherever it is
    served) and a model card. Fails, and leaves nothing, if torch and ONNX differ. Of a run that was
    trained with attention over layers the card also tells what keeping it gains and costs.
    """
    from lamina_index.errors import LaminaError

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
    shown = Path(origin).name if Path(origin).is_dir() else origin
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
