# graphbraid on the CPU. In a clone:
#   docker build -t graphbraid .
#   docker run --rm -v "$PWD:/data" graphbraid train --data braid-100k --epochs 5 --out /data/runs/first
# For NVIDIA GPUs, PyTorch's own wheels: --build-arg TORCH_INDEX=https://pypi.org/simple, and run with --gpus all.
# Without Docker Hub: --build-arg BASE=IMAGE, any image with Python 3.11 or newer, its headers and pip.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
# Kernels for all processors; portable compiles the fastest and runs the slowest.
ARG GB_VARIANTS=all
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md ./
COPY cmake cmake
COPY src src
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH=torch>=2.9
# First and alone: its index decides which build is taken. Its version is the caller's, by --build-arg TORCH=torch==2.13.0.
# hadolint ignore=DL3013
RUN python3 -m pip install --no-cache-dir --index-url "${TORCH_INDEX}" "${TORCH}"
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
  wheel=$(ls /wheels/graphbraid-*.whl) && python3 -m pip install --no-cache-dir "${wheel}[pyg,tabular]" && graphbraid doctor
RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /data
ENTRYPOINT ["graphbraid"]
CMD ["--help"]
