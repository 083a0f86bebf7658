"""The model.py files of the topic auto: what ``auto_complete_config`` makes of a file, or of a load's override.

Not among them is what the real server of this release never answers: ``is_model_ready`` and the like meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from python_models import HEAD, model

_ECHO = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', r.inputs()[0].as_numpy() * 2)]) for r in requests]"
_I = "i = {'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [2]}\no = {**i, 'name': 'OUT'}\n"
_BOTH = _I + "c.add_input(i)\nc.add_output(o)\n"
IN = 'input { name: "IN" data_type: TYPE_FP32 dims: 2 }\n'
OUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: 2 }\n'

COMPLETING: dict[str, tuple[str, str]] = {
    # the body of auto_complete_config(c), and what the file says besides the backend
    "everything": (_BOTH + "c.set_max_batch_size(4)\nc.set_dynamic_batching()\nreturn c", ""),
    "decoupled": (_BOTH + "c.set_model_transaction_policy({'decoupled': True})\nreturn c", ""),
    "optional": (_BOTH + "c.add_input({**i, 'name': 'MORE', 'optional': True})\nreturn c", ""),
    "larger": (_BOTH + "c.set_max_batch_size(16)\nreturn c", "max_batch_size: 8"),
    "outputs_alone": (_I + "c.add_output(o)\nreturn c", IN),
    "repeats_the_file": (_BOTH + "return c", IN + OUT),
    "delays": (
        _BOTH + "c.set_max_batch_size(4)\nc.set_dynamic_batching()\nreturn c",
        "dynamic_batching { max_queue_delay_microseconds: 77 }",
    ),
    "by_parameter": (
        _BOTH + "c.set_max_batch_size(int(c.as_dict()['parameters']['size']['string_value']))\nreturn c",
        'parameters { key: "size" value { string_value: "6" } }',
    ),
    "by_its_files": (
        _BOTH + "c.set_max_batch_size(os.listdir(pb_utils.get_model_dir()).count('model.py') + 4)\nreturn c",
        "",
    ),
    "says": (_BOTH + "pb_utils.Logger.log_info('completing')\nprint('completing')\nreturn c", ""),
    "as_dict": (_BOTH + "raise ValueError(json.dumps(c.as_dict(), sort_keys=True))", "max_batch_size: 3"),
    "gives_none": (_BOTH + "return None", ""),
    "gives_dict": (_BOTH + "return c.as_dict()", ""),
    "raises": ("raise ValueError('not completed')", ""),
    "raises_deep": ("def inner():\n    return {}['k']\ninner()", ""),
    "other_dims": (_BOTH + "return c", IN.replace("dims: 2", "dims: 3") + OUT),
    "other_type": (_BOTH + "return c", IN + OUT.replace("FP32", "INT8")),
    "smaller": (_BOTH + "c.set_max_batch_size(4)\nreturn c", "max_batch_size: 8"),
    "against_sequences": (_BOTH + "c.set_dynamic_batching()\nreturn c", "sequence_batching { }"),
    "against_policy": (
        _BOTH + "c.set_model_transaction_policy({'decoupled': True})\nreturn c",
        "model_transaction_policy { decoupled: false }",
    ),
    "no_dims": ("c.add_input({'name': 'IN', 'data_type': 'TYPE_FP32'})\nreturn c", OUT),
    "asks": (_BOTH + "raise ValueError(say(lambda: told(nested('everything').exec())))", ""),
}
WITHOUT: dict[str, tuple[str, str]] = {
    "nothing_at_all": ("", ""),
    "all_in_the_file": ("", "max_batch_size: 4\n" + IN + OUT),
    "no_static": ("\n    def auto_complete_config(self, c):\n        return c\n", IN + OUT),
    "no_function": ("\n    auto_complete_config = 5\n", IN + OUT),
}


def build(root: Path) -> None:
    """Writes all of them."""
    files = {
        name: (
            "\n    @staticmethod\n    def auto_complete_config(c):\n"
            + "".join(f"        {line}\n" for line in code.splitlines()),
            config,
        )
        for name, (code, config) in COMPLETING.items()
    }
    for name, (rest, config) in {**files, **WITHOUT}.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(model(_ECHO, rest=rest))
        (root / name / "1" / "__pycache__").touch()
        (root / name / "config.pbtxt").write_text(f'backend: "python"\n{config}\n')
    lines = (_BOTH + "c.set_max_batch_size(len(cls.__name__))\nreturn c").splitlines()
    (root / "inherits" / "1").mkdir(parents=True)
    (root / "inherits" / "config.pbtxt").write_text('backend: "python"\n')
    (root / "inherits" / "1" / "model.py").write_text(
        HEAD
        + "\n\nclass Base:\n    @classmethod\n    def auto_complete_config(cls, c):\n"
        + "".join(f"        {line}\n" for line in lines)
        + f"\n    def execute(self, requests):\n        {_ECHO}\n\n\nclass TritonPythonModel(Base):\n    pass\n"
    )
