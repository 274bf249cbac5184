"""What a study trains and measures: one TOML file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lamina_index.errors import LaminaError
from lamina_training.config_errors import explain
from lamina_training.train_config import ClassificationConfig, TrainConfig, parse_train_config

Exit = Literal["kept", "cls", "mean"]
"""Which vector of a trained encoder is measured: its pooling's, or one of the last layer's."""

_NAME = r"^[a-z0-9][a-z0-9_+.-]*$"


class StudyError(LaminaError):
    """A study's file or its results cannot be read, or say something that no study can follow."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Table):
    """One way to train.

    Attributes:
        title: Names the arm in tables.
        change: What it changes in the study's recipe; tables are merged key by key.
        replace: Tables of the recipe that `change` replaces instead of merging into them.
        exits: Which vectors are measured; an encoder alone has more than `kept`.
        seeds: Only the first so many of the study's; all by default.
        untrained: Measure what the recipe starts from, with the first seed, and train nothing.
    """

    title: str
    change: Mapping[str, Any] = {}
    replace: tuple[str, ...] = ()
    exits: Annotated[tuple[Exit, ...], Field(min_length=1)] = ("kept",)
    seeds: Annotated[int, Field(ge=1)] | None = None
    untrained: bool = False


class QuoraSample(_Table):
    """Quora's duplicates, a sample of the corpus, and sentences of Wikipedia that are no answer.

    Attributes:
        split: Of queries and judgements, all of which are taken.
        questions: So many of the corpus, the relevant ones first; None takes all.
        distractors: Sentences of the half of wiki_sentences that is never trained on.
    """

    split: Literal["dev", "test"]
    questions: Annotated[int, Field(ge=1)] | None = None
    distractors: Annotated[int, Field(ge=0)] = 0


class Measures(_Table):
    """What an encoder is measured by, after training.

    Attributes:
        sts: Test sets of the usual seven, and STS-B dev, which also chose the checkpoint.
        geometry: Alignment, uniformity, anisotropy and spectrum, on STS-B test.
        quora: Retrieval of duplicates.
        layers: Mean and spread of the effective layer distribution, on the sentences of STS-B test.
        precision: Of the forward passes.
    """

    sts: tuple[str, ...] = ()
    geometry: bool = False
    quora: QuoraSample | None = None
    layers: bool = False
    precision: Literal["fp32", "bf16"] = "fp32"


class Study(_Table):
    """One question.

    Attributes:
        title: Of its page.
        question: What it asks.
        answer: What the results say, with the interval; written once they are there.
        arms: By name, in the order of the tables.
        reference: The arm, and after a slash its exit, that others are compared with.
        seeds: Of the runs; arms are compared pair by pair of the same seed.
        recipe: A training configuration without seed, which arms change.
        measure: Of encoders; classifiers have their dev score.
    """

    title: str
    question: str
    answer: str = ""
    reference: str
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    recipe: Mapping[str, Any]
    arms: Annotated[Mapping[Annotated[str, Field(pattern=_NAME)], Arm], Field(min_length=1)]
    measure: Measures = Measures()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        arm, _, exit_name = self.reference.partition("/")
        if arm not in self.arms or (exit_name or "kept") not in self.arms[arm].exits:
            raise ValueError(f"reference {self.reference}: no arm with that exit")
        if "seed" in self.recipe or any("seed" in each.change for each in self.arms.values()):
            raise ValueError("seed: is given by seeds, not by a recipe")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: one is given twice")
        return self


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        arm: Name of its arm.
        seed: Of the run.
        config: What is trained.
        exits: Which vectors are measured.
        trains: Whether anything is trained.
        fingerprint: sha256 over all that the study's file says of it, but for the folder of the
            recipe's data.
    """

    arm: str
    seed: int
    config: TrainConfig
    exits: tuple[Exit, ...]
    trains: bool
    fingerprint: str

    @property
    def name(self) -> str:
        """Names the cell in messages and folders."""
        return f"{self.arm}-{self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """All that the run is made with, what no file says included; but for the data's folder."""
        return self.config.model_dump(mode="json", exclude={"data": {"folder"}})


def read_study(path: Path) -> Study:
    """Read and check a study's file.

    One that `extends` another is laid over it, key by key; tables named by `without` are taken out
    of the other first, and so is its answer.

    Raises:
        StudyError: If it cannot be read, or a key is unknown, missing or wrong.
    """
    given = _read_extended(path, ())
    try:
        return Study.model_validate(given)
    except ValidationError as error:
        raise StudyError(f"{path}: {explain(Study, given, error)}") from error


def _read_extended(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    if path in below:
        raise StudyError(f"{path}: extends itself, through {' and '.join(map(str, below))}")
    given = _read_toml(path)
    without = given.pop("without", [])
    if "extends" not in given:
        return given
    other = _read_extended(path.parent / str(given.pop("extends")), (*below, path))
    left_out = {*without, "answer"}  # of another question
    return merge({key: value for key, value in other.items() if key not in left_out}, given)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise StudyError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{path}: not a TOML file that can be read ({error})") from error


def cells_of(study: Study, *, origin: str, data: Path | None = None) -> Iterator[Cell]:
    """List the runs of a study, those first that answer its question.

    Untrained arms, then the arms with most seeds: all of them with the first seed, then with the
    second, and so on; so a study that is broken off compares as many arms as it can.

    Args:
        study: Which.
        origin: Begins the message of an error.
        data: Takes the place of the recipe's `data.folder`, not of one that an arm has for itself.

    Raises:
        TrainConfigError: If a recipe, as an arm changes it, is none.
        StudyError: If a classifier is to be measured as only an encoder can.
    """
    seeds = {
        name: study.seeds[: 1 if arm.untrained else arm.seeds] for name, arm in study.arms.items()
    }
    for untrained in (True, False):
        arms = {n: seeds[n] for n, arm in study.arms.items() if arm.untrained == untrained}
        for count in sorted({len(each) for each in arms.values()}, reverse=True):
            for place in range(count):
                for name in (name for name, each in arms.items() if len(each) == count):
                    yield _cell(study, name, study.seeds[place], origin, data)


def _cell(study: Study, name: str, seed: int, origin: str, data: Path | None) -> Cell:
    arm = study.arms[name]
    recipe = {key: value for key, value in study.recipe.items() if key not in arm.replace}
    merged = merge(recipe, arm.change) | {"seed": seed}
    own_folder = arm.change.get("data", {}).get("folder")
    decided = {
        "recipe": merged | {"data": {**merged.get("data", {}), "folder": own_folder}},
        "exits": arm.exits,
        "untrained": arm.untrained,
        "measure": study.measure.model_dump(mode="json"),
    }
    if data is not None and own_folder is None:
        merged["data"] = {**merged.get("data", {}), "folder": str(data)}
    config = parse_train_config(merged, origin=f"{origin}: arm {name}")
    if isinstance(config, ClassificationConfig) and (arm.untrained or arm.exits != ("kept",)):
        raise StudyError(f"{origin}: arm {name}: a classifier has no exits and cannot be untrained")
    text = json.dumps(decided, sort_keys=True, default=str)
    return Cell(
        arm=name,
        seed=seed,
        config=config,
        exits=arm.exits,
        trains=not arm.untrained,
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
    )


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one tree of tables over another; what is no table is replaced."""
    merged = dict(base)
    for key, value in change.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]  # both are
    return merged
