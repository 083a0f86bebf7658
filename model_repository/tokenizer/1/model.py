"""Text to token ids, for Triton's Python backend.

TEXT: string [rows, 1] -> input_ids, attention_mask: int64 [rows, tokens], padded to the longest row of the request,
rounded up to a multiple of the parameter pad_to_multiple_of (1 where it is not given): models behind this one can put
requests into one batch only where their lengths are equal.
The texts of all requests of a call are tokenized together; padding is per request, so an answer never depends on which
requests it shared a call with.
"""

import json
import os
from pathlib import Path

# One thread an instance, as in the other models; more instances use more cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = config.get("parameters", {})

        def number(name, default):
            return int(parameters.get(name, {}).get("string_value") or default)

        max_length, self.multiple = number("max_length", 256), max(1, number("pad_to_multiple_of", 1))
        file = Path(args["model_repository"]) / args["model_version"] / "tokenizer.json"
        if not file.is_file():
            raise pb_utils.TritonModelException(f"{file} is missing; `workbench models build` makes it")
        self.tokenizer = Tokenizer.from_file(str(file))
        self.tokenizer.enable_truncation(max_length=max_length)
        self.tokenizer.no_padding()  # the file asks for a fixed length of 128
        self.pad_id = self.tokenizer.token_to_id("[PAD]") or 0

    def execute(self, requests):
        texts = [self._texts(request) for request in requests]
        encoded = iter(self.tokenizer.encode_batch([text for rows in texts for text in rows]))
        responses = []
        for rows in texts:
            ids = [next(encoded).ids for _ in rows]
            responses.append(self._response(ids))
        return responses

    @staticmethod
    def _texts(request):
        rows = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        # Bytes that are no UTF-8 become U+FFFD instead of failing the batch that they share.
        return [row.decode("utf-8", errors="replace") if isinstance(row, bytes) else str(row) for row in rows]

    def _response(self, ids):
        length = -(-max((len(row) for row in ids), default=0) // self.multiple) * self.multiple
        input_ids = np.full((len(ids), length), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(ids), length), dtype=np.int64)
        for index, row in enumerate(ids):
            input_ids[index, : len(row)] = row
            mask[index, : len(row)] = 1
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor("input_ids", input_ids), pb_utils.Tensor("attention_mask", mask)]
        )
