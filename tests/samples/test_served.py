"""The sample repository, served by the engine as it stands."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from tokenizers import Tokenizer

import workbench as wb
from workbench.clock import monotonic_ns
from workbench.engine import EngineOptions, InferenceEngine
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor
from workbench.repository.example_inputs import load_example_inputs
from workbench.samples import model_names

INPUTS = {
    "mlp_4096": [("input", "FP32", [4096])],
    "magika": [("bytes", "INT32", [2048])],
    "magika_small": [("bytes", "INT32", [512])],
    "router": [("bytes", "INT32", [2048])],
    "minilm": [("input_ids", "INT64", [-1]), ("attention_mask", "INT64", [-1])],
    "tokenizer": [("TEXT", "BYTES", [1])],
    "vector_search": [("embedding", "FP32", [384])],
    "semantic_search": [("TEXT", "BYTES", [1])],
}


@pytest.fixture(scope="module")
def engine(repository: Path) -> Iterator[InferenceEngine]:
    engine = InferenceEngine(EngineOptions(repositories=(repository,)), clock=monotonic_ns)
    engine.start()
    yield engine
    engine.stop()


def _infer(engine: InferenceEngine, model: str, request: dict[str, Any]) -> InferenceResponse:
    tensors = [Tensor.from_numpy(name, array) for name, array in request.items()]
    return engine.infer(InferenceRequest(model, tensors), timeout_s=30)


def _texts(*texts: bytes) -> dict[str, Any]:
    column = np.empty((len(texts), 1), dtype=np.object_)
    column[:, 0] = texts
    return {"TEXT": column}


@pytest.mark.parametrize("name", [name for name in model_names() if name != "generator"])
def test_every_model_loads_and_answers_its_examples(engine: InferenceEngine, repository: Path, name: str) -> None:
    assert engine.is_model_ready(name)
    for batch_size in {1, engine.model_config(name).max_batch_size}:
        (request,) = load_example_inputs(repository / name, INPUTS[name], batch_size=batch_size)
        response = _infer(engine, name, request)
        assert response.error is None
        for tensor in response.outputs:
            assert tensor.shape[0] == batch_size


def test_no_sample_is_warned_of(engine: InferenceEngine, repository: Path) -> None:
    assert [event.text for event in engine.events.after() if event.level in ("warning", "error")] == []


def test_tokenizer_answers_do_not_depend_on_company(engine: InferenceEngine, repository: Path) -> None:
    reference = Tokenizer.from_file(str(repository / "tokenizer" / "1" / "tokenizer.json"))
    reference.no_padding()
    reference.enable_truncation(max_length=256)
    requests = [_texts(b""), _texts(b"word " * 5000, b""), _texts(b"\xff\xfe no utf-8", b"a\x00b")]
    for rows in (1, 2, 5, 64):
        requests += load_example_inputs(
            repository / "tokenizer", INPUTS["tokenizer"], seed=rows, count=20, batch_size=rows, source="ranges"
        )
    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda request: _infer(engine, "tokenizer", request), requests))
    for request, response in zip(requests, responses, strict=True):
        ids = [reference.encode(text.decode("utf-8", "replace")).ids for text in request["TEXT"].ravel()]
        width = max(len(row) for row in ids)
        assert response.as_numpy("input_ids").tolist() == [row + [0] * (width - len(row)) for row in ids]
        mask = response.as_numpy("attention_mask").tolist()
        assert mask == [[1] * len(row) + [0] * (width - len(row)) for row in ids]
    assert responses[1].as_numpy("input_ids").shape == (2, 256)
    statistics = engine.statistics("tokenizer")["model_stats"][0]
    # Requests shared calls, or nothing was shown about company.
    assert int(statistics["execution_count"]) < int(statistics["inference_stats"]["success"]["count"])


def test_tokenizer_pads_to_a_few_lengths_where_it_is_told_to(repository: Path) -> None:
    with wb.Engine(repository, models=["tokenizer"]) as server:
        alone = server.infer("tokenizer", _texts(b"one two three"))
        server.configure("tokenizer", 'parameters["pad_to_multiple_of"].string_value="8"')
        padded = server.infer("tokenizer", _texts(b"one two three"))
        longer = server.infer("tokenizer", _texts(b"one two three four five six seven eight"))
    assert alone["input_ids"].shape == (1, 5)
    assert padded["input_ids"][0].tolist() == [*alone["input_ids"][0].tolist(), 0, 0, 0]
    assert padded["attention_mask"].tolist() == [[1] * 5 + [0] * 3]
    assert longer["input_ids"].shape == longer["attention_mask"].shape == (1, 16)


def test_tokenizer_and_minilm_together_know_what_texts_mean(engine: InferenceEngine) -> None:
    tokens = _infer(
        engine,
        "tokenizer",
        _texts(
            b"A man is eating food.", b"A man is eating a piece of bread.", b"A cheetah is running behind its prey."
        ),
    )
    names = ("input_ids", "attention_mask")
    embeddings = _infer(engine, "minilm", {name: tokens.as_numpy(name) for name in names}).as_numpy(
        "sentence_embedding"
    )
    assert embeddings[0] @ embeddings[1] == pytest.approx(0.755, abs=0.001)
    assert abs(embeddings[0] @ embeddings[2]) < 0.25


QUESTIONS = {
    "How do I reset my password?": "You can reset your password from the link on the sign-in page.",
    "My parcel arrived broken.": "The parcel leaves our warehouse on the day of your order.",
    "When do I get my money back?": "Refunds arrive in your bank account after three to five days.",
    "The musicians prepare for the concert.": "The orchestra tuned its instruments before the concert.",
    "How do I make requests share a batch?": "Batching lets several requests share one execution of the model.",
}


def _by_hand(repository: Path, texts: list[str]) -> tuple[Any, Any]:
    """The pipeline without an engine: tokenizer, ONNX Runtime, numpy; ids and scores of the ten nearest."""
    tokenizer = Tokenizer.from_file(str(repository / "tokenizer" / "1" / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(texts)
    session = onnxruntime.InferenceSession(str(repository / "minilm" / "1" / "model.onnx"))
    feeds = {"input_ids": [e.ids for e in encoded], "attention_mask": [e.attention_mask for e in encoded]}
    embeddings = session.run(None, {name: np.array(rows, np.int64) for name, rows in feeds.items()})[0]
    graph = onnx.load(str(repository / "vector_search" / "1" / "model.onnx")).graph
    columns = numpy_helper.to_array(next(each for each in graph.initializer if each.name == "vectors"))
    similarities = embeddings @ columns
    ids = np.argsort(-similarities, axis=1)[:, :10]
    return ids, np.take_along_axis(similarities, ids, axis=1)


def test_semantic_search_is_its_steps_done_by_hand(engine: InferenceEngine, repository: Path) -> None:
    questions = list(QUESTIONS)
    ids, scores = _by_hand(repository, questions)
    for texts, rows in ([questions, slice(None)], *([[text], slice(i, i + 1)] for i, text in enumerate(questions))):
        answer = _infer(engine, "semantic_search", _texts(*(text.encode() for text in texts)))
        np.testing.assert_allclose(answer.as_numpy("scores"), scores[rows], atol=1e-4)
        assert answer.as_numpy("ids")[:, 0].tolist() == ids[rows][:, 0].tolist()


def test_semantic_search_finds_the_sentence_that_a_person_would(engine: InferenceEngine, repository: Path) -> None:
    sentences = (repository / "vector_search" / "sentences.txt").read_text().splitlines()
    answer = _infer(engine, "semantic_search", _texts(*(text.encode() for text in QUESTIONS)))
    assert [sentences[best] for best in answer.as_numpy("ids")[:, 0]] == list(QUESTIONS.values())
    assert answer.as_numpy("scores")[:, 0].min() > 0.5
    nonsense = _infer(engine, "semantic_search", _texts(b"qx zzv 8#")).as_numpy("scores")
    assert nonsense.max() < 0.35
