"""A collection whose manifest says that another precision of the bundled encoder built it."""

from __future__ import annotations

import json
from pathlib import Path

from lamina_index.build import build_collection
from lamina_index.collection import MANIFEST_FILE
from lamina_index.encoder import OnnxEncoder


def build_as_fp32(folder: Path, encoder: OnnxEncoder) -> Path:
    """Build one at `folder`; bundled encoders ship int8 alone, and know fp32's fingerprint."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    corpus = folder.parent / f"{folder.name}.txt"
    corpus.write_text("cats sleep\nstocks fell\nbread is baked\n")
    build_collection([corpus], folder, encoder)
    fp32 = next(each for each in encoder.manifest.compatible_with if each.precision == "fp32")
    path = folder / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    manifest["encoder"] |= {"fingerprint": fp32.fingerprint, "precision": "fp32"}
    path.write_text(json.dumps(manifest))
    return folder
