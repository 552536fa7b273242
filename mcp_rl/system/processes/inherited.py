"""The variables of our environment that the processes we start inherit; all others stay with us."""

from __future__ import annotations

import os

from mcp_rl.system.redaction import is_secret_name
from mcp_rl.system.threads import UPDATE_THREADS

INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_COMPUTING = (
    "CUDA", "NVIDIA_", "NCCL_", "ROCM", "HIP_", "OMP_", "KMP_", "MKL_", "GOMP_", "OPENBLAS_", "GLOO_", "LD_", "DYLD_",
    "CUBLAS_", "CUDNN_", "FLASHINFER_", "BNB_", "TORCH", "PYTORCH_", "TRITON_", "HF_", "HUGGINGFACE_",
    "TRANSFORMERS_", "VLLM_", "UNSLOTH_", "IMPORT_", "XDG_", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "SSL_CERT_",
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
    "no_proxy", "ALL_PROXY", "all_proxy", "ATEN_", "DNNL_", "ONEDNN_", "NUMBA_", UPDATE_THREADS,
)  # fmt: skip
"""Prefixes of variables that say how and where models are loaded and computed."""
_COMPILERS = ("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "MAX_JOBS")
"""Variables by which Triton and torch find a compiler for kernels; a conda environment has no other compiler."""
_LAUNCHERS = "TORCHELASTIC_"
"""Prefix of torchrun's variables for its workers, which the workers' children must not see."""
MARKER = OWNER, ROLE, RUN = "MCP_RL_OWNER", "MCP_RL_ROLE", "MCP_RL_RUN"
"""Variables that mark a process that we started."""


def basic_environment() -> dict[str, str]:
    """Return the variables of our environment that any process gets."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def computing_environment() -> dict[str, str]:
    """Return `basic_environment` and the variables for loading and computing models, without any that looks secret."""
    wanted = {name: v for name, v in os.environ.items() if name.startswith(_COMPUTING) or name in _COMPILERS}
    left_out = {name for name in wanted if is_secret_name(name) or name.startswith(_LAUNCHERS)}
    return basic_environment() | {name: value for name, value in wanted.items() if name not in left_out}
