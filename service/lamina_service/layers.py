"""How much of each layer a vector takes, where the encoder keeps attention over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response

from lamina_index.encoder import OnnxEncoder, Role
from lamina_index.errors import BlankTextError
from lamina_index.text import normalize_text
from lamina_service.direct_route import ReadRoute, json_response
from lamina_service.embeddings import check_texts, parts_of
from lamina_service.errors import NoLayersError
from lamina_service.openapi import BEARER, problems
from lamina_service.schemas import LayersReply, LayersRequest
from lamina_service.service import Service

router = APIRouter(prefix="/v1", route_class=ReadRoute, dependencies=[BEARER], tags=["embeddings"])


@router.post(
    "/layers",
    response_model=LayersReply,
    responses=problems(408, 409, 413, 415, 422, 429),
)
async def tell_layers(request: Request, body: LayersRequest) -> Response:
    """Tell how much of each layer the vector of a text takes, where the encoder keeps attention."""
    service: Service = request.app.state.service
    encoder = service.encoder
    if not encoder.keeps_attention:
        raise NoLayersError(
            f"encoder {encoder.name} has no weights of layers (attention over layers: "
            f"{encoder.manifest.attention}); serve one that was trained with layer attention and "
            "exported by `lamina export --keep-attention`"
        )
    texts = [body.input] if isinstance(body.input, str) else body.input
    check_texts(service, texts)
    parts = parts_of(texts)
    weigh = partial(_weigh, encoder, body.role)
    found = await service.searches.map(weigh, parts, weights=[len(part) for _, part in parts])
    rows = [row for part in found for row in part]
    return json_response({"model": encoder.name, "layers": len(rows[0]), "weights": rows})


def _weigh(encoder: OnnxEncoder, role: Role, part: tuple[int, Sequence[str]]) -> list[list[float]]:
    """Weigh one part; an error names the position among all texts."""
    start, texts = part
    for position, text in enumerate(texts, start):
        if not normalize_text(text):
            raise BlankTextError(f"input[{position}]: nothing is left of this text to embed")
    rows: list[list[float]] = encoder.layer_weights(texts, role=role).tolist()
    return rows
