"""A model.py for Triton's Python backend, read and never run (semantics 17; pb_stub.cc).

Only what is certain from the text is said: what a subclass, a helper function or a decorator could do is left alone.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from workbench.config.rule import Severity
from workbench.config.schema import Message
from workbench.config.spelling import closest
from workbench.config.texts import backend_names as known
from workbench.config.texts.nodes import Offsets
from workbench.config.texts.python_rewrite import as_model
from workbench.config.texts.python_scope import (
    argument,
    assignments,
    bound_names,
    dotted,
    imported_as,
    own_nodes,
    text_of,
)
from workbench.config.texts.source import Change, Notes, Passage, did_you_mean

_MODULE = "triton_python_backend_utils"
_Function = ast.FunctionDef | ast.AsyncFunctionDef
DECOUPLED = "model_transaction_policy { decoupled: true }"


def check_model(tree: ast.Module, passage: Passage, notes: Notes, config: Message | None, *, file: bool) -> None:
    """A module or a part of one.

    ``file``: it is a whole model.py, so what is missing in it is missing; ``config``: the model's, where known.
    """
    _Model(tree, passage, notes, config, file).run()


@dataclass(slots=True)
class _Model:
    tree: ast.Module
    passage: Passage
    notes: Notes
    config: Message | None
    file: bool
    offsets: Offsets = field(init=False)
    aliases: set[str] = field(init=False)

    def __post_init__(self) -> None:
        if _completes_itself(self.tree):
            self.config = None
        self.offsets = Offsets(self.passage.text)
        self.aliases = imported_as(self.tree, _MODULE) or {"pb_utils"}

    def say(
        self, rule: str, node: ast.expr | ast.stmt | ast.keyword, text: str, title: str = "", *changes: Change
    ) -> None:
        start, end = self.offsets.span(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            end = min(end, self.passage.text.find("\n", start) if "\n" in self.passage.text[start:] else end)
        self.notes.say(self.passage, rule, (start, end), text, title, changes)

    def run(self) -> None:
        models = [
            node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel"
        ]
        for model in models:
            self._class(model)
        if not models:
            self._no_class()
        self._imports(whole=bool(models))
        self._utils()
        self._calls()

    # the class

    def _no_class(self) -> None:
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "execute" and not _takes_self(node):
                text = (
                    "Triton never calls a function execute: it makes an object of the class TritonPythonModel and "
                    "calls execute(self, requests), which returns one InferenceResponse for each request"
                )
                names = [each.name for each in self.config.output] if self.config is not None else []
                changed = as_model(node, self.passage.text, self.offsets, names)
                title = "Write it as a TritonPythonModel" if changed else ""
                self.say("python-bare-execute", node, text, title, *([changed] if changed else []))
                return
        if not self.file or bound_names(self.tree) & {"TritonPythonModel", "*"}:
            return
        classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        best = closest("TritonPythonModel", classes, cutoff=0.6)
        text = "model.py has no class TritonPythonModel: Triton finds nothing to load"
        if best is None:
            self.notes.say(self.passage, "python-no-class", (0, 0), text)
            return
        start = self.passage.text.find(best, self.offsets.span(classes[best])[0])
        change = (start, start + len(best), "TritonPythonModel")
        self.say("python-no-class", classes[best], text, "Rename the class", change)

    def _class(self, model: ast.ClassDef) -> None:
        methods = {node.name: node for node in model.body if isinstance(node, _Function)}
        if "execute" not in methods and not model.bases and not model.decorator_list and self._is_whole(model):
            best = closest("execute", [name for name in methods if name not in ("initialize", "finalize")], cutoff=0.6)
            more = f" ('{best}' is never called)" if best else ""
            self.say("python-no-execute", model, f"the model does not implement `execute` method{more}")
        for name, expected in known.METHODS.items():
            if name in methods:
                self._signature(methods[name], expected)
        if "is_ready" in methods and (0, 0) < self.notes.release < known.IS_READY_SINCE:
            text = "Triton calls is_ready since 26.03; before, a model is ready as soon as it is loaded"
            self.say("python-release", methods["is_ready"], text)
        if "auto_complete_config" in methods:
            self._auto_complete(methods["auto_complete_config"])
        if "execute" in methods:
            self._execute(model, methods["execute"])
        self._config_text(model)

    def _is_whole(self, model: ast.ClassDef) -> bool:
        """Whether the class is written out: a text that shows only ``initialize`` of a class is an excerpt."""
        return self.file or any(isinstance(node, _Function) and node.name == "predict" for node in model.body)

    def _signature(self, function: _Function, expected: tuple[str, ...]) -> None:
        arguments = function.args
        if function.decorator_list or arguments.vararg is not None:
            return
        given = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        required = len(given) - len(arguments.defaults)
        wanted = 1 + len(expected)
        if required <= wanted <= len(given):
            return
        shown = ", ".join(["self", *expected])
        text = f"Triton calls {function.name}({shown}); here it takes ({', '.join(given)})"
        start, end = self._between_brackets(function)
        uses = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        dropped = set(given) - {"self", *expected}
        if uses & dropped or start == end:
            self.say("python-signature", function, text)
        else:
            self.say("python-signature", function, text, f"Write ({shown})", (start, end, shown))

    def _between_brackets(self, function: _Function) -> tuple[int, int]:
        arguments = [*function.args.posonlyargs, *function.args.args]
        if not arguments or function.args.kwonlyargs or function.args.kwarg:
            return 0, 0
        ends = [self.offsets.span(each)[1] for each in arguments]
        ends += [self.offsets.span(each)[1] for each in function.args.defaults]
        return self.offsets.span(arguments[0])[0], max(ends)

    def _auto_complete(self, function: _Function) -> None:
        arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        decorators = {dotted(each) for each in function.decorator_list}
        wanted = 2 if "classmethod" in decorators else 1
        if not decorators <= {"staticmethod", "classmethod"} or function.args.vararg is not None:
            return
        if not len(arguments) - len(function.args.defaults) <= wanted <= len(arguments):
            text = "auto_complete_config is called on the class with one argument, the configuration: "
            text += "@staticmethod def auto_complete_config(auto_complete_model_config)"
            self.say("python-signature", function, text)
        elif self.file and not _returns(function) and not _only_raises(function):
            text = (
                "auto_complete_config must return the configuration that it was given: function in model must return "
            )
            self.say("python-auto-complete", function, f"{text}a valid pb.ModelConfig object.")

    # execute

    def _execute(self, model: ast.ClassDef, function: _Function) -> None:
        nodes = list(own_nodes(function))
        returns = [node for node in nodes if isinstance(node, ast.Return)]
        values = [node.value for node in returns if node.value is not None and not _is_none(node.value)]
        sender = any(isinstance(n, ast.Attribute) and n.attr == "get_response_sender" for n in ast.walk(model))
        decoupled = self.config is not None and self.config.model_transaction_policy.decoupled
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes):
            text = "execute is no generator: it returns a list of responses, or sends them with get_response_sender()"
            self.say("python-returns", function, text)
            return
        if decoupled and values:
            name = self.config.name if self.config is not None else ""
            text = f"Python model '{name}' is using the decoupled mode and the execute function must return None."
            self.say("python-decoupled", next(r for r in returns if r.value is values[0]), text)
            return
        for each in values:
            self._returned(each, function)
        if not values and not sender and not _only_raises(function) and not model.bases and not self._excerpt(model):
            text = (
                "execute returns nothing and sends nothing (Expected a list in the execute return, found type "
                "'<class 'NoneType'>'): return a list with one InferenceResponse for each request"
            )
            self.say("python-returns", function, text)
        if self.config is not None and not decoupled and sender:
            self._streams(function)
        self._response_count(function, values)
        for node in nodes:
            if isinstance(node, ast.Call) and _method(node) == "set_data_from_numpy":
                text = (
                    "set_data_from_numpy is a method of the client's InferInput; in a model an output is a new "
                    "pb_utils.Tensor(NAME, array) inside InferenceResponse(output_tensors=[...])"
                )
                self.say("python-outputs", node, text)

    def _excerpt(self, model: ast.ClassDef) -> bool:
        """Whether a text shows only a part of the class: something is left out, or no response is made at all."""
        left_out = any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(model))
        made = any(isinstance(n, ast.Call) and self._is_utils(n.func, "InferenceResponse") for n in ast.walk(model))
        return not self.file and (left_out or not made)

    def _returned(self, value: ast.expr, function: _Function) -> None:
        found = ""
        if isinstance(value, ast.Call) and self._is_utils(value.func, "InferenceResponse"):
            found = "InferenceResponse"
        elif isinstance(value, ast.Name):
            assigned = assignments(function).get(value.id, [])
            calls = [e for e in assigned if isinstance(e, ast.Call) and self._is_utils(e.func, "InferenceResponse")]
            found = "InferenceResponse" if assigned and len(calls) == len(assigned) else ""
        elif isinstance(value, ast.Dict | ast.DictComp):
            found = "dict"
        elif isinstance(value, ast.Tuple):
            found = "tuple"
        elif isinstance(value, ast.GeneratorExp):
            found = "generator"
        elif isinstance(value, ast.Constant):
            found = type(value.value).__name__
        if not found:
            return
        text = f"Expected a list in the execute return, found type '{found}': one InferenceResponse for each request"
        start, end = self.offsets.span(value)
        if found == "InferenceResponse":
            change = (start, end, f"[{self.passage.text[start:end]}]")
            self.say("python-returns", value, text, "Return a list", change)
        else:
            self.say("python-returns", value, text)

    def _response_count(self, function: _Function, values: list[ast.expr]) -> None:
        """A list of one response although Triton may hand over several requests."""
        names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
        requests = function.args.args[1].arg if len(function.args.args) > 1 else ""
        loops = any(
            isinstance(n, ast.For | ast.While | ast.comprehension | ast.Assert | ast.If) for n in ast.walk(function)
        )
        lists = [each for each in values if isinstance(each, ast.List) and len(each.elts) == 1]
        config = self.config
        if loops or not lists or requests not in names or any(isinstance(e, ast.Starred) for e in lists[0].elts):
            return
        batches = config is not None and config.HasField("dynamic_batching") and config.max_batch_size > 1
        if config is not None and not batches:
            return
        text = (
            "execute answers one request, but it gets as many as the batcher has put together: Number of "
            "InferenceResponse objects do not match the number of InferenceRequest objects"
        )
        self.notes.say(
            self.passage, "python-response-count", self.offsets.span(lists[0]), text,
            severity="error" if batches else "hint",
        )  # fmt: skip

    def _streams(self, function: _Function) -> None:
        """Several responses for one request, or none, in a model that is not decoupled (report F26)."""
        nodes = list(own_nodes(function))
        for loop in (node for node in nodes if isinstance(node, ast.For | ast.While)):
            inside = list(ast.walk(loop))
            for node in inside:
                if isinstance(node, ast.Call) and _method(node) == "send" and isinstance(node.func, ast.Attribute):
                    made = [each for each in nodes if _is_sender(each, dotted(node.func.value))]
                    if made and not any(each is other for each in made for other in inside):
                        self._needs_policy(node, "more than one response for a request")
                        return
        for node in nodes:
            bare = isinstance(node, ast.Call) and _method(node) == "send" and not node.args
            if bare and isinstance(node, ast.Call) and {each.arg for each in node.keywords} == {"flags"}:
                self._needs_policy(node, "a final flag without a response")
                return

    def _needs_policy(self, node: ast.Call, what: str) -> None:
        text = f"the model sends {what}: that needs {DECOUPLED} in config.pbtxt"
        self.say("python-decoupled", node, text)

    # names

    def _is_utils(self, node: ast.AST, name: str) -> bool:
        head, _, last = dotted(node).rpartition(".")
        return last == name and (head in self.aliases or (not head and name in self._from_utils()))

    def _from_utils(self) -> set[str]:
        return {
            alias.asname or alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module == _MODULE
            for alias in node.names
        }

    def _imports(self, *, whole: bool) -> None:
        """Modules that are used and not imported; only where the text has imports, so that it means to be whole."""
        has_imports = any(isinstance(node, ast.Import | ast.ImportFrom) for node in self.tree.body)
        stars = any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(self.tree))
        if not (whole or self.file) or stars or not (has_imports or self.file):
            return
        bound = bound_names(self.tree)
        seen: set[str] = set()
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Name) or node.id in bound or node.id in seen or node.id not in known.MODULES:
                continue
            seen.add(node.id)
            line = known.MODULES[node.id]
            at = self._import_place()
            text = f"{node.id} is used and not imported: NameError when the model runs"
            severity: Severity = "error" if self.file else "warning"
            self.notes.say(
                self.passage, "python-import", self.offsets.span(node), text, f"Add {line}", [(at, at, f"{line}\n")],
                severity,
            )  # fmt: skip

    def _import_place(self) -> int:
        for node in self.tree.body:
            future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not future and not text:
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                return self.offsets.at(first, 0)
        return 0

    def _utils(self) -> None:
        """Names that the module does not have."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            if node.value.id in self.aliases and node.attr not in known.PB_UTILS and not node.attr.startswith("__"):
                more, best = did_you_mean(node.attr, known.PB_UTILS, 0.6)
                end = self.offsets.span(node)[1]
                text = f"{_MODULE} has no {node.attr}{more}"
                change = (end - len(node.attr), end, best or "")
                self.say("python-utils", node, text, f"Write {best}" if best else "", *([change] if best else []))

    def _calls(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Await):
                call = node.value
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "exec":
                    end = self.offsets.span(call.func)[1]
                    text = "exec() is not awaited: it waits itself; async_exec() is the one for await"
                    self.say("python-await", node, text, "Write async_exec", (end - 4, end, "async_exec"))
            if not isinstance(node, ast.Call):
                continue
            if self._is_utils(node.func, "InferenceResponse"):
                self._keywords(node, known.RESPONSE_KEYWORDS, "InferenceResponse")
                self._outputs(node)
            elif self._is_utils(node.func, "InferenceRequest"):
                self._keywords(node, known.REQUEST_KEYWORDS, "InferenceRequest")
            elif self._is_utils(node.func, "get_input_tensor_by_name"):
                self._tensor_name(argument(node, 1, "name"), "input")

    def _keywords(self, call: ast.Call, allowed: tuple[str, ...], what: str) -> None:
        given = {each.arg for each in call.keywords}
        for each in call.keywords:
            if each.arg is None or each.arg in allowed:
                continue
            free = [name for name in allowed if name not in given]
            more, best = did_you_mean(each.arg, free, 0.5)
            start = self.offsets.span(each)[0]
            text = f"{what} has no argument {each.arg}{more}"
            change = (start, start + len(each.arg), best or "")
            self.say("python-keyword", each, text, f"Write {best}" if best else "", *([change] if best else []))

    def _outputs(self, call: ast.Call) -> None:
        """Names of tensors that are written inside the response itself."""
        tensors = argument(call, 0, "output_tensors")
        if not isinstance(tensors, ast.List):
            return
        assigned = assignments(self.tree)
        for each in tensors.elts:
            made: ast.expr = each
            if isinstance(each, ast.Name):
                values = assigned.get(each.id, [])
                if len(values) != 1:
                    continue
                made = values[0]
            if isinstance(made, ast.Call) and self._is_utils(made.func, "Tensor"):
                self._tensor_name(argument(made, 0, "name"), "output")

    def _tensor_name(self, node: ast.expr | None, kind: str) -> None:
        config, name = self.config, text_of(node)
        if config is None or name is None or node is None or not getattr(config, kind):
            return
        names = {each.name for each in getattr(config, kind)}
        for state in config.sequence_batching.state:
            names.add(state.input_name if kind == "input" else state.output_name)
        if kind == "input":
            names |= {each.name for each in config.sequence_batching.control_input}
            names |= {each for batch in config.batch_input for each in batch.target_name}
        if name in names:
            return
        more, best = did_you_mean(name, names, 0.5)
        result = "get_input_tensor_by_name gives None" if kind == "input" else "no client can ask for it"
        text = f"the configuration has no {kind} '{name}': {result}{more}"
        start, end = self.offsets.span(node)
        quote = self.passage.text[start : start + 1]
        fits = best is not None and self.passage.text[start:end] == f"{quote}{name}{quote}"
        change = (start, end, f"{quote}{best}{quote}")
        self.say("python-tensor-name", node, text, f"Write {best}" if fits else "", *([change] if fits else []))

    def _config_text(self, model: ast.ClassDef) -> None:
        """``args["model_config"]`` is JSON text, not a dict."""
        assigned = assignments(model)
        raw = {name for name, values in assigned.items() if all(_is_config_text(each) for each in values)}
        for node in ast.walk(model):
            if not isinstance(node, ast.Subscript) or text_of(node.slice) is None:
                continue
            value = node.value
            if not _is_config_text(value) and dotted(value) not in raw:
                continue
            start, end = self.offsets.span(value)
            text = "args['model_config'] is JSON text: json.loads() makes a dict of it"
            change = (start, end, f"json.loads({self.passage.text[start:end]})")
            self.say("python-config-text", node, text, "Read it with json.loads", change)


def _completes_itself(tree: ast.Module) -> bool:
    """Whether ``auto_complete_config`` could add to the configuration, so that the file does not tell all of it."""
    functions = [n for n in ast.walk(tree) if isinstance(n, _Function) and n.name == "auto_complete_config"]
    return any(isinstance(node, ast.Call) for function in functions for node in ast.walk(function))


def _method(call: ast.Call) -> str:
    """The name of the method that is called; empty where it is no method."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_sender(node: ast.AST, name: str) -> bool:
    """Whether a statement sets ``name`` to a request's response sender."""
    if not isinstance(node, ast.Assign) or name not in {dotted(target) for target in node.targets}:
        return False
    return isinstance(node.value, ast.Call) and _method(node.value) == "get_response_sender"


def _takes_self(function: ast.FunctionDef) -> bool:
    first = next(iter([*function.args.posonlyargs, *function.args.args]), None)
    return first is not None and first.arg == "self"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _returns(function: _Function) -> bool:
    return any(
        isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value)
        for node in own_nodes(function)
    )


def _only_raises(function: _Function) -> bool:
    """Whether the body is a placeholder (``...``, ``pass``) or raises."""
    body = [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    raises = any(isinstance(node, ast.Raise) for node in own_nodes(function))
    return not body or raises or all(isinstance(node, ast.Pass) for node in body)


def _is_config_text(node: ast.expr) -> bool:
    if not isinstance(node, ast.Subscript) or text_of(node.slice) != "model_config":
        return False
    return isinstance(node.value, ast.Name) and node.value.id == "args"
