from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lamina_index.encoder import OnnxEncoder
from lamina_index.encoder_files import BUNDLED_ENCODERS, bundled_encoders, encoder_folder
from lamina_index.errors import (
    DeviceError,
    EncoderLoadError,
    EncoderMismatchError,
    EncoderOutputError,
    EncoderProbeError,
    FormatError,
)
from lamina_index.manifest import EncoderManifest
from lamina_index.query_encoding import check_encoder

TEXTS = [
    "How do I learn Python quickly?",
    "What is the fastest way to learn Python?",
    "gardening " * 40,
    "Wie geht es dir?",
    "\U0001f600 emoji and \u4e2d\u6587",
    "def main() -> None: ...",
]


@pytest.fixture(scope="module", params=bundled_encoders())
def bundled_encoder(request: pytest.FixtureRequest) -> Iterator[OnnxEncoder]:
    """Each encoder that comes with Lamina."""
    with closing(OnnxEncoder.load(request.param)) as encoder:
        yield encoder


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the bundled encoder that a test may damage."""
    return Path(shutil.copytree(BUNDLED_ENCODERS / "default", tmp_path / "encoder"))


def rewrite_manifest(folder: Path, **changes: object) -> None:
    """Change fields as an export with other settings would, fingerprints included."""
    manifest = EncoderManifest.read(folder / "encoder.json").model_copy(update=changes)
    precisions = {
        name: file.model_copy(update={"fingerprint": manifest.fingerprint_of(file.sha256)})
        for name, file in manifest.precisions.items()
    }
    manifest.model_copy(update={"precisions": precisions}).write(folder / "encoder.json")


def test_embeddings_are_unit_rows(bundled_encoder: OnnxEncoder) -> None:
    embeddings = bundled_encoder.encode(TEXTS, role="document").embeddings
    assert embeddings.shape == (len(TEXTS), bundled_encoder.dimension)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=1e-5)


def test_the_remedy_for_another_encoder_names_the_bundled_one(
    bundled_encoder: OnnxEncoder, request: pytest.FixtureRequest
) -> None:
    made_by: Any = SimpleNamespace(encoder=bundled_encoder)
    name = request.node.callspec.params["bundled_encoder"]
    other: Any = SimpleNamespace(name="words", precision="fp32", fingerprint="0" * 64)
    with pytest.raises(EncoderMismatchError, match=rf"load that encoder \(--encoder {name}\)"):
        check_encoder(Path("data/c"), made_by, other)
    made_by = SimpleNamespace(encoder=other)
    with pytest.raises(EncoderMismatchError, match="load that encoder or build"):
        check_encoder(Path("data/c"), made_by, bundled_encoder)


def test_paraphrases_are_nearer_than_strangers(bundled_encoder: OnnxEncoder) -> None:
    question, paraphrase, stranger = bundled_encoder.encode(TEXTS[:3], role="query").embeddings
    assert question @ paraphrase > 0.8 > 0.4 > question @ stranger


def test_batch_mates_do_not_change_an_embedding(bundled_encoder: OnnxEncoder) -> None:
    together = bundled_encoder.encode([*TEXTS, "word " * 500], role="document").embeddings
    for text, embedding in zip(TEXTS, together, strict=False):
        alone = bundled_encoder.encode([text], role="document").embeddings[0]
        np.testing.assert_array_equal(embedding, alone)


def test_thread_count_does_not_change_an_embedding(default_encoder: OnnxEncoder) -> None:
    expected = default_encoder.encode(TEXTS * 5, role="document").embeddings
    for threads in (1, 3):
        encoder = OnnxEncoder.load("default", threads=threads)
        found = encoder.encode(TEXTS * 5, role="document").embeddings
        np.testing.assert_array_equal(found, expected)
        encoder.close()


def test_concurrent_callers_get_their_own_embeddings(default_encoder: OnnxEncoder) -> None:
    expected = default_encoder.encode(TEXTS, role="query").embeddings
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda text: default_encoder.encode([text], role="query"), TEXTS * 20)
        )
    for position, encoded in enumerate(found):
        np.testing.assert_array_equal(encoded.embeddings[0], expected[position % len(TEXTS)])


def test_a_cut_is_reported_for_the_cut_text_only(default_encoder: OnnxEncoder) -> None:
    limit = default_encoder.max_tokens
    encoded = default_encoder.encode(["test " * 1000, "short"], role="document")
    assert encoded.truncated.tolist() == [True, False]
    assert encoded.token_counts.tolist() == [limit, 3]
    assert encoded.full_token_counts.tolist() == [1002, 3]


def test_texts_that_differ_after_the_cut_are_equal_and_said_to_be_cut(
    default_encoder: OnnxEncoder,
) -> None:
    prefix = "common words " * 300
    encoded = default_encoder.encode([prefix + "cats", prefix + "tax law"], role="document")
    np.testing.assert_array_equal(*encoded.embeddings)
    assert encoded.truncated.all()


@pytest.mark.parametrize("blank", ["", " \n\t", "\x00", "\ufeff", "\u200b\u200b", "\udbc0"])
def test_a_blank_text_is_finite_and_flagged(default_encoder: OnnxEncoder, blank: str) -> None:
    encoded = default_encoder.encode([blank, "text"], role="query")
    assert encoded.blank.tolist() == [True, False]
    assert np.isfinite(encoded.embeddings).all()


def test_no_texts_give_no_rows(default_encoder: OnnxEncoder) -> None:
    encoded = default_encoder.encode([], role="query")
    assert encoded.embeddings.shape == (0, default_encoder.dimension)
    assert encoded.truncated.shape == (0,)


def test_a_word_of_12345_characters_is_one_unknown_token(default_encoder: OnnxEncoder) -> None:
    encoded = default_encoder.encode(["x" * 12_345], role="query")
    assert encoded.token_counts.tolist() == [3]
    assert np.isfinite(encoded.embeddings).all()


def test_composed_and_decomposed_spelling_are_one_text(default_encoder: OnnxEncoder) -> None:
    composed, decomposed = default_encoder.encode(
        ["caf\u00e9", "cafe\u0301 "], role="query"
    ).embeddings
    np.testing.assert_array_equal(composed, decomposed)


def test_prompts_are_put_before_the_text_of_their_role(copied: Path) -> None:
    plain = OnnxEncoder.load(copied, threads=1)
    prompts = plain.manifest.prompts.model_copy(update={"query": "search query: "})
    rewrite_manifest(copied, prompts=prompts)
    prompted = OnnxEncoder.load(copied, threads=1)
    np.testing.assert_array_equal(
        prompted.encode(["tea"], role="query").embeddings,
        plain.encode(["search query: tea"], role="query").embeddings,
    )
    np.testing.assert_array_equal(
        prompted.encode(["tea"], role="document").embeddings,
        plain.encode(["tea"], role="document").embeddings,
    )
    assert prompted.encode(["", "tea"], role="query").blank.tolist() == [True, False]


@pytest.mark.parametrize("name", ["onnx/model_int8.onnx", "tokenizer.json"])
def test_an_altered_or_cut_file_is_named(copied: Path, name: str) -> None:
    whole = (copied / name).read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1] + b"~"):
        (copied / name).write_bytes(content)
        with pytest.raises(EncoderLoadError, match=name):
            OnnxEncoder.load(copied)
    (copied / name).unlink()
    with pytest.raises(EncoderLoadError, match=f"{name}: missing"):
        OnnxEncoder.load(copied)


def test_an_encoder_that_is_nearly_named_is_suggested() -> None:
    with pytest.raises(EncoderLoadError, match=r"did you mean fast\?"):
        encoder_folder("Fast")


def test_an_incomplete_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncoderLoadError, match="bundled: default"):
        encoder_folder(tmp_path)
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(FormatError, match="format version None"):
        OnnxEncoder.load(tmp_path)


@pytest.mark.parametrize("edit", [{"pooling": "cls"}, {"max_tokens": 64}])
def test_an_edited_manifest_is_refused(copied: Path, edit: dict[str, object]) -> None:
    manifest = EncoderManifest.read(copied / "encoder.json")
    manifest.model_copy(update=edit).write(copied / "encoder.json")
    with pytest.raises(EncoderLoadError, match="one of them was edited"):
        OnnxEncoder.load(copied)


def test_another_text_normalisation_is_refused(copied: Path) -> None:
    rewrite_manifest(copied, text_version=99)
    with pytest.raises(EncoderLoadError, match="text normalisation 99"):
        OnnxEncoder.load(copied)


def test_probes_refuse_a_machine_that_computes_otherwise(copied: Path) -> None:
    manifest = EncoderManifest.read(copied / "encoder.json")
    rewrite_manifest(copied, probes=manifest.probes[::-1])  # references now belong to others
    with pytest.raises(EncoderProbeError, match="expected at least"):
        OnnxEncoder.load(copied)


def test_fp32_takes_the_place_of_an_int8_graph_that_fails_its_probes(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = EncoderManifest.read(copied / "encoder.json")
    file = manifest.precisions["int8"]  # its graph stands in for an fp32 one
    right, wrong = (
        file.model_copy(update={"probe_vectors": [vector]}) for vector in file.probe_vectors[:2]
    )
    probes = manifest.probes[:1]
    rewrite_manifest(copied, probes=probes, precisions={"int8": wrong, "fp32": right})
    assert OnnxEncoder.load(copied, device="cpu").precision == "fp32"
    assert "trying fp32 on cpu" in caplog.text
    with pytest.raises(EncoderProbeError, match=r"does not run int8 right .* use fp32"):
        OnnxEncoder.load(copied, precision="int8", device="cpu")


def test_int8_is_refused_on_cuda(copied: Path) -> None:
    with pytest.raises(DeviceError, match="int8 runs on the CPU only"):
        OnnxEncoder.load(copied, precision="int8", device="cuda")


@pytest.mark.gpu
def test_cuda_runs_the_whole_graph_and_agrees_with_the_cpu() -> None:
    folder = os.environ.get("GPU_ENCODER")
    if folder is None:
        pytest.skip("set GPU_ENCODER to an export with --precision fp32,fp16")  # none is bundled
    on_gpu = OnnxEncoder.load(folder, device="cuda")
    on_cpu = OnnxEncoder.load(folder, precision="fp32", device="cpu")
    assert on_gpu.provider == "CUDAExecutionProvider"
    cosines = np.vecdot(
        on_gpu.encode(TEXTS, role="document").embeddings,
        on_cpu.encode(TEXTS, role="document").embeddings,
    )
    assert cosines.min() > 0.999


def test_an_unshipped_precision_is_refused(copied: Path) -> None:
    with pytest.raises(EncoderLoadError, match="no fp32 graph for device auto"):
        OnnxEncoder.load(copied, precision="fp32")


def test_a_non_finite_vector_names_its_text(
    default_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_graph = OnnxEncoder._run_graph

    def poisoned(self: OnnxEncoder, batch: list[object]) -> np.ndarray:
        output = run_graph(self, batch)  # type: ignore[arg-type]  # the real items pass through
        short = np.array([len(item) == 3 for item in batch])  # type: ignore[arg-type]  # same
        return np.where(short[:, None], np.nan, output)

    monkeypatch.setattr(OnnxEncoder, "_run_graph", poisoned)
    with pytest.raises(EncoderOutputError, match="position 1") as caught:
        default_encoder.encode(["two words", "one", "three words more"], role="document")
    assert caught.value.items == (1,)
