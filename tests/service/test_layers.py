"""Weights of layers by the API and on the page; those of a real encoder: tests/training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Page, expect

from lamina_index.encoder import OnnxEncoder, Role

URL = "/v1/layers"
LAYERS = 7


def _weights(text: str, role: Role) -> list[float]:
    """Shares that can be told apart by text and role, and are exact in binary."""
    last = len(text) / 1024 + (role == "document") / 2
    return [1 - last, *[0.0] * (LAYERS - 2), last]


class _LayeredEncoder:
    """The bundled encoder with made-up weights of its layers."""

    keeps_attention = True

    def __init__(self, encoder: OnnxEncoder) -> None:
        self._encoder = encoder
        self.calls: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def layer_weights(self, texts: Sequence[str], *, role: Role) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        return np.array([_weights(text, role) for text in texts], dtype=np.float32)

    def close(self) -> None:
        """The session's encoder stays open."""


@pytest.fixture
def encoder(default_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch) -> _LayeredEncoder:
    made = _LayeredEncoder(default_encoder)
    monkeypatch.setattr(OnnxEncoder, "load", lambda *_, **__: made)
    return made


@pytest.fixture
def app(encoder: _LayeredEncoder, start: Any) -> Any:
    """A service whose encoder keeps attention over layers."""
    return start()


def test_each_text_has_a_row_in_the_order_of_the_texts(app: Any, encoder: _LayeredEncoder) -> None:
    texts = ["x" * length for length in range(1, 21)]
    reply = app.client.post(URL, json={"input": texts, "role": "document"}).json()
    assert reply == {
        "model": encoder.name,
        "layers": LAYERS,
        "weights": [_weights(text, "document") for text in texts],
    }
    assert [len(call) for call in encoder.calls] == [8, 8, 4]  # others get their turn between
    alone = app.client.post(URL, json={"input": "xy"}).json()
    assert alone["weights"] == [_weights("xy", "query")]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"input": []}, "input: expected a text or a list of at least one text"),
        ({"input": [1]}, "token arrays are not taken"),
        ({"input": "a", "role": "title"}, "role"),
        ({"input": "a", "model": "x"}, "model"),
        ({"input": ["a"] * 257}, "257 items, expected at most 256"),
        ({"input": ["a", " \n"]}, "input[1]: nothing is left of this text"),
        ({"input": ["a", "b" * 32_769]}, "input[1]: 32769 characters"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(app: Any, body: Any, told: str) -> None:
    refused = app.client.post(URL, json=body)
    assert refused.status_code == 422
    assert told in refused.json()["detail"]


def test_an_encoder_without_attention_is_told_with_the_remedy(service: Any) -> None:
    refused = service.client.post(URL, json={"input": ["a"]})
    assert refused.status_code == 409
    assert refused.json()["type"] == "urn:lamina:problem:no-layers"
    assert "lamina export --keep-attention" in refused.json()["detail"]


def test_models_tell_whether_there_are_layers(app: Any, start: Any, service: Any) -> None:
    assert app.client.get("/v1/models").json()["data"][0]["layers"] == LAYERS
    assert service.client.get("/v1/models").json()["data"][0]["layers"] is None


# The page


def _rows(area: Any) -> Any:
    return area.locator("tbody tr")


def test_the_page_shows_the_layers_of_the_query(page: Page, app: Any) -> None:
    page.goto(f"{app.url}/?collection=small&q=moon")
    view = page.locator("#layers")
    expect(view.get_by_role("table")).to_have_count(0)
    page.get_by_text("Layers of the query").click()
    expect(_rows(view)).to_have_count(LAYERS)
    expect(_rows(view).first).to_have_text("0, embeddings0.9966.97")
    expect(_rows(view).last).to_have_text("60.0040.03")
    page.fill("#query", "x" * 256)
    expect(_rows(view).last).to_have_text("60.2501.75")
    page.get_by_role("radio", name="by words").check()  # which ask no encoder
    expect(view).to_be_hidden()
    page.get_by_role("radio", name="by both").check()
    expect(view).to_be_visible()
    page.fill("#query", "")
    expect(view).to_be_hidden()


def test_a_hit_shows_the_layers_of_its_text_once_it_is_asked(
    page: Page, app: Any, encoder: _LayeredEncoder
) -> None:
    page.goto(f"{app.url}/?collection=small&similar=moon")
    first = page.locator("#hits li").first
    text = first.locator(".text").inner_text()
    assert encoder.calls == []
    first.get_by_text("layers", exact=True).click()
    expect(_rows(first.locator(".layers"))).to_have_count(LAYERS)
    share = _weights(text, "document")[-1]
    expect(_rows(first.locator(".layers")).last).to_contain_text(f"6{share:.3f}")
    assert encoder.calls == [[text]]


def test_where_the_encoder_has_no_layers_none_are_offered(page: Page, service: Any) -> None:
    page.goto(f"{service.url}/?collection=small&q=moon")
    expect(page.locator("#hits li")).to_have_count(14)
    expect(page.locator("#layers")).to_be_hidden()
    expect(page.locator("#hits .layers")).to_have_count(0)


def test_a_refusal_of_layers_is_told_in_their_place(page: Page, app: Any) -> None:
    page.route(
        "**/v1/layers",
        lambda route: route.fulfill(status=429, body='{"detail": "too much is waiting"}'),
    )
    page.goto(f"{app.url}/?collection=small&q=moon")
    page.get_by_text("Layers of the query").click()
    expect(page.locator("#layers")).to_contain_text("too much is waiting")
