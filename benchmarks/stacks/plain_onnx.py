"""The same service on an ONNX file: FastAPI, ONNX Runtime and tokenizers, a flat index.

PLAIN_ONNX=encoder folder PLAIN_INDEX=folder uvicorn plain_onnx:app
"""

import json
import os
from pathlib import Path

import faiss
import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel
from tokenizers import Tokenizer

folder = Path(os.environ["PLAIN_INDEX"])
index = faiss.read_index(str(folder / "vectors.faiss"))
documents = json.loads((folder / "documents.json").read_text(encoding="utf-8"))
encoder = Path(os.environ["PLAIN_ONNX"])
tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
tokenizer.enable_truncation(256)
session = onnxruntime.InferenceSession(encoder / "onnx" / "model_int8.onnx")
app = FastAPI()


class SearchRequest(BaseModel):
    query: str
    top_k: int = 10


@app.post("/search")
def search(request: SearchRequest) -> dict:
    encoding = tokenizer.encode(request.query)
    feeds = {
        "input_ids": np.array([encoding.ids], dtype=np.int64),
        "attention_mask": np.array([encoding.attention_mask], dtype=np.int64),
    }
    embedding = session.run(["sentence_embedding"], feeds)[0]
    scores, rows = index.search(embedding, request.top_k)
    return {
        "hits": [
            {"id": documents[row]["qid"], "score": float(score), "text": documents[row]["text"]}
            for score, row in zip(scores[0], rows[0], strict=True)
        ]
    }
