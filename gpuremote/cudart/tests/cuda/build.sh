#!/bin/sh
# Builds the programs of this folder with nvcc into the folder $1, linked with the shared runtime that lies in the folder $2
# (libcudart.so). Further arguments go to nvcc, for example -arch=sm_90.
set -eu
out=$1 lib=$2
shift 2
here=$(dirname "$0")
mkdir -p "$out"
build() {
    name=$1
    shift
    nvcc -std=c++17 -cudart shared -L "$lib" -o "$out/$name" "$@"
}
for name in known_kernels streams symbols managed copies launches errors device graphs; do
    build "$name" "$here/$name.cu" "$@"
done
build threads "$here/threads.cu" "$@"
build threads_per_thread "$here/threads.cu" --default-stream per-thread "$@"
build linked "$here/linked.cu" "$here/linked_device.cu" -rdc=true "$@"
