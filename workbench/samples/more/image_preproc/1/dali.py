"""Decodes an image and brings it into the shape and range of ImageNet's models."""

import nvidia.dali as dali
from nvidia.dali import types
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
@dali.pipeline_def(
    batch_size=16, num_threads=1, device_id=None, output_dtype=[types.FLOAT], output_ndim=[3], prefetch_queue_depth=1
)
def pipe():
    """One image a sample: 3 x 224 x 224."""
    image = dali.fn.external_source(device="cpu", name="IMAGE", dtype=types.UINT8, ndim=1)
    pixels = dali.fn.decoders.image(image, device="cpu", output_type=types.RGB)
    pixels = dali.fn.resize(pixels, resize_x=224, resize_y=224)
    return dali.fn.crop_mirror_normalize(
        pixels,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
    )
