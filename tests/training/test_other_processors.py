"""int8 on an x86 CPU without VNNI, emulated: Haswell adds products in 16 bits, which saturate."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from onnx import TensorProto, helper, numpy_helper

from lamina_index.encoder_files import bundled_encoders
from lamina_training.int8 import Int8Recipe, quantize_int8

QEMU = shutil.which("qemu-x86_64")
WITHOUT_VNNI = [QEMU or "", "-cpu", "Haswell", sys.executable]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(QEMU is None, reason="no qemu-x86_64 on PATH (Debian: qemu-user)"),
]

RUN = """
import sys, numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
ids = np.arange(20)[None]
feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
np.save(sys.argv[2], session.run(["token_embeddings"], feed)[0])
"""
LOAD = """
import sys, numpy as np
from lamina_index.encoder import OnnxEncoder
from lamina_index.manifest import decode_vector
encoder = OnnxEncoder.load(sys.argv[1], precision="int8", threads=1)
found = encoder.encode(encoder.manifest.probes, role="document").embeddings
expected = encoder.manifest.precisions["int8"].probe_vectors
print(min(float(np.vecdot(row, decode_vector(text))) for row, text in zip(found, expected)))
alone = [encoder.encode([text], role="document").embeddings[0] for text in encoder.manifest.probes]
print(float(np.abs(found - np.stack(alone)).max()))
"""


@pytest.mark.parametrize("name", bundled_encoders())
def test_a_bundled_encoder_gives_its_own_vectors_in_any_batch(name: str) -> None:
    """Loading proves the probes; constant input scales leave next to no rounding to differ in."""
    done = subprocess.run(
        [*WITHOUT_VNNI, "-c", LOAD, name], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    cosine, difference = map(float, done.stdout.split())
    assert cosine > 0.999
    assert difference <= 1e-6


@pytest.mark.parametrize(("largest_pair", "saturates"), [(127, False), (None, True)])
def test_limited_pairs_do_not_saturate(
    tmp_path: Path, largest_pair: int | None, saturates: bool
) -> None:
    """The worst case: all weights of a column alike, and inputs at the end of their range."""
    table = np.ones((2000, 64), dtype=np.float32)
    weight = np.ones((64, 16), dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
            helper.make_node("MatMul", ["rows", "weight"], ["token_embeddings"]),
        ],
        "one",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "t"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("token_embeddings", TensorProto.FLOAT, ["b", "t", 16])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "fp32.onnx")
    recipe = Int8Recipe(largest_pair=largest_pair)
    quantize_int8(tmp_path / "fp32.onnx", tmp_path / "int8.onnx", [[1, 2, 3]], recipe=recipe)
    command = [*WITHOUT_VNNI, "-c", RUN, tmp_path / "int8.onnx", tmp_path / "out.npy"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    found = np.load(tmp_path / "out.npy")
    assert np.allclose(found, 64, rtol=0.01) != saturates
