"""Serve a GGUF file with llama.cpp, print the address on the first line, and end with stdin."""

import sys

import xllamacpp


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 2048, 1, 1
    params.use_jinja, params.warmup, params.verbosity = True, False, -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
