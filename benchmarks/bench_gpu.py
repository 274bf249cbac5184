"""One GPU in at most ten minutes: training, export to fp16, ONNX Runtime on CUDA, and parity.

- `train`: steps of `lamina train` on a BERT of the base size with random weights, contrastive, in
  fp32 (without TF32, as torch has it by default) and under bf16 autocast; with all that a step of
  the trainer does, warm-up left out.
- `export`: that run to an encoder folder, as `lamina export` does it, on the CPU.
- `runtime`: the folder on CUDA, as the service loads it. `one` is a query through
  `OnnxEncoder.encode`, `many` thousands of texts, `graph` the graph alone over inputs and outputs
  that stay on the device.
- `parity`: embeddings on CUDA against those of fp32 on the CPU, over padded batches of random
  tokens. ONNX Runtime computes fp32 products in TF32 on CUDA unless told not to; both are compared.

It needs a CUDA build of torch and the `gpu` and `training` extras, and no network. With --small a
tiny model goes the same way on the CPU: that shows that the script works, and nothing about GPUs.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import torch
from harness import RESULTS, parser, rounded, write_result
from numpy.typing import NDArray
from random_model import known_words, random_bert, random_texts, write_pairs
from transformers import TrainerCallback

from lamina_index.encoder import OnnxEncoder
from lamina_index.onnx_session import CPU_PROVIDER, CUDA_PROVIDER
from lamina_index.runtime import available_threads
from lamina_training.export import GRAPH_FILES, export_encoder
from lamina_training.known_items import KnownItems
from lamina_training.train import train
from lamina_training.train_config import parse_train_config

Device = Literal["cuda", "cpu"]
Session = onnxruntime.InferenceSession
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Token ids and attention mask, each (B, T)."""

POSITIONS = 128
"""Of the model; the export compares every length up to it, on the CPU, which takes its time."""
VECTOR = "sentence_embedding"


@dataclass(frozen=True)
class Size:
    """How much is done.

    Attributes:
        layers, width, heads, inner: Of the model; `inner` is the feed-forward width.
        pairs, tokens: Of a training batch, and of each of its texts.
        steps, warm_up: Of training; the first are not measured.
        texts: That are embedded at once.
        runs: Of what is timed on its own; half as many before that are not.
        shapes: (texts, tokens) of the batches that the graph alone is timed with.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    inner: int = 3072
    pairs: int = 64
    tokens: int = 64
    steps: int = 60
    warm_up: int = 10
    texts: int = 4096
    runs: int = 100
    shapes: tuple[tuple[int, int], ...] = ((1, 16), (1, 64), (8, 64), (64, 64), (64, 128))


FULL = Size()
SMALL = Size(2, 32, 2, 64, 8, 16, 6, 2, 64, 6, ((1, 16), (8, 16)))


def main() -> None:
    arguments = parser(__doc__).parse_args()
    small: bool = arguments.small
    device: Device = "cpu" if small else "cuda"
    size = SMALL if small else FULL
    if not small:
        require_cuda()
    work: Path = arguments.work / ("gpu-small" if small else "gpu")
    shutil.rmtree(work, ignore_errors=True)
    words = known_words()
    base = random_bert(
        work / "base",
        layers=size.layers,
        width=size.width,
        heads=size.heads,
        inner=size.inner,
        positions=POSITIONS,
    )
    pairs = write_pairs(work / "pairs.tsv", words, size.pairs * size.steps, tokens=size.tokens)

    results: dict[str, Any] = {"train": {}}
    for precision in ("fp32", "bf16"):
        print(f"trains in {precision}", file=sys.stderr)
        run = work / f"run-{precision}"
        results["train"][precision] = time_training(run, base, pairs, precision, device, size)
    folder, results["export"] = time_export(work / "run-bf16", work / "encoder", words)
    results["runtime"] = {
        precision: time_runtime(folder, precision, device, words, size)
        for precision in ("fp16", "fp32")
    }
    results["parity"] = parity(folder, device)
    settings = {
        "device": device,
        "gpu": gpu() if device == "cuda" else None,
        "model": "BERT with random weights",
        "positions": POSITIONS,
        **asdict(size),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if small:
        settings["note"] = "a tiny model on the CPU: shows that the script works, not what GPUs do"
    name = "gpu_small.json" if small else "gpu.json"
    write_result(arguments.output or RESULTS / name, settings, results)


def require_cuda() -> None:
    """End here where the full form cannot run."""
    found = {
        "torch finds no CUDA device": torch.cuda.is_available(),
        f"ONNX Runtime has no {CUDA_PROVIDER}": CUDA_PROVIDER
        in onnxruntime.get_available_providers(),
    }
    if missing := [problem for problem, fine in found.items() if not fine]:
        raise SystemExit(
            f"bench_gpu.py: {' and '.join(missing)}; run it on a machine with an NVIDIA GPU, a "
            "CUDA build of torch and pip install 'lamina-search[gpu,training]' (without the cpu "
            "extra), or --small for a tiny model on the CPU"
        )


def gpu() -> dict[str, Any]:
    """Describe the device."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "torch_cuda": torch.version.cuda,
    }


class StepTimer(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
    """Times the steps after the warm-up as a whole, from an idle device to an idle device."""

    def __init__(self, warm_up: int, device: Device) -> None:
        self.warm_up = warm_up
        self.device = device
        self.seconds = 0.0
        self._started = 0.0

    def on_step_begin(self, args: Any, state: Any, *given: Any, **kwargs: Any) -> None:
        if state.global_step == self.warm_up:
            wait_for(self.device)
            if self.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, *given: Any, **kwargs: Any) -> None:
        if state.global_step == state.max_steps:  # the last checkpoint is written after this
            wait_for(self.device)
            self.seconds = time.perf_counter() - self._started


def wait_for(device: Device) -> None:
    """Wait until the device has done what it was given; its kernels run behind Python's back."""
    if device == "cuda":
        torch.cuda.synchronize()


def time_training(
    run: Path, base: Path, pairs: Path, precision: str, device: Device, size: Size
) -> dict[str, float]:
    """Train as `lamina train` does, and time the steps."""
    config = parse_train_config(
        {
            "task": "contrastive",
            "encoder": {"base": str(base), "max_tokens": size.tokens},
            "data": {
                "folder": str(pairs.parent),
                "train": [{"file": pairs.name, "columns": ["anchor", "positive"]}],
            },
            "run": {
                "steps": size.steps,
                "batch_size": size.pairs,
                "precision": precision,
                "device": device,
                "evaluate_every": size.steps,
                "log_every": size.steps,
            },
        },
        origin="bench_gpu.py",
    )
    timer = StepTimer(size.warm_up, device)
    gc.collect()  # the run before holds itself in cycles, and would count as memory of this one
    train(config, run, cache=run.parent, callbacks=[timer])
    shutil.rmtree(run / "checkpoints")  # with the optimiser's state, three times the weights
    measured = size.steps - size.warm_up
    found = {
        "steps_per_second": rounded(measured / timer.seconds),
        "texts_per_second": rounded(2 * size.pairs * measured / timer.seconds),
    }
    if device == "cuda":
        found["peak_memory_mb"] = rounded(torch.cuda.max_memory_allocated() / 1e6)
        torch.cuda.empty_cache()  # ONNX Runtime has an allocator of its own
    return found


def time_export(run: Path, folder: Path, words: Sequence[str]) -> tuple[Path, dict[str, float]]:
    """Export with all of the export's own checks; few texts, for one goes after the other."""
    print("exports", file=sys.stderr)
    texts = random_texts(words, 40, tokens=16, seed=3)
    started = time.perf_counter()
    export_encoder(
        str(run),
        folder,
        precisions=["fp32", "fp16"],
        with_weights=False,
        cache=run.parent,
        command="python benchmarks/bench_gpu.py",
        items=KnownItems(queries=tuple(texts[:20]), documents=tuple(texts[20:])),
    )
    found = {"seconds": rounded(time.perf_counter() - started)}
    for precision in ("fp32", "fp16"):
        found[f"{precision}_mb"] = rounded((folder / GRAPH_FILES[precision]).stat().st_size / 1e6)
    return folder, found


def time_runtime(
    folder: Path,
    precision: Literal["fp16", "fp32"],
    device: Device,
    words: Sequence[str],
    size: Size,
) -> dict[str, Any]:
    """Time the encoder as the service has it, and its graph alone."""
    print(f"encodes in {precision}", file=sys.stderr)
    encoder = OnnxEncoder.load(folder, precision=precision, device=device)
    texts = random_texts(words, size.texts, tokens=size.tokens, seed=4)
    queries = iter(random_texts(words, 2 * size.runs, tokens=16, seed=5))
    encoder.encode(texts, role="document")
    started = time.perf_counter()
    encoder.encode(texts, role="document")  # its vectors lie in memory when it returns
    many = size.texts / (time.perf_counter() - started)
    one = time_calls(lambda: encoder.encode([next(queries)], role="query"), size.runs)
    encoder.close()
    session = open_session(folder / GRAPH_FILES[precision], device)
    return {
        "one": one,
        "many": {"texts_per_second": rounded(many)},
        "graph": {
            f"{texts}x{tokens}": time_graph(session, random_batch(texts, tokens), device, size.runs)
            for texts, tokens in size.shapes
        },
    }


def time_graph(session: Session, batch: Batch, device: Device, runs: int) -> dict[str, float]:
    """Time a graph over tensors that are on the device, and stay there."""
    binding = session.io_binding()
    for name, array in zip(("input_ids", "attention_mask"), batch, strict=True):
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0)
        binding.bind_ortvalue_input(name, value)
    binding.bind_output(VECTOR, device, 0)
    binding.synchronize_inputs()

    def call() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()  # run() waits for its stream as well; this says so

    found = time_calls(call, runs)
    return {**found, "texts_per_second": rounded(len(batch[0]) / found["p50_ms"] * 1000)}


def time_calls(call: Callable[[], object], runs: int) -> dict[str, float]:
    """Time calls one by one, after half as many to warm up."""
    for _ in range(runs // 2):
        call()
    milliseconds = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        milliseconds.append((time.perf_counter() - started) * 1000)
    return {
        "p50_ms": rounded(statistics.median(milliseconds)),
        "p95_ms": rounded(statistics.quantiles(milliseconds, n=20)[-1]),
    }


def random_batch(texts: int, tokens: int, *, ragged: bool = False) -> Batch:
    """Make random token ids; ragged rows end in padding, but for the first."""
    generator = np.random.default_rng((texts, tokens))
    ids = generator.integers(1000, 30_000, (texts, tokens))  # whole words of the vocabulary
    used = generator.integers(1, tokens + 1, texts) if ragged else np.full(texts, tokens)
    used[0] = tokens
    mask = (np.arange(tokens) < used[:, None]).astype(np.int64)
    return ids * mask, mask


def open_session(graph: Path, device: Device, *, tf32: bool = True) -> Session:
    """Open a graph on one device.

    Raises:
        SystemExit: If ONNX Runtime would run it elsewhere.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    providers: list[Any] = [CPU_PROVIDER]
    if device == "cuda":
        onnxruntime.preload_dlls()
        providers = [(CUDA_PROVIDER, {"use_tf32": int(tf32)})]
    else:
        options.intra_op_num_threads = available_threads()
    session = onnxruntime.InferenceSession(str(graph), options, providers=providers)
    wanted = CUDA_PROVIDER if device == "cuda" else CPU_PROVIDER
    if session.get_providers()[0] != wanted:
        raise SystemExit(f"{graph}: asked for {wanted}, got {session.get_providers()}")
    return session


def parity(folder: Path, device: Device) -> dict[str, dict[str, float]]:
    """Compare embeddings on the device with fp32 on the CPU."""
    print("compares", file=sys.stderr)
    batches = [
        random_batch(texts, tokens, ragged=True)
        for texts, tokens in ((1, 1), (1, 16), (5, 31), (16, 64), (64, POSITIONS))
    ]
    fp32, fp16 = (folder / GRAPH_FILES[precision] for precision in ("fp32", "fp16"))
    sessions = {"fp16": open_session(fp16, device), "fp32": open_session(fp32, device)}
    if device == "cuda":
        sessions["fp32 without TF32"] = open_session(fp32, device, tf32=False)
    expected = embeddings(open_session(fp32, "cpu"), batches)
    return {name: difference(expected, embeddings(s, batches)) for name, s in sessions.items()}


def embeddings(session: Session, batches: Sequence[Batch]) -> NDArray[np.float32]:
    """Embed batches; (N, D) over all of them."""
    rows = [
        session.run([VECTOR], {"input_ids": ids, "attention_mask": mask})[0]
        for ids, mask in batches
    ]
    return np.concatenate(rows)


def difference(expected: NDArray[np.float32], found: NDArray[np.float32]) -> dict[str, float]:
    """Tell how far unit rows (N, D) are from others.

    Raises:
        SystemExit: If one is not finite.
    """
    if not np.isfinite(found).all():
        raise SystemExit("bench_gpu.py: the graph gives vectors that are not finite")
    cosines = np.vecdot(expected.astype(np.float64), found.astype(np.float64))
    return {
        "vectors": len(found),
        "max_absolute_difference": float(f"{np.abs(expected - found).max():.3g}"),
        "cosine_mean": round(float(cosines.mean()), 7),
        "cosine_min": round(float(cosines.min()), 7),
    }


if __name__ == "__main__":
    main()
