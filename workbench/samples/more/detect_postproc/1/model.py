"""Probabilities of text to boxes around its lines, for Triton's Python backend; only numpy.

PROBABILITY: fp32 [rows, 1, h, w], SCALE: fp32 [rows, 2] -> BOXES: fp32 [rows, n, 4, 2], SCORES: fp32 [rows, n],
COUNT: int32 [rows, 1]. As PP-OCR does it: pixels above a threshold that touch are a line, the smallest rectangle around
them, turned as it may be, is its box, made wider by what the detector was trained to leave out.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

SMALLEST = 3
"""Pixels of the detector that a box measures at least, along its shorter side."""


class TritonPythonModel:
    """Finds the boxes of each request's pictures."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})

        def number(name, default):
            return float(parameters.get(name, {}).get("string_value") or default)

        self.pixel = number("pixel_threshold", 0.3)
        self.box = number("box_threshold", 0.5)
        self.unclip = number("unclip_ratio", 1.6)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        maps = pb_utils.get_input_tensor_by_name(request, "PROBABILITY").as_numpy()[:, 0]
        scales = pb_utils.get_input_tensor_by_name(request, "SCALE").as_numpy()
        rows = [self.find(probability, scale) for probability, scale in zip(maps, scales, strict=True)]
        most = max((len(scores) for _, scores in rows), default=0)
        boxes = np.zeros((len(rows), most, 4, 2), np.float32)
        scores = np.zeros((len(rows), most), np.float32)
        for index, (found, certain) in enumerate(rows):
            boxes[index, : len(found)], scores[index, : len(found)] = found, certain
        count = np.array([[len(certain)] for _, certain in rows], np.int32).reshape(-1, 1)
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("BOXES", boxes),
                pb_utils.Tensor("SCORES", scores),
                pb_utils.Tensor("COUNT", count),
            ]
        )

    def find(self, probability, scale):
        """The boxes of one picture, fp32 [n, 4, 2], in its own pixels, and their scores, fp32 [n]."""
        rows, starts, ends, labels = components(dilated(probability > self.pixel))
        sums = np.concatenate([np.zeros((len(probability), 1)), np.cumsum(probability, axis=1, dtype=float)], axis=1)
        within = sums[rows, ends] - sums[rows, starts]
        found, scores = [], []
        for label in np.unique(labels):
            mine = labels == label
            score = within[mine].sum() / (ends[mine] - starts[mine]).sum()
            if score < self.box:
                continue
            # Corners of pixels, not their centres: a line of one pixel has a height.
            top, left, right = rows[mine], starts[mine], ends[mine]
            points = np.concatenate(
                [np.stack([x, y], axis=1) for x in (left, right) for y in (top, top + 1)], dtype=np.float64
            )
            centre, axes, sides = smallest_rectangle(points)
            if sides.min() < SMALLEST:
                continue
            grown = sides + 2 * sides.prod() * self.unclip / (2 * sides.sum())
            found.append(corners(centre, axes, grown))
            scores.append(score)
        if not found:
            return np.zeros((0, 4, 2), np.float32), np.zeros(0, np.float32)
        height, width = probability.shape
        boxes = np.clip(np.array(found), 0, [width, height]) * scale[::-1]
        order = reading_order(boxes)
        return boxes[order].astype(np.float32), np.array(scores, np.float32)[order]


def dilated(mask):
    """A mask grown by one pixel to the right and below: what is one pixel apart becomes one."""
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:, 1:] |= grown[:, :-1].copy()
    return grown


def components(mask):
    """The runs of a mask, row by row, and which belong together: rows, starts, ends (exclusive), labels.

    Runs of neighbouring rows that touch, by a corner too, are of one component.
    """
    width = mask.shape[1]
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    # One number for row and column; the runs are in its order, whether their starts or their ends are taken.
    stride = width + 2
    first = np.searchsorted(rows * stride + ends, (rows + 1) * stride + starts)
    last = np.searchsorted(rows * stride + starts, (rows + 1) * stride + ends, side="right")
    counts = np.maximum(last - first, 0)
    upper = np.repeat(np.arange(len(rows)), counts)
    lower = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    labels = np.arange(len(rows))
    while True:
        least = np.minimum(labels[upper], labels[lower])
        joined = labels.copy()
        # The root of a run learns of the smaller one, and its runs by asking it.
        for side in (upper, lower):
            np.minimum.at(joined, labels[side], least)
        joined = joined[joined]
        joined = joined[joined[labels]]
        if (joined == labels).all():
            return rows, starts, ends, labels
        labels = joined


def hull(points):
    """The corners of the convex hull of points [n, 2], counter-clockwise (Andrew's monotone chain)."""
    points = np.unique(points, axis=0)
    halves = []
    for ordered in (points, points[::-1]):
        chain = []
        for x, y in ordered:
            while len(chain) > 1:
                (ax, ay), (bx, by) = chain[-2], chain[-1]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                chain.pop()
            chain.append((x, y))
        halves += chain[:-1]
    return np.array(halves)


def smallest_rectangle(points):
    """Centre [2], axes [2, 2] and sides [2] of the rectangle of least area around points: a side lies on the hull."""
    outline = hull(points)
    along = np.diff(outline, axis=0, append=outline[:1])
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    axes = np.stack([along, np.stack([-along[:, 1], along[:, 0]], axis=1)], axis=1)
    turned = axes @ outline.T
    low, high = turned.min(axis=2), turned.max(axis=2)
    best = int(np.argmin((high - low).prod(axis=1)))
    return (low + high)[best] / 2 @ axes[best], axes[best], (high - low)[best]


def corners(centre, axes, sides):
    """The corners of a rectangle, [4, 2], clockwise from the top left (y grows downwards)."""
    half = axes * sides[:, None] / 2
    four = np.array([centre + a * half[0] + b * half[1] for a in (-1, 1) for b in (-1, 1)])
    left, right = np.split(four[np.argsort(four[:, 0], kind="stable")], 2)
    left, right = left[np.argsort(left[:, 1])], right[np.argsort(right[:, 1])]
    return np.array([left[0], right[0], right[1], left[1]])


def reading_order(boxes):
    """Indices of boxes line by line: a box whose middle is within the upper half of a line's first is of that line."""
    middle = boxes[:, :, 1].mean(axis=1)
    half = np.ptp(boxes[:, :, 1], axis=1) / 2
    line, first = np.zeros(len(boxes), int), None
    for index in np.argsort(middle, kind="stable"):
        if first is None:
            first = index
        elif middle[index] > middle[first] + half[first]:
            line[index], first = line[first] + 1, index
            continue
        line[index] = line[first]
    return np.lexsort((boxes[:, :, 0].min(axis=1), line))
