"""Which graph of an encoder runs on which device, and a session of ONNX Runtime for it.

A session has one thread a call: callers spread texts over threads, so that the thread count can
change no sum. A device is never changed in silence: a graph that CUDA would leave in part to the
CPU is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lamina_index.errors import DeviceError, EncoderLoadError, MissingExtraError
from lamina_index.manifest import Precision

if TYPE_CHECKING:
    import onnxruntime

Device = Literal["auto", "cpu", "cuda"]

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

_PREFERENCE: dict[Device, tuple[Precision, ...]] = {
    "cpu": ("int8", "fp32", "fp16"),
    "cuda": ("fp16", "fp32"),
}
_ARITHMETIC = {
    *("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulInteger", "MatMulIntegerToFloat"),
    *("DynamicQuantizeMatMul", "Attention", "MultiHeadAttention", "Softmax"),
    *("LayerNormalization", "SkipLayerNormalization", "Gelu", "FastGelu", "BiasGelu"),
}
"""Operators that take the time, and so may not be left to the CPU."""


def device_candidates(
    folder: Path, shipped: Collection[Precision], device: Device, precision: Precision | None
) -> list[tuple[Device, Precision]]:
    """List what to try, in order; never CUDA with int8, whose nodes would run on the CPU.

    Args:
        folder: The encoder's, for the message of an error.
        shipped: The precisions that it has graphs in.
        device: `auto` puts CUDA first where this ONNX Runtime has it.
        precision: None leaves the choice to what is fastest on each device.

    Raises:
        EncoderLoadError: If the encoder ships nothing for it; DeviceError where CUDA was asked for.
        MissingExtraError: If ONNX Runtime is not installed.
    """
    devices: list[Device] = [device]
    if device == "auto":
        has_cuda = CUDA_PROVIDER in _runtime().get_available_providers()
        devices = ["cuda", "cpu"] if has_cuda else ["cpu"]
    found = [
        (actual, candidate)
        for actual in devices
        for candidate in _PREFERENCE[actual]
        if candidate in shipped and precision in (None, candidate)
    ]
    if not found:
        wanted = precision or " or ".join(_PREFERENCE[devices[-1]])
        error = DeviceError if device == "cuda" else EncoderLoadError
        raise error(
            f"{folder}: no {wanted} graph for device {device}; there is {', '.join(shipped)} (int8 "
            "runs on the CPU only); make the other with `lamina export --precision`"
        )
    return found


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            "ONNX Runtime is not installed; pip install 'lamina-search[cpu]' (or [gpu])"
        ) from error
    return onnxruntime


def open_session(graph: Path, device: Device) -> onnxruntime.InferenceSession:
    """Open a graph on one device, with one thread a call and no silent change of device.

    Raises:
        DeviceError: If CUDA is not there, or would not run the whole graph.
        EncoderLoadError: If the CPU cannot run it.
        MissingExtraError: If ONNX Runtime is not installed.
    """
    ort = _runtime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # one plan is kept per input shape: unbounded memory
    options.log_severity_level = 3
    provider = CPU_PROVIDER
    if device == "cuda":
        provider = CUDA_PROVIDER
        if provider not in ort.get_available_providers():
            raise DeviceError(
                f"this ONNX Runtime ({ort.__version__}) has no {provider}; "
                "pip install 'lamina-search[gpu]' without the cpu extra"
            )
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()  # finds the CUDA and cuDNN libraries that the gpu extra installed
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = ort.InferenceSession(str(graph), options, providers=[provider])
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        kind = DeviceError if device == "cuda" else EncoderLoadError
        raise kind(f"{graph}: ONNX Runtime cannot run it on {device}: {error}") from error
    if session.get_providers()[0] != provider:
        raise DeviceError(
            f"{graph}: asked for {provider}, ONNX Runtime gave {session.get_providers()}"
        )
    if device == "cuda" and (fallen_back := _arithmetic_on_cpu(session)):
        raise DeviceError(
            f"{graph}: ONNX Runtime would run {', '.join(fallen_back)} on the CPU; "
            "export a precision that CUDA runs whole, such as fp16"
        )
    return session


def _arithmetic_on_cpu(session: onnxruntime.InferenceSession) -> list[str]:
    """List the heavy operators placed on the CPU; needs the assignment to have been recorded.

    ONNX Runtime's own switch against fallback (`session.disable_cpu_ep_fallback`) also refuses the
    few shape computations that it places on the CPU on purpose, hence this.
    """
    return sorted(
        {
            node.op_type
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name == CPU_PROVIDER
            for node in part.get_nodes()
        }
        & _ARITHMETIC
    )
