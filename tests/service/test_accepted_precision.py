"""A collection that one precision of the encoder built, in a service that has loaded another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina_index.encoder import OnnxEncoder
from other_precision import build_as_fp32
from replies import problem


def test_what_another_precision_built_is_searched_where_that_is_accepted_and_not_written(
    start: Any, default_encoder: OnnxEncoder, tmp_path: Path
) -> None:
    build_as_fp32(tmp_path / "data" / "other", default_encoder)
    path = "/v1/collections/other"
    refusing = start(data=tmp_path / "data").client
    refused = refusing.post(f"{path}/search", json={"query": "kittens nap"})
    assert problem(refused) == (409, "encoder-mismatch")
    assert "--accept-compatible" in refused.json()["detail"]
    client = start(data=tmp_path / "data", accept_compatible=0.99).client
    found = client.post(f"{path}/search", json={"query": "kittens nap"})
    assert found.json()["hits"][0]["text"] == "cats sleep"
    assert client.get(path).json()["accepted_cosine"] == pytest.approx(0.99018)
    written = client.post(f"{path}/documents", json=[{"id": "a", "text": "dogs bark"}])
    assert problem(written) == (409, "encoder-mismatch")
