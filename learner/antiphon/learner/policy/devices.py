"""Where policies and references are held: devices that this machine has."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import resolve_devices

OFFLOAD = "offload"
"""As a reference's device: held in main memory, brought to the policy's device to compute."""


def usable_devices(
    devices: str | Sequence[str] | None, num_agents: int, *, field: str = "agent_devices"
) -> tuple[str, ...]:
    """One device per agent, each one that torch can put a model on here.

    Args:
        devices: As in `resolve_devices`; ``"offload"`` passes for references.
        num_agents: Number of agents, N.
        field: The setting's name, for the message.

    Raises:
        FieldError: A list of another length, a device that torch does not know or that is not here.
    """
    there = torch.cuda.device_count()
    resolved = resolve_devices(devices, num_agents, cuda_devices=there, field=field)
    for name in resolved:
        if name != OFFLOAD:
            _check(name, there, field)
    return resolved


def _check(name: str, cuda_devices: int, field: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise FieldError(field, repr(name), '"auto", or a device: "cpu", "cuda:0"') from error
    # torch keeps the number in eight bits, so a large one may come back as another.
    there = str(device) == name and (device.index or 0) < cuda_devices
    if device.type == "cuda" and not there:
        raise FieldError(field, repr(name), f"one of the {cuda_devices} CUDA devices here, or cpu")
