"""The check of a live edit under load: a function that gives a verdict, so that it can be seen to go red."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from workbench.client import HttpClient
from workbench.clock import monotonic_ns, sleep
from workbench.profiling import Load, Measurer, Samples
from workbench.session.measuring import SessionTarget
from workbench.session.remote import WorkbenchServer

DELAY = "dynamic_batching.max_queue_delay_microseconds"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was seen; ``complaints`` is empty when all was well."""

    mean_before: float = float("nan")
    mean_after: float = float("nan")
    rose_after_s: float = float("inf")
    configured: int = -1
    sent: int = 0
    answered: int = 0
    failed: int = 0
    server_successes: int = 0
    server_failures: int = 0
    recorded: tuple[int, int] = (0, 0)
    errors: Mapping[str, int] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is nothing to complain of."""
        return not self.complaints


class LoadInBackground:
    """An open loop from the load generator's process; everything that it sends counts, there is no warm-up."""

    def __init__(self, server: WorkbenchServer, model: str, *, rate: float = 200.0, duration_s: float) -> None:
        self._server, self._model = server, model
        self._load = Load.open(rate, "poisson", duration_s=duration_s, max_duration_s=duration_s, warmup_s=0.0, seed=11)
        self._began = threading.Event()
        self._samples: Samples | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def _run(self) -> None:
        try:
            target = SessionTarget(self._server)
            with Measurer(target, self._model, on_event=lambda event: self._began.set()) as measurer:
                self._samples = measurer.run(self._load).samples
        except BaseException as error:
            self._error = error
        finally:
            self._began.set()

    def __enter__(self) -> LoadInBackground:
        self._thread.start()
        assert self._began.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join()

    def finish(self) -> Samples:
        """Waits for the end; gives the stamps and the fate of every request."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._samples is not None
        return self._samples


def counts(server: WorkbenchServer, model: str) -> tuple[int, int, int, int]:
    """Inferences, executions, successes, failures since the model was loaded."""
    (entry,) = server.statistics(model)["model_stats"]
    inference = entry["inference_stats"]
    return (
        int(entry["inference_count"]),
        int(entry["execution_count"]),
        int(inference["success"]["count"]),
        int(inference["fail"]["count"]),
    )


def mean_batch(server: WorkbenchServer, model: str, seconds: float) -> float:
    """Inferences per execution from now on, over some seconds."""
    before = counts(server, model)
    sleep(seconds)
    after = counts(server, model)
    executions = after[1] - before[1]
    return (after[0] - before[0]) / executions if executions else float("nan")


def served(server: WorkbenchServer, model: str, after: int) -> tuple[int, int]:
    """Requests of a model that the server has answered and that it has failed, by its records."""
    requests = server.record_columns(after).requests
    mine = (requests["model"] == model) & (requests["client"] != "warmup")
    good = requests["status"][mine] == "ok"
    return int(good.sum()), int((~good).sum())


def rises_within(server: WorkbenchServer, model: str, above: float, limit_s: float) -> tuple[float, float]:
    """Waits until the mean batch of a window of a quarter second is above a number.

    Returns:
        the mean batch of that window (or of the last one), and the end of it in seconds from now (inf: never).
    """
    began = monotonic_ns()
    while True:
        mean = mean_batch(server, model, 0.25)
        elapsed = (monotonic_ns() - began) / 1e9
        if mean > above:
            return mean, elapsed
        if elapsed > limit_s:
            return mean, float("inf")


def check_live_edit(server: WorkbenchServer, model: str, disturb: Callable[[], None] | None = None) -> Verdict:
    """Under 200 Poisson requests/s the delay goes from 0 to 20 ms; what happens to batches and requests.

    Args:
        server: where the model runs.
        model: with dynamic batching and no delay.
        disturb: called in the middle of the load, after the edit.
    """
    last = server.record_columns().last_seq
    _, _, successes, failures = counts(server, model)
    with LoadInBackground(server, model, duration_s=4.0) as load:
        sleep(0.3)
        before = mean_batch(server, model, 0.8)
        server.configure(model, f"{DELAY}=20000")
        after, rose_after_s = rises_within(server, model, 3.0, 1.0)
        with HttpClient(server.url) as client:
            configured = int(client.model_config(model)["dynamic_batching"]["max_queue_delay_microseconds"])
        if disturb is not None:
            disturb()
        samples = load.finish()
    _, _, successes_now, failures_now = counts(server, model)
    verdict = Verdict(
        mean_before=before,
        mean_after=after,
        rose_after_s=rose_after_s,
        configured=configured,
        sent=len(samples.sent),
        answered=int(samples.ok.sum()),
        failed=int((~samples.ok).sum()),
        server_successes=successes_now - successes,
        server_failures=failures_now - failures,
        recorded=served(server, model, last),
        errors=samples.errors(),
    )
    return judged(verdict)


def judged(verdict: Verdict) -> Verdict:
    """The verdict with what is to be complained of."""
    complaints = []
    if not verdict.mean_before < 1.3:
        complaints.append(f"mean batch was {verdict.mean_before:.2f} before the edit, not below 1.3")
    if not verdict.rose_after_s <= 1.0:
        complaints.append(f"mean batch did not rise above 3 within 1 s: {verdict.mean_after:.2f}")
    if verdict.configured != 20000:
        complaints.append(f"the config endpoint reads {verdict.configured}")
    if verdict.failed or verdict.answered != verdict.sent:
        complaints.append(f"{verdict.failed} of {verdict.sent} requests failed at the client: {dict(verdict.errors)}")
    if verdict.server_failures:
        complaints.append(f"{verdict.server_failures} requests failed at the server")
    if verdict.answered != verdict.server_successes:
        complaints.append(f"clients got {verdict.answered} answers, the server counts {verdict.server_successes}")
    if verdict.recorded != (verdict.answered, verdict.failed):
        complaints.append(
            f"the records hold {verdict.recorded}, the clients saw {(verdict.answered, verdict.failed)} (good, failed)"
        )
    return replace(verdict, complaints=tuple(complaints))
