"""A reranker folder scores pairs, is checked before it runs, and tells what it read in part.

The graph counts tokens that query and text share, so its scores can be counted by hand.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lamina_index.errors import (
    EncoderLoadError,
    EncoderOutputError,
    EncoderProbeError,
    FormatError,
)
from lamina_index.reranker import OnnxReranker


@pytest.fixture(scope="module")
def reranker(overlap_reranker: Path) -> OnnxReranker:
    return OnnxReranker.load(overlap_reranker, threads=1)


@pytest.fixture
def folder(overlap_reranker: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(overlap_reranker, tmp_path / "copy"))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "reranker.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_scores_are_those_of_a_count_by_hand(reranker: OnnxReranker) -> None:
    found = reranker.score("hot soup", ["soup is hot , hot !", "the moon", ""])
    tokens = np.array([5 + 6, 5 + 2, 5 + 0])  # with [CLS], two of the query and two [SEP]
    assert found.scores == pytest.approx(np.array([3, 0, 0]) - tokens / 100, abs=1e-5)
    assert found.scores.dtype == np.float32
    assert not found.truncated.any()


def test_no_text_has_no_score(reranker: OnnxReranker) -> None:
    found = reranker.score("hot soup", [])
    assert (found.scores.shape, found.truncated.shape) == ((0,), (0,))


def test_query_and_text_are_normalised(reranker: OnnxReranker) -> None:
    found = reranker.score("hot \ud800 soup", ["soup \udfff"])  # no tokenizer takes half a pair
    assert found.scores == pytest.approx([1 - 0.06], abs=1e-5)


def test_batch_mates_and_threads_do_not_change_a_score(
    overlap_reranker: Path, reranker: OnnxReranker
) -> None:
    texts = ["hot " * n for n in range(1, 60, 3)] + ["the moon"] * 30 + ["soup"]
    alone = [reranker.score("hot soup", [text]).scores[0] for text in texts]
    spread = OnnxReranker.load(overlap_reranker, threads=3)
    for each in (reranker, spread):
        np.testing.assert_allclose(each.score("hot soup", texts).scores, alone, atol=1e-4)
    spread.close()


def test_a_long_text_is_cut_and_told_and_the_query_stays_whole(reranker: OnnxReranker) -> None:
    found = reranker.score("hot soup", ["moon " * 100 + "soup", "moon " * 20 + "soup"])
    assert found.truncated.tolist() == [True, False]
    assert found.scores == pytest.approx([0 - 0.32, 1 - 0.26], abs=1e-5)


def test_of_a_query_and_a_text_that_are_both_too_long_both_are_read_in_part(
    reranker: OnnxReranker,
) -> None:
    found = reranker.score("moon " * 100, ["moon " * 100])
    assert found.truncated.all()
    assert found.scores[0] == pytest.approx(14 * 15 - 0.32)  # 32 tokens less [CLS] and two [SEP]


def test_a_folder_without_a_manifest_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(EncoderLoadError, match=r"no reranker\.json there; make one"):
        OnnxReranker.load(tmp_path)


def test_an_encoder_is_no_reranker(default_encoder: Any) -> None:
    with pytest.raises(EncoderLoadError, match="an encoder's folder; make one with `lamina export"):
        OnnxReranker.load(default_encoder.folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "onnx/model.onnx"])
def test_an_altered_or_missing_file_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(EncoderLoadError, match=rf"{name}: sha256 \w+, expected"):
        OnnxReranker.load(folder)
    path.unlink()
    with pytest.raises(EncoderLoadError, match=f"{name}: missing"):
        OnnxReranker.load(folder)


def test_an_edited_manifest_is_refused(folder: Path) -> None:
    edit(folder, max_tokens=16)
    with pytest.raises(EncoderLoadError, match="the fingerprint of fp32 does not fit"):
        OnnxReranker.load(folder)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"format_version": 2}, "format version 2, expected 1"),
        ({"colour": "red"}, "colour: Extra inputs"),
        ({"inputs": ["input_ids", "pixel_values"]}, r"inputs\.1"),
        ({"probes": [{"query": "a", "document": "b"}]}, "2 probe_scores, expected one for each"),
    ],
)
def test_a_manifest_that_is_not_understood_is_refused(
    folder: Path, changes: dict[str, Any], found: str
) -> None:
    edit(folder, **changes)
    with pytest.raises(FormatError, match=found):
        OnnxReranker.load(folder)


def test_a_machine_that_scores_otherwise_is_refused(folder: Path) -> None:
    precisions = json.loads((folder / "reranker.json").read_text())["precisions"]
    precisions["fp32"]["probe_scores"][1] += 0.01
    edit(folder, precisions=precisions)
    with pytest.raises(EncoderProbeError, match=r"probe 1 has score -0\.0800, expected -0\.0700"):
        OnnxReranker.load(folder)
    OnnxReranker.load(folder, check=False)


def test_another_text_normalisation_is_refused(folder: Path) -> None:
    edit(folder, text_version=99)
    with pytest.raises(EncoderLoadError, match="text normalisation 99"):
        OnnxReranker.load(folder)


def test_a_score_that_is_not_finite_is_told_with_its_text(
    overlap_reranker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = OnnxReranker.load(overlap_reranker, threads=1)
    run_graph = OnnxReranker._run_graph

    def poisoned(self: OnnxReranker, batch: Any) -> NDArray[np.float32]:
        scores = run_graph(self, batch)
        scores[[len(pair) == 6 for pair in batch]] = np.nan
        return scores

    monkeypatch.setattr(OnnxReranker, "_run_graph", poisoned)
    with pytest.raises(EncoderOutputError, match="1 of 3 texts, the first at position 1") as error:
        reranker.score("hot soup", ["the moon", "moon", "the sun"])
    assert error.value.items == (1,)


def test_the_committed_graph_is_what_its_script_makes(repository: Path) -> None:
    pytest.importorskip("onnx")  # of the extra `training`
    made = repository / "tests" / "data" / "overlap_reranker.py"
    namespace: dict[str, Any] = {"__name__": "overlap", "__file__": str(made)}
    exec(compile(made.read_text(), made, "exec"), namespace)
    graph = namespace["overlap_graph"]()
    assert graph.SerializeToString() == made.with_suffix(".onnx").read_bytes()
