"""Reads the texts of a picture, for Triton's Python backend: business logic over two other models.

IMAGE: uint8 [bytes] -> TEXTS: string [n], SCORES: fp32 [n], BOXES: fp32 [n, 4, 2]. The detector gives the boxes and the
decoded picture; each box is cut out, turned upright, and scaled to the recogniser's height; the recogniser's answer is
read as CTC: repeated classes are one, class 0 is none.
"""

import asyncio
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

HEIGHT, WIDEST = 48, 2048
"""Pixels of the recogniser: the height of a line, and the width to which a longer one is pressed."""
FINEST = 8
"""Samples along each side of a pixel of the recogniser, at most: what a large letter is averaged over."""


class TritonPythonModel:
    """Asks the detector and the recogniser."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})

        def parameter(name, default):
            return parameters.get(name, {}).get("string_value") or default

        self.detector = parameter("detector", "detect_pipeline")
        self.recognizer = parameter("recognizer", "text_recognizer")
        self.least = float(parameter("text_score", 0.5))
        self.step = max(8, int(parameter("width_step", 64)))
        self.together = max(1, int(parameter("lines_per_batch", 8)))
        file = Path(args["model_repository"]) / args["model_version"] / "characters.txt"
        if not file.is_file():
            raise pb_utils.TritonModelException(f"{file} is missing; `workbench models build` makes it")
        # split, not splitlines: a character may be one that splitlines takes for the end of a line.
        self.characters = ["", *file.read_text(encoding="utf-8").rstrip("\n").split("\n"), " "]

    async def execute(self, requests):
        return await asyncio.gather(*(self._answer(request) for request in requests))

    async def _answer(self, request):
        try:
            image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            boxes, count, picture = await self._ask(
                self.detector, pb_utils.Tensor("IMAGE", image[np.newaxis]), ["BOXES", "COUNT", "PICTURE"]
            )
            boxes = boxes[0, : count[0, 0]]
            lines = [cut_out(picture[0], box) for box in boxes]
            read = await self._read(lines)
        except _Failed as failed:
            return pb_utils.InferenceResponse(error=failed.error)
        kept = [index for index, (_, score) in enumerate(read) if score >= self.least]
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("TEXTS", np.array([read[index][0].encode() for index in kept], np.object_)),
                pb_utils.Tensor("SCORES", np.array([read[index][1] for index in kept], np.float32)),
                pb_utils.Tensor("BOXES", boxes[kept].reshape(-1, 4, 2)),
            ]
        )

    async def _read(self, lines):
        """The text and the score of each line; lines that are filled up to one width go together."""
        widths = [-(-line.shape[2] // self.step) * self.step for line in lines]
        order = sorted(range(len(lines)), key=widths.__getitem__)
        groups = []
        for index in order:
            if groups and widths[groups[-1][0]] == widths[index] and len(groups[-1]) < self.together:
                groups[-1].append(index)
            else:
                groups.append([index])
        answers = await asyncio.gather(*(self._recognize([lines[i] for i in g], widths[g[0]]) for g in groups))
        read = [None] * len(lines)
        for group, answer in zip(groups, answers, strict=True):
            for index, steps in zip(group, answer, strict=True):
                read[index] = self.decode(steps)
        return read

    async def _recognize(self, lines, width):
        filled = np.zeros((len(lines), 3, HEIGHT, width), np.float32)
        for row, line in zip(filled, lines, strict=True):
            row[:, :, : line.shape[2]] = line
        (steps,) = await self._ask(self.recognizer, pb_utils.Tensor("x", filled), ["softmax_11.tmp_0"])
        return steps

    def decode(self, steps):
        """The text of probabilities [steps, classes], and the mean probability of its characters."""
        classes = steps.argmax(axis=1)
        kept = (classes != 0) & (classes != np.roll(classes, 1))
        kept[0] = classes[0] != 0
        if not kept.any():
            return "", 0.0
        return "".join(self.characters[index] for index in classes[kept]), float(steps.max(axis=1)[kept].mean())

    @staticmethod
    async def _ask(model, tensor, outputs):
        request = pb_utils.InferenceRequest(
            model_name=model,
            inputs=[tensor],
            requested_output_names=outputs,
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        )
        response = await request.async_exec()
        if response.has_error():
            raise _Failed(response.error())
        # Copies: the memory of a response belongs to the server.
        return [np.array(pb_utils.get_output_tensor_by_name(response, name).as_numpy()) for name in outputs]


class _Failed(Exception):
    """A model that was asked gave an error."""

    def __init__(self, error):
        super().__init__(error.message())
        self.error = error


def cut_out(picture, box):
    """A line of a picture [h, w, 3] as the recogniser takes it: fp32 [3, 48, width], blue, green, red from -1 to 1."""
    width, height = np.linalg.norm(box[1] - box[0]), np.linalg.norm(box[3] - box[0])
    if height >= 1.5 * width:  # written from the top down, or turned: PP-OCR turns it to the left
        box, width, height = np.roll(box, -1, axis=0), height, width
    columns = int(np.clip(round(HEIGHT * width / max(height, 1)), 8, WIDEST))
    fine = int(np.clip(np.ceil(height / HEIGHT), 1, FINEST))
    across = (np.arange(columns * fine) + 0.5) / (columns * fine)
    down = (np.arange(HEIGHT * fine) + 0.5) / (HEIGHT * fine)
    points = box[0] + across[np.newaxis, :, np.newaxis] * (box[1] - box[0]) + down[:, None, None] * (box[3] - box[0])
    levels = sampled(picture, points).reshape(HEIGHT, fine, columns, fine, 3).mean(axis=(1, 3))
    return (levels[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1).astype(np.float32)


def sampled(picture, points):
    """The levels of a picture at points [..., 2] (x, y; pixel 0 reaches from 0 to 1), between four pixels each."""
    last = np.array([picture.shape[1] - 1, picture.shape[0] - 1])
    place = np.clip(points - 0.5, 0, last)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, last)
    right, below = np.moveaxis((place - low)[..., np.newaxis], -2, 0)
    upper = picture[low[..., 1], low[..., 0]] * (1 - right) + picture[low[..., 1], high[..., 0]] * right
    lower = picture[high[..., 1], low[..., 0]] * (1 - right) + picture[high[..., 1], high[..., 0]] * right
    return upper * (1 - below) + lower * below
