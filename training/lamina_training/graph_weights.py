"""The weights of a BERT encoder, taken back out of an ONNX graph that torch exported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
from onnx import numpy_helper

from lamina_index.errors import DamagedError

_PREFIX = re.compile(r".*?auto_model\.")
"""What sentence-transformers puts before the names of the transformer inside."""

_PRODUCT = re.compile(r".*?auto_model/(.*)/MatMul")


def unpack_graph(graph: Path, folder: Path) -> None:
    """Write `model.safetensors` of a graph into a folder, and its number of layers into the config.

    Biases, norms and tables keep their names in a graph. The weights of matrix products lose them,
    and lie transposed; the product's own name tells whose they are.

    Args:
        graph: ONNX file of one encoder of sentence-transformers.
        folder: With a `config.json` of an encoder of the same shape, but for the layers.

    Raises:
        DamagedError: If the graph does not hold the weights of such an encoder.
    """
    import torch
    from safetensors.torch import save_file

    model = onnx.load(str(graph)).graph
    tensors = {each.name: numpy_helper.to_array(each) for each in model.initializer}
    named = {
        _PREFIX.sub("", name, count=1): value
        for name, value in tensors.items()
        if _PREFIX.match(name)
    }
    for node in model.node:
        product = _PRODUCT.match(node.name)
        if product and node.op_type == "MatMul" and node.input[1] in tensors:
            named[product[1].replace("/", ".") + ".weight"] = tensors[node.input[1]].T
    layers = {int(name.split(".")[2]) for name in named if name.startswith("encoder.layer.")}
    if layers != set(range(len(layers))) or not layers:
        raise DamagedError(f"{graph}: expected layers 0, 1, ... of a BERT, found {sorted(layers)}")
    weights = {name: torch.from_numpy(value.copy()) for name, value in sorted(named.items())}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"num_hidden_layers": len(layers)}
    path.write_text(json.dumps(config, indent=2) + "\n")
