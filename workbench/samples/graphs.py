"""The ONNX graphs of the samples, put together node by node; no framework is needed.

Opset 17 and IR version 8 on purpose: every ONNX Runtime that Triton shipped since 23.01 reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17
_IR_VERSION = 8

MLP_WIDTH = 4096
"""Width of every layer of ``mlp_4096``; one layer's weights are 67 MB, more than a core's caches hold."""

MLP_LAYERS = 2
MLP_SEED = 4096

INDEX_SIZE = 100_000
"""Vectors of ``vector_search``; of 384 floats each they are 154 MB, which every call reads from memory."""

INDEX_SEED = 384
INDEX_TOP = 10

SMALL_LENGTH = 512
"""Bytes that ``magika_small`` sees, of the 2048 that ``magika`` does."""

_GELU_ROOT = float(np.sqrt(2 / np.pi))
_GELU_CUBIC = 0.044715
_HEADS = 12
_LAYERS = 6
_LAYER_NORM_EPSILON = 1e-12


class _Graph:
    """Collects nodes and constants; every node is named after its output, which profiles then show."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        if name not in self.constants:
            array = np.ascontiguousarray(np.asarray(value, dtype=dtype)).reshape(np.shape(value))
            self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def axes(self, *axes: int) -> str:
        return self.constant("axes_" + "_".join(str(axis) for axis in axes), axes, np.int64)

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def dense(self, x: str, weight: NDArray[Any], bias: NDArray[Any], output: str) -> str:
        """``x @ weight + bias``; ``weight`` is [in, out]."""
        product = self.add("MatMul", [x, self.constant(f"{output}/weight", weight)], f"{output}/matmul")
        return self.add("Add", [product, self.constant(f"{output}/bias", bias)], output)

    def model(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        doc: str,
        late: Sequence[onnx.TensorProto] = (),
        domains: Sequence[str] = (),
    ) -> onnx.ModelProto:
        """The model, checked. ``late`` are constants that are checked by their type and shape alone: the checker
        copies a large one several times, which takes seconds. ``domains`` are those of operators that are ONNX
        Runtime's own, whose shapes the checker does not know."""
        stand_ins = [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in late]
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [*inputs, *stand_ins],
            list(outputs),
            initializer=list(self.constants.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)],
            ir_version=_IR_VERSION,
            producer_name="serving-workbench",
            doc_string=doc,
        )
        onnx.checker.check_model(model, full_check=not domains)
        del model.graph.input[len(inputs) :]
        model.graph.initializer.extend(late)
        return model


def mlp(width: int = MLP_WIDTH, layers: int = MLP_LAYERS, seed: int = MLP_SEED) -> onnx.ModelProto:
    """A perceptron of ``layers`` square layers with seeded weights: input fp32 [b, width] -> output fp32 [b, width].

    Weights are He-initialised, so activations keep their scale. One row reads all weights from memory and so do 16
    rows: the time of a call grows slowly with the batch, as on a GPU.
    """
    rng = np.random.default_rng(seed)
    graph = _Graph(f"mlp_{width}")
    x = "input"
    for layer in range(layers):
        weight = rng.standard_normal((width, width), dtype=np.float32) * np.float32(np.sqrt(2.0 / width))
        bias = rng.standard_normal(width, dtype=np.float32) * np.float32(0.01)
        last = layer == layers - 1
        names = [x, graph.constant(f"layer{layer}/weight", weight), graph.constant(f"layer{layer}/bias", bias)]
        x = graph.add("Gemm", names, "output" if last else f"layer{layer}/gemm")
        if not last:
            x = graph.add("Relu", [x], f"layer{layer}")
    return graph.model(
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", width])],
        f"{layers} x {width}^2 perceptron, weights from seed {seed}",
    )


def minilm(weights: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The sentence embedding all-MiniLM-L6-v2 from its BERT weights.

    input_ids, attention_mask int64 [b, s] -> sentence_embedding fp32 [b, 384], mean over the unmasked tokens, of unit
    length. Batch and sequence (up to 512) are dynamic. Padding does not change the embedding beyond rounding.
    """
    graph = _Graph("all-MiniLM-L6-v2")
    add, constant = graph.add, graph.constant
    hidden = weights["embeddings.word_embeddings.weight"].shape[1]
    mask = add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
    x = _embeddings(graph, weights)
    # Masked keys get the lowest float, so their softmax weight is exactly 0.
    inverted = add("Sub", [constant("one", 1.0), add("Unsqueeze", [mask, graph.axes(1, 2)], "mask/keys")], "mask/off")
    bias = add("Mul", [inverted, constant("lowest", np.finfo(np.float32).min)], "mask/bias")
    for layer in range(_LAYERS):
        x = _transformer_layer(graph, weights, x, bias, layer)
    # Mean over the tokens that are not padding, then unit length (modules 1_Pooling and 2_Normalize).
    weighted = add("Mul", [x, add("Unsqueeze", [mask, graph.axes(2)], "pool/mask")], "pool/weighted")
    total = add("ReduceSum", [weighted, graph.axes(1)], "pool/sum", keepdims=0)
    tokens = add("ReduceSum", [mask, graph.axes(1)], "pool/tokens", keepdims=1)
    mean = add("Div", [total, add("Max", [tokens, constant("tiny_count", 1e-9)], "pool/count")], "pool/mean")
    norm = add("ReduceL2", [mean], "norm/length", axes=[1], keepdims=1)
    add("Div", [mean, add("Max", [norm, constant("tiny_norm", 1e-12)], "norm/safe")], "sentence_embedding")
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", hidden])
    return graph.model(ids, [output], "all-MiniLM-L6-v2: BERT, mean pooling, unit length")


def late_interaction(weights: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """How well documents answer queries, by MaxSim over the token embeddings of all-MiniLM-L6-v2.

    query_ids, query_mask int64 [b, q], document_ids, document_mask int64 [b, d] -> score fp32 [b, 1]: for each of the
    query's tokens its greatest cosine similarity with a token of the document, and the mean of these over the query's
    tokens. A mask of 0 is padding and changes no score beyond rounding. q and d are dynamic, each up to 512. A query or
    a document without tokens has the score 0.

    Source of MaxSim: Khattab and Zaharia, ColBERT (2020), which sums where this takes the mean. Query and document go
    through the network side by side, neither sees the other: it is one pass, and the weights are in the file once.
    """
    graph = _Graph("all-MiniLM-L6-v2-maxsim")
    add, constant = graph.add, graph.constant
    parts = ("query", "document")
    x = _embeddings(graph, weights, [f"{part}_ids" for part in parts])
    masks = [add("Cast", [f"{part}_mask"], f"{part}/mask", to=TensorProto.FLOAT) for part in parts]
    keys = add("Unsqueeze", [add("Concat", masks, "mask", axis=1), graph.axes(1, 2)], "mask/keys")
    lengths = [add("Shape", [f"{part}_ids"], f"{part}/length", start=1, end=2) for part in parts]
    sides = [
        add("ConstantOfShape", [length], f"{part}/side", value=numpy_helper.from_array(np.array([side], np.float32)))
        for side, (part, length) in enumerate(zip(parts, lengths, strict=True))
    ]
    side = add("Concat", sides, "side", axis=0)
    across = [add("Unsqueeze", [side, graph.axes(axis)], f"side/{axis}") for axis in (0, 1)]
    same = add("Cast", [add("Equal", across, "side/equal")], "side/same", to=TensorProto.FLOAT)
    inverted = add("Sub", [constant("one", 1.0), add("Mul", [same, keys], "mask/seen")], "mask/off")
    bias = add("Mul", [inverted, constant("lowest", np.finfo(np.float32).min)], "mask/bias")
    for layer in range(_LAYERS):
        x = _transformer_layer(graph, weights, x, bias, layer)
    length = add("ReduceL2", [x], "norm/length", axes=[2], keepdims=1)
    unit = add("Div", [x, add("Max", [length, constant("tiny_norm", 1e-12)], "norm/safe")], "tokens")
    graph.nodes.append(
        helper.make_node(
            "Split", [unit, add("Concat", lengths, "lengths", axis=0)], ["query/tokens", "document/tokens"], axis=1
        )
    )
    columns = add("Transpose", ["document/tokens"], "document/columns", perm=[0, 2, 1])
    similarity = add("MatMul", ["query/tokens", columns], "similarity")
    # A cosine is at least -1: padding of the document is never the nearest, unless there is nothing else.
    padding = add("Sub", [masks[1], constant("one", 1.0)], "document/padding")
    far = add("Mul", [padding, constant("farther", 4.0)], "document/far")
    apart = add("Add", [similarity, add("Unsqueeze", [far, graph.axes(1)], "document/apart")], "similarity/masked")
    nearest = add("ReduceMax", [apart], "nearest", axes=[2], keepdims=0)
    total = add("ReduceSum", [add("Mul", [nearest, masks[0]], "nearest/masked"), graph.axes(1)], "total", keepdims=1)
    tokens = add("ReduceSum", [masks[0], graph.axes(1)], "query/count", keepdims=1)
    mean = add("Div", [total, add("Max", [tokens, constant("one", 1.0)], "query/safe")], "mean")
    some = add("Sign", [add("ReduceSum", [masks[1], graph.axes(1)], "document/count", keepdims=1)], "document/some")
    add("Mul", [mean, some], "score")
    inputs = [
        helper.make_tensor_value_info(f"{part}_{what}", TensorProto.INT64, ["batch", f"{part}_tokens"])
        for part in parts
        for what in ("ids", "mask")
    ]
    output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", 1])
    return graph.model(inputs, [output], "all-MiniLM-L6-v2: BERT, late interaction (MaxSim)")


def index_vectors(known: NDArray[Any], size: int = INDEX_SIZE, seed: int = INDEX_SEED) -> NDArray[Any]:
    """Vectors to search in, fp32 [width, size], one a column: the rows of ``known`` first, the rest from a seed.

    All are of unit length. Vectors from a seed are far from each other and from anything that means something: with 384
    dimensions the best of 100,000 has a cosine similarity of about 0.22 with a text.
    """
    width = known.shape[1]
    columns = np.random.default_rng(seed).standard_normal((width, size), dtype=np.float32)
    columns /= np.sqrt(np.einsum("ij,ij->j", columns, columns))
    columns[:, : len(known)] = known.T
    return columns


def vector_search(columns: NDArray[Any], top: int = INDEX_TOP) -> onnx.ModelProto:
    """The nearest of the columns: embedding fp32 [b, width] -> ids int64 [b, top], scores fp32 [b, top], best first.

    Scores are dot products. The vectors lie as columns, as MatMul reads them fastest.
    """
    width, size = columns.shape
    graph = _Graph("vector_search")
    vectors = numpy_helper.from_array(columns, "vectors")
    scores = graph.add("MatMul", ["embedding", vectors.name], "similarities")
    graph.nodes.append(
        helper.make_node("TopK", [scores, graph.constant("top", [top], np.int64)], ["scores", "ids"], name="nearest")
    )
    return graph.model(
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", width])],
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", top]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", top]),
        ],
        f"the {top} nearest of {size} vectors",
        late=[vectors],
    )


def _layer_norm(graph: _Graph, weights: Mapping[str, NDArray[Any]], x: str, key: str, output: str) -> str:
    scale = graph.constant(f"{output}/scale", weights[f"{key}.weight"])
    shift = graph.constant(f"{output}/shift", weights[f"{key}.bias"])
    return graph.add("LayerNormalization", [x, scale, shift], output, axis=-1, epsilon=_LAYER_NORM_EPSILON)


def _embeddings(graph: _Graph, weights: Mapping[str, NDArray[Any]], parts: Sequence[str] = ("input_ids",)) -> str:
    """Tokens and their positions; several parts come one after the other, and each begins at position 0."""
    add, constant = graph.add, graph.constant

    def joined(names: Sequence[str], axis: int, output: str) -> str:
        return names[0] if len(names) == 1 else add("Concat", names, output, axis=axis)

    ids = joined(parts, 1, "ids")
    words = add("Gather", [constant("words", weights["embeddings.word_embeddings.weight"]), ids], "embed/words")
    # All tokens are of type 0: its row is added to the positions here rather than at every call.
    table = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    places = []
    for part in parts:
        of = f"embed/{part}/" if len(parts) > 1 else "embed/"
        shape = add("Shape", [part], f"{of}shape", start=1, end=2)
        zero = constant("zero", [0], np.int64)
        places.append(add("Slice", [constant("positions", table), zero, shape, zero], f"{of}positions"))
    positions = joined(places, 0, "embed/positions")
    return _layer_norm(graph, weights, add("Add", [words, positions], "embed/sum"), "embeddings.LayerNorm", "embed")


def _transformer_layer(graph: _Graph, weights: Mapping[str, NDArray[Any]], x: str, bias: str, layer: int) -> str:
    source, name = f"encoder.layer.{layer}.", f"layer{layer}"
    attended = _attention(graph, weights, x, bias, layer)
    x = _layer_norm(
        graph,
        weights,
        graph.add("Add", [attended, x], f"{name}/attention/residual"),
        f"{source}attention.output.LayerNorm",
        f"{name}/attention/norm",
    )
    wide = _dense(graph, weights, x, f"{source}intermediate.dense", f"{name}/wide")
    narrow = _dense(graph, weights, _gelu(graph, wide), f"{source}output.dense", f"{name}/narrow")
    residual = graph.add("Add", [narrow, x], f"{name}/residual")
    return _layer_norm(graph, weights, residual, f"{source}output.LayerNorm", name)


def magika_small(original: bytes, length: int = SMALL_LENGTH) -> onnx.ModelProto:
    """Magika's network on the two ends of its input: bytes int32 [b, length] -> target_label fp32 [b, labels].

    The weights are those of the whole network. Of the scales and biases that belong to a position those of the first
    and the last positions are taken, and a position is four bytes. The mean and variance of a channel, which the
    network takes over all positions, are taken over the fewer ones; this is what makes its answers differ.

    Args:
        original: the file model.onnx of standard_v3_3.
        length: how many bytes: half of them from the beginning, half from the end.
    """
    weights = {each.name: each for each in onnx.load_model_from_string(original).graph.initializer}

    def weight(suffix: str) -> NDArray[Any]:
        (found,) = (each for name, each in weights.items() if name.endswith(suffix))
        return numpy_helper.to_array(found)

    graph = _Graph(f"magika_{length}")
    add, constant = graph.add, graph.constant
    positions, half = length // 4, length // 8
    scale, bias = (weight(f"LayerNorm_0/Reshape_{part}:0") for part in (2, 3))
    ends = np.r_[:half, scale.shape[1] - half : scale.shape[1]]
    # A byte is one of 257 values: its embedding and the gelu behind it are looked up.
    table = _gelu_tanh(weight("get_logits_/Const:0") + weight("Dense_0/Reshape:0").reshape(1, -1))
    x = add("Gather", [constant("table", table), "bytes"], "embedded")
    x = add("Reshape", [x, constant("by_four", [0, positions, 4 * table.shape[1]], np.int64)], "positions")
    x = _normalised(graph, x, scale[:, ends], bias[:, ends], "norm0")
    x = add("Transpose", [x], "channels", perm=[0, 2, 1])
    kernel, shift = weight("Conv_0/transpose_3:0")[..., 0], weight("const_fold_opt__209").reshape(-1)
    x = add("Conv", [x, constant("conv/weight", kernel), constant("conv/bias", shift)], "conv")
    cube = add("Mul", [add("Mul", [x, x], "conv/square"), x], "conv/cube")
    inner = add("Add", [x, add("Mul", [cube, constant("cubic", _GELU_CUBIC)], "conv/cubic")], "conv/sum")
    tanh = add("Tanh", [add("Mul", [inner, constant("root", _GELU_ROOT)], "conv/inner")], "conv/tanh")
    gate = add("Mul", [add("Add", [tanh, constant("one", 1.0)], "conv/plus"), constant("half", 0.5)], "conv/gate")
    x = add("ReduceMax", [add("Mul", [x, gate], "conv/gelu")], "pooled", axes=[2], keepdims=0)
    x = _normalised(graph, x, weight("LayerNorm_1/Reshape_2:0"), weight("LayerNorm_1/Reshape_3:0"), "norm1")
    x = graph.dense(x, weight("get_logits_/Const_24:0"), weight("Dense_1/Reshape:0").reshape(-1), "logits")
    add("Softmax", [x], "target_label", axis=-1)
    labels = weight("get_logits_/Const_24:0").shape[1]
    return graph.model(
        [helper.make_tensor_value_info("bytes", TensorProto.INT32, ["batch", length])],
        [helper.make_tensor_value_info("target_label", TensorProto.FLOAT, ["batch", labels])],
        f"Magika standard_v3_3 on {length} bytes",
    )


def _gelu_tanh(x: NDArray[Any]) -> NDArray[Any]:
    wide = x.astype(np.float64)
    result: NDArray[Any] = (0.5 * wide * (1 + np.tanh(_GELU_ROOT * (wide + _GELU_CUBIC * wide**3)))).astype(np.float32)
    return result


def _normalised(graph: _Graph, x: str, scale: NDArray[Any], bias: NDArray[Any], name: str) -> str:
    """Layer norm over axis 1, whose scales and biases are by position there."""
    add, constant = graph.add, graph.constant
    centred = add("Sub", [x, add("ReduceMean", [x], f"{name}/mean", axes=[1], keepdims=1)], f"{name}/centred")
    square = add("Mul", [centred, centred], f"{name}/square")
    variance = add("ReduceMean", [square], f"{name}/variance", axes=[1], keepdims=1)
    deviation = add("Sqrt", [add("Add", [variance, constant("epsilon", 1e-6)], f"{name}/safe")], f"{name}/deviation")
    unit = add("Div", [centred, deviation], f"{name}/unit")
    scaled = add("Mul", [unit, constant(f"{name}/scale", scale)], f"{name}/scaled")
    return add("Add", [scaled, constant(f"{name}/bias", bias)], name)


def _dense(graph: _Graph, weights: Mapping[str, NDArray[Any]], x: str, key: str, output: str, scale: float = 1) -> str:
    factor = np.float32(scale)
    return graph.dense(x, weights[f"{key}.weight"].T * factor, weights[f"{key}.bias"] * factor, output)


def _attention(graph: _Graph, weights: Mapping[str, NDArray[Any]], x: str, bias: str, layer: int) -> str:
    add, source, name = graph.add, f"encoder.layer.{layer}.attention.", f"layer{layer}/attention"
    hidden = weights[f"{source}self.query.weight"].shape[0]
    width = hidden // _HEADS
    split = graph.constant("heads", [0, 0, _HEADS, width], np.int64)
    parts = {}
    # Queries are scaled by 1/sqrt(width) in their weights; keys are transposed for the product.
    for part, order, scale in (
        ("query", (0, 2, 1, 3), width**-0.5),
        ("key", (0, 2, 3, 1), 1),
        ("value", (0, 2, 1, 3), 1),
    ):
        projected = _dense(graph, weights, x, f"{source}self.{part}", f"{name}/{part}", scale)
        heads = add("Reshape", [projected, split], f"{name}/{part}/split")
        parts[part] = add("Transpose", [heads], f"{name}/{part}/heads", perm=list(order))
    scores = add("MatMul", [parts["query"], parts["key"]], f"{name}/scores")
    probabilities = add("Softmax", [add("Add", [scores, bias], f"{name}/masked")], f"{name}/softmax", axis=-1)
    context = add("MatMul", [probabilities, parts["value"]], f"{name}/context")
    context = add("Transpose", [context], f"{name}/context/heads", perm=[0, 2, 1, 3])
    merge = graph.constant("merged", [0, 0, hidden], np.int64)
    return _dense(
        graph,
        weights,
        add("Reshape", [context, merge], f"{name}/context/merged"),
        f"{source}output.dense",
        f"{name}/out",
    )


def _gelu(graph: _Graph, x: str) -> str:
    """The exact (erf) gelu in the form that ONNX Runtime fuses with the bias before it."""
    add, constant = graph.add, graph.constant
    erf = add("Erf", [add("Div", [x, constant("sqrt2", np.sqrt(2.0))], f"{x}/scaled")], f"{x}/erf")
    product = add("Mul", [x, add("Add", [erf, constant("one", 1.0)], f"{x}/gate")], f"{x}/gated")
    return add("Mul", [product, constant("half", 0.5)], f"{x}/gelu")
