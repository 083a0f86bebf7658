"""How large the long proofs by random histories are."""

from __future__ import annotations

import os

HISTORIES = int(os.environ.get("WORKBENCH_HISTORIES", "667"))
"""How many histories each long proof plays: a fifteenth of its full size, which `make soak` asks for."""
