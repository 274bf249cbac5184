"""Index a corpus with txtai, content stored, its own choice of index; runs in txtai's environment.

python txtai_index.py WEIGHTS CORPUS.tsv OUTPUT
"""

import csv
import sys

from txtai import Embeddings

weights, corpus, output = sys.argv[1:]
with open(corpus, encoding="utf-8", newline="") as file:
    documents = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
embeddings = Embeddings(path=weights, content=True, gpu=False)
embeddings.index((document["qid"], document["text"]) for document in documents)
embeddings.save(output)
