"""Sampling: the in-process engine, vLLM, chat formats, and chat models behind APIs."""

import logging

# PEFT imports bitsandbytes if it is installed, which on CPUs logs the kernels that it lacks.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
