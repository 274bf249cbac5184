"""How good the answers are: MRR@10 on Quora duplicates and Spearman's correlation on STS-B.

The int8 encoder that is bundled, beside the fp32 one that it was made from:

- `exact`: the encoder alone, `lamina evaluate` on a collection with an exact index.
- `served`: int8 with the index that `auto` chooses, as `lamina serve` would answer.
- `neighbours`: the share of the ten nearest texts that int8 and fp32 have in common, documents and
  queries both encoded by the one against both by the other.
- `same_vectors`: fp32 MRR@10 by sentence-transformers' InformationRetrievalEvaluator.
- `stsb`: Spearman's correlation on the pairs of STS-B dev.

All-MiniLM-L6-v2 was trained on Quora duplicates by its authors.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpora import QUORA, SHARED_DATA, base_weights
from harness import LAMINA, RESULTS, parser, rounded, run_measured, write_result
from numpy.typing import NDArray

from lamina_index.encoder import OnnxEncoder

METRICS = ("mrr@10", "ndcg@10", "recall@1", "recall@10", "recall@100", "map@100")
NEIGHBOURS = 10
QUERY_BLOCK = 256

Embeddings = NDArray[np.float32]


@dataclass(frozen=True)
class Vectors:
    """One encoder's embeddings of the corpus, in order of id, and of the test queries."""

    ids: list[str]
    documents: Embeddings
    queries: Embeddings

    def nearest(self) -> NDArray[np.int64]:
        """Rows of the nearest documents of each query, in no order; (Q, NEIGHBOURS)."""
        found = []
        for start in range(0, len(self.queries), QUERY_BLOCK):
            scores = self.queries[start : start + QUERY_BLOCK] @ self.documents.T
            found.append(np.argpartition(-scores, NEIGHBOURS, axis=1)[:, :NEIGHBOURS])
        return np.concatenate(found)


def main() -> None:
    arguments = parser(__doc__).parse_args()
    if arguments.small:
        raise SystemExit("judged queries need the whole corpus; there is no --small here")
    work: Path = arguments.work
    folders = {"int8": "default", "fp32": str(fp32_encoder(work))}
    queries = {row["qid"]: row["text"] for row in read_rows("queries.tsv", split="test")}

    results: dict[str, Any] = {"exact": {}, "stsb": {}}
    vectors = {}
    for precision, folder in folders.items():
        print(f"{precision}: quora", file=sys.stderr)
        collection = build(work / f"quality-{precision}", folder)
        if precision == "int8":
            results["served"] = evaluate("test", folder, "--collection", collection)
        run_measured([LAMINA, "index", "compact", collection, "--factory", "Flat"])
        results["exact"][precision] = {
            split: evaluate(split, folder, "--collection", collection) for split in ("test", "dev")
        }
        encoder = OnnxEncoder.load(folder, precision=precision)  # type: ignore[arg-type] # a literal
        vectors[precision] = read_vectors(collection, encoder, list(queries.values()))
        results["stsb"][precision] = rounded(stsb_correlation(encoder))
        encoder.close()
    results["neighbours"] = rounded(overlap(vectors["int8"], vectors["fp32"]))
    results["same_vectors"] = compare_evaluators(
        vectors["fp32"], list(queries), results["exact"]["fp32"]["test"]["mrr@10"]
    )
    settings = {
        "corpus": "Quora questions",
        "documents": len(vectors["int8"].ids),
        "queries": {"test": len(queries), "dev": len(read_rows("queries.tsv", split="dev"))},
    }
    write_result(arguments.output or RESULTS / "quality.json", settings, results)


def fp32_encoder(work: Path) -> Path:
    """Export the weights that the bundled encoder was made from, unless that was done before."""
    folder = work / "encoder-fp32"
    if not (folder / "encoder.json").is_file():
        run_measured([LAMINA, "export", base_weights(), folder, "--precision", "fp32"])
    return folder


def build(collection: Path, encoder: str) -> Path:
    """Index the corpus, from nothing."""
    shutil.rmtree(collection, ignore_errors=True)
    command = [LAMINA, "index", "build", "--input", QUORA / "corpus.tsv", "--id-field", "qid"]
    run_measured([*command, "--encoder", encoder, "--collection", collection])
    return collection


def evaluate(split: str, encoder: str, *searched: object) -> dict[str, float]:
    """Run `lamina evaluate` on a split."""
    command = [LAMINA, "evaluate", "--queries", QUORA / "queries.tsv", "--json"]
    command += ["--qrels", QUORA / "qrels.tsv", "--split", split, "--encoder", encoder]
    report = json.loads(run_measured([*command, *searched]).output)
    low, high = report["intervals"]["mrr@10"]
    return {
        **{name: round(report[name], 7) for name in METRICS},
        "mrr@10_low": round(low, 7),
        "mrr@10_high": round(high, 7),
        "queries": report["queries"],
        "documents": report["documents"],
    }


def read_vectors(collection: Path, encoder: OnnxEncoder, queries: Sequence[str]) -> Vectors:
    """Take the documents' vectors out of a collection and encode the queries."""
    exported = collection.with_name("exported")
    shutil.rmtree(exported, ignore_errors=True)
    run_measured([LAMINA, "index", "export", collection, "--output", exported])
    documents = np.load(exported / "embeddings.npy")
    with open(exported / "documents.jsonl", encoding="utf-8") as file:
        ids = [json.loads(line)["id"] for line in file]
    order = np.argsort(ids)
    return Vectors(
        ids=[ids[row] for row in order],
        documents=documents[order],
        queries=encoder.encode(queries, role="query").embeddings,
    )


def overlap(first: Vectors, second: Vectors) -> float:
    """Mean share of the nearest documents that two encoders have in common."""
    if first.ids != second.ids:
        raise ValueError("the two collections hold different documents")
    pairs = zip(first.nearest(), second.nearest(), strict=True)
    return float(np.mean([len(np.intersect1d(*pair)) / NEIGHBOURS for pair in pairs]))


def compare_evaluators(vectors: Vectors, query_ids: list[str], ours: float) -> dict[str, float]:
    """Let sentence-transformers rank and judge the same vectors."""
    import torch
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    class Encoded:
        """In place of a model: gives the queries' embeddings as they are."""

        model_card_data = None

        def encode_query(self, *_: object, **__: object) -> torch.Tensor:
            return torch.from_numpy(vectors.queries)

    relevant: dict[str, set[str]] = {}
    for row in read_rows("qrels.tsv", split="test"):
        relevant.setdefault(row["query_qid"], set()).add(row["corpus_qid"])
    evaluator = InformationRetrievalEvaluator(
        queries=dict.fromkeys(query_ids, ""),
        corpus=dict.fromkeys(vectors.ids, ""),
        relevant_docs=relevant,
        score_functions={"dot": lambda queries, documents: queries @ documents.T},
    )
    found = evaluator.compute_all_metrics(
        Encoded(), corpus_embeddings=torch.from_numpy(vectors.documents)
    )
    theirs = found["dot"]["mrr@k"][10]
    return {"sentence_transformers": theirs, "lamina": ours, "difference": ours - theirs}


def stsb_correlation(encoder: OnnxEncoder) -> float:
    """Spearman's correlation of cosines with human scores on STS-B dev."""
    from scipy.stats import spearmanr

    with open(SHARED_DATA / "stsb" / "dev.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    first, second = (
        encoder.encode([row[name] for row in rows], role="document").embeddings
        for name in ("sentence1", "sentence2")
    )
    scores = [float(row["score"]) for row in rows]
    return float(spearmanr(np.vecdot(first, second), scores).statistic)


def read_rows(name: str, *, split: str) -> list[dict[str, str]]:
    """Read a split's rows of one of Quora's files."""
    with open(QUORA / name, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in rows if row["split"] == split]


if __name__ == "__main__":
    main()
