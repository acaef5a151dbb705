#!/usr/bin/env bash
# Cross-compiles the wheel for Linux on aarch64 into dist/, on x86-64 Debian or Ubuntu:
#   apt-get install g++-12-aarch64-linux-gnu
#   PYTHON=.venv/bin/python HEADERS=FOLDER scripts/wheel_aarch64.sh
# HEADERS holds Python's own headers for aarch64, unpacked from Debian's package:
#   dpkg --add-architecture arm64 && apt-get update && apt-get download libpython3.11-dev:arm64 && dpkg-deb -x libpython3*.deb FOLDER
# On an aarch64 machine `make wheel` does all of this without a cross-compiler, and checks the wheel as well.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
headers=$(realpath "${HEADERS:?names the folder with the headers of Python for aarch64}")/usr/include
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p build # kept, as a build that goes on reads it again
cat >build/aarch64.cmake <<CMAKE
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER ${CXX:-aarch64-linux-gnu-g++-12})
set(Python_INCLUDE_DIR $headers/python3.11)
include_directories(SYSTEM $headers) # pyconfig.h includes the one of its processor from here
CMAKE
# What is set here is what scikit-build-core and CMake would ask this machine's own Python.
env _PYTHON_HOST_PLATFORM=linux-aarch64 CMAKE_TOOLCHAIN_FILE="$PWD/build/aarch64.cmake" GB_VARIANTS=portable \
  "$python" scripts/with_progress.py "compiling the kernels" \
  "$python" -m pip --disable-pip-version-check wheel --verbose --no-deps --no-build-isolation --wheel-dir "$folder" .
PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --exclude 'libgomp.so.1' --wheel-dir dist "$folder"/graphbraid-*aarch64.whl
ls dist/graphbraid-*aarch64.whl
