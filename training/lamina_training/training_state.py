"""What a checkpoint holds besides weights: optimiser, schedule and random generators, unpickled.

transformers writes these with `torch.save`. Here tensors go to safetensors and the rest to JSON, so
that no file of a run is ever unpickled, whoever wrote it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lamina_index.errors import DamagedError

OPTIMIZER_TENSORS = "optimizer.safetensors"
OPTIMIZER_SETTINGS = "optimizer.json"
_REST = "rest"  # one key, since safetensors writes several in any order


def random_state_file(process: int) -> str:
    """Name the file of one process's random generators."""
    return f"random_state_{process}.safetensors"


def save_optimizer(folder: Path, optimizer: Any, scheduler: Any) -> None:
    """Write an optimiser of torch and its learning-rate schedule.

    Raises:
        TypeError: If the state of one holds what is neither a tensor nor JSON.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    for number, of_parameter in state["state"].items():
        for name, value in of_parameter.items():
            if not isinstance(value, Tensor):
                raise TypeError(f"optimiser state {name} is a {type(value).__name__}, not a tensor")
            tensors[f"{number}.{name}"] = value.detach().cpu().contiguous()
    save_file(tensors, folder / OPTIMIZER_TENSORS)
    settings = {"groups": state["param_groups"], "scheduler": scheduler.state_dict()}
    (folder / OPTIMIZER_SETTINGS).write_text(json.dumps(settings), encoding="utf-8")


def load_optimizer(folder: Path, optimizer: Any, scheduler: Any) -> None:
    """Restore what `save_optimizer` wrote, bit for bit.

    Raises:
        DamagedError: If a file is missing, damaged, or of another model or optimiser.
    """
    tensors, _ = _read(folder / OPTIMIZER_TENSORS)
    path = folder / OPTIMIZER_SETTINGS
    try:
        settings = json.loads(path.read_bytes())
        groups = settings["groups"]
        for group in groups:
            group["betas"] = tuple(group["betas"])  # JSON knows no tuples
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            state.setdefault(int(number), {})[name] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        scheduler.load_state_dict(settings["scheduler"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def save_random_state(path: Path) -> None:
    """Write the generators of Python, numpy, torch and each CUDA device."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"cuda.{number}"] = state
    rest = {
        "python": [version, gauss],
        "numpy": [kind, int(position), int(has_gauss), float(cached)],
    }
    save_file(tensors, path, metadata={_REST: json.dumps(rest)})


def load_random_state(path: Path) -> None:
    """Set all generators to what `save_random_state` wrote.

    Raises:
        DamagedError: If the file is missing or damaged.
    """
    tensors, metadata = _read(path)
    try:
        rest = json.loads(metadata[_REST])
        version, gauss = rest["python"]
        kind, position, has_gauss, cached = rest["numpy"]
        random.setstate((version, tuple(tensors["python"].tolist()), gauss))
        keys = tensors["numpy"].numpy().astype(np.uint32)
        np.random.set_state((kind, keys, position, has_gauss, cached))
        torch.set_rng_state(tensors["torch"])
        cuda = [tensors[name] for name in sorted(tensors) if name.startswith("cuda.")]
        if cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(cuda)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DamagedError:
    return DamagedError(
        f"{path}: not the state that training can go on from ({error}); delete the folder "
        f"{path.parent.name}, and --resume takes the checkpoint before it"
    )
