"""What a generation service can be told to do in one of several ways, by name."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["transformers", "tgi", "vllm", "openai"]
"""What samples."""

Restart = Literal["rolling", "stop-first"]
"""Whether a program that restarts at a push does so beside the old one, or after its end."""

OnSwap = Literal["finish", "continue"]
"""What becomes of completions under way when weights are swapped."""
