"""Where the seconds of an optimiser step go, by what is computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

PARTS = {
    "matrix products of layers and head": ("aten::mm", "aten::addmm", "aten::linear"),
    "attention": (
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "aten::bmm",
        "aten::baddbmm",
    ),
    "AdamW": ("aten::_fused_adamw_",),
    "norm of the gradient": ("aten::linalg_vector_norm", "aten::_foreach_norm"),
}
REST = "passes over memory: element-wise, copies, sums, rounding"


def seconds_by_part(step: Callable[[], object]) -> dict[str, float]:
    """Seconds of one call on one thread, by part; Python's own are not among them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    torch.set_num_threads(threads)
    seconds = dict.fromkeys([*PARTS, REST], 0.0)
    for event in found.key_averages():
        part = next((name for name, keys in PARTS.items() if event.key in keys), REST)
        seconds[part] += event.self_cpu_time_total / 1e6
    return seconds
