"""Client code: tritonclient over HTTP or gRPC, and plain requests.

Source of the rules: tritonclient's InferInput, InferenceServerClient; KServe v2 for what plain HTTP sends.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from workbench.config.schema import Message
from workbench.config.texts.nodes import Offsets, from_python
from workbench.config.texts.python_scope import argument, assignments, dotted, imported_as, text_of
from workbench.config.texts.requests import check_request, wire_type, wire_types
from workbench.config.texts.source import Change, Notes, Passage

_NUMPY_WIRE = {
    "bool": "BOOL", "bool_": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "int": "INT64", "float16": "FP16",
    "half": "FP16", "float32": "FP32", "single": "FP32", "float64": "FP64", "double": "FP64", "float": "FP64",
    "object_": "BYTES", "object": "BYTES", "bytes_": "BYTES", "str_": "BYTES",
}  # fmt: skip
_FLOAT64 = ("random.rand", "random.randn", "random.random", "random.random_sample", "zeros", "ones", "linspace")


def check_client(tree: ast.Module, passage: Passage, notes: Notes, config: Message | None = None) -> None:
    """The clients, tensors and request bodies in Python code."""
    _Client(tree, passage, notes, config).run()


@dataclass(slots=True)
class _Client:
    tree: ast.Module
    passage: Passage
    notes: Notes
    config: Message | None
    offsets: Offsets = field(init=False)
    assigned: dict[str, list[ast.expr]] = field(init=False)
    http: set[str] = field(init=False)
    grpc: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = Offsets(self.passage.text)
        self.assigned = assignments(self.tree)
        self.http = imported_as(self.tree, "tritonclient.http") | imported_as(self.tree, "tritonclient.http.aio")
        self.grpc = imported_as(self.tree, "tritonclient.grpc") | imported_as(self.tree, "tritonclient.grpc.aio")

    def say(self, rule: str, node: ast.expr, text: str, title: str = "", *changes: Change) -> None:
        self.notes.say(self.passage, rule, self.offsets.span(node), text, title, changes)

    def run(self) -> None:
        array = self._encoded_array()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Dict) and self._is_request(node):
                check_request(from_python(node, self.offsets), self.passage, self.notes, self.config, array)
            if not isinstance(node, ast.Call) or not (self.http | self.grpc):
                continue
            head, _, last = dotted(node.func).rpartition(".")
            if isinstance(node.func, ast.Attribute) and node.func.attr == "set_data_from_numpy":
                self._data(node, node.func.value)
            elif head in self.http | self.grpc and last == "InferenceServerClient":
                self._address(node, grpc=head in self.grpc)
            elif last == "InferInput":
                self._datatype(node)

    def _is_request(self, node: ast.Dict) -> bool:
        """A dict with a list ``inputs`` of tensors, as a request body has."""
        for key, value in zip(node.keys, node.values, strict=True):
            if text_of(key) == "inputs" and isinstance(value, ast.List):
                keys = {text_of(k) for each in value.elts if isinstance(each, ast.Dict) for k in each.keys}
                return bool(keys & {"datatype", "shape"}) and "name" in keys
        return False

    def _encoded_array(self) -> str:
        """The one array whose bytes are encoded with base64."""
        names = {
            dotted(node.func.value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "tobytes"
        }
        return next(iter(names)) if len(names) == 1 and "base64" in self.passage.text else ""

    def _address(self, call: ast.Call, *, grpc: bool) -> None:
        node = argument(call, 0, "url")
        url = text_of(node)
        if url is None or node is None:
            return
        scheme = re.match(r"[a-z]+://", url)
        if scheme is not None:
            start = self.passage.text.find(scheme.group(), self.offsets.span(node)[0])
            change = (start, start + len(scheme.group()), "")
            self.say("client-url", node, "url should not include the scheme", f"Remove {scheme.group()}", change)
        port = re.search(r":(8000|8001)(?=/|$)", url)
        if port is not None and (port.group(1) == "8000") == grpc:
            kind = "gRPC" if grpc else "HTTP"
            text = f"a {kind} client on port {port.group(1)}: Triton's own ports are 8000 for HTTP and 8001 for gRPC"
            self.say("wrong-port", node, text)

    def _datatype(self, call: ast.Call) -> None:
        node = argument(call, 2, "datatype")
        name = text_of(node)
        if node is None or name is None or name in wire_types():
            return
        best = wire_type(name)
        text = f"no data type {name} on the wire ({', '.join(wire_types())})"
        if best is None:
            self.say("request-datatype", node, text)
        else:
            change = (*self.offsets.span(node), f'"{best}"')
            self.say("request-datatype", node, f"{text}; did you mean {best}?", f"Write {best}", change)

    def _data(self, call: ast.Call, target: ast.expr) -> None:
        """An array whose type is told by the text, given to an input of another type."""
        made = self._input(target)
        array = argument(call, 0, "input_tensor")
        if made is None or array is None:
            return
        node = argument(made, 2, "datatype")
        wanted, got = text_of(node), self._array_type(array)
        if wanted not in wire_types() or got is None or got == wanted or wanted == "BF16":
            return
        text = f"got unexpected datatype {got} from numpy array, expected {wanted}"
        if isinstance(array, ast.Name) and wanted != "BYTES" and got != "BYTES":
            numpy = next(name for name, wire in _NUMPY_WIRE.items() if wire == wanted)
            end = self.offsets.span(array)[1]
            self.say("client-datatype", array, text, f"Convert to {numpy}", (end, end, f".astype(np.{numpy})"))
        else:
            self.say("client-datatype", array, text)

    def _input(self, target: ast.expr) -> ast.Call | None:
        """The ``InferInput(...)`` that an expression stands for."""
        index = 0
        if isinstance(target, ast.Subscript):
            if not isinstance(target.slice, ast.Constant) or type(target.slice.value) is not int:
                return None
            index, name = target.slice.value, dotted(target.value)
        else:
            name = dotted(target)
        values = self.assigned.get(name, [])
        if len(values) != 1:
            return None
        value: ast.expr = values[0]
        if isinstance(target, ast.Subscript):
            if not isinstance(value, ast.List) or not 0 <= index < len(value.elts):
                return None
            value = value.elts[index]
        is_input = isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] == "InferInput"
        return value if is_input and isinstance(value, ast.Call) else None

    def _array_type(self, node: ast.expr) -> str | None:
        """The wire type of an array; None where the text does not tell it."""
        if isinstance(node, ast.Name):
            values = self.assigned.get(node.id, [])
            return self._array_type(values[0]) if len(values) == 1 else None
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "astype" and node.args:
            return self._numpy(node.args[0])
        head, _, rest = dotted(node.func).partition(".")
        if head not in ("np", "numpy"):
            return None
        dtype = next((each.value for each in node.keywords if each.arg == "dtype"), None)
        if dtype is not None:
            return self._numpy(dtype)
        return "FP64" if rest in _FLOAT64 and len(node.args) <= (1 if rest in ("zeros", "ones") else 9) else None

    @staticmethod
    def _numpy(node: ast.expr) -> str | None:
        name = text_of(node) or dotted(node).removeprefix("np.").removeprefix("numpy.")
        return _NUMPY_WIRE.get(name)
