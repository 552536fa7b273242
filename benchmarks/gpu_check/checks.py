"""All checks, in the order in which they run."""

from benchmarks.gpu_check import updates, precisions, resting, sampling, loaders, with_vllm, jobs, freed  # noqa: F401, I001
