"""Whose turn it was: models of several cases that write one log, and reading it."""

from __future__ import annotations

from harness import Talk
from models import GATED

TURNS = GATED.replace(
    '        self.name = args["model_name"]\n',
    '        self.name = args["model_name"]\n        self.instance = args["model_instance_name"]\n',
).replace(
    "        asked = [",
    '        with open(os.path.join(self.root, "turns"), "a") as file:\n'
    '            file.write(" ".join([self.instance] + [request.request_id() for request in requests]) + "\\n")\n'
    "        asked = [",
    1,
)
"""As GATED; writes the instance and what it was given into the file ``turns`` beside the models."""


def forget(talk: Talk) -> None:
    """Begins the log anew."""
    (talk.root / "turns").unlink(missing_ok=True)


def turns(talk: Talk) -> list[str]:
    """The lines of the log: an instance's name and the ids of the requests that it got together."""
    path = talk.root / "turns"
    return path.read_text().split("\n")[:-1] if path.exists() else []
