"""An evaluation as JSON, Markdown, a picture and a table for the terminal."""

from __future__ import annotations

import os
import platform
from collections import Counter
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lamina_index.evaluate import (
    CHUNKS,
    RESAMPLES,
    RULES,
    SELF_EXCLUDED,
    SELF_KEPT,
    TIMED_TOP_K,
    Evaluation,
)
from lamina_index.metrics import relevant_ids
from lamina_index.runtime import available_threads, cpu_model

if TYPE_CHECKING:
    from rich.table import Table

_PACKAGES = ("lamina-search", "numpy", "faiss-cpu", "onnxruntime", "onnxruntime-gpu", "tokenizers")
_LISTED_IDS = 20


def report_values(evaluation: Evaluation, *, sources: list[str], command: str) -> dict[str, Any]:
    """Gather everything a reader needs to judge and repeat the numbers; JSON-ready.

    The metrics stand at the top level by their names, such as `mrr@10`.

    Args:
        evaluation: What was measured.
        sources: Files or addresses that the queries, judgements and corpus came from.
        command: The command line that repeats it.
    """
    judged = evaluation.judged
    return {
        **evaluation.means,
        "intervals": {name: list(bounds) for name, bounds in evaluation.intervals.items()},
        "bootstrap": {
            "confidence": 0.95,
            "method": "percentile, over queries",
            "resamples": RESAMPLES,
            "seed": evaluation.seed,
        },
        "split": judged.split,
        "queries": len(judged.qrels),
        "judgements": sum(len(grades) for grades in judged.qrels.values()),
        "relevant": sum(len(relevant_ids(grades)) for grades in judged.qrels.values()),
        "documents": evaluation.facts["documents"],
        "queries_without_relevant": judged.without_relevant,
        "queries_unanswered": len(evaluation.unanswered),
        "queries_unanswered_ids": evaluation.unanswered[:_LISTED_IDS],
        "relevant_not_in_corpus": len(evaluation.absent),
        "relevant_not_in_corpus_ids": evaluation.absent[:_LISTED_IDS],
        "self_judgements_left_out": judged.self_judgements,
        "self_hits_taken_out": evaluation.self_hits,
        "first_relevant_rank": first_relevant_ranks(evaluation),
        "milliseconds_per_query": {
            "median": evaluation.milliseconds_per_query,
            "queries": len(evaluation.milliseconds),
            "top_k": TIMED_TOP_K,
            "measured": "from text to ranked ids, one query at a time after the whole run",
        },
        "searched": evaluation.facts,
        "rules": _rules(evaluation),
        "sources": sources,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **_installed()},
        "machine": {
            "cpu": cpu_model(),
            "cpus": os.cpu_count(),
            "threads": available_threads(),
        },
    }


def first_relevant_ranks(evaluation: Evaluation) -> dict[str, int]:
    """Count queries by the rank of their first relevant document."""
    counts: Counter[str] = Counter()
    for query, grades in evaluation.judged.qrels.items():
        relevant = relevant_ids(grades)
        ranks = (r for r, hit in enumerate(evaluation.run[query], start=1) if hit in relevant)
        counts[_rank_group(next(ranks, None))] += 1
    return {group: counts[group] for group in ("1", "2", "3", "4-10", "11-100", "none")}


def warnings_of(values: dict[str, Any]) -> list[str]:
    """Say what makes the numbers lower, or other, than a reader may expect."""
    counted = {
        "relevant_not_in_corpus": "relevant documents not in the corpus, counted as not found",
        "queries_unanswered": "queries that found nothing, counted as 0",
        "queries_without_relevant": "judged queries without a relevant document, left out",
    }
    found = []
    for key, meaning in counted.items():
        if count := values[key]:
            listed = ", ".join(values.get(f"{key}_ids", [])[:5])
            found.append(f"{meaning}: {count}" + (f" ({listed})" if listed else ""))
    return found


def headline(values: dict[str, Any]) -> str:
    """Say the main number and what it stands on."""
    return (
        f"MRR@10 {values['mrr@10']:.4f} over {values['queries']:,} queries and "
        f"{values['documents']:,} documents"
    )


def terminal_lines(values: dict[str, Any]) -> list[str]:
    """Say what was measured, a line each."""
    searched = values["searched"]
    encoder, index = searched["encoder"], searched["index"]
    timing = values["milliseconds_per_query"]
    speed = f"{timing['median']:.2f} ms a query (median of {timing['queries']}, one at a time)"
    name = f"{encoder['name']} {encoder['precision']}"
    sizes = [_megabytes(part["size_bytes"]) for part in (index, encoder)]
    return [
        headline(values),
        f"{searched['kind']}: {index['name']}, {sizes[0]}, {speed}",
        f"encoder {name}, {sizes[1]}, fingerprint {encoder['fingerprint'][:12]}",
    ]


def terminal_table(values: dict[str, Any]) -> Table:
    """Lay out the metrics with their intervals."""
    from rich.table import Table

    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("95% interval", justify="right")
    for name, (low, high) in values["intervals"].items():
        table.add_row(name, f"{values[name]:.4f}", f"{low:.4f} to {high:.4f}")
    return table


def markdown(values: dict[str, Any], *, picture: str) -> str:
    """Write the report for people; `picture` is the file name of the chart beside it."""
    lines = [
        "# Retrieval evaluation",
        "",
        headline(values) + ".",
        "",
        f"![Metrics with intervals]({picture})",
        "",
        "| metric | value | 95% interval |",
        "| --- | ---: | --- |",
    ]
    lines += [
        f"| {name} | {values[name]:.4f} | {low:.4f} to {high:.4f} |"
        for name, (low, high) in values["intervals"].items()
    ]
    lines += ["", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in _facts(values)]
    if notes := warnings_of(values):
        lines += ["", "## To note", "", *(f"- {_cell(note)}" for note in notes)]
    lines += ["", "## Rules", "", *(f"- {rule}" for rule in values["rules"])]
    lines += ["", "## Repeat it", "", "```sh", values["command"], "```", ""]
    return "\n".join(lines)


def picture(values: dict[str, Any]) -> str:
    """Draw the metrics with their intervals, and where the first relevant document stood (SVG)."""
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 250" '
            'font-family="system-ui, sans-serif" font-size="13" fill="#1f2933" role="img">'
        ),
        f"<title>{escape(headline(values))}</title>",
        '<rect width="760" height="250" fill="#ffffff"/>',
        '<text x="20" y="28" font-weight="600">Metrics, 95% interval</text>',
        '<text x="430" y="28" font-weight="600">Queries by rank of the first relevant</text>',
    ]
    for row, (name, (low, high)) in enumerate(values["intervals"].items()):
        y = 56 + 30 * row
        width = 200 * values[name]
        left, right = 110 + 200 * low, 110 + 200 * high
        whisker = f"M{left:.1f} {y}H{right:.1f}M{left:.1f} {y - 5}v10M{right:.1f} {y - 5}v10"
        parts += [
            f'<text x="20" y="{y + 4}">{escape(name)}</text>',
            f'<rect x="110" y="{y - 9}" width="200" height="18" fill="#e4e7eb"/>',
            f'<rect x="110" y="{y - 9}" width="{width:.1f}" height="18" fill="#3e6fb0"/>',
            f'<path d="{whisker}" stroke="#1f2933" stroke-width="1.5"/>',
            f'<text x="320" y="{y + 4}">{values[name]:.4f}</text>',
        ]
    for row, (group, count) in enumerate(values["first_relevant_rank"].items()):
        y = 56 + 30 * row
        share = count / values["queries"]
        parts += [
            f'<text x="430" y="{y + 4}">{group}</text>',
            f'<rect x="490" y="{y - 9}" width="{150 * share:.1f}" height="18" fill="#3e6fb0"/>',
            f'<text x="{496 + 150 * share:.1f}" y="{y + 4}">{count:,} ({share:.1%})</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def write_report(folder: Path, evaluation: Evaluation, values: dict[str, Any]) -> list[Path]:
    """Write `evaluation.json`, `.md`, `.svg`, and `per_query.jsonl` into an existing folder."""
    rows = [
        {
            "query": query,
            **{name: column[row] for name, column in evaluation.values.items()},
            "ranking": ranking,
        }
        for row, (query, ranking) in enumerate(evaluation.run.items())
    ]
    options = orjson.OPT_SERIALIZE_NUMPY
    contents = {
        "evaluation.json": orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n",
        "evaluation.md": markdown(values, picture="evaluation.svg").encode(),
        "evaluation.svg": picture(values).encode(),
        "per_query.jsonl": b"".join(orjson.dumps(row, option=options) + b"\n" for row in rows),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def _rules(evaluation: Evaluation) -> list[str]:
    chunks = (CHUNKS,) if evaluation.facts.get("chunked") else ()
    return [*RULES, SELF_KEPT if evaluation.keep_self else SELF_EXCLUDED, *chunks]


def _facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Pair names and values of what was measured, for people."""
    searched = values["searched"]
    encoder, index = searched["encoder"], searched["index"]
    return [
        ("queries", f"{values['queries']:,} (split {values['split'] or 'all'})"),
        ("judgements", f"{values['judgements']:,}, {values['relevant']:,} relevant"),
        ("corpus", f"{values['documents']:,} documents"),
        ("corpus fingerprint", searched["corpus_fingerprint"] or "not told"),
        ("searched", f"{searched['kind']}, {index['name']}"),
        ("index size", _megabytes(index["size_bytes"])),
        ("encoder", f"{encoder['name']} {encoder['precision']}, {encoder['fingerprint']}"),
        ("encoder size", _megabytes(encoder["size_bytes"])),
        ("time a query", f"{values['milliseconds_per_query']['median']:.2f} ms, median"),
        ("files", ", ".join(values["sources"])),
        ("machine", f"{values['machine']['cpu']}, {values['machine']['threads']} threads"),
        ("versions", ", ".join(f"{name} {value}" for name, value in values["versions"].items())),
        ("made", values["created"]),
    ]


def _rank_group(rank: int | None) -> str:
    if rank is None:
        return "none"
    return str(rank) if rank <= 3 else "4-10" if rank <= 10 else "11-100"


def _megabytes(size_bytes: int | None) -> str:
    return "not told" if size_bytes is None else f"{size_bytes / 1e6:.1f} MB"


def _cell(text: str) -> str:
    """Escape what would break a Markdown table cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _installed() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
