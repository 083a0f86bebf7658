"""tritonserver's options in Kubernetes and Compose YAML, and alert rules."""

from __future__ import annotations

import re

from workbench.config.texts.commands import check_image, check_tritonserver
from workbench.config.texts.metric_names import check_metrics
from workbench.config.texts.shell import Command, Word
from workbench.config.texts.source import Notes, Passage

_WORD = re.compile(
    r"[\"']?(?P<text>(?:/[\w/.-]*/)?tritonserver\b|--[A-Za-z][\w-]*(?:=(?:[^\s\"',\]]|(?<==)[\"'][^\"']*)*)?)"
)


def check_yaml(passage: Passage, notes: Notes) -> None:
    """What YAML says of tritonserver: image tags, options, metrics in rules. Nothing else of the YAML is judged."""
    check_image(passage, notes)
    check_metrics(passage, notes)
    for words in _servers(passage.text):
        check_tritonserver(Command(words), passage, notes, whole=False)


def _servers(text: str) -> list[list[Word]]:
    """The words of each list that begins with tritonserver."""
    found: list[list[Word]] = []
    current: list[Word] | None = None
    at = 0
    for line in text.split("\n"):
        bare = line.split(" #")[0]
        continues = re.match(r"\s*(?:-\s|[\"'\]>|]|--)", bare) or re.match(r"\s*(?:args|command)\s*:", bare)
        item = re.match(r"\s*-\s+[A-Za-z]\w*:(?:\s|$)", bare)  # the next container
        if current is not None and bare.strip() and (item or not continues):
            current = None
        for match in _WORD.finditer(bare):
            text_of = match["text"].strip("\"'")
            start = at + match.start("text")
            word = Word(text_of, start, start + len(match["text"]), not re.search(r"[$`{]", text_of))
            if text_of.endswith("tritonserver"):
                if bare[match.end() : match.end() + 1] in (":", "-", "/", "@", "_") or "image:" in bare:
                    continue
                current = [word]
                found.append(current)
            elif current is not None:
                current.append(word)
        at += len(line) + 1
    return found
