"""What the learner and the engine do on a GPU, measured with random weights in the shapes of real models.

    make gpu-check                                    # or: python -m benchmarks.gpu_check [--out FILE] [--only NAME …]

No network and no download: Qwen2.5-0.5B and 3B are built on the device, in bfloat16. Without a CUDA device, or with
`--dry-run`, the same code runs small shapes on the CPU, and the result says `"dry_run": true`.

Every check runs in a process of its own, under a time limit: one that fails, hangs or breaks the device loses nothing
of the others, and its memory is free again when it ends. One JSON object in the end, a line for each check on the way.
docs/gpu.md says what each figure means.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVIDIA's library counts, which says what memory is used
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
