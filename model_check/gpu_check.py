"""The one prepared script for a machine with a GPU: kernels against references, engine tokens against the CPU's,
timings.

Where there is no GPU it says so and exits with 3: nothing was checked, and nothing is claimed.
"""

from __future__ import annotations

import sys
import time

import torch
import triton

from freehold.impl.engine import Engine, EngineConfig
from freehold.impl.execution.model_runner import ModelRunner
from freehold.impl.execution.weights import load_model
from freehold.kernels import gpu_check as kernels
from freehold.kernels.errors import NoGpu

PROMPTS = ("The capital of France is", "def fibonacci(n):", "Water boils at", "Once upon a time", "1, 2, 3, 4,")
NEW_TOKENS = 32


def main() -> int:
    """0 when everything agrees, 1 when something does not, 3 where there is no GPU."""
    if not torch.cuda.is_available():
        print("gpu-check: no CUDA device here, so no kernel ran and nothing was checked (exit 3)", file=sys.stderr)
        return 3
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    try:
        report = kernels.run()
    except NoGpu as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 3
    agree = engine_tokens_agree()
    print(f"kernels: {'agree' if report.passed else 'DISAGREE'}; engine tokens: {'agree' if agree else 'DISAGREE'}")
    return 0 if report.passed and agree else 1


def engine_tokens_agree() -> bool:
    """Greedy float32 tokens of the engine on the GPU, batched, against those on the CPU."""
    outputs = {}
    for device in ("cpu", "cuda"):
        loaded = load_model(dtype=torch.float32)
        config = EngineConfig(page_size=16, num_pages=64, max_context_tokens=256, max_running=8, chunk_tokens=32)
        engine = Engine(
            config,
            lambda tables, model=loaded.model, device=device: ModelRunner(  # type: ignore[misc]
                model, tables, page_size=16, device=device
            ),
        )
        prompts = [loaded.tokenizer(p, add_special_tokens=False)["input_ids"] for p in PROMPTS]
        requests = [engine.submit(p, max_new_tokens=NEW_TOKENS) for p in prompts]
        started = time.perf_counter()
        engine.run_until_idle()
        spent = time.perf_counter() - started
        outputs[device] = [r.output for r in requests]
        print(f"engine on {device}: {len(requests) * NEW_TOKENS / spent:.1f} tokens/s")
    for text, cpu, gpu in zip(PROMPTS, outputs["cpu"], outputs["cuda"], strict=True):
        if cpu != gpu:
            print(f"{text!r}: CPU {cpu}, GPU {gpu}")
    return outputs["cpu"] == outputs["cuda"]
