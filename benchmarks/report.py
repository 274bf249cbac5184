"""Write the measured tables into README.md and docs/ from benchmarks/results/*.json.

A table stands between `<!-- table:NAME -->` and `<!-- /table -->`; one without results is empty.
With --check nothing is written, and the exit status is 1 if a table is not up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import REPOSITORY, RESULTS, shown
from sizing_tables import alike, others, search_at, sizing, upkeep
from tables import Results, number, source, table_of

MARKED = re.compile(r"<!-- table:([a-z0-9-]+) -->\n.*?<!-- /table -->", re.DOTALL)
SERVICES = {
    "lamina": "**Lamina**, int8",
    "plain": "FastAPI + sentence-transformers fp32 + flat index",
    "plain-onnx": "FastAPI + Lamina's int8 file + flat index",
    "txtai": "txtai 9.14 API",
}
ENCODINGS = {
    "lamina": "**Lamina**, int8",
    "sentence-transformers": "sentence-transformers fp32 + FAISS",
}
TASKS = {"quora": "Quora duplicates", "qnli": "QNLI"}
ENCODER_TASKS = {
    "Quora dev, MRR@10": ("quora", 4),
    "QNLI, MRR@10": ("qnli", 4),
    "STS-B dev, Spearman": ("stsb", 2),
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="write nothing, tell what differs")
    options.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    options.add_argument("pages", nargs="*", type=Path, help="default: README.md and docs/*.md")
    arguments = options.parse_args()
    check: bool = arguments.check
    files: list[Path] = sorted(arguments.results.glob("*.json"))
    results = {file.stem: json.loads(file.read_text("utf-8")) for file in files}
    pages: list[Path] = arguments.pages
    outdated = 0
    for page in pages or [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        text = page.read_text("utf-8")
        filled = fill(text, results)
        if filled == text:
            continue
        outdated += 1
        if check:
            print(f"{shown(page)}: not what the results say; run python benchmarks/report.py")
        else:
            page.write_text(filled, "utf-8")
            print(f"wrote {shown(page)}")
    return int(check and outdated > 0)


def fill(page: str, results: Results) -> str:
    """Replace every marked table of a page.

    Raises:
        KeyError: If a marker names no table.
    """

    def table(marker: re.Match[str]) -> str:
        name = marker[1]
        needed, render = TABLES[name]
        body = render(results) if needed <= results.keys() else ""
        return f"<!-- table:{name} -->\n{body}<!-- /table -->"

    return MARKED.sub(table, page)


def headline(results: Results) -> str:
    """The README's first table: what matters most, beside the plain stack and txtai."""
    index, service, quality = (results[name] for name in ("index", "service", "quality"))
    documents = index["settings"]["documents"]
    loads = service["results"]["clients"]
    names = ["lamina", "plain", "txtai"]

    def measured(clients: str, column: str, unit: str = "") -> list[str]:
        return [number(loads[clients][name][column]) + unit for name in names]

    built = index["results"]["index"]
    exact = quality["results"]["exact"]
    fp32 = f"{exact['fp32']['test']['mrr@10']:.3f}"
    rows = [
        ["MRR@10, Quora duplicates", f"{quality['results']['served']['mrr@10']:.3f}", fp32, "-"],
        [
            "indexing, texts a second",
            *(number(built[name]["documents_per_second"]) for name in ENCODINGS),
            "-",
        ],
        ["searches a second, 1 client", *measured("1", "requests_per_second")],
        ["searches a second, 16 clients", *measured("16", "requests_per_second")],
        ["latency at 16 clients, p95", *measured("16", "p95_ms", " ms")],
        ["CPU time a search", *measured("16", "cpu_ms_per_request", " ms")],
    ]
    head = [
        f"{documents:,} questions, {index['machine']['cores']} cores",
        "Lamina (int8)",
        "FastAPI + sentence-transformers + FAISS",
        "txtai",
    ]
    return table_of(head, rows) + source(service)


def indexing(results: Results) -> str:
    """Speed and memory of indexing, and of encoding alone."""
    record = results["index"]
    built, encoded = record["results"]["index"], record["results"]["encode"]
    rows = [
        [
            title,
            number(built[name]["documents_per_second"]),
            number(built[name]["cpu_seconds"]),
            number(built[name]["peak_rss_mb"]) + " MB",
            number(encoded[name]["documents_per_second"]),
        ]
        for name, title in ENCODINGS.items()
    ]
    times = [f"{built['times_as_fast']:.2f}x", "", "", f"{encoded['times_as_fast']:.2f}x"]
    head = [
        f"{record['settings']['documents']:,} texts",
        "indexed a second",
        "CPU seconds",
        "peak memory",
        "encoded a second, alone",
    ]
    choice = record["results"]["lamina_build"]
    note = (
        f"\n`auto` chose {choice['factory']}, whose recall@10 was measured as "
        f"{choice['recall@10']:.4f}.\n"
    )
    return table_of(head, [*rows, ["", *times]]) + note + source(record)


def memory(results: Results) -> str:
    """Memory of indexing beside the size of what is made."""
    record = results["index"]
    rows = [
        [
            f"{int(size):,}",
            number(row["peak_rss_mb"]) + " MB",
            number(row["faiss_mb"]) + " MB",
            number(row["size_mb"]) + " MB",
            number(row["documents_per_second"]),
        ]
        for size, row in record["results"].get("memory", {}).items()
    ]
    head = ["Wikipedia sentences", "peak memory", "FAISS index", "whole collection", "a second"]
    return table_of(head, rows) + source(record) if rows else ""


def service(results: Results) -> str:
    """Load at one and at many clients."""
    record = results["service"]
    found = record["results"]
    rows = [
        [
            clients,
            f"{SERVICES[name]}, {workers_of(found, name)}",
            number(row["requests_per_second"]),
            *(number(row[column]) for column in ("p50_ms", "p95_ms", "p99_ms")),
            number(row["cpu_ms_per_request"]),
            f"{row['wrk_cpu_share']:.0%}",
        ]
        for clients, load in found["clients"].items()
        for name, row in load.items()
    ]
    head = ["clients", "service", "requests/s", "p50 ms", "p95 ms", "p99 ms", "CPU ms", "wrk's CPU"]
    raw = found["raw_encoder"]["p50_ms"]
    ours = found["clients"]["1"]["lamina"]["p50_ms"]
    note = (
        f"\nOne query takes the encoder alone {raw:.2f} ms; Lamina's median answer at one client "
        f"takes {ours / raw:.2f} times as long.\n"
    )
    return table_of(head, rows) + note + source(record)


def started(results: Results) -> str:
    """Time to the first answer, memory, and whether the answers agree."""
    record = results["service"]
    rows = [
        [
            SERVICES[name],
            str(row["workers"]),
            f"{row['ready_seconds']:.1f} s",
            f"{row['memory_mb']:,} MB",
            f"{row['top1_agreement']:.1%}",
        ]
        for name, row in record["results"]["started"].items()
    ]
    head = ["service", "workers", "first answer after", "memory", "same best text as fp32, exact"]
    return table_of(head, rows) + source(record)


def quality(results: Results) -> str:
    """MRR@10 and its companions, for both precisions."""
    record = results["quality"]
    found = record["results"]
    rows = [
        quality_row(f"{precision}, exact, {split}", found["exact"][precision][split])
        for split in ("test", "dev")
        for precision in ("int8", "fp32")
    ]
    rows.insert(0, quality_row("int8 as served, test", found["served"]))
    if "distractors" in results:
        added = results["distractors"]
        rows += [
            quality_row(f"{precision}, exact, test, with Wikipedia", added["results"][precision])
            for precision in ("int8", "fp32")
        ]
    head = ["Quora duplicates", "texts", "MRR@10", "95% interval", "nDCG@10", "recall@10"]
    same, stsb = found["same_vectors"], found["stsb"]
    note = (
        f"\nOf the ten nearest texts int8 and fp32 share {found['neighbours']:.1%}. "
        f"sentence-transformers' evaluator gives {same['sentence_transformers']:.5f} on the fp32 "
        f"vectors where Lamina gives {same['lamina']:.5f}. STS-B dev, Spearman: int8 "
        f"{stsb['int8']:.4f}, fp32 {stsb['fp32']:.4f}.\n"
    )
    return table_of(head, rows) + note + source(record)


def quality_row(title: str, row: dict[str, Any]) -> list[str]:
    """Format one evaluation."""
    return [
        title,
        f"{row['documents']:,}",
        f"{row['mrr@10']:.4f}",
        f"{row['mrr@10_low']:.4f} to {row['mrr@10_high']:.4f}",
        f"{row['ndcg@10']:.4f}",
        f"{row['recall@10']:.4f}",
    ]


def search(results: Results) -> str:
    """One search by stage, and what it costs to have Lamina."""
    record = results["search"]
    found = record["results"]
    rows = [
        [f"one search: {name.removesuffix('_ms')}", f"{value:.3f} ms"]
        for name, value in found["stages"].items()
    ]
    rows += [
        ["`lamina --help`", f"{found['help_seconds']:.2f} s"],
        ["packages for `make run`, on disk", f"{found['installed_mb']:.0f} MB"],
    ]
    return table_of(["what", "median"], rows) + source(record)


def words(results: Results) -> str:
    """MRR@10 of each mode on both tasks."""
    record = results["words"]
    rows = [
        [
            f"{TASKS[task]}, {split}",
            f"{found['documents']:,}",
            f"{found[split]['queries']:,}",
            *(f"{found[split][mode]:.4f}" for mode in ("dense", "lexical", "hybrid")),
            interval(found[split]["hybrid_minus_dense"]),
        ]
        for task, found in record["results"]["modes"].items()
        for split in ("dev", "test")
    ]
    head = ["MRR@10", "texts", "queries", "by meaning", "by words", "both", "both to meaning"]
    written = record["results"]["store"]
    more = written["with_words"]["bytes"] - written["without_words"]["bytes"]
    seconds = [written[name]["cpu_seconds"] for name in ("without_words", "with_words")]
    note = (
        f"\nThe word index makes a store of {written['documents']:,} questions {more / 1e6:.1f} MB "
        f"larger ({more / written['without_words']['bytes']:.1%}); writing texts and vectors takes "
        f"{seconds[1]:.1f} CPU seconds instead of {seconds[0]:.1f}.\n"
    )
    return table_of(head, rows) + note + source(record)


def fusions(results: Results) -> str:
    """What words add on dev, by fusion and weight."""
    record = results["words"]
    found = record["results"]["fusions"]
    rows = [
        [how, *(interval(found[task][how]["minus_dense"]) for task in TASKS)]
        for how in found["quora"]
    ]
    return table_of(["joined by, weight of words", *TASKS.values()], rows) + source(record)


def budgets(results: Results) -> str:
    """Quality and cost of word search by the rows that may be read."""
    record = results["words"]
    rows = [
        [
            "all" if row["rows"] is None else f"{row['rows']:,}",
            f"{row['mrr@10']:.4f}",
            number(row["cpu_ms_median"]),
            number(row["cpu_ms_p95"]),
        ]
        for row in record["results"]["budgets"]
    ]
    return table_of(["rows", "MRR@10", "CPU ms, median", "p95"], rows) + source(record)


def rerank(results: Results) -> str:
    """MRR@10 before and after a reranker, by depth."""
    record = results["rerank"]
    rows = []
    for depth, row in record["results"].items():
        if depth == "0":
            rows.append(["none", f"{row['score']:.3f}", "", ""])
            continue
        difference = f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
        rows.append([depth, f"{row['score']:.3f}", difference, f"{row['reachable']:.0%}"])
    head = ("reranked", "MRR@10", "difference, 95% interval", "relevant text among them")
    settings = record["settings"]
    cost = (
        f"{settings['queries']} questions, {settings['documents']:,} sentences; "
        f"{number(settings['milliseconds'])} ms a search for {settings['milliseconds_depth']} "
        "candidates (median, one thread a search, on a busy machine)."
    )
    return f"{table_of(head, rows)}\n{cost}\n{source(record)}"


def live(results: Results) -> str:
    """Latency of searches alone and while documents are written."""
    record = results["live"]
    found, settings = record["results"], record["settings"]
    writes = found["writes"]
    parts = {
        "alone, before": found["before"],
        "while documents are written": writes["outside_compactions"],
        "while written, and a compaction runs": writes["beside_compactions"],
        "alone, after": found["after"],
    }
    rows = [
        [
            title,
            f"{row['searches']:,}",
            *(number(row[f"{name}_ms"]) for name in ("p50", "p95", "p99")),
            str(row["failed"]),
            str(row["wrong_hits"]),
        ]
        for title, row in parts.items()
    ]
    ratios = found["p99_ratio"]
    upserts = found["upserts"]
    note = (
        f"\n{found['searches_per_second']:.0f} searches a second, {settings['load_share']:.0%} of "
        f"what the service answers at most. {writes['upserts']:,} documents were written in "
        f"{writes['seconds']:.0f} s, {writes['upserts'] / writes['seconds']:.0f} a second of the "
        f"{settings['upserts_per_second']} that were due, in lists of {settings['list']}, one "
        f"after the other, that took "
        f"{writes['list_p50_ms']:.0f} ms (median; p99 {writes['list_p99_ms']:.0f} ms); "
        f"{writes['refused_lists']} lists were told to come again. {writes['compactions']} "
        f"compactions ran for {writes['compaction_seconds']:.0f} s together. Against searches "
        f"alone, the 99th percentile is {ratios['outside_compactions']:.2f} times as high outside "
        f"compactions and {ratios.get('beside_compactions', 0):.2f} times beside them. Of "
        f"{writes['searched_for']} documents that were searched for as soon as their write was "
        f"acknowledged, {writes['not_found']} were not found. With nothing else to do the service "
        f"stores {upserts['per_second']:.0f} documents a second for one client, "
        f"{upserts['share']:.2f} of the {upserts['encoder_per_second']:.0f} that the encoder alone "
        f"encodes.\n"
    )
    head = ["searches", "number", "p50 ms", "p95 ms", "p99 ms", "failed", "wrong hits"]
    return table_of(head, rows) + note + source(record)


def filters(results: Results) -> str:
    """Recall and added time of filters, by how much they pass."""
    record = results["filters"]
    found = record["results"]
    shares = list(dict.fromkeys(name.split()[1] for name in found if name != "facets"))
    kinds = list(dict.fromkeys(name.split()[0] for name in found if name != "facets"))
    rows = [
        [share, f"{found[f'{kinds[0]} {share}']['matching']:,}"]
        + [
            cell
            for kind in kinds
            for cell in (
                f"{found[f'{kind} {share}']['recall@10']:.4f}",
                f"{found[f'{kind} {share}']['added_ms']:+.2f}",
            )
        ]
        for share in shares
    ]
    head = ["passes", "documents"]
    head += [title for kind in kinds for title in (f"{kind}: recall@10", "ms more")]
    return table_of(head, rows) + source(record)


def interval(difference: dict[str, float]) -> str:
    """Format a difference with its interval."""
    return "{mean:+.4f} ({low:+.4f} to {high:+.4f})".format(**difference)


def int8(results: Results) -> str:
    """Every way of making int8 that was tried, on a sample."""
    record = results["int8_study"]
    rows = [
        [
            name,
            number(row["megabytes"]),
            f"{row['cosine_mean']:.4f}",
            f"{row['cosine_min']:.4f}",
            f"{row['top10_overlap']:.3f}",
            f"{row['cpu_ms']:.2f}",
            f"{row['speed_up']:.2f}x",
            f"{row['cpu_ms_batched']:.2f}" if "cpu_ms_batched" in row else "",
            f"{row['speed_up_batched']:.2f}x" if "speed_up_batched" in row else "",
        ]
        for name, row in record["results"]["screened"].items()
    ]
    head = ["variant", "MB", "cosine, mean", "least", "top-10 overlap"]
    head += ["CPU ms a text, alone", "speed", "in eights", "speed"]
    return table_of(head, rows) + source(record)


def encoders(results: Results) -> str:
    """Quality, speed and size of encoders, each beside the first."""
    record = results["encoders"]
    rows = [
        [
            f"`{name}`",
            f"{found['mb']:.0f} MB",
            *(beside(found[task], digits) for task, digits in ENCODER_TASKS.values()),
            number(found["encode"]["alone_cpu_ms"]),
            f"{found['encode']['times_as_fast']:.2f}x",
            number(found["encode"]["eights_cpu_ms"]),
            f"{found['encode']['times_as_fast_in_eights']:.2f}x",
        ]
        for name, found in record["results"].items()
    ]
    head = [
        "encoder",
        "size",
        *ENCODER_TASKS,
        "CPU ms a text, alone",
        "speed",
        "in eights",
        "speed",
    ]
    settings = record["settings"]
    queries, documents = settings["queries"], settings["documents"]
    note = (
        f"\nQuora's {queries['quora']:,} dev queries over {documents['quora']:,} texts, QNLI's "
        f"{queries['qnli']:,} questions over {documents['qnli']:,} sentences, "
        f"{settings['stsb_pairs']:,} pairs of STS-B dev; in brackets the paired difference to the "
        "first encoder with its 95% interval.\n"
    )
    return table_of(head, rows) + note + source(record)


def dropout_noise(results: Results) -> str:
    """What each kind of attention dropout changes before training."""
    record = results["dropout_noise"]
    rows = [
        [f"`{found['kind']}`", f"{found['rate']:g}", f"{found['noise']:.2f}"]
        for found in record["results"]["kinds"]
    ]
    settings = record["settings"]
    note = (
        f"\nOf the last layer's [CLS] of {settings['base']}, {settings['sentences']} sentences of "
        f"CoLA's dev set, {settings['draws']} draws, all other dropout off: the length of the "
        "change over the length of the vector. `scheduled_bernoulli` at one rate in all layers; "
        "`attendout` at its start.\n"
    )
    return table_of(["kind", "rate", "change"], rows) + note + source(record)


def beside(found: dict[str, float], digits: int) -> str:
    """Format a score, and its difference to the first encoder's unless it is that."""
    score = f"{found['score']:.{digits}f}"
    if not found["low"] and not found["high"]:
        return score
    low, middle, high = (f"{found[part]:+.{digits}f}" for part in ("low", "difference", "high"))
    return f"{score} ({middle}, {low} to {high})"


def gpu(results: Results) -> str:
    """Training, the encoder and its agreement with the CPU, on one GPU."""
    record = results["gpu"]
    found, settings = record["results"], record["settings"]
    train, runtime, parity = (found[part] for part in ("train", "runtime", "parity"))
    encoded = [runtime[precision] for precision in ("fp32", "fp16")]
    rows = [
        [
            f"training, steps of {settings['pairs']} pairs a second",
            *(number(row["steps_per_second"]) for row in train.values()),
        ],
        ["one query, p50", *(f"{row['one']['p50_ms']:.2f} ms" for row in encoded)],
        [
            f"texts of {settings['tokens']} tokens a second",
            *(number(row["many"]["texts_per_second"]) for row in encoded),
        ],
        *(
            [
                f"graph alone, {shape.replace('x', ' x ')} tokens, p50",
                *(f"{row['graph'][shape]['p50_ms']:.2f} ms" for row in encoded),
            ]
            for shape in encoded[0]["graph"]
        ),
        [
            "largest difference to fp32 on the CPU",
            *(f"{parity[name]['max_absolute_difference']:.1e}" for name in ("fp32", "fp16")),
        ],
    ]
    device = settings["gpu"]["name"] if settings["gpu"] else "the CPU"
    head = [f"{settings['layers']} layers, {settings['width']} wide, on {device}"]
    exact = parity.get("fp32 without TF32")
    note = f"\nExporting both took {found['export']['seconds']:.0f} s on the CPU."
    if exact:
        note += (
            " Without TF32, which ONNX Runtime has on by default, fp32 differs by at most "
            f"{exact['max_absolute_difference']:.1e}."
        )
    columns = [*head, "fp32", "bf16 to train, fp16 to encode"]
    return table_of(columns, rows) + note + "\n" + source(record)


def workers_of(found: dict[str, Any], name: str) -> str:
    """Say with how many processes a service ran."""
    workers = found["started"][name]["workers"]
    return "1 worker" if workers == 1 else f"{workers} workers"


TABLES: dict[str, tuple[set[str], Callable[[Results], str]]] = {
    "headline": ({"index", "service", "quality"}, headline),
    "indexing": ({"index"}, indexing),
    "memory": ({"index"}, memory),
    "service": ({"service"}, service),
    "started": ({"service"}, started),
    "quality": ({"quality"}, quality),
    "search": ({"search"}, search),
    "words": ({"words"}, words),
    "fusions": ({"words"}, fusions),
    "budgets": ({"words"}, budgets),
    "filters": ({"filters"}, filters),
    "live": ({"live"}, live),
    "rerank": ({"rerank"}, rerank),
    "int8": ({"int8_study"}, int8),
    "encoders": ({"encoders"}, encoders),
    "dropout-noise": ({"dropout_noise"}, dropout_noise),
    "gpu": ({"gpu"}, gpu),
    "sizing": ({"sizing"}, sizing),
    "sizing-search": ({"sizing"}, search_at),
    "sizing-upkeep": ({"sizing"}, upkeep),
    "sizing-others": ({"sizing"}, others),
    "sizing-alike": ({"sizing"}, alike),
}
"""Each table's name, the results that it needs, and what renders it."""


if __name__ == "__main__":
    sys.exit(main())
