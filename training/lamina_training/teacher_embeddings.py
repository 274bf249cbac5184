"""A teacher's embeddings of all training texts, computed once and kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lamina_index.errors import DamagedError
from lamina_training.embedding import encode_with, unit_embeddings
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.encoder_hashes import hash_encoder

_BLOCK = 1024
FOLDER = "teachers"


def teacher_embeddings(
    teacher: str,
    texts: Sequence[str],
    *,
    cache: Path,
    device: torch.device,
    precision: str = "fp32",
) -> Tensor:
    """Embed texts with a teacher, or read what the same teacher made of them before.

    It is the same if all its files are that decide a vector (`hash_encoder`).

    Args:
        teacher: A folder, a pinned model's name, or a model hub's id.
        texts: N texts.
        cache: Folder that keeps fetched weights and, in `teachers/`, embeddings.
        device: To compute on.
        precision: `bf16` computes under autocast.

    Returns:
        (N, D) unit rows on the CPU.

    Raises:
        EncoderFolderError: If the teacher cannot be loaded.
        DamagedError: If kept embeddings cannot be read.
    """
    folder = find_encoder(teacher, cache=cache)
    decided_by = [hash_encoder(folder), precision, list(texts)]
    key = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()
    path = cache / FOLDER / f"{key[:32]}.safetensors"
    if path.is_file():
        try:
            return load_file(path)["embeddings"]
        except (SafetensorError, KeyError) as error:
            raise DamagedError(f"{path}: cannot be read ({error}); delete it") from error
    encode = encode_with(load_encoder(folder).to(device))
    console = Console(stderr=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        blocks = [
            unit_embeddings(encode, texts[start : start + _BLOCK])
            for start in track(
                range(0, len(texts), _BLOCK),
                description="teacher",
                console=console,
                disable=not console.is_terminal,
            )
        ]
    embeddings = torch.from_numpy(np.concatenate(blocks))
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    save_file({"embeddings": embeddings}, scratch)
    scratch.replace(path)
    return embeddings
