"""Find int8 settings that keep both speed and fidelity; docs/int8.md tells what came of it.

Every variant is made from the same fp32 graph of all-MiniLM-L6-v2 and runs on one thread.

- `screened`: all variants on an even sample of Quora questions and dev queries: mean and least
  cosine to fp32, the share of fp32's ten nearest texts that are kept (documents and queries both
  int8), and CPU milliseconds a text, variants in alternation: each text alone, and, where batch
  mates do not change a vector, in batches of eight as they come.
- `full`: the finalists on the whole corpus with the test split's queries, with MRR@10.

Vectors are kept in the work folder as they come, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from corpora import QUORA, base_weights, even_sample, read_texts, small_corpus
from harness import RESULTS, alternate, parser, rounded, write_result
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer

from lamina_index.manifest import sha256_file
from lamina_index.text import normalize_text
from lamina_training.encoder_graphs import calibration_texts
from lamina_training.graph import export_fp32
from lamina_training.int8 import Int8Recipe, quantize_int8
from lamina_training.source import load_source

DOCUMENTS, QUERIES = 4_000, 500
TIMED_TEXTS, ROUNDS = 100, 7
K = 10
CHUNK = 1_000
MAX_TOKENS = 256
BATCH = 8
CHOSEN = "lamina: smoothed, limited pairs, constant input scales"
FINALISTS = ("dynamic signed, per channel", "lamina: smoothed, limited pairs", CHOSEN)
DYNAMIC = Int8Recipe(largest_pair=None, input_scales="dynamic")
RECIPES = {
    "lamina: 8 bit": replace(DYNAMIC, strengths=(0.0,)),
    "lamina: smoothed, 8 bit": DYNAMIC,
    "lamina: smoothed, 7 bit": replace(DYNAMIC, largest_weight=64),
    "lamina: smoothed, limited pairs": Int8Recipe(input_scales="dynamic"),
    "lamina: 8 bit, constant input scales": Int8Recipe(strengths=(0.0,), largest_pair=None),
    CHOSEN: Int8Recipe(),
}
BATCHED = ("fp32", *(name for name, recipe in RECIPES.items() if recipe.batch_invariant))

Embeddings = NDArray[np.float32]
TokenIds = list[NDArray[np.int64]]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--screen-only", action="store_true", help="leave out the whole corpus")
    arguments = options.parse_args()
    work: Path = arguments.work / "int8-study"
    work.mkdir(parents=True, exist_ok=True)
    tokenizer, graphs = make_graphs(work)
    results: dict[str, Any] = {}
    if arguments.small:
        corpus = small_corpus(work)
        ids = [tokenize(tokenizer, texts) for texts in (read_texts(corpus.path)[1], corpus.queries)]
        results["screened"] = screen(graphs, ids[0][:100], ids[1][:20], work, rounds=1)
    else:
        documents = tokenize(tokenizer, read_texts(QUORA / "corpus.tsv")[1])
        queries = tokenize(tokenizer, [row["text"] for row in query_rows("dev")])
        results["screened"] = screen(
            graphs, even_sample(documents, DOCUMENTS), even_sample(queries, QUERIES), work
        )
        if not arguments.screen_only:
            results["full"] = full(graphs, documents, tokenizer, work)
    settings = {"texts_a_call": [1, BATCH], "threads": 1, "max_tokens": MAX_TOKENS}
    settings |= {"documents": DOCUMENTS, "queries": QUERIES} if not arguments.small else {}
    name = "int8_study-small.json" if arguments.small else "int8_study.json"
    write_result(arguments.output or RESULTS / name, settings, results)


def make_graphs(work: Path) -> tuple[Tokenizer, dict[str, Path]]:
    """Make fp32 and every variant, unless they lie there from an earlier run."""
    source = load_source(str(base_weights()), cache=work)
    tokenizer = Tokenizer.from_str(source.tokenizer_json)
    tokenizer.enable_truncation(MAX_TOKENS)
    fp32 = work / "fp32.onnx"
    if not fp32.exists():
        export_fp32(source, fp32)
    calibration = [ids[0].tolist() for ids in tokenize(tokenizer, calibration_texts())]

    def dynamic(kind: QuantType, **options: Any) -> Callable[[Path], None]:
        return lambda path: quantize_dynamic(fp32, path, weight_type=kind, **options)

    def ours(recipe: Int8Recipe) -> Callable[[Path], None]:
        return lambda path: quantize_int8(fp32, path, calibration, recipe=recipe)

    makers = {
        "dynamic signed": dynamic(QuantType.QInt8),
        "dynamic signed, per channel": dynamic(QuantType.QInt8, per_channel=True),
        "dynamic signed, per channel, 7 bit": dynamic(
            QuantType.QInt8, per_channel=True, reduce_range=True
        ),
        "dynamic unsigned, per channel": dynamic(QuantType.QUInt8, per_channel=True),
        "dynamic signed, per channel, second feed-forward product in fp32": dynamic(
            QuantType.QInt8, per_channel=True, nodes_to_exclude=after_gelu(fp32)
        ),
        **{name: ours(recipe) for name, recipe in RECIPES.items()},
    }
    graphs = {"fp32": fp32}
    for number, (name, make) in enumerate(makers.items()):
        graphs[name] = work / f"variant-{number}.onnx"
        if not graphs[name].exists():
            print(f"  makes {name}", file=sys.stderr)
            make(graphs[name])
    return tokenizer, graphs


def after_gelu(graph: Path) -> list[str]:
    """Names of the products that read a GELU: the second ones of the feed-forward layers."""
    import onnx

    nodes = onnx.load(graph).graph.node
    gelus = {node.output[0] for node in nodes if node.op_type == "Gelu"}
    return [node.name for node in nodes if node.op_type == "MatMul" and node.input[0] in gelus]


def screen(
    graphs: dict[str, Path],
    documents: TokenIds,
    queries: TokenIds,
    work: Path,
    rounds: int = ROUNDS,
) -> dict[str, dict[str, float]]:
    """Compare every variant with fp32, and time all of them."""
    reference: tuple[Embeddings, Embeddings] | None = None
    table: dict[str, dict[str, float]] = {}
    for name, path in graphs.items():
        print(f"  screens {name}", file=sys.stderr)
        session = open_session(path)
        found = (
            encode(session, documents, work / f"{digest(path)}-screen-documents.npy"),
            encode(session, queries, work / f"{digest(path)}-screen-queries.npy"),
        )
        reference = reference or found
        table[name] = {
            "megabytes": rounded(path.stat().st_size / 1e6),
            **distance_from(reference, found),
        }
    sessions = {name: open_session(path) for name, path in graphs.items()}
    sample = even_sample(documents, TIMED_TEXTS)
    for suffix, names, run in (("", list(graphs), run_all), ("_batched", BATCHED, run_batches)):
        spent: dict[str, list[float]] = {name: [] for name in names}
        for _, name in alternate(list(names), rounds):
            started = time.thread_time_ns()
            run(sessions[name], sample)
            spent[name].append((time.thread_time_ns() - started) / len(sample) / 1e6)
        for name in names:
            milliseconds = statistics.median(spent[name])
            table[name][f"cpu_ms{suffix}"] = rounded(milliseconds)
            table[name][f"speed_up{suffix}"] = rounded(
                statistics.median(spent["fp32"]) / milliseconds
            )
    return table


def full(
    graphs: dict[str, Path], documents: TokenIds, tokenizer: Tokenizer, work: Path
) -> dict[str, Any]:
    """Overlap and MRR@10 of the finalists over the whole corpus, as they come from the encoder."""
    ids, _ = read_texts(QUORA / "corpus.tsv")
    rows = query_rows("test")
    queries = tokenize(tokenizer, [row["text"] for row in rows])
    relevant = relevant_rows(ids, [row["qid"] for row in rows])
    reference: tuple[Embeddings, Embeddings] | None = None
    table: dict[str, Any] = {}
    ranks: dict[str, NDArray[np.float64]] = {}
    for name in ("fp32", *FINALISTS):
        print(f"  encodes the corpus with {name}", file=sys.stderr)
        path = graphs[name]
        session = open_session(path)
        found = (
            encode(session, documents, work / f"{digest(path)}-corpus.npy"),
            encode(session, queries, work / f"{digest(path)}-queries.npy"),
        )
        reference = reference or found
        ranks[name] = reciprocal_ranks(nearest(*found), relevant)
        difference = ranks[name] - ranks["fp32"]
        table[name] = {
            **distance_from(reference, found),
            "mrr@10": rounded(float(ranks[name].mean())),
            "mrr@10_difference": round(float(difference.mean()), 5),
            "standard_error": round(float(difference.std() / np.sqrt(len(difference))), 5),
        }
        if name != "fp32":  # fp32 documents, int8 queries: a collection built on a faster machine
            mixed = reciprocal_ranks(nearest(reference[0], found[1]), relevant)
            table[name]["mrr@10_difference_queries_only"] = round(
                float((mixed - ranks["fp32"]).mean()), 5
            )
    return {"documents": len(documents), "queries": len(queries), "variants": table}


def query_rows(split: str) -> list[dict[str, str]]:
    """Queries of one split: qid and text."""
    with open(QUORA / "queries.tsv", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in rows if row["split"] == split]


def relevant_rows(ids: Sequence[str], queries: Sequence[str]) -> list[set[int]]:
    """For each query the rows of the corpus that answer it."""
    row_of = {name: row for row, name in enumerate(ids)}
    found: dict[str, set[int]] = {query: set() for query in queries}
    with open(QUORA / "qrels.tsv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["query_qid"] in found:
                found[row["query_qid"]].add(row_of[row["corpus_qid"]])
    return [found[query] for query in queries]


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenIds:
    """Token ids of each text, (1, T)."""
    encodings = tokenizer.encode_batch_fast([normalize_text(text) for text in texts])
    return [np.array([item.ids], dtype=np.int64) for item in encodings]


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a graph as the encoder does."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def digest(path: Path) -> str:
    """Name kept vectors by the graph that they come from."""
    return sha256_file(path)[:12]


def run_all(session: onnxruntime.InferenceSession, texts: TokenIds) -> Embeddings:
    """Embed each text alone; (N, D)."""
    rows = [
        session.run(
            ["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        )[0]
        for ids in texts
    ]
    return np.concatenate(rows)


def run_batches(session: onnxruntime.InferenceSession, texts: TokenIds) -> None:
    """Embed texts eight at a time in the order in which they come, as queries do."""
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        width = max(ids.shape[1] for ids in batch)
        padded = [np.pad(ids, ((0, 0), (0, width - ids.shape[1]))) for ids in batch]
        mask = [np.pad(np.ones_like(ids), ((0, 0), (0, width - ids.shape[1]))) for ids in batch]
        feed = {"input_ids": np.concatenate(padded), "attention_mask": np.concatenate(mask)}
        session.run(["sentence_embedding"], feed)


def encode(session: onnxruntime.InferenceSession, texts: TokenIds, kept: Path) -> Embeddings:
    """Embed, keeping every thousand rows in a file; what is there already is not done again."""
    dimension = session.get_outputs()[1].shape[1]
    progress = kept.with_suffix(".done")
    fresh = not progress.exists()
    vectors: Embeddings = np.lib.format.open_memmap(
        kept, "w+" if fresh else "r+", np.float32, (len(texts), dimension) if fresh else None
    )
    start = 0 if fresh else int(progress.read_text())
    for begin in range(start, len(texts), CHUNK):
        part = texts[begin : begin + CHUNK]
        vectors[begin : begin + len(part)] = run_all(session, part)
        vectors.flush()
        progress.write_text(str(begin + len(part)))
    return vectors


def distance_from(
    reference: tuple[Embeddings, Embeddings], found: tuple[Embeddings, Embeddings]
) -> dict[str, float]:
    """Cosines to fp32 over documents and queries, and the share of its ten nearest kept."""
    cosines = np.concatenate([np.vecdot(a, b) for a, b in zip(reference, found, strict=True)])
    kept = [
        len(set(ours) & set(theirs)) / K
        for ours, theirs in zip(nearest(*found).tolist(), nearest(*reference).tolist(), strict=True)
    ]
    return {
        "cosine_mean": round(float(cosines.mean()), 5),
        "cosine_min": round(float(cosines.min()), 4),
        "top10_overlap": round(statistics.mean(kept), 4),
    }


def nearest(documents: Embeddings, queries: Embeddings) -> NDArray[np.int64]:
    """Rows of the ten nearest documents of each query, best first; (Q, K)."""
    blocks = []
    for start in range(0, len(queries), 256):
        scores = queries[start : start + 256] @ documents.T
        top = np.argpartition(-scores, K, axis=1)[:, :K]
        order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
        blocks.append(np.take_along_axis(top, order, axis=1))
    return np.concatenate(blocks)


def reciprocal_ranks(top: NDArray[np.int64], relevant: Sequence[set[int]]) -> NDArray[np.float64]:
    """One over the rank of the first relevant row among the ten, else 0; (Q,)."""
    ranks = [
        next((1 / rank for rank, row in enumerate(rows, start=1) if row in wanted), 0.0)
        for rows, wanted in zip(top.tolist(), relevant, strict=True)
    ]
    return np.array(ranks)


if __name__ == "__main__":
    main()
