"""What is tuned here holds there: the exported tokenizer in the real Triton, which then is tuned from here."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.config import from_json, to_json
from workbench.errors import Unsupported, WorkbenchError
from workbench.export import ExportResult
from workbench.profiling import SweepResult
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.server import Server

pytestmark = [pytest.mark.oracle, pytest.mark.full, pytest.mark.timeout(300)]

DELAY = "dynamic_batching.max_queue_delay_microseconds"
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz ABC 0123456789 .,;:!?'\"()-",
    "äöüßéèêñçøåœ ÀÉÎÕÜ ",
    "абвгдеёжз ελληνικά ",
    "漢字かなカナ한국어中文，。 ",
    "مرحبا שלום हिन्दी ไทย ",
    "🙂🚀👩‍👩‍👧‍👦🇩🇪 ",
    "\u0301\u0308\u200b\u00a0\t\n\r\x00\x07\ufeff ",
)


def text(rng: random.Random) -> bytes:
    """A text: empty, short, long, of any script, or no UTF-8 at all."""
    kind = rng.random()
    if kind < 0.08:
        return b""
    if kind < 0.14:
        return rng.randbytes(rng.randrange(1, 60))
    alphabet = rng.choice(ALPHABETS) if kind < 0.8 else "".join(ALPHABETS)
    length = rng.randrange(1, 80) if kind < 0.92 else rng.randrange(2_000, 20_000)
    return "".join(rng.choice(alphabet) for _ in range(length)).encode()


def requests(count: int, seed: int) -> list[np.ndarray[Any, Any]]:
    """TEXT inputs of 1 to 64 rows, seeded."""
    rng = random.Random(seed)
    out = []
    for number in range(count):
        rows = (1, rng.randrange(2, 9), 64)[(number % 4 > 0) + (number % 20 == 19)]
        column = np.empty((rows, 1), dtype=np.object_)
        column[:, 0] = [text(rng) for _ in range(rows)]
        out.append(column)
    return out


def answers(server: Server, inputs: list[np.ndarray[Any, Any]]) -> list[dict[str, tuple[str, tuple[int, ...], bytes]]]:
    """Datatype, shape and bytes of every output; several requests at once, so that batches form."""

    def ask(column: np.ndarray[Any, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        result = server.infer("tokenizer", {"TEXT": column})
        return {each.name: (each.datatype, each.shape, each.data.tobytes()) for each in result.response.outputs}

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, inputs))


@pytest.fixture(scope="module")
def tuned(
    tokenizer_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkbenchServer, ExportResult]]:
    """The tokenizer, tuned live and exported; the file of the source is as it was."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        source = (tokenizer_repository / "tokenizer" / "config.pbtxt").read_bytes()
        with wb.serve(tokenizer_repository) as server:
            server.configure(
                "tokenizer", f"{DELAY}=700", "dynamic_batching.preferred_batch_size=[16]", "instance_group[0].count=2"
            )
            yield server, server.export(folder / "bundle")
        assert (tokenizer_repository / "tokenizer" / "config.pbtxt").read_bytes() == source


@pytest.fixture(scope="module")
def triton(tuned: tuple[WorkbenchServer, ExportResult], start_triton: Callable[..., Any]) -> Iterator[Any]:
    """The real Triton on the export."""
    with start_triton(tuned[1].repository) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def remote(request: pytest.FixtureRequest, triton: Any) -> Iterator[TritonServer]:
    """That Triton, connected to over HTTP and over gRPC."""
    with wb.connect(getattr(triton, request.param)) as server:
        assert isinstance(server, TritonServer)
        yield server


def test_the_export_loads_in_the_real_triton_as_it_was_tuned(remote: TritonServer) -> None:
    models = remote.models()
    assert models.names == ["tokenizer"]
    assert models["tokenizer"].ready
    config = remote.model_config("tokenizer")
    assert int(config["dynamic_batching"]["max_queue_delay_microseconds"]) == 700
    assert [int(size) for size in config["dynamic_batching"]["preferred_batch_size"]] == [16]
    assert int(config["instance_group"][0]["count"]) == 2
    assert remote.release == "triton 2.51.0"
    assert "tokenizer" in repr(remote)


def test_both_complete_the_configuration_in_the_same_way(
    remote: TritonServer, tuned: tuple[WorkbenchServer, ExportResult]
) -> None:
    ours = to_json(from_json(tuned[0].model_config("tokenizer")), defaults=False)
    theirs = to_json(from_json(remote.model_config("tokenizer")), defaults=False)
    assert ours == theirs


def test_answers_are_the_same_to_the_byte(remote: TritonServer, tuned: tuple[WorkbenchServer, ExportResult]) -> None:
    inputs = requests(240, seed=2026)
    assert any(column[0, 0] == b"" for column in inputs)
    assert max(len(column) for column in inputs) == 64
    here, there = answers(tuned[0], inputs), answers(remote, inputs)
    different = [number for number, (one, other) in enumerate(zip(here, there, strict=True)) if one != other]
    assert different == []
    assert len({shape for answer in here for _, shape, _ in answer.values()}) > 20
    (entry,) = remote.statistics("tokenizer")["model_stats"]
    assert int(entry["execution_count"]) < int(entry["inference_stats"]["success"]["count"])  # batches were formed


def test_errors_are_the_same(remote: TritonServer, tuned: tuple[WorkbenchServer, ExportResult]) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("tokenizer", {"TEXT": ["no batch dimension"]}),
        ("tokenizer", {"NOPE": [["x"]]}),
        ("tokenizer", {"TEXT": np.ones((1, 1), np.float32)}),
        ("tokenizer", {"TEXT": [["x"]] * 65}),
        ("tokenizer", {}),
        ("nope", {"TEXT": [["x"]]}),
    ]
    for model, inputs in wrong:
        said = []
        for server in (tuned[0], remote):
            with pytest.raises(WorkbenchError) as caught:
                server.infer(model, inputs)
            assert caught.value.hint
            said.append(caught.value.message)
        assert said[0] == said[1]


def test_an_edit_is_a_load_with_an_override_and_is_taken_back(remote: TritonServer) -> None:
    original = remote.model_config("tokenizer")
    dry = remote.configure("tokenizer", f"{DELAY}=3000", dry_run=True)
    assert remote.model_config("tokenizer") == original
    result = remote.configure("tokenizer", f"{DELAY}=3000", "dynamic_batching.preferred_batch_size=[8, 32]")
    assert (dry.change_class, result.change_class, result.dirty) == ("reload", "reload", True)
    changed = remote.model_config("tokenizer")["dynamic_batching"]
    assert int(changed["max_queue_delay_microseconds"]) == 3000
    assert [int(size) for size in changed["preferred_batch_size"]] == [8, 32]
    assert remote.models()["tokenizer"].dirty
    assert remote.infer("tokenizer", {"TEXT": [["still here"]]})["input_ids"].shape == (1, 4)
    remote.configure("tokenizer", dynamic_batching=None)
    assert remote.model_config("tokenizer").get("dynamic_batching") is None
    remote.revert("tokenizer")
    assert remote.model_config("tokenizer") == original
    assert not remote.config("tokenizer").dirty


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param(["max_batch_size=-1"], id="refused by validation"),
        pytest.param(["instance_group[0].kind=KIND_MODEL", "backend=none_such"], id="no backend"),
        pytest.param(["ensemble_scheduling.max_inflight_requests=3"], id="a field of a newer release"),
    ],
)
def test_a_refused_edit_leaves_the_model_serving(remote: TritonServer, edits: list[str]) -> None:
    original = remote.model_config("tokenizer")
    with pytest.raises(WorkbenchError):
        remote.configure("tokenizer", *edits)
    assert remote.infer("tokenizer", {"TEXT": [["x"]]})["input_ids"].shape == (1, 3)
    assert remote.model_config("tokenizer") == original
    assert not remote.config("tokenizer").dirty


def test_what_is_sent_as_an_override_comes_back_unchanged(remote: TritonServer) -> None:
    original = remote.model_config("tokenizer")
    sent = to_json(from_json(original), defaults=False)
    remote.load("tokenizer", config=sent)
    assert remote.model_config("tokenizer") == original
    assert to_json(from_json(remote.model_config("tokenizer")), defaults=False) == sent


def test_a_sweep_runs_there_and_restores_the_configuration(remote: TritonServer, tmp_path: Path) -> None:
    original = remote.model_config("tokenizer")
    result = remote.sweep(
        "tokenizer",
        {DELAY: [0, 2000], "dynamic_batching.preferred_batch_size": [None, [8]]},
        concurrency=[1, 8],
        inputs={"TEXT": np.array([[b"How do I reset my password?"]], dtype=np.object_)},
        duration_s=0.8,
        warmup_s=0.2,
        store=tmp_path,
        show_progress=False,
    )
    assert isinstance(result, SweepResult)
    assert len(result) == 8
    assert [point.error for point in result] == [""] * 8
    assert [point.failed for point in result] == [0] * 8
    assert result.restored
    assert remote.model_config("tokenizer") == original
    frame = result.to_frame()
    assert (frame["throughput"] > 50).all()
    by_delay = {point.settings[DELAY]: point for point in result if point.load.concurrency == 1}
    assert by_delay[2000].queue_ms > 1.5 > by_delay[0].queue_ms
    for point in result:
        assert int(point.config["dynamic_batching"].get("max_queue_delay_microseconds", 0)) == point.settings[DELAY]


def test_the_panels_state_of_a_real_triton(remote: TritonServer) -> None:
    state = remote.session
    state.poll()
    for _ in range(3):
        remote.infer("tokenizer", {"TEXT": [["a"], ["b"]]})
    snapshot = state.snapshot()
    assert snapshot.error == ""
    assert snapshot.windows["tokenizer"].requests == 3
    assert snapshot.windows["tokenizer"].mean_batch == 2.0
    assert snapshot.histograms["tokenizer"].counts == {"unknown": {2: 3}}
    assert snapshot.server["kind"] == "remote"


def test_a_triton_that_takes_no_changes_says_so(
    tuned: tuple[WorkbenchServer, ExportResult], start_triton: Callable[..., Any]
) -> None:
    with start_triton(tuned[1].repository, control_mode="none") as running:
        for url in (running.http, running.grpc):
            with wb.connect(url) as server:
                before = server.model_config("tokenizer")
                with pytest.raises(Unsupported) as caught:
                    server.configure("tokenizer", f"{DELAY}=1")
                assert "--model-control-mode=explicit" in caught.value.hint
                assert server.model_config("tokenizer") == before
                assert (
                    server.profile(
                        "tokenizer", concurrency=2, inputs={"TEXT": [[b"x"]]}, duration_s=0.5, warmup_s=0.1
                    ).failed
                    == 0
                )
