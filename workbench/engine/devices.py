"""Which GPUs a model may be placed on."""

from __future__ import annotations


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
