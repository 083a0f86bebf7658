"""Which GPUs a model may be placed on."""

from __future__ import annotations

from collections.abc import Sequence


def usable_gpus() -> tuple[int, ...]:
    """The numbers of the GPUs of this machine; empty where NVML or a driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return ()
    try:
        return tuple(range(pynvml.nvmlDeviceGetCount()))
    except Exception:
        return ()
    finally:
        pynvml.nvmlShutdown()


def restrict(gpus: Sequence[int], wanted: Sequence[int] | None) -> tuple[int, ...]:
    """The GPUs that are both there and wanted; None wants all."""
    return tuple(gpus) if wanted is None else tuple(gpu for gpu in gpus if gpu in wanted)
