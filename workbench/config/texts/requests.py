"""An inference request in JSON, or the dict that Python code makes one from.

Source of the rules: KServe v2 "Inference Request" and Triton's ParseJsonTritonIO (semantics 15.10 to
15.14). A body of the wrong JSON type is answered 500, a value that does not fit 400.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from workbench.config.schema import Message, types
from workbench.config.texts.nodes import UNKNOWN, JsonFault, Node, from_json_text
from workbench.config.texts.source import Change, Notes, Passage, did_you_mean, line_span

_INPUT_FIELDS = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT_FIELDS = ("name", "parameters")
_SPELLINGS = {
    "STRING": "BYTES", "STR": "BYTES", "OBJECT": "BYTES", "TEXT": "BYTES", "FLOAT": "FP32", "FLOAT16": "FP16",
    "FLOAT32": "FP32", "FLOAT64": "FP64", "DOUBLE": "FP64", "HALF": "FP16", "INT": "INT32", "LONG": "INT64",
    "BOOLEAN": "BOOL", "BFLOAT16": "BF16", "F32": "FP32", "F16": "FP16", "I64": "INT64", "I32": "INT32",
}  # fmt: skip
_OUTPUT_ONLY = ("binary_data", "classification")
_FLAGS = ("sequence_start", "sequence_end", "binary_data_output")
_NUMBERS = ("priority", "timeout")


def wire_types() -> dict[str, str]:
    """Data types on the wire and their names in config.pbtxt: ``{"BYTES": "TYPE_STRING", ...}``."""
    enum = types()["inference.ModelInput"].fields["data_type"].enum
    assert enum is not None
    names = [name for name in enum.numbers if name != "TYPE_INVALID"]
    return {"BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_"): name for name in names}


def wire_type(spelled: str) -> str | None:
    """The wire data type that a wrong spelling means; None where it is not clear."""
    plain = spelled.upper().removeprefix("TYPE_").removeprefix("NP.").removeprefix("NUMPY.")
    if plain in wire_types():
        return plain
    return _SPELLINGS.get(plain)


_LEFT_OUT = re.compile(r"\.\.\.|…|(?m:^|\s)//|<\w|\$\{?\w|\{\{")


def check_request_text(passage: Passage, notes: Notes, config: Message | None = None, *, file: bool = False) -> None:
    """A passage that is JSON; one that leaves something out (``...``, a placeholder) only where it is a ``file``."""
    try:
        node = from_json_text(passage.text)
    except JsonFault as fault:
        if not file and _LEFT_OUT.search(passage.text):
            return
        at = min(fault.at, len(passage.text))
        text = f"this is no JSON: {fault} (Triton: failed to parse the request JSON buffer)"
        notes.say(passage, "request-json", (at, min(at + 1, len(passage.text))), text)
        return
    check_request(node, passage, notes, config)


def check_request(node: Node, passage: Passage, notes: Notes, config: Message | None = None, array: str = "") -> None:
    """A request as a tree of values.

    ``array``: the Python variable that holds the data, where an empty ``data`` is to be filled from it.
    """
    _Request(passage, notes, config, array).run(node)


@dataclass(slots=True)
class _Request:
    passage: Passage
    notes: Notes
    config: Message | None
    array: str

    def say(self, rule: str, node: Node, text: str, title: str = "", *changes: Change) -> None:
        self.notes.say(self.passage, rule, node.span, text, title, changes)

    def run(self, node: Node) -> None:
        if node.members is None:
            return
        inputs = node.get("inputs")
        if inputs is None:
            if node.get("instances") is not None:
                text = "'instances' is TensorFlow Serving's form: Triton wants 'inputs', a list of tensors with name, "
                self.say("request-field", node, text + "shape, datatype and data")
            return
        if inputs.items is None:
            if inputs.known:
                self.say("request-field", inputs, "Unable to parse 'inputs': it must be a list of tensors (500)")
            return
        self._parameters(node.get("parameters"))
        seen: set[str] = set()
        for item in inputs.items:
            if item.members is not None:
                self._input(item)
                name = item.get("name")
                if name is not None and name.string is not None:
                    if name.string in seen:
                        self.say("request-input", name, f"input '{name.string}' already exists in request (400)")
                    seen.add(name.string)
        self._against_config(inputs, seen)
        outputs = node.get("outputs")
        for item in (outputs.items if outputs is not None else None) or []:
            self._output(item)

    def _fields(self, node: Node, required: tuple[str, ...], allowed: tuple[str, ...], what: str) -> None:
        members = node.members or {}
        for key in members:
            if key in allowed:
                continue
            more, best = did_you_mean(key, [each for each in allowed if each not in members], 0.6)
            if best is None and key.lower() in ("dtype", "type", "data_type") and "datatype" not in members:
                more, best = "; did you mean 'datatype'?", "datatype"
            if key in _OUTPUT_ONLY and "parameters" in allowed:
                more, best = f"; it belongs into 'parameters' of the {what}", None
            text = f"Triton does not read '{key}' of an {what}{more}"
            start, end = node.keys[key]
            quote = self.passage.text[start : start + 1]
            if best is None:
                self.notes.say(self.passage, "request-field", (start, end), text, severity="warning")
            else:
                change = (start, end, f"{quote}{best}{quote}")
                self.notes.say(self.passage, "request-field", (start, end), text, f"Write {best}", [change])
                required = tuple(each for each in required if each != best)
        for name in required:
            if name not in members:
                text = f"the {what} has no '{name}': Unable to parse '{name}': attempt to access non-existing object "
                self.say("request-field", node, f"{text}member '{name}' (500)")

    def _input(self, node: Node) -> None:
        self._fields(node, ("name", "shape", "datatype"), _INPUT_FIELDS, "input")
        datatype = self._datatype(node.get("datatype"))
        count = self._shape(node.get("shape"))
        parameters, data = node.get("parameters"), node.get("data")
        given = parameters.members or {} if parameters is not None else {}
        if parameters is not None and "binary_data" in given and self._binary_data(node, parameters, data, count):
            return
        sources: list[str] = [name for name in ("binary_data_size", "shared_memory_region") if name in given]
        if data is not None and data.known:
            sources.insert(0, "data")
        if parameters is not None and not parameters.known:
            return
        if len(sources) != 1 and not (data is not None and not data.known):
            but = " set " + " ".join(f"'{name}'" for name in sources) if sources else " no field is set"
            text = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            self.say("request-source", node, f"{text}'shared_memory_region' in 'parameters'. But{but} (400)")
        if data is None or sources != ["data"]:
            return
        if datatype in ("FP16", "BF16"):
            text = f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input"
            self.say("request-half", data, f"{text} (400)")
        else:
            self._data(data, datatype, count)

    def _binary_data(self, node: Node, parameters: Node, data: Node | None, count: int | None) -> bool:
        text = (
            "binary_data is a parameter of outputs; for an input Triton does not read it. An input is sent either as "
            "numbers in 'data', or as raw bytes behind the JSON with 'binary_data_size'; there is no base64"
        )
        if data is None or data.items != []:
            self.notes.say(
                self.passage, "request-binary-data", parameters.keys["binary_data"], text, severity="warning"
            )
            return False
        if count:
            text += (
                f". Here data has 0 elements and shape {count}: Shape does not match true shape of 'data' field (500)"
            )
        if self.array:
            changes = [(*data.span, f"{self.array}.flatten().tolist()")]
            if list(parameters.members or ()) == ["binary_data"]:
                changes.append(_removal(self.passage.text, node.keys["parameters"][0], parameters.end))
            self.say("request-binary-data", data, text, f"Send {self.array} as numbers", *changes)
        else:
            self.say("request-binary-data", data, text)
        return True

    def _datatype(self, node: Node | None) -> str | None:
        if node is None or node.string is None or node.string in wire_types():
            return node.string if node is not None else None
        best = wire_type(node.string)
        known = ", ".join(wire_types())
        text = f"no data type {node.string} on the wire ({known})"
        if best is None:
            self.say("request-datatype", node, text)
        else:
            quote = self.passage.text[node.start]
            text = f"{text}; did you mean {best}?"
            self.say("request-datatype", node, text, f"Write {best}", (*node.span, f"{quote}{best}{quote}"))
        return best

    def _shape(self, node: Node | None) -> int | None:
        """The number of elements; None where it is not known."""
        if node is None or not node.known:
            return None
        if node.items is None:
            self.say("request-shape", node, "Unable to parse 'shape': it must be a list of numbers (500)")
            return None
        count = 1
        for item in node.items:
            if not item.known:
                return None
            if type(item.value) is not int or item.value < 0:
                text = "Unable to parse 'shape': a request says the real sizes, as whole numbers from 0 (500)"
                self.say("request-shape", item, text)
                return None
            count *= item.value
        return count

    def _data(self, node: Node, datatype: str | None, count: int | None) -> None:
        flat = _flat(node)
        if flat is None:
            return
        if count is not None and len(flat) != count:
            more = "Failed to parse 'data' field: shape does not match true shape"
            if len(flat) > count:
                more = "Unable to parse 'data': Shape does not match true shape of 'data' field"
            text = f"data has {len(flat)} elements, the shape says {count}: {more} (500)"
            self.say("request-shape", node, text)
        for each in flat:
            wrong = _misfit(each.value, datatype)
            if wrong:
                self.say("request-value", each, f"{wrong} in {datatype} input")
                return

    def _parameters(self, node: Node | None) -> None:
        for key, value in ((node.members or {}) if node is not None else {}).items():
            what = ""
            plain = value.plain() if value.known else None
            if key.startswith("triton_") and node is not None:
                text = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be "
                self.notes.say(self.passage, "request-parameter", node.keys[key], text + "specified. (400)")
            elif key in _FLAGS and not isinstance(plain, bool):
                what = "true or false"
            elif key in _NUMBERS and (type(plain) is not int or plain < 0):
                what = "a whole number from 0"
            elif key == "sequence_id" and (isinstance(plain, bool) or not isinstance(plain, int | str)):
                what = "a number or a string"
            if what and value.known:
                self.say("request-parameter", value, f"Unable to parse '{key}': it must be {what} (500)")

    def _output(self, node: Node) -> None:
        if node.members is None:
            if node.known:
                text = 'Unable to parse \'name\': an output is an object as in {"name": "OUTPUT0"} (500)'
                self.say("request-field", node, text)
            return
        self._fields(node, ("name",), _OUTPUT_FIELDS, "output")
        parameters = node.get("parameters")
        members = (parameters.members or {}) if parameters is not None else {}
        if "classification" in members and "shared_memory_region" in members:
            text = "Output can't set both 'shared_memory_region' and 'classification' (400)"
            self.say("request-parameter", node, text)

    def _against_config(self, inputs: Node, seen: set[str]) -> None:
        config = self.config
        if config is None or not config.input:
            return
        expected = {each.name: each for each in config.input}
        for item in inputs.items or []:
            name = item.get("name")
            if name is None or name.string is None:
                return
            if name.string not in expected:
                more, best = did_you_mean(name.string, [each for each in expected if each not in seen])
                text = f"unexpected inference input '{name.string}' for model '{config.name}'{more} (400)"
                quote = self.passage.text[name.start]
                changes = [(*name.span, f"{quote}{best}{quote}")] if best else []
                self.say("request-input", name, text, f"Write {best}" if best else "", *changes)
                continue
            self._fits(item, expected[name.string], config)
        missing = [name for name, each in expected.items() if name not in seen and not each.optional]
        if missing and len(seen) < len(expected):
            text = f"expected {len(expected)} inputs but got {len(seen)} inputs for model '{config.name}'. Missing "
            self.say("request-input", inputs, f"{text}required input(s) {missing} (400)")

    def _fits(self, item: Node, spec: Any, config: Message) -> None:
        datatype, shape = item.get("datatype"), item.get("shape")
        names = type(spec).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
        wire = next((wire for wire, name in wire_types().items() if name == names[spec.data_type].name), None)
        if datatype is not None and datatype.string in wire_types() and wire is not None and datatype.string != wire:
            text = f"inference input '{spec.name}' data-type is '{datatype.string}', but model '{config.name}' expects "
            quote = self.passage.text[datatype.start]
            self.say(
                "request-input",
                datatype,
                f"{text}'{wire}' (400)",
                f"Write {wire}",
                (*datatype.span, f"{quote}{wire}{quote}"),
            )
        plain = shape.plain() if shape is not None and shape.items is not None else None
        if not isinstance(plain, list) or not all(type(each) is int for each in plain) or not spec.dims:
            return
        dims = ([-1] if config.max_batch_size > 0 else []) + list(spec.dims)
        fits = len(plain) == len(dims) and all(want in (-1, got) for want, got in zip(dims, plain, strict=True))
        if not fits and shape is not None:
            shown = ",".join(map(str, dims))
            text = f"unexpected shape for input '{spec.name}' for model '{config.name}'. Expected [{shown}], got "
            self.say("request-input", shape, f"{text}[{','.join(map(str, plain))}] (400)")
        elif fits and config.max_batch_size and plain[0] > config.max_batch_size and shape is not None:
            text = f"inference request batch-size must be <= {config.max_batch_size} for '{config.name}' (400)"
            self.say("request-input", shape, text)


def _flat(node: Node) -> list[Node] | None:
    """The elements of nested lists; None where a part is not told by the text."""
    if node.items is None:
        return None
    out: list[Node] = []
    waiting = list(reversed(node.items))
    while waiting:
        each = waiting.pop()
        if each.items is not None:
            waiting += reversed(each.items)
        elif not each.known or each.members is not None:
            return None
        else:
            out.append(each)
    return out


def _misfit(value: Any, datatype: str | None) -> str:
    """What is wrong with a value of a data type; empty where nothing is."""
    if datatype is None or value is UNKNOWN or datatype not in wire_types():
        return ""
    if datatype == "BYTES":
        return "" if isinstance(value, str) else f"{value!r} is no string"
    if datatype == "BOOL":
        return "" if isinstance(value, bool | int) else f"{value!r} is no boolean"
    if isinstance(value, bool | str) or value is None:
        return f"{value!r} is no number"
    if datatype.startswith("FP"):
        return ""
    if isinstance(value, float):
        return f"{value!r} is no whole number"
    signed = datatype.startswith("INT")
    bits = int(datatype.removeprefix("U").removeprefix("INT"))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return "" if low <= value <= high else f"{value} is outside of {low}..{high} and wraps around"


def _removal(text: str, start: int, end: int) -> Change:
    """The change that takes a member out, with the comma before it."""
    before = start
    while before and text[before - 1] in " \t\r\n":
        before -= 1
    if before and text[before - 1] == ",":
        return before - 1, end, ""
    line, line_end = line_span(text, start)[0], line_span(text, end)[1]
    if not text[line:start].strip() and not text[end:line_end].strip(" \t\r\n,"):
        return line, line_end, ""
    after = end
    while after < len(text) and text[after] in " \t\r\n,":
        after += 1
    return start, after, ""
