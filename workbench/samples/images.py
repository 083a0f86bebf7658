"""The sample ``image_preproc``: a DALI pipeline, and two photographs as its examples."""

from __future__ import annotations

from pathlib import Path

from workbench.errors import InvalidRequest
from workbench.samples.recipes import APACHE, Files, Recipe, missing
from workbench.samples.wheels import SampleError

PICTURES = ("flower.jpg", "china.jpg")
_MODEL = "image_preproc"


def dali_pipeline(folder: Path) -> bytes:
    """The serialized pipeline of the sample in ``folder``, from its ``1/dali.py``.

    Raises:
        SampleError: DALI is not installed, or refuses the pipeline.
    """
    try:
        from nvidia import dali  # noqa: F401

        from workbench.backends.dali import autoserialized
    except ImportError as error:
        raise missing("nvidia-dali-cuda120", folder.name, extra="dali") from error
    try:
        return autoserialized(folder / "1" / "dali.py")
    except InvalidRequest as error:
        raise SampleError(f"the pipeline cannot be serialized: {error.message}", where=folder.name) from error


def _make(_wheel: Path | None, folder: Path) -> Files:
    try:
        import sklearn.datasets
    except ImportError as error:
        raise missing("scikit-learn", _MODEL, extra="trees") from error
    pipeline = dali_pipeline(folder)
    pictures = Path(sklearn.datasets.__file__).parent / "images"
    return {
        "1/model.dali": pipeline,
        **{f"example_inputs/{name}": (pictures / name).read_bytes() for name in PICTURES},
    }


IMAGE_PREPROC = Recipe(
    model=_MODEL,
    summary="an image file to 3 x 224 x 224 by DALI",
    version=1,
    files=("1/model.dali", *(f"example_inputs/{name}" for name in PICTURES)),
    make=_make,
    origin="1/dali.py, a part of this project; scikit-learn's photographs",
    notice="flower.jpg by vultilion and china.jpg by danielbuechele, both CC BY 2.0, as scikit-learn has them.\n"
    f"The pipeline is this project's.\n{APACHE}",
    sources=("1/dali.py",),
    extra="dali",
)
