"""Check and measure the learner and the engine on a GPU, with random weights in the shapes of real models.

    make gpu-check                                    # or: python -m benchmarks.gpu_check [--out FILE] [--only NAME …]

No network and no download: Qwen2.5-0.5B and 3B are built on the device, in bfloat16. Without a CUDA device, or with
`--dry-run`, the same code runs small shapes on the CPU, and the result says `"dry_run": true`.

Every check runs in its own process, under a time limit: one that fails, hangs or breaks the device does not affect the
others, and its memory is free again when it ends. A line for each check on the way, one JSON object in the end.
docs/gpu.md explains each figure.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of NVIDIA's library, which tells the used memory
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
