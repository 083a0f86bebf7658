"""``example_inputs.json`` beside a model (perf_analyzer's input data): its names against the configuration."""

from __future__ import annotations

from workbench.config.schema import Message
from workbench.config.texts.nodes import JsonFault, Node, from_json_text
from workbench.config.texts.source import Notes, Passage, did_you_mean


def check_examples(passage: Passage, notes: Notes, config: Message | None) -> None:
    """The inputs of every example; their data is judged where they are used."""
    try:
        root = from_json_text(passage.text)
    except JsonFault as fault:
        at = min(fault.at, len(passage.text))
        notes.say(passage, "request-json", (at, min(at + 1, len(passage.text))), f"this is no JSON: {fault}")
        return
    data = root.get("data")
    for entry in _entries(data.items or []) if data is not None else []:
        for name, (start, end) in entry.keys.items():
            names = [each.name for each in config.input] if config is not None else []
            if not names or name in names or name == "parameters":
                continue
            more, best = did_you_mean(name, names)
            text = f"the model has no input '{name}'{more}"
            changes = [(start, end, f'"{best}"')] if best else ()
            notes.say(passage, "request-input", (start, end), text, f"Write {best}" if best else "", changes)


def _entries(items: list[Node]) -> list[Node]:
    """The examples: objects in the list, or in lists for the steps of a sequence."""
    out: list[Node] = []
    for each in items:
        out += _entries(each.items) if each.items is not None else [each]
    return [each for each in out if each.members is not None]
