"""Embed a corpus with sentence-transformers and put it into FAISS, as most people write it.

python plain_index.py WEIGHTS CORPUS.tsv OUTPUT
"""

import csv
import json
import sys
from pathlib import Path

import faiss
from sentence_transformers import SentenceTransformer

weights, corpus, output = sys.argv[1:]
with open(corpus, encoding="utf-8", newline="") as file:
    documents = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))

model = SentenceTransformer(weights, device="cpu")
embeddings = model.encode([document["text"] for document in documents], normalize_embeddings=True)

index = faiss.IndexFlatIP(embeddings.shape[1])
index.add(embeddings)

folder = Path(output)
folder.mkdir(parents=True, exist_ok=True)
faiss.write_index(index, str(folder / "vectors.faiss"))
(folder / "documents.json").write_text(json.dumps(documents), encoding="utf-8")
