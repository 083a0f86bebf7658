"""What every server reached by a client shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.client import TritonClient
from workbench.errors import ConnectionFailed, TimedOut, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.session.given import config_json
from workbench.session.hints import explain, explained
from workbench.session.results import Statistics
from workbench.session.server import Server


class ClientServer(Server):
    """What every server reached by a client shares: KServe v2 and Triton's repository control."""

    def __init__(self, client: TritonClient, *, url: str, name: str) -> None:
        self._client = client
        self.url = url
        self.name = name

    def is_live(self) -> bool:
        """Whether it answers; False also where nothing is there."""
        return self._client.is_live()

    def is_model_ready(self, model: str) -> bool:
        """Whether a model takes inferences; False also where nothing is there."""
        return self._client.is_model_ready(model)

    def repository_index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Triton's repository index."""
        return self._client.repository_index(ready=ready)

    @explained
    def model_metadata(self, model: str) -> dict[str, Any]:
        """Triton's model metadata."""
        return self._client.model_metadata(model)

    @explained
    def model_config(self, model: str) -> dict[str, Any]:
        """The completed configuration as Triton's JSON."""
        return self._client.model_config(model)

    def _log_settings(self, changes: Mapping[str, bool | int | str]) -> dict[str, Any]:
        return self._client.log_settings(changes)

    def statistics(self, model: str = "") -> Statistics:
        """Triton's statistics of one model or of all."""
        try:
            return Statistics(self._client.statistics(model))
        except WorkbenchError as error:
            explain(self, model, error)
            raise

    @explained
    def load(self, model: str, *, config: Mapping[str, Any] | str | None = None) -> None:
        """Loads or reloads a model."""
        self._client.load(model, config=config_json(config))

    @explained
    def unload(self, model: str) -> None:
        """Unloads a model."""
        self._client.unload(model)

    def _infer(self, request: InferenceRequest, timeout_s: float) -> InferenceResponse:
        try:
            response = self._client.infer(request, timeout_s=timeout_s)
        except ConnectionFailed as error:
            if not error.message.startswith("no answer from"):
                raise
            # The server is there and may be at it still: the same error as from an engine in this kernel.
            raise TimedOut(
                f"no answer from model '{request.model_name}' within {timeout_s:g} s", where=self.url, hint=error.hint
            ) from error
        if response.error is not None:
            raise response.error
        return response

    def close(self) -> None:
        """Closes the connections; the server goes on."""
        if not self._closed:
            self._closed = True
            self._stop_session()
            self._client.close()
