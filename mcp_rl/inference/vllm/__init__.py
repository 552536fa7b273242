"""Sampling with vLLM: a server that this process starts and watches, or one that already runs."""
