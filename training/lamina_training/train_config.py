"""Everything a training run is decided by: one TOML file, read into frozen models.

Relative paths are relative to the working directory, as on a command line; those of data files are
relative to `data.folder`, which `lamina train --data` can replace.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lamina_index.errors import LaminaError
from lamina_training.attention_dropout.config import AttendOut, AttentionDropoutConfig, NoChange
from lamina_training.config_errors import explain
from lamina_training.idle_settings import refuse_idle
from lamina_training.layer_pooling_config import LayerPoolingConfig

Positive: TypeAlias = Annotated[int, Field(ge=1)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Tenth: TypeAlias = Annotated[int, Field(ge=0, le=9)]
Weight: TypeAlias = Annotated[float, Field(ge=0)]


class TrainConfigError(LaminaError):
    """A training file cannot be read, or says something that no run can follow."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Encoder(_Table):
    """What training starts from.

    Attributes:
        base: A folder, a pinned model's name (`weights.PINNED_MODELS`), or a model hub's id.
        max_tokens: Longest training text, special tokens included; the rest is cut.
        reinitialize_top: So many upper layers start from random weights.
        layers: Keep only these layers of the base, counted from 0; None keeps all.
    """

    base: str
    max_tokens: Annotated[int, Field(ge=3)] = 64
    reinitialize_top: Annotated[int, Field(ge=0)] = 0
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = None


class Names(_Table):
    """A file that says what the ids of another stand for."""

    file: Path
    key: str
    value: str


class TextFile(_Table):
    """Rows of texts to train on.

    Attributes:
        file: TSV, CSV or JSONL, plain or gzip.
        columns: Of the texts: one; anchor and positive; or these and hard negatives.
        clusters: For each text the column with the id of the texts that say the same; an empty
            name where there is none.
        where: Take only rows whose column has one of these values.
        texts: The columns hold ids, and this their texts.
        cluster_of: The clusters of those ids, instead of `clusters`.
        half: Take only rows whose first text is in that half, by parity of its sha256.
        limit: Take at most so many rows, from the beginning.
    """

    file: Path
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    clusters: tuple[str, ...] = ()
    where: Mapping[str, tuple[str, ...]] = {}
    texts: Names | None = None
    cluster_of: Names | None = None
    half: Literal["even", "odd"] | None = None
    limit: Positive | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns: found {list(self.columns)}; name each once")
        if self.texts is not None:
            refuse_idle(self, ["clusters"], "columns hold ids, by texts; give cluster_of instead")
        elif self.cluster_of is not None:
            raise ValueError("cluster_of: columns hold texts, not ids; give clusters, or texts too")
        if self.clusters and len(self.clusters) != len(self.columns):
            raise ValueError(
                f"clusters: found {len(self.clusters)} for {len(self.columns)} columns; name one "
                'for each, "" where there is none'
            )
        return self


class LabelledFile(_Table):
    """Rows of one text or two, and a label.

    Attributes:
        file: TSV, CSV or JSONL, plain or gzip.
        columns: Of the one or two texts.
        label: Column of the label.
        where: Take only rows whose column has one of these values.
        tenths: Take only rows whose first text is in one of these, 0 to 9, by its sha256. So one
            file without a dev part of its own gives both, with no first text in both.
        limit: Take at most so many rows, from the beginning.
    """

    file: Path
    columns: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    label: str = "label"
    where: Mapping[str, tuple[str, ...]] = {}
    tenths: Annotated[tuple[Tenth, ...], Field(min_length=1)] | None = None
    limit: Positive | None = None


class TextData(_Table):
    """Texts to train on; each batch is of one source, in proportion to their sizes."""

    folder: Path = Path()
    train: Annotated[tuple[TextFile, ...], Field(min_length=1)]


class LabelledData(_Table):
    """Labelled texts to train on, and others to measure with."""

    folder: Path = Path()
    train: LabelledFile
    dev: LabelledFile


class StsFile(_Table):
    """Scored sentence pairs; the score of an encoder is Spearman x 100 over all of them.

    Attributes:
        file: TSV, CSV or JSONL, plain or gzip.
        score: Column of the score, from 0 to `highest`.
        columns: Of the two sentences.
        highest: Where the scale ends: 5 as in STS-B, also 1 or 100.
    """

    file: Path
    score: str = "score"
    columns: tuple[str, str] = ("sentence1", "sentence2")
    highest: Annotated[float, Field(gt=0)] = 5.0


class StsTestFile(StsFile):
    """Scored sentence pairs that are measured once.

    Attributes:
        subset: Column of the subset, as the years of STS have some; None if they are one set.
    """

    subset: str | None = None


class RetrievalFiles(_Table):
    """Queries, a corpus and judgements; the score of an encoder is MRR@10.

    Attributes:
        queries, corpus, qrels: As `lamina evaluate` reads them.
        split: Of queries and judgements.
        query_limit: Draw at most so many queries.
        document_limit: Draw at most so many documents, the relevant ones first; a smaller corpus
            is an easier one, so compare only runs with the same limits and seed.
    """

    queries: Path
    corpus: Path
    qrels: Path
    split: str | None = "dev"
    query_limit: Positive | None = None
    document_limit: Positive | None = None


class Dev(_Table):
    """What chooses the best checkpoint; the first measure given decides unless `score` says.

    Attributes:
        sts: Semantic textual similarity.
        retrieval: Search.
        score: Which decides.
    """

    sts: StsFile | None = None
    retrieval: RetrievalFiles | None = None
    score: Literal["sts", "retrieval"] | None = None

    @model_validator(mode="after")
    def _has_its_score(self) -> Self:
        if self.score is not None and getattr(self, self.score) is None:
            raise ValueError(f"score {self.score}: dev.{self.score} is not given")
        return self

    @property
    def deciding(self) -> str | None:
        """The measure that chooses the best checkpoint; None if nothing is measured."""
        given = [name for name in ("sts", "retrieval") if getattr(self, name) is not None]
        return self.score or (given[0] if given else None)


class FinalSets(_Table):
    """What the report measures, of the best weights and of what training began with; never chooses.

    Attributes:
        sts: Test sets of semantic textual similarity, by the names that the report gives them.
        retrieval: Search.
    """

    sts: Mapping[str, StsTestFile] = {}
    retrieval: RetrievalFiles | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be measured."""
        return not self.sts and self.retrieval is None


class Optimizer(_Table):
    """AdamW and its schedule.

    Attributes:
        learning_rate: Of encoder, pooling and head, at its highest.
        warmup: Share of the steps over which it rises to that.
        schedule: How it goes down after.
        weight_decay: Not applied to biases and norms.
        max_gradient_norm: Longer gradients are cut to it; G-Nets' apart from the rest.
    """

    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    warmup: Share = 0.0
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: Weight = 0.0
    max_gradient_norm: Annotated[float, Field(gt=0)] = 1.0


class Schedule(_Table):
    """How long, in what portions and on what to train.

    Attributes:
        steps, epochs: How long; one of them.
        batch_size: Rows of a batch, over all processes.
        accumulate: Batches whose gradients are added up to one step.
        precision: bf16 computes under autocast; weights and optimiser stay fp32. `auto` is bf16
            where the processor or the GPU computes in it, else fp32.
        device: `auto` is CUDA where there is one.
        evaluate_every: Steps between evaluations, each with a checkpoint.
        log_every: Steps between lines of `metrics.jsonl`.
        keep_checkpoints: Beside the best one, and at least the last.
    """

    steps: Positive | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    batch_size: Annotated[int, Field(ge=2)] = 64
    accumulate: Positive = 1
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    evaluate_every: Positive = 100
    log_every: Positive = 10
    keep_checkpoints: Positive = 1

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        return self


class _Config(_Table):
    """What all tasks share.

    Attributes:
        seed: Of everything random: order, dropout, new weights.
    """

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    encoder: Encoder
    attention_dropout: AttentionDropoutConfig = NoChange()
    optimizer: Optimizer = Optimizer()
    run: Schedule


class Contrastive(_Table):
    """The loss of `ContrastiveLoss`, or with `mini_batch_size` of its cached form.

    Attributes:
        hard_negative_weight: For sources with a third column.
        self_supervised_weight: For the scheme `hybrid`.
        mask_duplicates: Whether texts that say the same are kept from being negatives.
    """

    scheme: Literal["supervised", "self_supervised", "hybrid"] = "supervised"
    temperature: Annotated[float, Field(gt=0)] = 0.05
    hard_negative_weight: float = 1.0
    self_supervised_weight: Weight = 1.0
    mask_duplicates: bool = True
    mini_batch_size: Positive | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.scheme != "hybrid":
            only = f"only scheme hybrid has that, scheme is {self.scheme}"
            refuse_idle(self, ["self_supervised_weight"], only)
        return self


class ContrastiveConfig(_Config):
    """`task = "contrastive"`: texts that mean the same closer than those that do not."""

    task: Literal["contrastive"]
    pooling: LayerPoolingConfig = LayerPoolingConfig(mode="mean")
    data: TextData
    dev: Dev = Dev()
    test: FinalSets = FinalSets()
    contrastive: Contrastive = Contrastive()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        columns = {len(source.columns) for source in self.data.train}
        if self.contrastive.scheme == "self_supervised" and columns != {1}:
            raise ValueError(
                "contrastive.scheme self_supervised: takes sources of one column, "
                f"data.train has {_listed(columns)}"
            )
        if self.contrastive.scheme != "self_supervised" and min(columns) < 2:
            raise ValueError(
                f"contrastive.scheme {self.contrastive.scheme}: needs sources of two columns or "
                f"more (anchor, positive, hard negatives), data.train has {_listed(columns)}"
            )
        if max(columns) < 3:
            refuse_idle(
                self.contrastive,
                ["hard_negative_weight"],
                f"only a third column holds hard negatives, data.train has {_listed(columns)}",
                under="contrastive.",
            )
        if not self.contrastive.mask_duplicates:
            _refuse_clusters(self.data, "nothing reads them, contrastive.mask_duplicates is false")
        dropout = self.attention_dropout
        if isinstance(dropout, AttendOut) and self.contrastive.mini_batch_size is not None:
            raise ValueError(
                "contrastive.mini_batch_size: not with attention_dropout attendout, whose masks "
                "get their gradient from one pass over the batch; leave one of them out"
            )
        rewarded = isinstance(dropout, AttendOut) and dropout.objective == "policy"
        if rewarded and self.contrastive.scheme != "supervised":
            raise ValueError(
                f"attention_dropout.objective policy: not with scheme {self.contrastive.scheme}, "
                "whose held-out loss compares a text with itself, since evaluation has no dropout "
                "that would make two of it; take scheme supervised or objective adversarial"
            )
        return self


class Distil(_Table):
    """Learning from a teacher's embeddings.

    Attributes:
        teacher: A folder, a pinned model's name, or a model hub's id.
        vector_weight: Of 1 - cosine between the student's and the teacher's embedding of a text.
            A student of another dimension gets a linear map for it, which is not kept.
        similarity_weight: Of the divergence between the two distributions over the batch's other
            texts by similarity; copies of a text are not among its others.
        token_weight: Of the share of the variance of the teacher's token states that the
            student's miss. The teacher then reads each batch beside the student, and must have its
            tokenizer.
        token_layers: The teacher's layers, counted from 0, whose states are compared: one for each
            of the student's, or one alone for its last; None is the teacher's last. Only with
            `token_weight`.
        temperature: Of both distributions. Only with `similarity_weight`.
        together: The texts of a row stay in one batch, so that texts which are alike are compared;
            `run.batch_size` counts rows then. A teacher with the student's tokenizer reads beside
            it, as above: the same tokens, `encoder.max_tokens` at most, behind its own default
            prompt if it has one. Of any other the embeddings of all texts are computed first and
            kept, as they are without `together`.
    """

    teacher: str
    vector_weight: Weight = 1.0
    similarity_weight: Weight = 1.0
    token_weight: Weight = 0.0
    token_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = (
        None
    )
    temperature: Annotated[float, Field(gt=0)] = 0.05
    together: bool = False

    @model_validator(mode="after")
    def _has_a_term(self) -> Self:
        if not (self.vector_weight or self.similarity_weight or self.token_weight):
            raise ValueError("vector_weight, similarity_weight, token_weight: one must be above 0")
        if not self.token_weight:
            refuse_idle(self, ["token_layers"], "token_weight is 0; raise it, or compare no layers")
        if not self.similarity_weight:
            refuse_idle(self, ["temperature"], "only similarities have one, similarity_weight is 0")
        return self


class DistilConfig(_Config):
    """`task = "distil"`: embed as a teacher does. All columns of all sources are single texts."""

    task: Literal["distil"]
    pooling: LayerPoolingConfig = LayerPoolingConfig(mode="mean")
    data: TextData
    dev: Dev = Dev()
    test: FinalSets = FinalSets()
    distil: Distil

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        _refuse_clusters(self.data, "nothing reads them, only task contrastive has negatives")
        a_row = min(len(s.columns) for s in self.data.train) if self.distil.together else 1
        if self.distil.similarity_weight and (texts := self.run.batch_size * a_row) < 3:
            raise ValueError(
                f"run.batch_size: {self.run.batch_size} gives batches of {texts} texts, expected 3 "
                "or more, since distil.similarity_weight compares each with two others; raise the "
                "one, or set the other to 0"
            )
        return self


class ClassificationConfig(_Config):
    """`task = "classification"`: label a text or a pair, by the model's own classification head.

    Attributes:
        score: Which dev measure chooses the best checkpoint.
        training_loss: At each evaluation measure the loss on the rows trained on too, without
            dropout, as on the dev rows: what it is lower by is over-fitting.
    """

    task: Literal["classification"]
    data: LabelledData
    score: Literal["accuracy", "matthews", "f1"] = "accuracy"
    training_loss: bool = False


TrainConfig: TypeAlias = ContrastiveConfig | DistilConfig | ClassificationConfig
_TASKS: Mapping[str, type[TrainConfig]] = {
    "contrastive": ContrastiveConfig,
    "distil": DistilConfig,
    "classification": ClassificationConfig,
}


def read_train_config(path: Path, *, data_folder: Path | None = None) -> TrainConfig:
    """Read and check a training file.

    Args:
        path: A TOML file.
        data_folder: Takes the place of `data.folder`.

    Raises:
        TrainConfigError: If it cannot be read, or a key is unknown, missing or wrong.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise TrainConfigError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TrainConfigError(f"{path}: not a TOML file that can be read ({error})") from error
    if data_folder is not None and isinstance(given.get("data"), dict):
        given["data"]["folder"] = str(data_folder)
    return parse_train_config(given, origin=str(path))


def parse_train_config(given: Mapping[str, Any], *, origin: str) -> TrainConfig:
    """Check the settings of one run.

    Args:
        given: As TOML or JSON gives them.
        origin: Begins the message of an error.

    Raises:
        TrainConfigError: If a key is unknown, missing or wrong.
    """
    task = given.get("task")
    kind = _TASKS.get(task) if isinstance(task, str) else None
    if kind is None:
        found = "missing" if task is None else f"found {task!r}"
        raise TrainConfigError(f"{origin}: task: {found}; expected one of {', '.join(_TASKS)}")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise TrainConfigError(f"{origin}: {explain(kind, given, error)}") from error


def _refuse_clusters(data: TextData, reason: str) -> None:
    for number, source in enumerate(data.train):
        refuse_idle(source, ["clusters", "cluster_of"], reason, under=f"data.train.{number}.")


def _listed(counts: set[int]) -> str:
    return " and ".join(map(str, sorted(counts)))
