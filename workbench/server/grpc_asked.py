"""One inference request over gRPC: from the bytes of its message to what the engine takes, and its answers to bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.errors import NotReady, WorkbenchError
from workbench.protocol.binary import Buffer
from workbench.protocol.forms import LARGEST
from workbench.protocol.http_request import DecodedRequest
from workbench.protocol.tensors import InferenceResponse
from workbench.server.forwarding import HeaderForwarding
from workbench.server.grpc_call import Call
from workbench.server.grpc_codec import encode_response, parse_infer, read_metadata, read_tensors, version_number
from workbench.server.grpc_hot import Scanned, Templates, fill, scan
from workbench.server.grpc_message import FRAMING, STOPPING
from workbench.server.infer import OFF_LOOP_BYTES
from workbench.server.labels import classified

if TYPE_CHECKING:
    from workbench.engine import Ticket
    from workbench.records import Event
    from workbench.server.kserve import KServeApi
    from workbench.server.traffic import WireCount

_OFF_LOOP_ELEMENTS = 64 * 1024
_PACKED_ON_LOOP = 128 * 1024


class Model(NamedTuple):
    """What the engine has said of a model, until it tells of a change."""

    config: Any
    decoupled: bool


class Requests:
    """What all requests have in common: the engine, its models, forms of messages that are known.

    Args:
        api: engine, shared memory, counts and threads, which both front ends have in common.
        header_forward_pattern: which headers become parameters.
    """

    def __init__(self, api: KServeApi, header_forward_pattern: str) -> None:
        self.api = api
        self.forwarding = HeaderForwarding(header_forward_pattern, "grpc-header-forward-pattern")
        self.forwards = bool(self.forwarding)
        self.templates = Templates()
        self._known: dict[tuple[str, int], Model] = {}
        self._unsubscribe = api.engine.events.subscribe(self._forget)

    def close(self) -> None:
        """Hears no more of the engine."""
        self._unsubscribe()

    def _forget(self, event: Event) -> None:
        if event.kind != "log":
            self._known.clear()

    def model(self, name: str, version: int) -> Model:
        """What is known of a model.

        Raises:
            NotFound, NotReady: it does not serve.
        """
        known = self._known.get((name, version))
        if known is None:
            config = self.api.engine.model_config(name, version)
            known = self._known[(name, version)] = Model(config, config.model_transaction_policy.decoupled)
        return known


class Asked:
    """One request, in a call of its own or in a stream.

    ``id``, ``model_name`` and ``version`` are as the message has them; ``size`` is the message's, in bytes.

    Raises:
        InternalError: the bytes are no request.
    """

    __slots__ = (
        "_message", "_plain", "_raws", "_scanned", "count", "empty_final", "id", "model", "model_name", "request",
        "requests", "size", "ticket", "version",
    )  # fmt: skip

    def __init__(self, requests: Requests, data: memoryview) -> None:
        self.requests = requests
        self.size = data.nbytes
        self.ticket: Ticket | None = None
        self.model: Model | None = None
        self.count: WireCount | None = None
        self.empty_final = False
        self.request = DecodedRequest("", [])
        self._message: Any = None  # what is still to be read
        self._raws: list[Buffer] = []
        self._scanned: Scanned | None = None
        self._plain = True
        if self.size <= LARGEST and not requests.forwards:
            self._scanned = scanned = scan(data.tobytes())
            if scanned is not None:
                template = requests.templates.find(scanned)
                if template is not None and fill(template, scanned, self.request):
                    self.model_name, self.version = template.model_name, template.model_version
                    self.id = self.request.id
                    self.empty_final = template.empty_final
                    return
        message, self._raws = parse_infer(data)
        self._message = message
        self.model_name, self.version, self.id = message.model_name, message.model_version, message.id

    def look_up(self, call: Call) -> Model:
        """Which model it is for.

        Raises:
            WorkbenchError: with Triton's texts.
        """
        requests, request = self.requests, self.request
        if requests.api.exiting:
            raise NotReady(STOPPING)
        request.model_name = self.model_name
        request.model_version = version_number(self.version)
        request.client = call.client
        self.count = requests.api.wire.begin(request.model_name, self.size + FRAMING)
        self.model = requests.model(request.model_name, request.model_version)
        return self.model

    def read(self, call: Call) -> None:
        """Its parameters, inputs and requested outputs. On any thread.

        Raises:
            WorkbenchError: with Triton's texts.
        """
        message, request = self._message, self.request
        if message is None:
            return
        self.empty_final = read_metadata(message, request)
        if self.requests.forwards:
            pairs = [(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in call.headers.items()]
            self.requests.forwarding.add(request, [pair for pair in pairs if not pair[0].startswith(":")])
        read_tensors(message, self._raws, request, self.requests.api.memory)
        self._plain = not request.targets and not any(output.parameters for output in request.outputs)
        if self._scanned is not None:
            self.requests.templates.learn(self._scanned, message)
        self._message, self._raws, self._scanned = None, [], None

    def attempt(self, call: Call) -> WorkbenchError | None:
        """As ``read``; gives what it would raise."""
        try:
            self.read(call)
        except WorkbenchError as error:
            return error
        return None

    def takes_long(self) -> bool:
        """Whether reading it would hold the loop: many strings or typed contents, or much shared memory."""
        if self._message is None:
            return False
        inputs = self._message.inputs
        if self.requests.api.memory.largest > OFF_LOOP_BYTES and any(item.parameters for item in inputs):
            return True
        return self.size > OFF_LOOP_BYTES and any(
            item.datatype == "BYTES" or item.HasField("contents") for item in inputs
        )

    def answer_takes_long(self, call: Call, response: InferenceResponse) -> bool:
        """Whether writing a response would hold the loop: strings, classes, shared memory, compression."""
        for tensor in response.outputs:
            if tensor.data.size > _OFF_LOOP_ELEMENTS and (tensor.datatype == "BYTES" or not self._plain):
                return True
            if call.wanted and tensor.data.nbytes > _PACKED_ON_LOOP:
                return True
        return False

    def encode(self, response: InferenceResponse, final: bool | None = None) -> list[Buffer]:
        """A response as a ``ModelInferResponse``, in pieces.

        Raises:
            WorkbenchError: an output has no classes, or no room where it goes.
        """
        if self._plain:
            parts = self.requests.templates.encode(response, final)
            if parts is not None:
                return parts
        assert self.model is not None
        api, config = self.requests.api, self.model.config
        return encode_response(
            response, self.request, lambda tensor, classes: classified(api.engine, config, tensor, classes), final=final
        )
