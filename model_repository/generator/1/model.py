"""Text, a token a response: a decoupled model for Triton's Python backend.

text_input: string [1] -> for each token text_output: string [1] and token_id: int32 [1], then an empty final response.
max_tokens, temperature, seed and stop are inputs that a request may leave out, or request parameters of those names.

``execute`` only takes requests in. A thread lets the answers grow, a token of each in turn, so a short one need not
wait for a long one that came before. An answer ends with the model's end token, at ``max_tokens``, before a stop text,
or when whoever asked has gone.
"""

import collections
import json
import threading
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

END = ("<|im_end|>", "<|endoftext|>")
CONTEXT = 2048


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.defaults = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        folder = Path(args["model_repository"]) / args["model_version"]
        if not (folder / "model.onnx").is_file():
            raise pb_utils.TritonModelException(f"{folder}/model.onnx is missing; `workbench models build` makes it")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.ends = {self.tokenizer.token_to_id(token) for token in END}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(self.defaults.get("intra_op_thread_count", 1))
        self.network = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.caches = {each.name: each.shape for each in self.network.get_inputs() if each.name.startswith("past_")}
        self.fetched = ["logits", *(name.replace("past_", "present_") for name in self.caches)]
        self.waiting = collections.deque()
        self.wake = threading.Condition()
        self.running = True
        self.thread = threading.Thread(target=self._serve, name="generator")
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                answer = Answer(self, request, sender)
            except ValueError as error:
                self._fail(sender, pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
                continue
            with self.wake:
                self.waiting.append(answer)
                self.wake.notify()

    def finalize(self):
        with self.wake:
            self.running = False
            self.wake.notify()
        self.thread.join()

    def _serve(self):
        growing = []
        most = int(self.defaults.get("max_streams", 4))
        while True:
            with self.wake:
                while self.running and not growing and not self.waiting:
                    self.wake.wait()
                while self.waiting and len(growing) < most:
                    growing.append(self.waiting.popleft())
                if not self.running:
                    growing += self.waiting
                    break
            growing = [answer for answer in growing if self._grow(answer)]
        for answer in growing:
            self._fail(answer.sender, pb_utils.TritonError("the model is being unloaded"))

    def _grow(self, answer):
        """Adds a token to an answer and sends it; False when that was the last."""
        try:
            if answer.sender.is_cancelled():
                pb_utils.Logger.log_verbose(f"cancelled after {answer.count} tokens")
                going = False
            else:
                going = answer.step()
        except Exception as error:
            self._fail(answer.sender, pb_utils.TritonError(f"{type(error).__name__}: {error}"))
            return False
        if not going:
            answer.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return going

    @staticmethod
    def _fail(sender, error):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=final)


class Answer:
    """A request and the answer to it, as far as it has come."""

    def __init__(self, model, request, sender):
        self.model, self.sender = model, sender
        parameters = {**model.defaults, **json.loads(request.parameters())}

        def given(name, default=None):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                return tensor.as_numpy().reshape(-1).tolist()
            value = parameters.get(name, default)
            return value if isinstance(value, list) else [value]

        def number(name, kind, least, default=None):
            (value,) = given(name, default)
            if kind(value) < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
            return kind(value)

        text = given("text_input")[0].decode("utf-8", errors="replace")
        self.tokens = model.tokenizer.encode(parameters.get("prompt", "{text}").replace("{text}", text)).ids
        self.left = number("max_tokens", int, 1, 64)
        if not self.tokens:
            raise ValueError("the prompt is empty")
        if len(self.tokens) + self.left > CONTEXT:
            raise ValueError(
                f"a prompt of {len(self.tokens)} tokens and max_tokens {self.left} exceed the model's {CONTEXT}"
            )
        self.temperature = number("temperature", float, 0, 0)
        self.draws = np.random.default_rng(number("seed", int, 0, 0))
        stops = [stop for stop in given("stop") if stop]
        self.stops = [stop.decode() if isinstance(stop, bytes) else stop for stop in stops]
        self.past = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in model.caches.items()}
        self.seen = self.count = 0
        self.unread = []  # tokens that do not yet make whole characters
        self.held = ""  # text that may be the beginning of a stop text

    def step(self):
        """The next token, sent; False when there are no more to come."""
        model = self.model
        self.seen += len(self.tokens)
        feeds = {"input_ids": np.array([self.tokens], np.int64), "total": np.array(self.seen, np.int32), **self.past}
        logits, *present = model.network.run(model.fetched, feeds)
        self.past = dict(zip(model.caches, present, strict=True))
        token = self._choose(logits[0])
        self.tokens = [token]
        self.left -= 1
        if token in model.ends:
            if self.held:
                self._send(self.held, token)
            return False
        self.count += 1
        text, stopped = self._text(token)
        if not self.left and not stopped:
            text, self.held = text + self.held, ""
        self._send(text, token)
        return self.left > 0 and not stopped

    def _choose(self, logits):
        if self.temperature == 0:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        odds = np.exp(scaled - scaled.max()).cumsum()
        return int(np.searchsorted(odds, self.draws.random() * odds[-1], side="right"))

    def _text(self, token):
        """The text that can be sent with a token, and whether a stop text has come."""
        self.unread.append(token)
        text = self.model.tokenizer.decode(self.unread)
        if text.endswith("\ufffd") and len(self.unread) < 4:  # a character of several bytes is under way
            return "", False
        self.unread = []
        text = self.held + text
        found = [text.find(stop) for stop in self.stops if stop in text]
        if found:
            self.held = ""
            return text[: min(found)], True
        keep = max((_overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def _send(self, text, token):
        outputs = [
            pb_utils.Tensor("text_output", np.array([text.encode()], np.object_)),
            pb_utils.Tensor("token_id", np.array([token], np.int32)),
        ]
        self.sender.send(pb_utils.InferenceResponse(output_tensors=outputs))


def _overlap(text, stop):
    """How many characters at the end of a text are the beginning of a stop text."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
