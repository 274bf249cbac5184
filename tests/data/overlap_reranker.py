"""Make the graph that tests of rerankers run: python tests/data/overlap_reranker.py

The score of a pair is the number of ways to choose a token of the query and the same token in the
text, without special tokens, less a hundredth of the pair's length; so it can be counted by hand.
It needs `onnx`, which only the extra `training` has, hence the committed file.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

CLS, SEP = 101, 102
"""Of the bundled encoder's tokenizer, which the tests use."""


def overlap_graph() -> onnx.ModelProto:
    """Inputs input_ids, attention_mask, token_type_ids (B, T); output score (B,)."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in names
    ]
    output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"])
    constants = [
        helper.make_tensor("cls", TensorProto.INT64, [1], [CLS]),
        helper.make_tensor("sep", TensorProto.INT64, [1], [SEP]),
        helper.make_tensor("second", TensorProto.INT64, [1], [2]),
        helper.make_tensor("first", TensorProto.INT64, [1], [1]),
        helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("hundred", TensorProto.FLOAT, [1], [100.0]),
    ]
    node = helper.make_node
    nodes = [
        node("Equal", ["input_ids", "cls"], ["is_cls"]),
        node("Equal", ["input_ids", "sep"], ["is_sep"]),
        node("Or", ["is_cls", "is_sep"], ["is_special"]),
        node("Not", ["is_special"], ["is_word"]),
        node("Cast", ["attention_mask"], ["is_there"], to=TensorProto.BOOL),
        node("Cast", ["token_type_ids"], ["is_text"], to=TensorProto.BOOL),
        node("Not", ["is_text"], ["is_query"]),
        node("And", ["is_word", "is_there"], ["counts"]),
        node("And", ["counts", "is_query"], ["of_query"]),
        node("And", ["counts", "is_text"], ["of_text"]),
        node("Unsqueeze", ["input_ids", "second"], ["rows"]),
        node("Unsqueeze", ["input_ids", "first"], ["columns"]),
        node("Equal", ["rows", "columns"], ["same"]),
        node("Unsqueeze", ["of_query", "second"], ["query_rows"]),
        node("Unsqueeze", ["of_text", "first"], ["text_columns"]),
        node("And", ["query_rows", "text_columns"], ["across"]),
        node("And", ["same", "across"], ["met"]),
        node("Cast", ["met"], ["met_count"], to=TensorProto.FLOAT),
        node("ReduceSum", ["met_count", "axes"], ["overlap"], keepdims=0),
        node("Cast", ["attention_mask"], ["there"], to=TensorProto.FLOAT),
        node("ReduceSum", ["there", "axis"], ["tokens"], keepdims=0),
        node("Div", ["tokens", "hundred"], ["penalty"]),
        node("Sub", ["overlap", "penalty"], ["score"]),
    ]
    graph = helper.make_graph(nodes, "overlap", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    onnx.save(overlap_graph(), Path(__file__).with_suffix(".onnx"))
