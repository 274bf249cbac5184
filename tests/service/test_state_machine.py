"""Whatever is done to collections, in whatever order and by whom, agrees with a short model.

Two services and the library work on one data folder. After each step every one of them must show
what a dictionary and the bare vectors say: documents, their order for a query, counts and facets.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from lamina_index.archive import write_archive
from lamina_index.archive_restore import restore_archive
from lamina_index.build import build_collection
from lamina_index.collection import verify_collection
from lamina_index.compaction import compact
from lamina_index.encoder import OnnxEncoder
from lamina_index.filters import parse_filter
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.writer import CollectionWriter

TEXTS = [
    "cats sleep",
    "dogs run after a ball",
    "birds fly over the hill",
    "bread needs flour and yeast",
    "hot soup in a large bowl with bread",
    "python reads files",
    "a database answers questions about cats dogs and birds",
    "the moon goes round the earth every month",
    "the sun shines",
    "rust never rests in the garage of my uncle",
]
QUERIES = ["cats", "bread", "the moon", "zebra"]
WORDS = ["cats", "bread", "moon", "birds", "zebra"]
IDS = [*"abcdefghijklmnopqrstuvwxyz", "a#1", "é", "Z z/\"'\\?", "😀"]
VALUES: dict[str, list[Any]] = {
    "kind": ["animal", "food", "food ", "2024-05-01", "é"],
    "year": [1999, 2000, 2000.5, 2**60 + 1, 2**60 + 2, -3],
    "on": [True, False],
    "tags": [[], ["x"], ["y", "x"], ["y", "y"], ["xy"]],
    "seen": ["2024-05-01", "2024-05-01T01:30:00+02:00", "2024-04-30T23:30:00Z", "1969-12-31"],
}
BAD: list[Any] = [
    7,
    {"id": "a"},
    {"id": " ", "text": "text"},
    {"id": "a", "text": " "},
    {"id": "a", "text": "text", "more": 1},
    {"id": "a", "text": "text", "metadata": {"kind": {"deep": 1}}},
    {"id": "b", "text": "text", "metadata": {"tags": ["x", 1]}},
    {"id": "b", "text": "text", "metadata": []},
    {"id": "a", "text": "text", "metadata": {"on": "soon", "year": "soon", "kind": {"deep": 1}}},
]
START = [
    {"id": each, "text": TEXTS[n % len(TEXTS)], "metadata": {"year": n % 4, "kind": "abc"[n % 3]}}
    for n, each in enumerate(IDS[:24])
]


# The model


def kind_of(value: Any) -> str | None:
    if isinstance(value, list):
        return "strings" if all(isinstance(each, str) for each in value) else None
    if isinstance(value, str):
        return "date" if value in VALUES["seen"] + ["2024-05-01"] else "string"
    kinds = {bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value))


def comparable(value: Any, kind: str) -> list[Any]:
    """The values that a filter or a facet sees."""
    if kind == "date":
        moment = datetime.fromisoformat(value)
        return [moment.replace(tzinfo=moment.tzinfo or UTC)]
    return sorted(set(value)) if kind == "strings" else [value]


@dataclass
class Model:
    """One collection: its documents, each a text and metadata, and the types of its fields."""

    documents: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)

    def upsert(self, records: list[Any]) -> tuple[int, int, list[int]]:
        """Inserted, replaced, positions of the faults."""
        good: dict[str, Any] = {}
        types: dict[str, str] = {}
        faults = []
        for n, record in enumerate(records):
            metadata = {} if record in BAD else record.get("metadata", {})
            found = {name: self._joined(name, value, types) for name, value in metadata.items()}
            if record in BAD or None in found.values():
                faults.append(n)
            else:
                types |= found
                good[record["id"]] = record["text"], metadata
        self.fields = types | self.fields
        replaced = len(good.keys() & self.documents.keys())
        self.documents |= good
        return len(good) - replaced, replaced, faults

    def _joined(self, name: str, value: Any, types: dict[str, str]) -> str | None:
        """The type that a field has with one more value, if it can be; fixed ones stay."""
        kind = kind_of(value)
        before = self.fields.get(name) or types.get(name, kind)
        if kind == before or (kind, before) == ("date", "string"):
            return before
        return (
            "string" if (kind, before) == ("string", "date") and name not in self.fields else None
        )

    def values(self, doc: str, name: str) -> list[Any]:
        metadata = self.documents[doc][1]
        return comparable(metadata[name], self.fields[name]) if name in metadata else []

    def passes(self, doc: str, wanted: dict[str, Any]) -> bool:
        """Whether a document passes a filter."""
        for name, condition in wanted.items():
            if name == "$not":
                holds = not self.passes(doc, condition)
            elif name == "$or":
                holds = any(self.passes(doc, each) for each in condition)
            else:
                holds = all(self._holds(doc, name, *each) for each in condition.items())
            if not holds:
                return False
        return True

    def _holds(self, doc: str, name: str, operator: str, operand: Any) -> bool:
        values = self.values(doc, name)
        if operator == "$exists":
            return (name in self.documents[doc][1]) == operand
        if operator == "$prefix":
            return any(value.startswith(operand) for value in values)
        kind = "string" if self.fields[name] == "strings" else self.fields[name]
        if operator in ("$in", "$nin"):
            found = any(comparable(each, kind)[0] in values for each in operand)
            return found == (operator == "$in")
        [bound] = comparable(operand, kind)
        if operator in ("$eq", "$ne"):
            return (bound in values) == (operator == "$eq")
        compare: dict[str, Callable[[Any], bool]] = {
            "$lt": lambda value: value < bound,
            "$gte": lambda value: value >= bound,
        }
        return any(map(compare[operator], values))

    def facet(self, ids: list[str], name: str) -> list[tuple[Any, int]]:
        counts = Counter(value for doc in ids for value in self.values(doc, name))
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    def bm25(self, word: str) -> dict[str, float]:
        """Score of each document that has a word, as FTS5 defines it."""
        texts = {doc: text.split() for doc, (text, _) in self.documents.items()}
        having = [doc for doc, words in texts.items() if word in words]
        mean = sum(map(len, texts.values())) / max(len(texts), 1)
        odds = (len(texts) - len(having) + 0.5) / (len(having) + 0.5)
        return {
            doc: max(1e-6, math.log(odds))
            * 2.2
            / (1 + 1.2 * (0.25 + 0.75 * len(texts[doc]) / mean))
            for doc in having
        }


def ranked(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda doc: (-scores[doc], doc))


# What is done


@st.composite
def records(draw: Callable[..., Any]) -> list[Any]:
    def value(name: str) -> Any:
        mostly_own = st.sampled_from([name] * 9 + sorted(VALUES))
        return st.sampled_from(VALUES[draw(mostly_own)])

    made = []
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 9)) == 9:
            made.append(draw(st.sampled_from(BAD)))
            continue
        names = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=4))
        made.append(
            {
                "id": draw(st.sampled_from(IDS)),
                "text": draw(st.sampled_from(TEXTS)),
                "metadata": {name: draw(value(name)) for name in names},
            }
        )
    return made


def conditions(fields: dict[str, str]) -> st.SearchStrategy[dict[str, Any]]:
    """Filters that fit a collection's fields."""

    @st.composite
    def one(draw: Callable[..., Any]) -> dict[str, Any]:
        name = draw(st.sampled_from(sorted(fields)))
        kind = fields[name]
        operators = ["$eq", "$ne", "$in", "$nin", "$exists"]
        operators += ["$lt", "$gte"] if kind in ("number", "date") else []
        operators += ["$prefix"] if kind in ("string", "strings") else []
        source = {
            "string": VALUES["kind"] + VALUES["seen"],
            "number": VALUES["year"],
            "boolean": VALUES["on"],
            "strings": ["x", "y", "xy"],
            "date": VALUES["seen"],
        }[kind]
        operator = draw(st.sampled_from(operators))
        operand = st.sampled_from(source)
        if operator in ("$in", "$nin"):
            operand = st.lists(operand, max_size=3)
        elif operator == "$exists":
            operand = st.booleans()
        elif operator == "$prefix":
            operand = st.sampled_from(["", "x", "f", "food", "20"])
        return {name: {operator: draw(operand)}}

    pair = st.lists(one(), min_size=2, max_size=2)
    return st.one_of(
        one(),
        one().map(lambda inner: {"$not": inner}),
        pair.map(lambda both: {"$or": both}),
        pair.map(lambda both: both[0] | both[1]),
    )


NAMES = ["a", "b"]
WHO = st.sampled_from([0, 1, "library"])
WORKER = st.integers(0, 1)
NAME = st.sampled_from(["a", "a", "b"])
ADDRESS = st.sampled_from(["a", "a", "b", "live"])
GONE = st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True)
KINDS = ["auto", "Flat", "HNSW8,Flat", "HNSW32,SQ8", "SQ8"]
HOW = st.sampled_from([{}] * 9 + [{"full": True}] + [{"factory": kind} for kind in KINDS])
MEANWHILE = st.one_of(st.none(), GONE, records())


class Site:
    """Two services over one data folder, which can be closed and opened; and the library."""

    def __init__(self, folder: Path, running: Any, encoder: OnnxEncoder) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self.archives = folder / "archives"
        self.archives.mkdir()
        self.encoder = encoder
        self._running = running
        self._stacks = [ExitStack(), ExitStack()]
        self.clients: list[Any] = [None, None]
        self._writers: dict[str, CollectionWriter] = {}
        texts = encoder.encode(TEXTS, role="document").embeddings
        self.vectors = dict(zip(TEXTS, texts, strict=True))
        queries = sorted({*QUERIES, *WORDS})
        self.queries = dict(
            zip(queries, encoder.encode(queries, role="query").embeddings, strict=True)
        )
        for worker in (0, 1):
            self.restart(worker)

    def restart(self, worker: int) -> None:
        self._stacks[worker].close()
        service = self._running(data=self.data, snapshots=self.archives, threads=1, compact=False)
        self.clients[worker] = self._stacks[worker].enter_context(service).client

    def writer(self, name: str) -> CollectionWriter:
        """The library's writer, which stays open until `close_writers`."""
        if name not in self._writers:
            self._writers[name] = CollectionWriter.open(self.data / name, self.encoder)
        return self._writers[name]

    def close_writers(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def close(self) -> None:
        self.close_writers()
        for stack in self._stacks:
            stack.close()


class Machine(RuleBasedStateMachine):
    """Each rule does a thing and has the model do the same."""

    site: Site  # set by the fixture below

    def __init__(self) -> None:
        super().__init__()
        self.models = {name: Model() for name in NAMES}
        self.aliases: dict[str, str] = {}
        self.steps = 0
        self.site.close_writers()
        client = self.site.clients[0]
        client.delete("/v1/aliases/live")
        for name in NAMES:
            client.delete(f"/v1/collections/{name}")
            assert client.put(f"/v1/collections/{name}").status_code == 201
        self.upsert(0, "a", START)
        self.compact("a", {}, None)

    def model(self, address: str) -> Model | None:
        return self.models.get(self.aliases.get(address, address))

    def call(self, who: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        reply = self.site.clients[who].request(method, f"/v1/{path}", json=body)
        return reply.status_code, reply.json()

    @rule(who=WHO, address=ADDRESS, records=records())
    def upsert(self, who: Any, address: str, records: list[Any]) -> None:
        model = self.model(address)
        if model is not None and who == "library":
            written = self.site.writer(self.aliases.get(address, address)).upsert(records)
            positions = [fault.position for fault in written.faults]
            assert (written.inserted, written.replaced, positions) == model.upsert(records)
            return
        worker = 0 if who == "library" else who
        status, reply = self.call(worker, "POST", f"collections/{address}/documents", records)
        if model is None:
            assert status == 404
            return
        inserted, replaced, faults = model.upsert(records)
        if faults and not inserted + replaced:
            event("all refused")
            told = [error["field"] for error in reply["errors"]]
            assert (status, told) == (422, [f"documents[{n}]" for n in faults])
            return
        assert status == 200, reply
        told = [error["position"] for error in reply["errors"]]
        assert (reply["inserted"], reply["replaced"], told) == (inserted, replaced, faults)

    @rule(who=WHO, address=ADDRESS, ids=GONE)
    def delete(self, who: Any, address: str, ids: list[str]) -> None:
        model = self.model(address)
        if model is None:
            assert self.call(0, "DELETE", f"collections/{address}/documents/a")[0] == 404
            return
        gone = [doc for doc in ids if model.documents.pop(doc, None) is not None]
        if who == "library":
            deleted = self.site.writer(self.aliases.get(address, address)).delete(ids)
        else:
            path = f"collections/{address}/documents/delete"
            deleted = self.call(who, "POST", path, {"ids": ids})[1]["deleted"]
        assert deleted == len(gone)

    @rule(who=WHO, address=ADDRESS, data=st.data())
    def delete_matching(self, who: Any, address: str, data: Any) -> None:
        model = self.model(address)
        if model is None or not model.fields:
            return
        wanted = data.draw(conditions(model.fields))
        gone = [doc for doc in model.documents if model.passes(doc, wanted)]
        for doc in gone:
            del model.documents[doc]
        if who == "library":
            writer = self.site.writer(self.aliases.get(address, address))
            deleted = writer.delete_matching(parse_filter(wanted, writer.fields))
        else:
            path = f"collections/{address}/documents/delete"
            deleted = self.call(who, "POST", path, {"filter": wanted})[1]["deleted"]
        assert deleted == len(gone)

    @rule(name=NAME, how=HOW, meanwhile=MEANWHILE)
    def compact(self, name: str, how: dict[str, Any], meanwhile: Any) -> None:
        """Make a new index, perhaps with a write in the middle of it."""
        later = self._later(name, meanwhile)
        folder = self.site.data / name
        made = compact(folder, threads=1, progress=lambda *_: next(later, None), **how)
        event("built anew" if made.added is None else "added to")
        list(later)

    @rule(name=NAME, route=st.booleans(), meanwhile=MEANWHILE)
    def restore_elsewhere(self, name: str, route: bool, meanwhile: Any) -> None:
        """Put an archive of one collection, written during a write, in the place of the other."""
        [other] = {*NAMES} - {name}
        status, _ = self.call(0, "DELETE", f"collections/{other}")
        assert status == (409 if other in self.aliases.values() else 200)
        if status == 409:
            return
        before = deepcopy(self.models[name])
        later = self._later(name, meanwhile)
        if route:
            _, reply = self.call(1, "POST", f"collections/{name}/snapshot", {})
            file = self.site.archives / reply["file"]
        else:
            file = self.site.archives / "archive.tar"
            write_archive(self.site.data / name, file, still_wanted=lambda: next(later, None))
        list(later)
        restore_archive(file, self.site.data / other)
        file.unlink()
        after = self.models[name]
        _, found = self.call(1, "GET", f"collections/{other}")
        assert before.fields.items() <= found["fields"].items() <= after.fields.items()
        restored = self.stored(other)
        assert restored in (before.documents, after.documents)
        self.models[other] = Model(restored, found["fields"])

    @rule(name=NAME, rows=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=9, unique=True))
    def build_in_its_place(self, name: str, rows: list[str]) -> None:
        built = {doc: (text, {"kind": "food"}) for doc, text in zip(IDS, rows, strict=False)}
        corpus = self.site.archives / "corpus.jsonl"
        corpus.write_text(
            "".join(
                json.dumps({"id": doc, "text": text, **metadata}) + "\n"
                for doc, (text, metadata) in built.items()
            )
        )
        build_collection([corpus], self.site.data / name, self.site.encoder, mode="replace")
        self.models[name] = Model(built, {"kind": "string"})

    @rule(who=WORKER, name=NAME)
    def remake(self, who: int, name: str) -> None:
        status, _ = self.call(who, "DELETE", f"collections/{name}")
        assert status == (409 if name in self.aliases.values() else 200)
        if status == 200:
            assert self.call(1 - who, "PUT", f"collections/{name}")[0] == 201
            self.models[name] = Model()

    @rule(who=WORKER, goal=NAME)
    def lead_alias(self, who: int, goal: str) -> None:
        status, reply = self.call(who, "PUT", "aliases/live", {"collection": goal})
        assert (status, reply["previous"]) == (200, self.aliases.get("live"))
        self.aliases["live"] = goal

    @rule(who=WORKER)
    def end_alias(self, who: int) -> None:
        expected = 200 if self.aliases.pop("live", None) else 404
        assert self.call(who, "DELETE", "aliases/live")[0] == expected

    @rule(worker=WORKER)
    def restart(self, worker: int) -> None:
        self.site.restart(worker)

    @rule()
    def reopen(self) -> None:
        self.site.close_writers()

    @rule(who=WORKER, address=ADDRESS, data=st.data())
    def search(self, who: int, address: str, data: Any) -> None:
        """Compare a page of some search."""
        model = self.model(address)
        if model is None:
            return
        mode = data.draw(st.sampled_from(["dense", "lexical", "hybrid"]))
        query = data.draw(st.sampled_from(QUERIES if mode == "dense" else WORDS))
        top_k, offset = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 5))
        body = {"query": query, "mode": mode, "top_k": top_k, "offset": offset}
        ids = list(model.documents)
        if model.fields and data.draw(st.booleans()):
            body["filter"] = data.draw(conditions(model.fields))
            ids = [doc for doc in ids if model.passes(doc, body["filter"])]
        scores = self.scores(model, ids, query, mode)
        pages = [[doc] for doc in ranked(scores)]
        single = sorted(name for name, kind in model.fields.items() if kind != "strings")
        if single and data.draw(st.booleans()):
            body |= {"group_by": data.draw(st.sampled_from(single)), "group_size": 2}
            groups: dict[Any, list[str]] = {}
            for doc in ranked(scores):
                value = model.values(doc, body["group_by"])
                groups.setdefault(value[0] if value else ("alone", doc), []).append(doc)
            pages = [group[:2] for group in groups.values()]
        status, reply = self.call(who, "POST", f"collections/{address}/search", body)
        assert (status, reply.get("total")) == (200, len(ids)), reply
        expected = [
            (doc, rank, pytest.approx(scores[doc], abs=1e-4))
            for rank, page in list(enumerate(pages, 1))[offset : offset + top_k]
            for doc in page
        ]
        assert [(hit["id"], hit["rank"], hit["score"]) for hit in reply["hits"]] == expected
        event(f"search: {mode}{', filter' * ('filter' in body)}{', groups' * ('group_by' in body)}")

    @invariant()
    def all_show_the_same(self) -> None:
        self.steps += 1
        query = QUERIES[self.steps % len(QUERIES)]
        vector = self.site.queries[query].tolist()
        for who in (0, 1):
            status, reply = self.call(who, "GET", "aliases")
            assert {each["name"]: each["collection"] for each in reply["aliases"]} == self.aliases
            for address in (*NAMES, "live"):
                model = self.model(address)
                body = {
                    "vector": vector,
                    "top_k": 1000,
                    "facets": sorted(model.fields if model else ()),
                }
                status, reply = self.call(who, "POST", f"collections/{address}/search", body)
                if model is None:
                    assert status == 404
                    continue
                assert status == 200, reply
                assert reply["collection"] == self.aliases.get(address, address)
                self.compare(model, query, reply)
        for name, model in self.models.items():
            _, reply = self.call(self.steps % 2, "GET", f"collections/{name}")
            assert (reply["status"], reply["count"]) == ("open", len(model.documents))
            assert reply["fields"] == model.fields
            assert self.listed(self.steps % 2, name) == model.documents
            with Searcher.open(self.site.data / name) as fresh:  # as a new worker would see it
                found = fresh.search_embedding(vector, SearchOptions(top_k=1000))
                assert fresh.count == found.total == len(model.documents)
            expected = ranked(self.scores(model, list(model.documents), query, "dense"))
            assert [hit.id for hit in found.hits] == expected

    def compare(self, model: Model, query: str, reply: dict[str, Any]) -> None:
        """Compare all documents and facets with those of a reply."""
        ids = list(model.documents)
        scores = self.scores(model, ids, query, "dense")
        assert [hit["id"] for hit in reply["hits"]] == ranked(scores)
        assert reply["total"] == len(ids)
        for hit in reply["hits"]:
            assert (hit["text"], hit["metadata"]) == model.documents[hit["id"]]
            assert hit["score"] == pytest.approx(scores[hit["id"]], abs=1e-4)
        for name, facet in reply["facets"].items():
            counted = [
                (*comparable(each["value"], model.fields[name].rstrip("s")), each["count"])
                for each in facet["values"]
            ]
            assert counted == model.facet(ids, name)

    def scores(self, model: Model, ids: list[str], query: str, mode: str) -> dict[str, float]:
        vectors, wanted = self.site.vectors, self.site.queries[query]
        dense = {doc: float(vectors[model.documents[doc][0]] @ wanted) for doc in ids}
        if mode == "dense":
            return dense
        found = model.bm25(query)
        lexical = {doc: found[doc] for doc in ids if doc in found}
        if mode == "lexical":
            return lexical
        best, most = max(dense.values(), default=0.0), max(lexical.values(), default=1.0)
        return {
            doc: 0.85 * (dense[doc] + 1) / (best + 1) + 0.15 * lexical.get(doc, 0.0) / most
            for doc in ids
        }

    def listed(self, who: int, name: str) -> dict[str, Any]:
        """All documents, page by page."""
        documents: list[dict[str, Any]] = []
        cursor = ""
        while cursor is not None:
            asked = f"?limit=20{cursor and f'&cursor={cursor}'}"
            status, reply = self.call(who, "GET", f"collections/{name}/documents{asked}")
            assert status == 200, reply
            documents += reply["documents"]
            cursor = reply["next_cursor"]
        found = {each["id"]: (each["text"], each["metadata"]) for each in documents}
        assert len(found) == len(documents)
        return found

    def stored(self, name: str) -> dict[str, Any]:
        body = {"vector": self.site.queries["cats"].tolist(), "top_k": 1000}
        _, reply = self.call(0, "POST", f"collections/{name}/search", body)
        return {hit["id"]: (hit["text"], hit["metadata"]) for hit in reply["hits"]}

    def _later(self, name: str, meanwhile: Any) -> Iterator[None]:
        """Do a write when the first item is asked for."""
        if isinstance(meanwhile, list) and all(isinstance(each, str) for each in meanwhile):
            self.delete(1, name, meanwhile)
        elif meanwhile is not None:
            self.upsert(1, name, meanwhile)
        yield

    def teardown(self) -> None:
        for name in NAMES:
            assert verify_collection(self.site.data / name) == []
        assert [path.name for path in self.site.data.glob(".*") if path.is_dir()] == []


@pytest.fixture
def site(
    tmp_path: Path, running: Any, held_encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """Services whose background threads are too slow to help, with one encoder between them."""
    monkeypatch.setattr("lamina_service.catalog.REFRESH_SECONDS", 1000)
    held_encoder.gate.set()
    opened = Site(tmp_path, running, held_encoder)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("examples", "steps", "phases"),
    [
        pytest.param(20, 25, [Phase.generate], id="short"),  # shrinking can take five minutes
        pytest.param(50, 40, list(Phase), id="long", marks=pytest.mark.slow),
    ],
)
def test_any_order_of_writes_and_changes_agrees_with_a_model(
    examples: int, steps: int, phases: list[Phase], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "site", site, raising=False)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=phases,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
