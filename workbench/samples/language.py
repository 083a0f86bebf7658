"""The language model of the sample ``generator``: SmolLM2 out of its GGUF file into an ONNX graph and a tokenizer.

A Llama: rotary positions, grouped-query attention, a gated MLP, the embedding used for the output again. ONNX Runtime's
own operators (``MatMulNBits``, ``GroupQueryAttention``) keep the weights small and the graph short; every ONNX Runtime
since 1.22 has them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from onnx import TensorProto, helper

from workbench.samples.graphs import _Graph

CONTEXT = 2048
"""Tokens of prompt and answer together; the network was made for 8192."""

BLOCK = 32
"""So many weights share a scale, in the file and in the graph."""

_MICROSOFT = "com.microsoft"
_INT8 = 4
"""``MatMulNBits``' accuracy level: activations have 8 bits, too. In fp32 a token takes twenty times as long."""


class Weights:
    """A GGUF file of a Llama: its settings, its weights in fp32 and its vocabulary.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.layers = int(self.field("llama.block_count"))
        self.heads = int(self.field("llama.attention.head_count"))
        self.groups = int(self.field("llama.attention.head_count_kv"))
        self.hidden = int(self.field("llama.embedding_length"))
        self.head = self.hidden // self.heads
        self.epsilon = float(self.field("llama.attention.layer_norm_rms_epsilon"))
        self.base = float(self.field("llama.rope.freq_base"))

    def field(self, name: str) -> Any:
        """A value of the file's head."""
        return self._reader.fields[name].contents()

    def weight(self, name: str) -> NDArray[np.float32]:
        """A tensor, [out, in] or [n]."""
        tensor = self._tensors[f"{name}.weight"]
        weight: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        return weight


def decoder(weights: Weights) -> onnx.ModelProto:
    """One step of the network, for one text.

    input_ids int64 [1, n], total int32 [] (tokens so far, these among them) and for each layer I past_key.I,
    past_value.I fp32 [1, groups, total - n, head] -> logits fp32 [1, vocabulary] of the last token, and present_key.I,
    present_value.I [1, groups, total, head].

    Weights are in 8 bits with a scale for 32 of them, which is what the embedding has in the file; the others have 4
    bits with an offset there, and are within half a step of 8 bits of that.
    """
    graph = _Graph("smollm2")
    add, constant = graph.add, graph.constant
    embedding = _Quantised(graph, "embedding", weights.weight("token_embd"))
    x = embedding.rows("input_ids", weights.hidden)
    add("Sub", ["total", constant("one", 1, np.int32)], "total/before")
    add("Unsqueeze", ["total/before", graph.axes(0)], "lengths")
    angles = np.outer(np.arange(CONTEXT), weights.base ** (-np.arange(0, weights.head, 2) / weights.head))
    constant("cosines", np.cos(angles))
    constant("sines", np.sin(angles))
    for layer in range(weights.layers):
        x = _layer(graph, weights, x, layer)
    x = _rms(graph, weights, x, "output_norm")
    last = add("Gather", [x, constant("last", -1, np.int64)], "last_token", axis=1)
    embedding.multiply(last, "logits")
    kind, cache = TensorProto.FLOAT, range(weights.layers)
    past: list[str | int | None] = ["batch", weights.groups, "past", weights.head]
    present = [*past[:2], "so_far", weights.head]
    names = [f"{part}.{layer}" for layer in cache for part in ("key", "value")]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
        helper.make_tensor_value_info("total", TensorProto.INT32, []),
        *(helper.make_tensor_value_info(f"past_{name}", kind, past) for name in names),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", kind, ["batch", len(weights.field("tokenizer.ggml.tokens"))]),
        *(helper.make_tensor_value_info(f"present_{name}", kind, present) for name in names),
    ]
    return graph.model(inputs, outputs, "SmolLM2-135M-Instruct, one step", domains=(_MICROSOFT,))


def _layer(graph: _Graph, weights: Weights, x: str, layer: int) -> str:
    add, here = graph.add, f"layer{layer}"
    block = f"blk.{layer}."
    normed = _rms(graph, weights, x, f"{block}attn_norm")
    packed = np.concatenate([weights.weight(f"{block}attn_{part}") for part in "qkv"])
    query = _Quantised(graph, f"{here}/qkv", packed).multiply(normed, f"{here}/qkv")
    graph.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [query, "", "", f"past_key.{layer}", f"past_value.{layer}", "lengths", "total", "cosines", "sines"],
            [f"{here}/heads", f"present_key.{layer}", f"present_value.{layer}"],
            name=f"{here}/heads",
            domain=_MICROSOFT,
            num_heads=weights.heads,
            kv_num_heads=weights.groups,
            do_rotary=1,
            rotary_interleaved=1,  # GGUF keeps the two halves of a pair side by side
        )
    )
    attended = _Quantised(graph, f"{here}/out", weights.weight(f"{block}attn_output"))
    x = add("Add", [x, attended.multiply(f"{here}/heads", f"{here}/out")], f"{here}/attended")
    normed = _rms(graph, weights, x, f"{block}ffn_norm")
    gate = _Quantised(graph, f"{here}/gate", weights.weight(f"{block}ffn_gate")).multiply(normed, f"{here}/gate")
    up = _Quantised(graph, f"{here}/up", weights.weight(f"{block}ffn_up")).multiply(normed, f"{here}/up")
    silu = add("Mul", [gate, add("Sigmoid", [gate], f"{here}/sigmoid")], f"{here}/silu")
    wide = add("Mul", [silu, up], f"{here}/wide")
    down = _Quantised(graph, f"{here}/down", weights.weight(f"{block}ffn_down")).multiply(wide, f"{here}/down")
    return add("Add", [x, down], f"{here}/output")


def _rms(graph: _Graph, weights: Weights, x: str, name: str) -> str:
    """Root-mean-square norm, in the form that ONNX Runtime fuses."""
    add, constant = graph.add, graph.constant
    square = add("Pow", [x, constant("two", 2.0)], f"{name}/square")
    mean = add("ReduceMean", [square], f"{name}/mean", axes=[-1], keepdims=1)
    root = add("Sqrt", [add("Add", [mean, constant("epsilon", weights.epsilon)], f"{name}/safe")], f"{name}/root")
    return add("Mul", [add("Div", [x, root], f"{name}/unit"), constant(name, weights.weight(name))], f"{name}/out")


class _Quantised:
    """A matrix [out, in] in 8 bits, block by block, in the form that ``MatMulNBits`` reads."""

    def __init__(self, graph: _Graph, name: str, weight: NDArray[np.float32]) -> None:
        self._graph, self._name = graph, name
        self._out, self._in = weight.shape
        blocks = weight.reshape(self._out, -1, BLOCK)
        scales = np.abs(blocks).max(axis=2) / 127
        steps = np.rint(blocks / np.maximum(scales, np.finfo(np.float32).tiny)[..., None])
        self._values = graph.constant(f"{name}/weight", steps + 128, np.uint8)
        self._scales = graph.constant(f"{name}/scales", scales)

    def multiply(self, x: str, output: str) -> str:
        """``x`` times the matrix transposed."""
        return self._graph.add(
            "MatMulNBits", [x, self._values, self._scales], output,
            domain=_MICROSOFT, K=self._in, N=self._out, bits=8, block_size=BLOCK, accuracy_level=_INT8,
        )  # fmt: skip

    def rows(self, index: str, width: int) -> str:
        """Rows of the matrix by index, in fp32."""
        add, constant, name = self._graph.add, self._graph.constant, self._name
        taken = add("Cast", [add("Gather", [self._values, index], f"{name}/taken")], f"{name}/steps", to=1)
        signed = add("Sub", [taken, constant("offset", 128.0)], f"{name}/signed")
        scales = add("Gather", [self._scales, index], f"{name}/taken_scales")
        scales = add("Unsqueeze", [scales, self._graph.axes(-1)], f"{name}/each_scale")
        scaled = add("Mul", [signed, scales], f"{name}/scaled")
        return add("Reshape", [scaled, constant("rows", [0, 0, width], np.int64)], f"{name}/rows")


def tokenizer_json(weights: Weights) -> bytes:
    """The vocabulary as the file of the package ``tokenizers``.

    Control tokens are recognised in a text: a prompt template may contain them, so a user's text may, too.
    """
    tokens: list[str] = list(weights.field("tokenizer.ggml.tokens"))
    control = [index for index, kind in enumerate(weights.field("tokenizer.ggml.token_type")) if kind == 3]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": tokens[index], **special} for index in control],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytewise],
        },
        "post_processor": None,
        "decoder": bytewise,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in weights.field("tokenizer.ggml.merges")],
        },
    }
    return json.dumps(whole, ensure_ascii=False).encode()
