"""A study's runs are done once each, whoever does them, and its page says what they gave."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.errors import LaminaError
from lamina_training.embedding import encode_with, unit_embeddings
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.study import runner
from lamina_training.study.definition import Study, StudyError, cells_of, merge, read_study
from lamina_training.study.embedded import ExitEmbeddings
from lamina_training.study.measures import measure_encoder, read_tasks
from lamina_training.study.page import write_index, write_page
from lamina_training.study.results import append_result, is_of, load_results, read_results
from lamina_training.study.runner import Place, run_study
from lamina_training.study.statistics import estimate, paired_difference
from lamina_training.train import train
from lamina_training.train_config import TrainConfig

Settings = Callable[..., dict[str, Any]]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "results.jsonl", tmp_path / "work", tmp_path / "cache")


@pytest.fixture(scope="module")
def study_data(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny training data, with STS-B and Quora made of its texts."""
    folder = tmp_path_factory.mktemp("study") / "data"
    shutil.copytree(data, folder)
    (folder / "stsb").mkdir()
    for split in ("dev", "test"):
        shutil.copy(data / "sts.tsv", folder / "stsb" / f"{split}.tsv")
    texts = [line.split("\t")[1] for line in (data / "sts.tsv").read_text().splitlines()[1:]]
    (folder / "quora" / "ir").mkdir(parents=True)
    for name, head, rows in (
        ("queries", "qid\ttext\tsplit", [f"q{n}\t{t}\ttest" for n, t in enumerate(texts[:4])]),
        ("corpus", "qid\ttext", [f"d{n}\t{t} ." for n, t in enumerate(texts)]),
        ("qrels", "query_qid\tcorpus_qid\tsplit", [f"q{n}\td{n}\ttest" for n in range(4)]),
    ):
        (folder / "quora" / "ir" / f"{name}.tsv").write_text("\n".join([head, *rows]) + "\n")
    return folder


@pytest.fixture
def study(settings: Settings, study_data: Path) -> Study:
    """Two arms that train, one of them with two exits, and the base; two seeds."""
    recipe = settings(run={"steps": 2}, data={"folder": str(study_data)})
    del recipe["seed"]
    return Study.model_validate(
        {
            "title": "Tiny",
            "question": "Does it run?",
            "reference": "mean",
            "seeds": [1, 2],
            "recipe": recipe,
            "measure": {"sts": ["stsb_dev"], "quora": {"split": "test"}, "layers": True}
            | {"geometry": True},
            "arms": {
                "mean": {"title": "mean", "change": {"pooling": {"mode": "mean"}}},
                "attention": {
                    "title": "attention",
                    "change": {"pooling": {"mode": "layer_attention"}},
                    "exits": ["kept", "mean", "cls"],
                },
                "base": {"title": "base", "untrained": True},
            },
        }
    )


# Definition


def test_the_base_comes_first_and_then_all_arms_with_each_seed(study: Study) -> None:
    order = [(cell.arm, cell.seed) for cell in cells_of(study, origin="test")]
    of_seed = [[("mean", seed), ("attention", seed)] for seed in (1, 2)]
    assert order == [("base", 1), *of_seed[0], *of_seed[1]]


def test_arms_of_fewer_seeds_wait_for_those_of_more(study: Study) -> None:
    given = study.model_dump() | {"reference": "attention"}
    given["arms"]["mean"]["seeds"] = 1
    order = [c.arm for c in cells_of(Study.model_validate(given), origin="test")]
    assert order == ["base", "attention", "attention", "mean"]


def test_a_run_is_known_by_what_decides_it_not_by_words_or_places(study: Study) -> None:
    def fingerprints(**changed: Any) -> list[str]:
        other = Study.model_validate(study.model_dump() | changed)
        return [cell.fingerprint for cell in cells_of(other, origin="test")]

    before = fingerprints()
    assert len(set(before)) == len(before)
    assert fingerprints(title="Other", answer="It does.") == before
    moved = study.model_dump()["recipe"] | {"data": {**study.recipe["data"], "folder": "there"}}
    assert fingerprints(recipe=moved) == before
    assert not set(fingerprints(measure={"sts": ["stsb_dev"]})) & set(before)
    longer = study.model_dump()["recipe"] | {"run": {**study.recipe["run"], "steps": 3}}
    assert not set(fingerprints(recipe=longer)) & set(before)


def test_tables_are_merged_and_all_else_is_replaced() -> None:
    merged = merge({"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2]}, "d": {"e": 1}})
    assert merged == {"a": {"b": 1, "c": [2]}, "d": {"e": 1}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reference": "nobody"}, "reference nobody: no arm with that exit"),
        ({"reference": "mean/cls"}, "no arm with that exit"),
        ({"seeds": [1, 1]}, "one is given twice"),
        ({"recipe": {"seed": 1}}, "is given by seeds"),
        ({"arms": {}}, "at least 1"),
    ],
)
def test_a_study_that_no_one_can_follow_is_refused(
    study: Study, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Study.model_validate(study.model_dump() | changed)


def test_a_file_is_laid_over_the_one_that_it_extends(tmp_path: Path) -> None:
    first = (
        'title = "A"\nquestion = "?"\nanswer = "Yes."\nreference = "x"\nseeds = [1]\n'
        'recipe = {task = "distil"}\n'
    )
    (tmp_path / "first.toml").write_text(f'{first}[arms.x]\ntitle = "x"\n[arms.y]\ntitle = "y"\n')
    second = 'extends = "first.toml"\ntitle = "B"\n[recipe]\nmore = 1\n[arms.y]\nseeds = 1\n'
    (tmp_path / "second.toml").write_text(second)
    found = read_study(tmp_path / "second.toml")
    assert found.title == "B"
    assert found.answer == ""  # which is one to another question
    assert found.recipe == {"task": "distil", "more": 1}
    assert found.arms["y"].title == "y"
    assert found.arms["y"].seeds == 1
    third = 'extends = "second.toml"\nwithout = ["arms"]\n[arms.x]\ntitle = "z"\n'
    (tmp_path / "third.toml").write_text(third)
    assert {n: arm.title for n, arm in read_study(tmp_path / "third.toml").arms.items()} == {
        "x": "z"
    }


def test_files_that_extend_each_other_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    with pytest.raises(StudyError, match=r"a\.toml: extends itself, through .*b\.toml"):
        read_study(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), ("= 1", "not a TOML file"), ("wrong = 1", "wrong: unknown key")],
)
def test_a_file_that_is_no_study_is_named(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "s.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StudyError, match=rf"s\.toml.*{message}"):
        read_study(path)


def test_a_wrong_key_of_an_arm_names_the_arm(study: Study) -> None:
    given = study.model_dump()
    given["arms"]["mean"]["change"] = {"optimizer": {"speed": 1}}
    with pytest.raises(LaminaError, match=r"test: arm mean: optimizer\.speed: unknown key"):
        list(cells_of(Study.model_validate(given), origin="test"))


def test_a_classifier_has_one_exit(study: Study, settings: Settings) -> None:
    recipe = settings("classification")
    del recipe["seed"]
    arms = {"mean": {"title": "mean", "exits": ["kept", "mean"]}}
    given = study.model_dump() | {"recipe": recipe, "arms": arms}
    with pytest.raises(StudyError, match="arm mean: a classifier has no exits"):
        list(cells_of(Study.model_validate(given), origin="t"))


# Measures


def test_exits_are_the_vectors_of_the_run_and_of_what_is_stripped(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config(pooling={"mode": "layer_attention"}, run={"steps": 1})
    train(config, tmp_path / "run", cache=tmp_path)
    model = load_encoder(find_encoder(str(tmp_path / "run"), cache=tmp_path))
    texts = ["the cat", "why", "the cat", "a dog runs fast in the red house"]
    embedded = ExitEmbeddings(model, texts, ["kept", "mean", "cls"])
    kept = unit_embeddings(encode_with(model), texts)
    np.testing.assert_allclose(unit_embeddings(embedded.encode("kept"), texts), kept, atol=1e-6)
    tokens = model.encode(texts, output_value="token_embeddings")
    means = [states.numpy().mean(axis=0) for states in tokens]
    np.testing.assert_allclose(embedded.encode("mean")(texts), means, atol=1e-6)
    first = [states.numpy()[0] for states in tokens]
    np.testing.assert_allclose(embedded.encode("cls")(texts), first, atol=1e-6)
    assert embedded.layer_weights is not None
    np.testing.assert_allclose(embedded.layer_weights.sum(axis=1), 1, atol=1e-6)
    assert embedded.layer_weights.shape == (3, 3)  # distinct texts; the embedding and two layers


def test_an_sts_task_that_does_not_exist_is_named(study: Study, study_data: Path) -> None:
    measures = study.measure.model_copy(update={"sts": ("sts99",)})
    with pytest.raises(StudyError, match="'sts99': expected one of stsb_dev, sts12"):
        read_tasks(measures, study_data)


def test_each_exit_has_its_numbers(
    study: Study, study_data: Path, make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    train(make_config(pooling={"mode": "layer_attention"}), tmp_path / "run", cache=tmp_path)
    model = load_encoder(find_encoder(str(tmp_path / "run"), cache=tmp_path))
    tasks = read_tasks(study.measure, study_data)
    numbers = measure_encoder(model, tasks, ["kept", "mean"], study.measure)
    assert numbers["kept"].keys() - numbers["mean"].keys() == {"layer_mean", "layer_deviation"}
    assert sum(numbers["kept"]["layer_mean"]) == pytest.approx(1, abs=1e-5)
    shared = {"stsb_dev", "quora_mrr", "alignment", "uniformity", "anisotropy", "effective_rank"}
    assert shared <= numbers["mean"].keys()
    assert 0 < numbers["mean"]["quora_mrr"] <= 1


def test_distractors_are_added_to_a_sample_of_the_questions(
    study: Study, study_data: Path, tmp_path: Path
) -> None:
    import gzip

    folder = tmp_path / "data"
    shutil.copytree(study_data, folder)
    (folder / "wiki_sentences").mkdir()
    rows = "".join(f"sentence {n}\n" for n in range(40))
    (folder / "wiki_sentences" / "sentences.tsv.gz").write_bytes(
        gzip.compress(f"sentence\n{rows}".encode())
    )
    sample = {"split": "test", "questions": 10, "distractors": 5}
    given = study.model_dump() | {"measure": {"quora": sample}}
    task = read_tasks(Study.model_validate(given).measure, folder).quora
    assert task is not None
    assert len(task.documents) == 15
    assert len(task.queries) == 4  # all of them


# Runs


def test_each_run_is_done_once_and_leaves_its_line(study: Study, place: Place) -> None:
    told: list[str] = []
    assert run_study(study, place, origin="test", most=2, tell=told.append) == 2
    assert run_study(study, place, origin="test", tell=told.append) == 3
    assert run_study(study, place, origin="test", tell=told.append) == 0
    for line in read_results(place.results).values():
        assert line["commit"] is None or len(line["commit"].split()[0]) >= 12
        hashed = line.get("data", {}).values()
        assert all(len(each) == 64 for each in hashed)
        assert bool(hashed) == (line["arm"] != "base")
        assert ("base" in line.get("inputs", {})) == (line["arm"] != "base")
    assert len(told) == 5
    assert told[-1].startswith("attention-2: done in")
    lines = read_results(place.results)
    assert lines.keys() == {cell.fingerprint for cell in cells_of(study, origin="test")}
    line = next(line for line in lines.values() if line["arm"] == "attention")
    assert line["exits"].keys() == {"kept", "mean", "cls"}
    assert [step for step, _ in line["dev"]] == [0, 2]
    assert not [path for path in place.work.iterdir() if path.is_dir()]  # runs are removed


def test_an_arm_may_train_on_data_elsewhere_and_is_measured_on_the_same(
    study: Study, place: Place, study_data: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("triplets.tsv", "sts.tsv"):
        shutil.copy(study_data / name, elsewhere)
    given = study.model_dump()
    given["arms"]["mean"]["change"]["data"] = {"folder": str(elsewhere)}
    given["recipe"]["data"]["folder"] = "nowhere"
    there = Study.model_validate(given)
    cells = {c.arm: c for c in cells_of(there, origin="test", data=study_data)}
    assert cells["mean"].config.data.folder == elsewhere
    assert cells["attention"].config.data.folder == study_data
    before = {c.fingerprint for c in cells_of(study, origin="test")}
    assert cells["mean"].fingerprint not in before  # other data may lie there
    assert cells["attention"].fingerprint in before
    run_study(there, place, origin="test", data=study_data, arms=["mean"], most=1)
    [line] = read_results(place.results).values()
    assert line["exits"]["kept"].keys() >= {"stsb_dev", "quora_mrr"}


def test_the_same_seed_gives_the_same_line(study: Study, place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other.jsonl", tmp_path / "other", place.cache)
    for each in (place, other):
        run_study(study, each, origin="test", arms=["attention"], most=1, tell=lambda _: None)
    first, second = (list(read_results(each.results).values()) for each in (place, other))
    assert first[0]["exits"] == second[0]["exits"]


def test_a_result_of_another_default_is_none_and_of_settings_added_since_is_one(
    study: Study, tmp_path: Path
) -> None:
    cell = next(cells_of(study, origin="test"))
    assert "folder" not in cell.settings["data"]
    line: dict[str, Any] = {"config": json.loads(json.dumps(cell.settings))}
    assert is_of(cell, line)
    assert is_of(cell, {})  # written before settings were
    assert not is_of(cell, None)
    del line["config"]["optimizer"]["warmup"]  # as if it had come since
    assert is_of(cell, line)
    line["config"]["optimizer"]["max_gradient_norm"] = 2.0
    assert not is_of(cell, line)
    path = tmp_path / "results.jsonl"
    append_result(path, {"fingerprint": cell.fingerprint, **line})
    place = Place(path, tmp_path / "work", tmp_path / "cache")
    run_study(study, place, origin="test", most=1, tell=lambda _: None)
    assert is_of(cell, read_results(path)[cell.fingerprint])


def test_a_run_that_another_runner_has_is_left_to_it(study: Study, place: Place) -> None:
    cell = next(cells_of(study, origin="test"))
    place.work.mkdir()
    with (place.work / f"{cell.name}-{cell.fingerprint[:8]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_study(study, place, origin="test", arms=["base"], tell=lambda _: None) == 0
    assert run_study(study, place, origin="test", arms=["base"], tell=lambda _: None) == 1


def test_a_run_that_was_broken_off_goes_on(
    study: Study,
    place: Place,
    interrupt_at: Callable[[int], Any],
    interrupted: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = study.model_dump()
    given["recipe"]["run"]["steps"] = 4
    longer = Study.model_validate(given)

    def broken(*arguments: Any, **options: Any) -> Any:
        return train(*arguments, **options, callbacks=[interrupt_at(3)])

    monkeypatch.setattr(runner, "train", broken)
    with pytest.raises(interrupted):
        run_study(longer, place, origin="test", arms=["mean"], most=1, tell=lambda _: None)
    assert not place.results.exists()
    monkeypatch.undo()
    run_study(longer, place, origin="test", arms=["mean"], most=1, tell=lambda _: None)
    line = next(iter(read_results(place.results).values()))
    assert line["resumed"]
    assert [step for step, _ in line["dev"]] == [0, 2, 4]


def test_a_classifier_has_its_dev_scores_and_drop_rates(
    settings: Settings, place: Place, study: Study
) -> None:
    recipe = settings("classification", run={"steps": 4}, training_loss=True)
    del recipe["seed"]
    arms = {
        "none": {"title": "none"},
        "links": {
            "title": "links",
            "change": {"attention_dropout": {"kind": "scheduled_bernoulli"}},
        },
    }
    changed = {"recipe": recipe, "arms": arms, "reference": "none", "measure": {}, "seeds": [1]}
    found = Study.model_validate(study.model_dump() | changed)
    assert run_study(found, place, origin="test", tell=lambda _: None) == 2
    plain, dropping = read_results(place.results).values()
    scores = [score for _, score in plain["dev"]]
    numbers = plain["exits"]["kept"]
    assert (numbers["dev_last"], numbers["dev_best"]) == (scores[-1], max(scores))
    assert numbers["loss_gap"] == pytest.approx(numbers["dev_loss"] - numbers["training_loss"])
    assert plain["drop_rates"] == []
    assert [len(layers) for _, layers in dropping["drop_rates"]] == [2] * 4


# Results and pages


@pytest.mark.parametrize("line", ["{", "[]", '{"format_version": 1}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    append_result(path, {"fingerprint": "a"})
    with path.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(StudyError, match=r"r\.jsonl:2: .*remove it"):
        read_results(path)


def test_a_line_of_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"format_version": 2, "fingerprint": "a"}\n')
    with pytest.raises(StudyError, match="format 2, this version reads 1"):
        read_results(path)


def test_an_interval_is_students() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2
    # Deviation 1, so 4.3027 (t of 2 degrees of freedom) / sqrt(3).
    assert found.half_width == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)
    assert estimate([5.0]).half_width is None
    assert not estimate([5.0]).differs
    assert estimate([1.0, 1.1, 1.2]).differs
    assert not estimate([1.0, 1.0]).differs  # two that agree by chance are no evidence
    with pytest.raises(ValueError, match="no value"):
        estimate([])


def test_differences_are_taken_seed_by_seed() -> None:
    noisy = {1: 10.0, 2: 50.0, 3: 90.0, 4: 0.0}
    better = {1: 11.0, 2: 51.1, 3: 90.9, 5: 0.0}  # by 1, 1.1 and 0.9; 4 and 5 have no partner
    found = paired_difference(better, noisy)
    assert found is not None
    assert found.n == 3
    assert found.mean == pytest.approx(1.0)
    assert found.half_width == pytest.approx(4.302653 * 0.1 / np.sqrt(3), rel=1e-5)
    assert found.differs
    assert paired_difference({1: 1.0}, {2: 1.0}) is None


def test_a_page_is_a_function_of_results_and_shows_what_is_missing(
    study: Study, tmp_path: Path
) -> None:
    path = tmp_path / "studies" / "tiny.toml"
    scores = {("base", 1): 0.1, ("mean", 1): 0.5, ("mean", 2): 0.6, ("attention", 1): 0.7}
    scores[("attention", 2)] = 0.8
    seconds = {("base", 1): 0.0, ("mean", 1): 8.0, ("mean", 2): 4.0, ("attention", 1): 4.0}
    seconds[("attention", 2)] = 6.0
    lines = {}
    for cell in cells_of(study, origin="test"):
        numbers = {"quora_mrr": scores[cell.arm, cell.seed], "stsb_dev": 80.0}
        lines[cell.fingerprint] = {
            "arm": cell.arm,
            "seed": cell.seed,
            "fingerprint": cell.fingerprint,
            "exits": dict.fromkeys(cell.exits, numbers),
            "dev": [[0, 70.0], [2, 80.0]],
            "drop_rates": [[1, [0.5, 0.5]], [2, [0.1 * cell.seed, 0.2]]]
            if cell.arm == "attention"
            else [],
            "steps": 2,
            "resumed": False,
            "train_cpu_seconds": seconds[cell.arm, cell.seed],
            "cpu_seconds": 1800,
            "machine": {"torch": "2", "system": "Linux"},
        }
    last = next(line for line in lines.values() if line["arm"] == "attention" and line["seed"] == 2)
    for line in lines.values():
        if line is not last:
            append_result(path.parent / "results" / "tiny.jsonl", line)
    write_page(load_results(study, path), path, tmp_path / "pages")
    page = (tmp_path / "pages" / "tiny.md").read_text()
    assert "4 of 5 runs have a result, so the numbers are interim." in page
    assert "| mean | 2 | 80.00 ± 0.00 | 0.5500 ± 0.6353 |" in page
    assert "| attention, kept | 1 | 80.00 (+0.00) | 0.7000 (+0.2000) |" in page
    assert "Not done (arm and seeds): attention 2." in page
    assert "![curve](tiny-curve.svg)" in page
    assert "2.0 CPU hours" in page
    assert "STS-B dev also chose the step" in page
    assert "| attention: share dropped | 1 | 0.100 | 0.200 |" in page
    append_result(path.parent / "results" / "tiny.jsonl", last)
    for _ in range(2):
        write_page(load_results(study, path), path, tmp_path / "pages")
        text = (tmp_path / "pages" / "tiny.md").read_text()
        assert "None is missing." in text
        assert "| attention: share dropped | 2 | 0.150 | 0.200 |" in text
        # By 0.2 with both seeds: no spread at all, but two are too few to call it a difference.
        assert "0.7500 ± 0.6353 (+0.2000 ± 0.0000)" in text
        assert "| mean | 3.00 | 1.00x |" in text
        assert "| attention | 2.50 | 1.00x |" in text  # 0.5 times and 1.5 times, seed by seed
    svg = (tmp_path / "pages" / "tiny-curve.svg").read_bytes()
    write_page(load_results(study, path), path, tmp_path / "again")
    assert (tmp_path / "again" / "tiny-curve.svg").read_bytes() == svg


def test_pages_and_results_that_are_committed_belong_together(
    repository: Path, tmp_path: Path
) -> None:
    studies = {}
    committed = repository / "docs" / "studies"
    for path in sorted((repository / "training" / "studies").glob("*.toml")):
        named = path.relative_to(repository)
        found = read_study(path)
        results = load_results(found, path)
        lines = read_results(path.parent / "results" / f"{path.stem}.jsonl")
        assert lines.keys() <= {cell.fingerprint for cell in results.cells}, named
        write_page(results, named, tmp_path)
        studies[named] = results
        for made in tmp_path.glob(f"{path.stem}*"):
            if made.suffix == ".md":
                assert made.read_text() == (committed / made.name).read_text(), made.name
            else:
                assert (committed / made.name).is_file(), made.name
    index = (committed / "README.md").read_text()
    (tmp_path / "README.md").write_text(index)
    write_index(studies, tmp_path)
    assert (tmp_path / "README.md").read_text() == index


def test_an_index_tells_how_far_studies_are(study: Study, tmp_path: Path) -> None:
    answered = study.model_copy(update={"answer": "\nIt\ndoes. By 0.2.\n"})
    studies = {
        tmp_path / "tiny.toml": load_results(study, tmp_path / "tiny.toml"),
        tmp_path / "done.toml": load_results(answered, tmp_path / "done.toml"),
    }
    write_index(studies, tmp_path)  # there is nothing to write it into
    readme = tmp_path / "README.md"
    readme.write_text("Before\n<!-- studies -->\nold\n<!-- /studies -->\nafter\n")
    write_index(studies, tmp_path)
    text = readme.read_text()
    assert "| [Tiny](tiny.md) | none yet | 0 of 5 |" in text
    assert "| [Tiny](done.md) | It does | 0 of 5 |" in text
    assert text.startswith("Before\n<!-- studies -->\n|")
    assert text.endswith("|\n<!-- /studies -->\nafter\n")
    assert "old" not in text
