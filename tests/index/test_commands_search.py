from __future__ import annotations

import json
from pathlib import Path

import pytest

from lamina_index.cli import main


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    lines = ["cats sleep most of the day", "stocks fell", f"bread {'and butter ' * 60}", "[red]x"]
    (folder / "c.txt").write_text("".join(f"{line}\n" for line in lines))
    build = ["index", "build", "--input", str(folder / "c.txt"), "--collection", str(folder / "c")]
    assert main(build) == 0
    return folder / "c"


def test_the_table_has_rank_score_id_and_one_line_of_text(
    collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(collection), "sleeping", "cats", "-k", "4"]) == 0
    header, first, *rest = capsys.readouterr().out.splitlines()
    assert header.split() == ["rank", "score", "id", "text"]
    rank, score, document_id, text = first.split(maxsplit=3)
    assert (rank, document_id, text.strip()) == ("1", "c.txt:1", "cats sleep most of the day")
    assert 0.5 < float(score) <= 1
    assert len(rest) == 3
    assert any("[red]x" in line for line in rest)  # text is no mark-up
    assert any(line.rstrip().endswith("…") for line in rest)


def test_json_has_hits_with_scores_and_times(
    collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(collection), "sleeping cats", "--top-k", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [hit["rank"] for hit in result["hits"]] == [1, 2]
    assert result["hits"][0]["text"] == "cats sleep most of the day"
    assert result["query"] == "sleeping cats"
    assert list(result["took"]) == ["queue", "encode", "search", "fetch", "total"]


def test_pages_and_a_least_score_cut_the_listing(
    collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def hits(*options: object) -> list[tuple[int, str, float]]:
        assert main(["search", str(collection), "cats", *map(str, options), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["hits"]
        return [(hit["rank"], hit["id"], hit["score"]) for hit in found]

    whole = hits()
    assert len(whole) == 4
    assert hits("--top-k", 2, "--offset", 1) == whole[1:3]
    assert hits("--min-score", whole[1][2]) == whole[:2]


def test_a_query_that_is_cut_says_so(collection: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(collection), "word " * 400]) == 0
    assert capsys.readouterr().err == "lamina: the query was cut to 256 tokens\n"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ([" "], 1, "blank"),
        (["cats", "--top-k", "0"], 2, "top-k"),
        (["cats", "--top-k", "-1"], 2, "top-k"),
        (["cats", "--top-k", str(2**63)], 2, "top-k"),
        (["cats", "--offset", "-1"], 2, "offset"),
        (["cats", "--min-score", "2"], 2, "min-score"),
        (["cats", "--min-score", "0.5", "--mode", "hybrid"], 2, "min_score"),
        (["cats", "--encoder", "nowhere"], 1, "nowhere"),
    ],
)
def test_bad_requests_are_told_in_a_line(
    arguments: list[str],
    code: int,
    complaint: str,
    collection: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["search", str(collection), *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err


def test_a_search_by_words_needs_no_encoder_and_explains_itself(
    collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lexical = ["search", str(collection), "CAT", "--mode", "lexical", "--encoder", "nowhere"]
    assert main([*lexical, "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert (hit["id"], hit["highlights"]) == ("c.txt:1", [[0, 4]])
    assert hit["scores"] == {"lexical": hit["score"]}
    hybrid = ["search", str(collection), "cats", "--mode", "hybrid", "--fusion", "ranks"]
    assert main([*hybrid, "--explain", "--lexical-weight", "0.5"]) == 0
    header, first, *rest = capsys.readouterr().out.splitlines()
    assert header.split() == ["rank", "score", "dense", "(rank)", "lexical", "(rank)", "id", "text"]
    assert first.split()[1] == "0.0164"  # 1 / 61
    assert "(1)" in first
    assert "- (-)" in rest[-1]


def test_a_reranker_orders_the_best_hits_and_tells_what_it_cut(
    collection: Path, overlap_reranker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = ["search", str(collection), "bread and butter", "--rerank", str(overlap_reranker)]
    assert main([*query, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    scores = [hit["scores"]["rerank"] for hit in result["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert result["reranking"] == {"candidates": 4, "truncated": 1}
    assert main([*query, "--depth", "2", "--explain"]) == 0
    out, err = capsys.readouterr()
    assert "rerank (rank)" in out.splitlines()[0]
    assert err == "lamina: 1 of 2 texts were cut for the reranker\n"


def test_a_folder_that_is_no_reranker_is_told(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(collection), "bread", "--rerank", str(tmp_path)]) == 1
    assert "no reranker.json there; make one with" in capsys.readouterr().err


def test_groups_and_near_duplicates_have_their_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.tsv").write_text(
        "id\ttext\tkind\na\tcats sleep\t[b]x\nb\tcats sleep\ty\nc\tstocks fell\t\n"
    )
    build = ["index", "build", "--input", str(tmp_path / "c.tsv"), "--collection"]
    assert main([*build, str(tmp_path / "c")]) == 0
    capsys.readouterr()
    search = ["search", str(tmp_path / "c")]
    assert main([*search, "cats", "--group-by", "kind", "--collapse", "0.99"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["rank", "score", "folded", "kind", "id", "text"]
    assert [row.split()[2:5] for row in rows] == [["1", "[b]x", "a"], ["0", "-", "c"]]
    assert main([*search, "--similar", "a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["similar"] == "a"
    assert [hit["id"] for hit in found["hits"]] == ["b", "c"]
    for arguments, code, told in [
        (["--similar", "z"], 1, "has no document 'z'"),
        (["cats", "--similar", "a"], 2, "either a query or --similar"),
        ([], 2, "either a query or --similar"),
        (["cats", "--group-size", "2"], 2, "group_size goes with group_by"),
        (["cats", "--collapse", "2"], 2, "collapse is 2"),
        (["cats", "--group-by", "no"], 1, "no such metadata: 'no'; there is: kind"),
        (["--similar", "a", "--mode", "hybrid"], 2, "with --mode dense only"),
    ]:
        assert main([*search, *arguments]) == code
        assert told in " ".join(capsys.readouterr().err.replace("│", " ").split())
