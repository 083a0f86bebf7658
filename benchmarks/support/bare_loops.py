"""Each framework as a person would call it in a loop: one thread, the whole batch at once, arrays in and out.

A function gets a model's directory and the inputs of one batch by name, and gives a call of no arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]
Call = Callable[[], Any]
Bare = Callable[[Path, Feeds], Call]


def onnxruntime(folder: Path, feeds: Feeds) -> Call:
    """``InferenceSession.run``."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(folder / "1" / "model.onnx"), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def torchscript(folder: Path, feeds: Feeds) -> Call:
    """A TorchScript module."""
    import torch

    module = torch.jit.load(str(folder / "1" / "model.pt")).eval()  # type: ignore[no-untyped-call]
    return _torch_call(module, feeds)


def exported(folder: Path, feeds: Feeds) -> Call:
    """A program of torch.export."""
    import torch

    return _torch_call(torch.export.load(folder / "1" / "model.pt2").module(), feeds)


def aoti(folder: Path, feeds: Feeds) -> Call:
    """A package of AOTInductor."""
    import torch._inductor

    return _torch_call(torch._inductor.aoti_load_package(str(folder / "1" / "model.pt2")), feeds)


def _torch_call(module: Any, feeds: Feeds) -> Call:
    import torch

    torch.set_num_threads(1)
    tensors = [torch.from_numpy(array) for array in feeds.values()]

    def call() -> Any:
        with torch.inference_mode():
            return module(*tensors).numpy()

    for _ in range(3):  # the profiling executor of TorchScript compiles in the first calls
        call()
    return call


def silero(folder: Path, feeds: Feeds) -> Call:
    """Silero VAD, whose state goes from call to call."""
    import torch

    torch.set_num_threads(1)
    module = torch.jit.load(str(folder / "1" / "model.pt")).eval()  # type: ignore[no-untyped-call]
    (audio,) = (torch.from_numpy(array) for array in feeds.values())
    kept = [torch.zeros(len(audio), 2, 128), torch.zeros(len(audio), 64)]

    def call() -> Any:
        with torch.inference_mode():
            speech, *kept[:] = module(audio, *kept)
            return speech.numpy()

    for _ in range(3):
        call()
    return call


def openvino(precision: str, file: str = "model.xml") -> Bare:
    """An infer request of OpenVINO, memory shared both ways."""

    def bare(folder: Path, feeds: Feeds) -> Call:
        import openvino as ov

        settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": precision}
        compiled = ov.Core().compile_model(folder / "1" / file, "CPU", settings)
        request = compiled.create_infer_request()
        return lambda: request.infer(dict(feeds), share_inputs=True, share_outputs=True)

    return bare


def tensorflow(folder: Path, feeds: Feeds) -> Call:
    """A session's callable over a SavedModel."""
    from workbench.backends.tensorflow_session import import_tensorflow

    tf = import_tensorflow()
    graph = tf.Graph()
    config = tf.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, use_per_session_threads=True
    )
    session = tf.Session(graph=graph, config=config)
    with graph.as_default():
        load = inspect.unwrap(tf.saved_model.loader.load)  # marked as deprecated, which it would say
        loaded = load(session, ["serve"], str(folder / "1" / "model.savedmodel"))
    signature = loaded.signature_def["serving_default"]
    call = session.make_callable(
        [info.name for info in signature.outputs.values()], [signature.inputs[name].name for name in feeds]
    )
    return lambda: call(*feeds.values())


def treelite(file: str) -> Bare:
    """treelite's GTIL, on a checkpoint or a file of XGBoost or LightGBM."""

    def bare(folder: Path, feeds: Feeds) -> Call:
        import treelite
        from treelite import gtil

        path = str(folder / "1" / file)
        load = {".ubj": lambda: treelite.frontend.load_xgboost_model(path, format_choice="ubjson"),
                ".txt": lambda: treelite.frontend.load_lightgbm_model(path)}  # fmt: skip
        model = load.get(Path(file).suffix, lambda: treelite.Model.deserialize(path))()
        (rows,) = feeds.values()
        rows = np.ascontiguousarray(rows, model.input_type)
        return lambda: gtil.predict(model, rows, nthread=1)

    return bare


def xgboost(folder: Path, feeds: Feeds) -> Call:
    """XGBoost's prediction in place."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1}, model_file=str(folder / "1" / "xgboost.ubj"))
    (rows,) = feeds.values()
    return lambda: booster.inplace_predict(rows, validate_features=False)


def lightgbm(folder: Path, feeds: Feeds) -> Call:
    """LightGBM's prediction."""
    import lightgbm

    booster = lightgbm.Booster(model_file=str(folder / "1" / "model.txt"))
    (rows,) = feeds.values()
    return lambda: booster.predict(rows, num_threads=1, validate_features=False)


def dali(folder: Path, feeds: Feeds) -> Call:
    """A pipeline of DALI; the value of an input is the list of its samples, for they differ in length."""
    from nvidia.dali import Pipeline

    (name, samples), *_ = feeds.items()
    pipeline = Pipeline.deserialize(
        filename=str(folder / "1" / "model.dali"), batch_size=len(samples), num_threads=1, prefetch_queue_depth=1,
        device_id=None,
    )  # fmt: skip

    def call() -> Any:
        pipeline.feed_input(name, list(samples))
        return pipeline.run()[0].as_array()

    return call
