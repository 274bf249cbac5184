"""Which graph is tried on which device, and what a session refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime
import pytest

from lamina_index.encoder_files import BUNDLED_ENCODERS
from lamina_index.errors import DeviceError, EncoderLoadError, MissingExtraError
from lamina_index.manifest import Precision
from lamina_index.onnx_session import (
    CUDA_PROVIDER,
    Device,
    _arithmetic_on_cpu,
    device_candidates,
    open_session,
)

DEFAULT = BUNDLED_ENCODERS / "default"
GRAPH = DEFAULT / "onnx" / "model_int8.onnx"
WITH_CUDA = CUDA_PROVIDER in onnxruntime.get_available_providers()


def candidates(
    device: Device, *shipped: Precision, wanted: Precision | None = None
) -> list[tuple[Device, Precision]]:
    """Those of an encoder that ships these precisions."""
    return device_candidates(DEFAULT, shipped, device, wanted)


def test_the_fastest_precision_of_a_device_comes_first() -> None:
    assert candidates("cpu", "fp32", "fp16", "int8") == [
        ("cpu", "int8"),
        ("cpu", "fp32"),
        ("cpu", "fp16"),
    ]
    assert candidates("cuda", "fp32", "fp16", "int8") == [("cuda", "fp16"), ("cuda", "fp32")]
    assert candidates("cpu", "fp32", "int8", wanted="fp32") == [("cpu", "fp32")]


def test_auto_tries_cuda_where_the_runtime_has_it_and_then_the_cpu() -> None:
    on_cpu: list[tuple[Device, Precision]] = [("cpu", "int8"), ("cpu", "fp32")]
    on_cuda: list[tuple[Device, Precision]] = [("cuda", "fp32")] if WITH_CUDA else []
    assert candidates("auto", "fp32", "int8") == on_cuda + on_cpu


def test_int8_is_not_for_cuda() -> None:
    with pytest.raises(DeviceError, match=r"no fp16 or fp32 graph for device cuda; there is int8"):
        candidates("cuda", "int8")
    with pytest.raises(EncoderLoadError, match="no fp16 graph for device cpu"):
        candidates("cpu", "int8", wanted="fp16")


@pytest.mark.skipif(WITH_CUDA, reason="this ONNX Runtime has CUDA")
def test_cuda_is_refused_where_the_runtime_lacks_it() -> None:
    with pytest.raises(DeviceError, match=r"no CUDAExecutionProvider; pip install .*\[gpu\]"):
        open_session(GRAPH, "cuda")


def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(EncoderLoadError, match=r"model\.onnx: ONNX Runtime cannot run it on cpu"):
        open_session(tmp_path / "model.onnx", "cpu")


def test_without_a_runtime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lamina-search\[cpu\]'"):
        open_session(GRAPH, "cpu")


def test_a_session_has_one_thread_and_keeps_no_plan_for_each_shape() -> None:
    options = open_session(GRAPH, "cpu").get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert not options.enable_mem_pattern


def test_heavy_operators_left_on_the_cpu_are_found() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(
        GRAPH,
        options,
        providers=["CPUExecutionProvider"],
    )
    found = _arithmetic_on_cpu(session)
    assert {"MatMul", "MultiHeadAttention"} <= set(found)
    assert not {"Shape", "Gather", "Unsqueeze"} & set(found)
