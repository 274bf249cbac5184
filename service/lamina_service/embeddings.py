"""Embeddings in the shape of OpenAI's API, so that its clients work as they are."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from lamina_index.encoder import Encoded, OnnxEncoder, Role
from lamina_index.errors import BlankTextError, EncoderOutputError
from lamina_service.direct_route import ReadRoute, json_response
from lamina_service.errors import InvalidRequestError, ModelNotFoundError
from lamina_service.openapi import BEARER, problems
from lamina_service.schemas import EmbeddingsReply, EmbeddingsRequest, ModelsReply
from lamina_service.service import Service

_TEXTS_A_TURN = 8
"""More would make other requests wait, fewer would read the weights more often."""

router = APIRouter(prefix="/v1", route_class=ReadRoute, dependencies=[BEARER], tags=["embeddings"])


@router.post(
    "/embeddings",
    response_model=EmbeddingsReply,
    responses=problems(404, 408, 413, 415, 422, 429),
)
async def embed(request: Request, body: EmbeddingsRequest) -> Response:
    """Embed a text or texts; what is longer than the encoder reads is cut, and said so."""
    service: Service = request.app.state.service
    texts = [body.input] if isinstance(body.input, str) else body.input
    _check(service, body, texts)
    encode = partial(_encode, service.encoder, body.input_type)
    parts = parts_of(texts)
    weights = [len(part) for _, part in parts]
    encoded = await service.searches.map(encode, parts, weights=weights)
    return json_response(_reply(encoded, body.encoding_format, service.encoder.name))


@router.get("/models", response_model=ModelsReply, responses=problems())
async def list_models(request: Request) -> Response:
    """Name the loaded encoder."""
    encoder = request.app.state.service.encoder
    model = {
        "id": encoder.name,
        "object": "model",
        "created": 0,
        "owned_by": "lamina",
        "dimension": encoder.dimension,
        "max_tokens": encoder.max_tokens,
        "layers": encoder.manifest.layers + 1 if encoder.keeps_attention else None,
    }
    return json_response({"object": "list", "data": [model]})


def _check(service: Service, body: EmbeddingsRequest, texts: Sequence[str]) -> None:
    encoder = service.encoder
    if body.model not in (None, encoder.name, "default"):
        raise ModelNotFoundError(f"model {body.model!r} is not loaded; {encoder.name!r} is")
    if body.dimensions not in (None, encoder.dimension):
        raise InvalidRequestError(
            "dimensions", f"{body.dimensions}, this encoder gives {encoder.dimension}"
        )
    check_texts(service, texts)


def check_texts(service: Service, texts: Sequence[str]) -> None:
    """Refuse more texts than one request may have, and longer ones.

    Raises:
        InvalidRequestError: If so.
    """
    service.check_batch("input", len(texts))
    for position, text in enumerate(texts):
        service.check_text(f"input[{position}]", text)


def parts_of(texts: Sequence[str]) -> list[tuple[int, Sequence[str]]]:
    """Split texts into what is embedded in one turn, each with its first position."""
    return [
        (start, texts[start : start + _TEXTS_A_TURN])
        for start in range(0, len(texts), _TEXTS_A_TURN)
    ]


def _encode(encoder: OnnxEncoder, role: Role, part: tuple[int, Sequence[str]]) -> Encoded:
    """Embed one part; errors name positions among all texts."""
    start, texts = part
    try:
        encoded = encoder.encode(texts, role=role)
    except EncoderOutputError as error:
        items = tuple(start + item for item in error.items)
        named = ", ".join(f"input[{item}]" for item in items)
        raise EncoderOutputError(f"{named}: {error}", items) from error
    if encoded.blank.any():
        position = start + int(np.argmax(encoded.blank))
        raise BlankTextError(f"input[{position}]: nothing is left of this text to embed")
    return encoded


def _reply(parts: Sequence[Encoded], encoding_format: str, model: str) -> dict[str, Any]:
    write = _as_base64 if encoding_format == "base64" else _as_numbers
    rows = [
        (write(embedding), int(count), bool(cut))
        for part in parts
        for embedding, count, cut in zip(
            part.embeddings, part.token_counts, part.truncated, strict=True
        )
    ]
    tokens = sum(count for _, count, _ in rows)
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": embedding,
                "token_count": count,
                "truncated": cut,
            }
            for index, (embedding, count, cut) in enumerate(rows)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _as_numbers(embedding: NDArray[np.float32]) -> list[float]:
    numbers: list[float] = embedding.tolist()
    return numbers


def _as_base64(embedding: NDArray[np.float32]) -> str:
    return base64.b64encode(embedding.astype("<f4").tobytes()).decode("ascii")
