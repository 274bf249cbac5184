import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina_index.encoder import OnnxEncoder

URL = "/v1/embeddings"
MANY_LENGTHS = ["a", "two words", "a rather longer text of some words " * 6, "x" * 12_345]


def _embed(service: Any, texts: Any, **more: Any) -> Any:
    reply = service.client.post(URL, json={"input": texts, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_bare_text_and_a_list_of_one_give_the_same(service: Any) -> None:
    bare, listed = _embed(service, "hello"), _embed(service, ["hello"])
    assert bare == listed
    (item,) = bare["data"]
    assert (bare["object"], item["object"], item["index"]) == ("list", "embedding", 0)
    assert bare["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert np.linalg.norm(item["embedding"]) == pytest.approx(1, abs=1e-6)


def test_embeddings_are_those_of_the_encoder_whatever_else_is_in_the_request(
    service: Any, default_encoder: OnnxEncoder
) -> None:
    reply = _embed(service, MANY_LENGTHS)
    assert [item["index"] for item in reply["data"]] == [0, 1, 2, 3]
    for text, item in zip(MANY_LENGTHS, reply["data"], strict=True):
        alone = default_encoder.encode([text], role="document").embeddings[0]
        assert np.array_equal(np.array(item["embedding"], dtype=np.float32), alone)


def test_base64_is_the_numbers_as_little_endian_floats(service: Any) -> None:
    numbers = _embed(service, "hello")["data"][0]["embedding"]
    packed = _embed(service, "hello", encoding_format="base64")["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), dtype="<f4").tolist() == numbers


def test_a_cut_is_told_for_its_text_only_and_usage_counts_what_was_read(service: Any) -> None:
    prefix = "test " * 600
    reply = _embed(service, [prefix + "one end", "short", prefix + "another end"])
    assert [item["truncated"] for item in reply["data"]] == [True, False, True]
    assert [item["token_count"] for item in reply["data"]] == [256, 3, 256]
    assert reply["usage"]["prompt_tokens"] == 515
    assert reply["data"][0]["embedding"] == reply["data"][2]["embedding"]


def test_the_model_is_named_and_another_is_refused(service: Any) -> None:
    (model,) = service.client.get("/v1/models").json()["data"]
    assert model["object"] == "model"
    assert model["dimension"] == 384
    assert _embed(service, "hello", model=model["id"])["model"] == model["id"]
    assert _embed(service, "hello", model="default")["model"] == model["id"]
    refused = service.client.post(URL, json={"input": "hello", "model": "text-embedding-3-small"})
    assert refused.status_code == 404
    assert refused.json()["type"] == "urn:lamina:problem:model-not-found"
    assert model["id"] in refused.json()["detail"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"input": []}, "input: expected a text or a list of at least one text"),
        ({"input": [1, 2, 3]}, "token arrays are not taken"),
        ({"input": [[1, 2], [3]]}, "token arrays are not taken"),
        ({"input": None}, "expected a text"),
        ({}, "input"),
        ({"input": "a", "dimensions": 256}, "this encoder gives 384"),
        ({"input": "a", "encoding_format": "hex"}, "'float' or 'base64'"),
        ({"input": "a", "temperature": 1}, "temperature"),
        ({"input": ["a"] * 257}, "257 items, expected at most 256"),
        ({"input": ["a", "b" * 32_769]}, "input[1]: 32769 characters"),
    ],
)
def test_what_cannot_be_embedded_is_refused_and_named(service: Any, body: Any, told: str) -> None:
    refused = service.client.post(URL, json=body)
    assert refused.status_code == 422
    assert told in refused.json()["detail"]


@pytest.mark.parametrize("blank", ["", "\n", "\u200b", "\x00", "\ufeff "])
def test_a_blank_text_is_refused_by_its_place(service: Any, blank: str) -> None:
    refused = service.client.post(URL, json={"input": ["good", "fine", blank]})
    assert refused.status_code == 422
    assert refused.json()["type"] == "urn:lamina:problem:blank-text"
    assert refused.json()["detail"].startswith("input[2]: ")


def test_two_services_give_the_same_embedding(start: Any, data: Path) -> None:
    one, other = start(threads=1), start(threads=2)
    assert _embed(one, MANY_LENGTHS) == _embed(other, MANY_LENGTHS)
