"""The search service that most people write first: FastAPI, sentence-transformers, a flat index.

PLAIN_WEIGHTS=folder PLAIN_INDEX=folder uvicorn plain:app
"""

import json
import os
from pathlib import Path

import faiss
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

folder = Path(os.environ["PLAIN_INDEX"])
index = faiss.read_index(str(folder / "vectors.faiss"))
documents = json.loads((folder / "documents.json").read_text(encoding="utf-8"))
model = SentenceTransformer(os.environ["PLAIN_WEIGHTS"], device="cpu")
app = FastAPI()


class SearchRequest(BaseModel):
    query: str
    top_k: int = 10


@app.post("/search")
def search(request: SearchRequest) -> dict:
    embedding = model.encode([request.query], normalize_embeddings=True)
    scores, rows = index.search(embedding, request.top_k)
    return {
        "hits": [
            {"id": documents[row]["qid"], "score": float(score), "text": documents[row]["text"]}
            for score, row in zip(scores[0], rows[0], strict=True)
        ]
    }
