"""Speeds of devices by their data sheets, for forecasts and choices until a run has measured its own."""

from __future__ import annotations

SHEETS: tuple[tuple[str, float, float], ...] = (
    ("B200", 8000, 2250), ("H200", 4800, 989), ("H100", 3350, 989), ("A100", 2000, 312), ("L40S", 864, 362),
    ("L4", 300, 121), ("A10", 600, 125), ("A40", 696, 150), ("T4", 320, 65), ("V100", 900, 125), ("5090", 1792, 210),
    ("4090", 1008, 165), ("3090", 936, 71), ("A6000", 768, 155),
)  # fmt: skip
"""Part of a GPU's name, GB/s of its memory, and TFLOP/s in 16 bits without sparsity; the first that fits."""
UNKNOWN_GPU, CPU_CORE = (600.0, 100.0), (6.0, 0.03)
"""The same of a GPU of another name, and of a processor's core."""
SAMPLING = 0.35
"""Share of the memory's bandwidth that sampling is assumed to reach."""
HOST_BANDWIDTH = 6e9
"""Bytes a second that are assumed between a GPU and the machine's memory: half of what PCIe 3.0 reaches."""


def gpu_speed(name: str) -> tuple[float, float]:
    """Return bytes and operations a second of a GPU."""
    bandwidth, operations = next((sheet[1:] for sheet in SHEETS if sheet[0] in name), UNKNOWN_GPU)
    return bandwidth * 1e9, operations * 1e12
