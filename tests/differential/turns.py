"""Whose turn it was: models of several cases that write one log, and reading it."""

from __future__ import annotations

import threading

from harness import Sent, Talk
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


def begin(talk: Talk, *models: str) -> None:
    """Begins the log anew and loads models."""
    forget(talk)
    for model in models:
        talk.load(model)


def begun(talk: Talk, *sent: Sent) -> list[str]:
    """The lines of the log that are about these requests."""
    return [line for line in turns(talk) if line.partition(" ")[2] in {each.id for each in sent}]


def waits(talk: Talk, model: str, *sent: Sent) -> None:
    """Notes that requests have not begun, some time after they have been queued."""
    talk.until(lambda: talk.pending(model) >= len(sent), f"{model} has not got its requests")
    threading.Event().wait(0.2)
    talk.note(f"{model} waits", [each.ended.is_set() for each in sent] + begun(talk, *sent))


def waits_for(talk: Talk, model: str, id: str, *held: Sent) -> None:
    """Sends a request and notes that it does not begin until the last one of those held is let go."""
    sent = talk.send(model, talk.body(id=id))
    for each in held:
        waits(talk, model, sent)
        talk.release(each)
        talk.answers(*((each, sent) if each is held[-1] else (each,)))
