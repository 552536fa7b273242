"""All checks, in the order in which they run."""

from benchmarks.gpu_check import updates, sampling, jobs  # noqa: F401, I001
