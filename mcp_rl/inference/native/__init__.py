"""A forward pass and a sampler for small models on the CPU, compiled by Numba when they are first called."""
