"""Device memory of this process as NVIDIA's driver counts it: tensors, caches, and the CUDA context.

Needs `nvidia-ml-py` (the `gpu` extra) and a driver. In a container with its own process numbers the driver's list does
not name this process; the answer is then None, never a guess.
"""

from __future__ import annotations

import os

import torch


def process_bytes(device: torch.device) -> int | None:
    """Returns the bytes that the driver counts for this process on a device.

    Args:
        device: A CUDA device.

    Returns:
        Bytes, or None without nvidia-ml-py, without a driver, or where the driver does not tell.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        # By UUID: the driver numbers all cards, torch only the visible ones.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        return None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
