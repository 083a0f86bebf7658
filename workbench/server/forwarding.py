"""Headers of a request that become parameters of it, for both front ends (``--http-header-forward-pattern``)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from workbench.errors import InvalidRequest
from workbench.protocol.tensors import InferenceRequest

RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
"""Names that mean something as parameters (Triton's common.h), besides all that begin with ``triton_``."""


class HeaderForwarding:
    """Which headers go on to the model.

    Args:
        pattern: a regular expression that a part of the header's name must match, in the case in which it was sent
            (``(?i)`` for any; gRPC has names in lower case); empty for none.
        option: the option's name without dashes, for the text.
        secret: a header's value that is never passed on: the control plane's, which is no model's business.

    Raises:
        InvalidRequest: it is no regular expression.
    """

    def __init__(self, pattern: str, option: str = "http-header-forward-pattern", *, secret: str = "") -> None:
        self._secret = secret
        try:
            self._match = re.compile(pattern).search if pattern else None
        except re.error as error:
            raise InvalidRequest(f"--{option}: '{pattern}' is no regular expression: {error}") from None

    def __bool__(self) -> bool:
        """Whether any header can go on."""
        return self._match is not None

    def add(self, request: InferenceRequest, headers: Iterable[tuple[str, str]]) -> None:
        """Adds the headers that match to the request's parameters, as strings.

        Raises:
            InvalidRequest: one has a reserved name (Triton's text).
        """
        if self._match is None:
            return
        found: dict[str, str] = {}
        for name, value in headers:
            if self._match(name) and (not self._secret or value != self._secret):
                if name in RESERVED or name.startswith("triton_"):
                    raise InvalidRequest(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
                found[name] = value
        if found:
            request.parameters = {**request.parameters, **found}
