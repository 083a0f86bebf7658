"""Decodes an image and brings it into the shape and range of PP-OCR's detector."""

import nvidia.dali as dali
from nvidia.dali import types
from nvidia.dali.plugin.triton import autoserialize

LONGEST, MULTIPLE = 960.0, 32.0


@autoserialize
@dali.pipeline_def(
    batch_size=8,
    num_threads=1,
    device_id=None,
    output_dtype=[types.FLOAT, types.FLOAT, types.UINT8],
    output_ndim=[3, 1, 3],
    prefetch_queue_depth=1,
)
def pipe():
    """One image a sample: the detector's pixels, the scale back to the picture, the picture."""
    image = dali.fn.external_source(device="cpu", name="IMAGE", dtype=types.UINT8, ndim=1)
    picture = dali.fn.decoders.image(image, device="cpu", output_type=types.RGB)
    size = dali.fn.cast(picture.shape(), dtype=types.FLOAT)
    height, width = size[0], size[1]
    ratio = dali.math.min(1.0, LONGEST / dali.math.max(height, width))
    rows = dali.math.max(1.0, dali.math.floor(height * ratio / MULTIPLE + 0.5)) * MULTIPLE
    columns = dali.math.max(1.0, dali.math.floor(width * ratio / MULTIPLE + 0.5)) * MULTIPLE
    resized = dali.fn.resize(picture, resize_y=rows, resize_x=columns)
    pixels = dali.fn.crop_mirror_normalize(
        dali.fn.color_space_conversion(resized, image_type=types.RGB, output_type=types.BGR),
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[127.5, 127.5, 127.5],
        std=[127.5, 127.5, 127.5],
    )
    return pixels, dali.fn.stack(height / rows, width / columns), picture
