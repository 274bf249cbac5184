"""The tables of `bench_sizing.py`: what was measured, and what follows for other sizes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any

from tables import Results, number, source, table_of

from lamina_index.index_choice import choose_index

PLANNED = (100_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000)
"""Sizes that the table tells, measured or not."""

_RULE = (
    "Rows marked ~ were not measured. They follow from the nearest measured size with the same "
    "kind of index, in proportion to the documents. Where two sizes of the kind were measured, the "
    "seconds of a build follow from both by a power of the number of documents, and its memory by "
    "a straight line."
)


@dataclass(frozen=True)
class Plan:
    """What a collection of a size takes.

    Attributes:
        documents: The size.
        kind: Of its index, whatever the number of lists.
        store_bytes: `documents.sqlite`.
        index_bytes: The snapshot's files, which searches want in the system's cache.
        write_seconds: Of all rows, by one writer.
        build_seconds: Of the index over all rows.
        build_bytes: The most memory of its own that the build had.
        measured: Whether it was.
    """

    documents: int
    kind: str
    store_bytes: float
    index_bytes: float
    write_seconds: float
    build_seconds: float
    build_bytes: float
    measured: bool = True


def plans(results: dict[str, Any], dimension: int) -> list[Plan]:
    """Give those of the measured sizes and of the others that the table tells."""
    measured = []
    written = 0.0
    for size, row in results["sizes"].items():
        written += row["write"]["seconds"]
        build = row["build"]
        measured.append(
            Plan(
                int(size),
                kind_of(build["factory"]),
                row["write"]["store_bytes"],
                build["size_bytes"],
                written,
                build["seconds"],
                build["process"]["peak_own_bytes"],
            )
        )
        written += row["write_more"]["seconds"]
    sizes = {plan.documents for plan in measured}
    found = measured + [
        extrapolated(measured, size, kind_of(choose_index(size, dimension).factory))
        for size in PLANNED
        if size not in sizes
    ]
    return sorted((plan for plan in found if plan), key=lambda plan: plan.documents)


def extrapolated(measured: list[Plan], size: int, kind: str) -> Plan | None:
    """Say what a size that was not measured takes; None if nothing of its kind was measured."""
    alike = sorted(
        (plan for plan in measured if plan.kind == kind),
        key=lambda plan: abs(math.log(plan.documents / size)),
    )
    if not alike:
        return None
    nearest = alike[0]
    times = size / nearest.documents
    amounts = [each.name for each in fields(Plan) if each.name.endswith(("_bytes", "_seconds"))]
    found = replace(
        nearest,
        documents=size,
        measured=False,
        **{name: times * getattr(nearest, name) for name in amounts},
    )
    if len(alike) == 1:
        return found
    other = alike[1]
    apart = nearest.documents / other.documents
    power = math.log(nearest.build_seconds / other.build_seconds) / math.log(apart)
    each = (nearest.build_bytes - other.build_bytes) / (nearest.documents - other.documents)
    return replace(
        found,
        build_seconds=nearest.build_seconds * times**power,
        build_bytes=nearest.build_bytes + each * (size - nearest.documents),
    )


def kind_of(factory: str) -> str:
    """Name a kind of index, whatever the number of its lists."""
    return re.sub(r"IVF\d+", "IVF", factory)


def sizing(results: Results) -> str:
    """Disk, memory and minutes by the number of documents."""
    record = results["sizing"]
    rows = []
    for plan in plans(record["results"], record["settings"]["dimension"]):
        about = "" if plan.measured else "~"
        amounts = (
            gigabytes(plan.store_bytes),
            gigabytes(plan.index_bytes),
            minutes(plan.write_seconds),
            minutes(plan.build_seconds),
            gigabytes(plan.build_bytes),
        )
        each = (plan.store_bytes / plan.documents, plan.index_bytes / plan.documents)
        rows.append(
            [
                f"{about}{plan.documents:,}",
                f"`{plan.kind}`",
                *(f"{about}{amount}" for amount in amounts),
                *(f"{size:,.0f}" for size in each),
            ]
        )
    head = ["documents", "index", "store", "index", "write", "build", "memory of the build"]
    head += ["store, bytes each", "index, bytes each"]
    threads = record["settings"]["threads"]
    note = f"\n{_RULE} Builds had {threads} threads, writing and searching one.\n"
    return table_of(head, rows) + note + source(record)


def search_at(results: Results) -> str:
    """Latency, recall and memory of searches by the number of documents."""
    record = results["sizing"]
    rows = []
    for size, row in record["results"]["sizes"].items():
        served, build = row["serve"], row["build"]
        own = served["searched"]["own_bytes"] - served["before"]["own_bytes"]
        mapped = served["searched"]["mapped_bytes"] - served["before"]["mapped_bytes"]
        rows.append(
            [
                f"{int(size):,}",
                effort_of(build),
                f"{build['recall@10']:.4f}",
                f"{served['recall@10']:.4f}",
                *(number(served["again"][f"{name}_ms"]) for name in ("p50", "p95", "p99")),
                *(number(served["new"][f"{name}_ms"]) for name in ("p50", "p99")),
                *(number(served["cold"][f"{name}_ms"]) for name in ("p50", "p99")),
                f"{own / 1e6:.1f} MB",
                gigabytes(mapped),
            ]
        )
    head = ["documents", "effort", "recall@10 recorded", "of real questions"]
    head += ["warm: p50 ms", "p95", "p99", "new: p50", "p99", "cold: p50", "p99"]
    head += ["memory of its own", "mapped"]
    return table_of(head, rows) + source(record)


def upkeep(results: Results) -> str:
    """What it takes to keep collections of a size up to date, to open and to check them."""
    record = results["sizing"]
    rows = []
    for size, row in record["results"]["sizes"].items():
        compaction, served = row["compact"], row["serve"]
        words = served["words"]
        rebuilt = " (built anew)" if compaction["reason"] else ""
        rows.append(
            [
                f"{int(size):,}",
                number(compaction["seconds"]) + " s" + rebuilt,
                gigabytes(compaction["process"]["peak_own_bytes"]),
                number(served["open_seconds"]) + " s",
                number(served["open_again_seconds"]) + " s",
                number(served["verify_seconds"]) + " s",
                number(words["first_seconds"]) + " s",
                f"{words['own_bytes'] / 1e6:,.0f} MB",
                number(words["p50_ms"]),
            ]
        )
    head = ["documents", "5,000 more into the index", "memory of that", "open, cold", "warm"]
    head += ["check the index", "first search by words", "memory it takes", "later ones, p50 ms"]
    return table_of(head, rows) + source(record)


def others(results: Results) -> str:
    """Other indexes over the same rows."""
    record = results["sizing"]
    rows = []
    for size, compared in record["results"]["others"].items():
        for row in compared:
            build, served = row["build"], row["serve"]
            rows.append(
                [
                    f"{int(size):,}",
                    f"`{build['factory']}`",
                    f"{build['size_bytes'] / build['rows']:,.0f}",
                    minutes(build["seconds"]),
                    gigabytes(build["process"]["peak_own_bytes"]),
                    effort_of(build),
                    f"{build['recall@10']:.4f}",
                    f"{served['recall@10']:.4f}",
                    *(number(served["again"][f"{name}_ms"]) for name in ("p50", "p99")),
                    *(number(served["cold"][f"{name}_ms"]) for name in ("p50", "p99")),
                ]
            )
    head = ["documents", "index", "bytes each", "build", "memory of the build", "effort"]
    head += ["recall@10 recorded", "of real questions", "warm: p50 ms", "p99", "cold: p50", "p99"]
    return table_of(head, rows) + source(record) if rows else ""


def alike(results: Results) -> str:
    """Made vectors beside the real ones."""
    record = results["sizing"]
    found = record["results"]["alike"]
    first = found[0]
    rows = [
        [
            "real" if row["made_from"] is None else f"made from {row['made_from']:,}",
            *(f"{cosine:.3f}" for cosine in row["median_cosine"].values()),
            *(f"{recall:.4f}" for name in ("graph", "lists") for recall in row[name].values()),
        ]
        for row in found
    ]
    head = [f"{record['settings']['real_documents']:,} vectors"]
    head += [f"cosine to the {nth(depth)} nearest" for depth in first["median_cosine"]]
    head += [f"recall@10, efSearch {effort}" for effort in first["graph"]]
    head += [f"nprobe {effort}" for effort in first["lists"]]
    return table_of(head, rows) + source(record)


def effort_of(build: dict[str, Any]) -> str:
    """Name the effort that a snapshot recorded."""
    efforts = ("efSearch", "nprobe")
    found = [
        f"{name} {build['parameters'][name]}" for name in efforts if name in build["parameters"]
    ]
    return found[0] if found else "all"


def gigabytes(size: float) -> str:
    """Format bytes."""
    return number(size / 1e9) + " GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def minutes(seconds: float) -> str:
    """Format a duration."""
    return f"{seconds / 60:,.0f} min" if seconds >= 600 else number(seconds) + " s"


def nth(depth: str) -> str:
    """Format an ordinal number."""
    return f"{depth}st" if depth == "1" else f"{depth}th"
