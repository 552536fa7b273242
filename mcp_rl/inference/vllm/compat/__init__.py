"""Everything that holds for particular versions of vLLM only: 0.30 to 0.32, tested with 0.32 on CPUs.

A newer vLLM is met here and nowhere else: run `make test-vllm` with it, then go through these modules.

- `known`: module names, limits and messages.
- `log`: the causes of a server's death, as its log words them.
- `metrics`: names and meaning of the server's metrics.
- `cpu`: arguments that a server on a CPU needs.
- `untied`: a copy of a model whose new weights vLLM on a CPU takes whole.
- `in_vllm/`: modules that vLLM itself imports: a key for every path, and LoRA kernels for CPUs.
"""
