"""Small TensorFlow models that the tests write into model directories. Imports TensorFlow when one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plain_config

from workbench.backends.tensorflow_session import import_tensorflow

TYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BYTES": "string",
}  # fmt: skip
"""The types of the v2 table that Triton's backend takes -> TensorFlow's names."""


def config(kind: str = "FP32", *, platform: str = "tensorflow_savedmodel", **options: Any) -> str:
    """A configuration of one input x and one output y; the options of ``plain_config.config``."""
    return plain_config.config(f'platform: "{platform}"', "STRING" if kind == "BYTES" else kind, **options)


Body = Callable[[Any, Any], Any]
"""From ``tensorflow.compat.v1`` and the placeholder x to y."""


def double(tf: Any, x: Any) -> Any:
    """y = 2 * x, by a variable: its value is in the files."""
    return x * tf.Variable(2.0, name="factor")


def same(tf: Any, x: Any) -> Any:
    """y = x, of any type; not the same tensor, which OpenVINO would give one name."""
    return tf.reshape(x, tf.shape(x))


def save(
    directory: Path,
    text: str,
    body: Body = double,
    *,
    kind: str = "FP32",
    dims: Sequence[int | None] | None = (None, 4),
    signatures: Sequence[str] = ("serving_default",),
    tag: str = "serve",
) -> Path:
    """A model directory with a SavedModel: x -> y, the same under each of the signatures."""
    tf = import_tensorflow()
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(text)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(TYPES[kind], dims, name="in_x")
        y = body(tf, x)
        session.run(tf.global_variables_initializer())
        builder = tf.saved_model.builder.SavedModelBuilder(str(directory / "1" / "model.savedmodel"))
        signature = tf.saved_model.signature_def_utils.predict_signature_def({"x": x}, {"y": y})
        builder.add_meta_graph_and_variables(session, [tag], dict.fromkeys(signatures, signature))
        builder.save()
    return directory


def save_graph(directory: Path, text: str, files: Mapping[str, str] | None = None) -> Path:
    """A model directory with a GraphDef: y = x + v, where the operation "init" sets the variable v to 3."""
    tf = import_tensorflow()
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(text)
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", (None, 4), name="x")
        variable = tf.Variable(3.0, name="v", use_resource=False)
        tf.add(x, variable, name="y")
        tf.group(variable.initializer, name="init")
        (directory / "1" / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
    for name, content in (files or {}).items():
        (directory / name).write_text(content)
    return directory
