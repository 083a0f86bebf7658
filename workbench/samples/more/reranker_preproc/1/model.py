"""A query and documents to token ids, for Triton's Python backend.

QUERY: string [1], DOCUMENTS: string [n] -> query_ids, query_mask: int64 [n, q]; document_ids, document_mask:
int64 [n, d]. Row i is the query and document i. Lengths are those of the longest text, rounded up to a multiple of the
parameter pad_to_multiple_of.
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
    """Pairs of a query and a document as token ids."""

    def initialize(self, args):
        """Reads the vocabulary and the parameters."""
        parameters = json.loads(args["model_config"]).get("parameters", {})

        def number(name, default):
            return max(1, int(parameters.get(name, {}).get("string_value") or default))

        file = Path(args["model_repository"]) / args["model_version"] / "tokenizer.json"
        if not file.is_file():
            raise pb_utils.TritonModelException(f"{file} is missing; `workbench models build` makes it")
        self.multiple = number("pad_to_multiple_of", 16)
        self.query = self._tokenizer(file, number("max_query_length", 64))
        self.document = self._tokenizer(file, number("max_document_length", 256))
        self.pad_id = self.query.token_to_id("[PAD]") or 0

    @staticmethod
    def _tokenizer(file, max_length):
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.enable_truncation(max_length=max_length)
        tokenizer.no_padding()  # the file asks for a fixed length of 128
        return tokenizer

    def execute(self, requests):
        """One answer a request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        documents = self._texts(request, "DOCUMENTS")
        if not documents:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(
                    "DOCUMENTS is empty: there is nothing to rank", pb_utils.TritonError.INVALID_ARG
                )
            )
        query = self._padded("query", self.query.encode_batch(self._texts(request, "QUERY")))
        rows = [pb_utils.Tensor(name, np.repeat(array, len(documents), axis=0)) for name, array in query.items()]
        encoded = self._padded("document", self.document.encode_batch(documents))
        rows += [pb_utils.Tensor(name, array) for name, array in encoded.items()]
        return pb_utils.InferenceResponse(output_tensors=rows)

    @staticmethod
    def _texts(request, name):
        rows = pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)
        # Bytes that are no UTF-8 become U+FFFD: one broken document does not fail the others.
        return [row.decode("utf-8", errors="replace") if isinstance(row, bytes) else str(row) for row in rows]

    def _padded(self, part, encoded):
        longest = max(len(row.ids) for row in encoded)
        length = -(-longest // self.multiple) * self.multiple
        ids = np.full((len(encoded), length), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(encoded), length), dtype=np.int64)
        for index, row in enumerate(encoded):
            ids[index, : len(row.ids)] = row.ids
            mask[index, : len(row.ids)] = 1
        return {f"{part}_ids": ids, f"{part}_mask": mask}
