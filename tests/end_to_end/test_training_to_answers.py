"""From a training file to answers, by the commands that docs/training.md shows, on real data.

One test runs them as they stand, which takes minutes; the other on a few real rows, with the same
base, a shorter recipe and the fp32 graph alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.encoder import OnnxEncoder
from lamina_index.manifest import EncoderManifest

SECTION = re.compile(r"^## From a file to answers$.*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FEW_SHAPES = (
    "from lamina_training import agreement as a; a.LENGTHS, a.BATCHES = (1, 2, 33), (1, 2, 16)"
)
"""The gate with all its shapes takes most of an export, and is test_export's."""

QUERIES, DOCUMENTS = 60, 400
TEXTS = ["How do I learn to cook?", "why ?", "the quick brown fox " * 30]


def shown_commands(repository: Path) -> list[list[str]]:
    """The words of each command of the section, without `lamina`."""
    section = SECTION.search((repository / "docs" / "training.md").read_text())
    assert section
    lines = section[1].replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("lamina ")]


def run_sequence(
    commands: Iterable[list[str]],
    output_of: Callable[..., str],
    *,
    before_export: str = "",
    **options: Any,
) -> float:
    """Run train, export, index build and evaluate; gives the MRR@10 that the last one reports."""
    train, export, build, evaluate = commands
    assert output_of(*train, **options).startswith("runs/quick: ")
    assert output_of(*export, first=before_export, **options).startswith("encoders/quick: ")
    report = json.loads(output_of(*build, "--json", **options))
    assert report["rows_rejected"] == 0
    measured = json.loads(output_of(*evaluate, "--json", **options))
    assert measured["documents"] == report["documents"]
    mrr: float = measured["mrr@10"]
    return mrr


def make_home(folder: Path, data: Path, recipe: str) -> Path:
    """A working directory with the recipe, and the data where the documents say."""
    home = folder / "lamina"
    (home / "training" / "recipes").mkdir(parents=True)
    (home / "training" / "recipes" / "quick.toml").write_text(recipe)
    (folder / "shared").mkdir()
    (folder / "shared" / "data").symlink_to(data, target_is_directory=True)
    return home


def few_rows(data: Path, folder: Path) -> Path:
    """Some real rows of each file that the sequence reads; relevant documents among them."""

    def lines(name: str) -> Iterator[str]:
        with (data / name).open(encoding="utf-8") as stream:
            yield from stream

    def write(name: str, kept: Iterable[str]) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(kept), encoding="utf-8")

    def first_cell(line: str) -> str:
        return line.partition("\t")[0]

    write("nli/triplets.tsv", islice(lines("nli/triplets.tsv"), 65))
    write("stsb/dev.tsv", islice(lines("stsb/dev.tsv"), 0, None, 15))
    of_dev = (line for line in lines("quora/ir/queries.tsv") if line.rstrip().endswith("\tdev"))
    asked = list(islice(of_dev, QUERIES))
    ids = {first_cell(line) for line in asked}
    judged = [line for line in lines("quora/ir/qrels.tsv") if first_cell(line) in ids]
    relevant = {line.split("\t")[1] for line in judged}
    write("quora/ir/queries.tsv", [next(lines("quora/ir/queries.tsv")), *asked])
    write("quora/ir/qrels.tsv", [next(lines("quora/ir/qrels.tsv")), *judged])
    corpus = enumerate(lines("quora/ir/corpus.tsv"))
    kept = [line for place, line in corpus if place <= DOCUMENTS or first_cell(line) in relevant]
    write("quora/ir/corpus.tsv", kept)
    return folder


@pytest.fixture(scope="module")
def small(
    repository: Path, shared_data: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Where the shortened sequence is run, and how."""
    folder = tmp_path_factory.mktemp("quick")
    recipe = (repository / "training" / "recipes" / "quick.toml").read_text()
    for setting, value in {"steps": 4, "batch_size": 16, "evaluate_every": 2}.items():
        recipe, changed = re.subn(rf"^{setting} = \d+$", f"{setting} = {value}", recipe, flags=re.M)
        assert changed == 1
    home = make_home(folder, few_rows(shared_data, folder / "rows"), recipe)
    environment = {"LAMINA_WEIGHTS": str(weights), "OMP_NUM_THREADS": "1"}
    return {"cwd": home, "env": os.environ | environment}


@pytest.fixture(scope="module")
def small_mrr(repository: Path, small: dict[str, Any], output_of: Callable[..., str]) -> float:
    """The shortened sequence, run; MRR@10 of what it trained."""
    train, export, *others = shown_commands(repository)
    commands = [train, [*export, "--precision", "fp32"], *others]
    return run_sequence(commands, output_of, before_export=FEW_SHAPES, **small)


@pytest.fixture(scope="module")
def home(small: dict[str, Any], small_mrr: float) -> Path:
    """The folder in which the shortened sequence was run."""
    return Path(small["cwd"])


def test_the_run_tells_what_was_trained_and_how_it_went(home: Path) -> None:
    run = home / "runs" / "quick"
    facts = json.loads((run / "run.json").read_text())
    assert facts["config"]["pooling"]["mode"] == "layer_attention"
    assert set(facts["data"]) == {"nli/triplets.tsv", "stsb/dev.tsv"}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = {row["step"]: row["dev_sts"] for row in rows if "dev_sts" in row}
    assert list(scores) == [0, 2, 4]
    result = json.loads((run / "result.json").read_text())
    assert result["score"] == max(scores[2], scores[4]) == scores[result["best_step"]]
    assert 50 < result["score"] < 100


def test_the_export_is_a_plain_directory_with_the_same_vectors(home: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = home / "encoders" / "quick"
    modules = json.loads((folder / "modules.json").read_text())
    kinds = [module["type"].rpartition(".") for module in modules]
    assert [kind[2] for kind in kinds] == ["Transformer", "Pooling", "Normalize"]
    assert {kind[0] for kind in kinds} == {"sentence_transformers.models"}
    manifest = EncoderManifest.read(folder / "encoder.json")
    assert (manifest.attention, manifest.stripped_to) == ("stripped", "mean")
    model = SentenceTransformer(str(folder), device="cpu")
    found = OnnxEncoder.load(folder).encode(TEXTS, role="document").embeddings
    np.testing.assert_allclose(found, model.encode(TEXTS), atol=1e-5)


def test_a_few_steps_leave_the_search_about_as_good_as_the_base(
    small: dict[str, Any], small_mrr: float, output_of: Callable[..., str]
) -> None:
    folder = "../shared/data/quora/ir"
    files = [f"--{name}={folder}/{name}.tsv" for name in ("queries", "qrels", "corpus")]
    base = json.loads(output_of("evaluate", *files, "--split", "dev", "--json", **small))
    assert base["queries"] == QUERIES
    assert base["mrr@10"] > 0.9  # the bundled encoder, which is the base in int8
    assert small_mrr == pytest.approx(base["mrr@10"], abs=0.03)


@pytest.mark.slow
def test_the_sequence_as_it_is_shown_keeps_nearly_all_of_the_base(
    repository: Path,
    shared_data: Path,
    weights: Path,
    output_of: Callable[..., str],
    tmp_path: Path,
) -> None:
    recipe = (repository / "training" / "recipes" / "quick.toml").read_text()
    home = make_home(tmp_path, shared_data, recipe)
    environment = {**os.environ, "LAMINA_WEIGHTS": str(weights)}
    mrr = run_sequence(shown_commands(repository), output_of, cwd=home, env=environment)
    assert mrr == pytest.approx(0.931, abs=0.03)  # the base's: README, section "Evaluation"
