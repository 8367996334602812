#!/bin/sh
# Packs what tests/gpu/remote.sh needs on a machine with a GPU into a folder: the remote GPU programs of "cargo build --release", and, where nvcc is at hand,
# programs for the CUDA runtime. The folder works on any machine of the same architecture whose C library is as new as this one's.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$here/../../gpuremote"
cargo build -q --release
built=../.build/gpuremote/release
mkdir -p "$out/lib" "$out/ours" "$out/parts"
cp "$built/nearmetal-gpu-server" "$built/nearmetal-gpu-kernels" "$out/"
cp "$built/libcuda.so" "$out/lib/libcuda.so.1"
cp "$built/libcudart.so" "$out/ours/libcudart.so.13"
strip -g "$out/nearmetal-gpu-server" "$out/nearmetal-gpu-kernels" "$out/lib/"* "$out/ours/"*
cp "$here/remote.sh" cudart/tests/cuda/run.sh "$out/"
mv "$out/run.sh" "$out/programs.sh"
[ ! -d "$here/parts" ] || cp "$here/parts/"* "$out/parts/"
if command -v nvcc >/dev/null; then
	ln -sf libcudart.so.13 "$out/ours/libcudart.so"
	cp "$(dirname "$(command -v nvcc)")/../lib/libcudadevrt.a" "$out/ours/"
	sh cudart/tests/cuda/build.sh "$out/programs" "$out/ours" -arch=sm_90
	rm "$out/ours/libcudart.so" "$out/ours/libcudadevrt.a"
fi
mkdir -p "$out/opencl"
cp "$built/libnearmetal_opencl.so" "$built/nearmetal-gpu-server" "$out/opencl/"
cp -L "$(ldconfig -p | awk '/libOpenCL\.so\.1 .*x86-64/ { print $NF; exit }')" "$out/opencl/libOpenCL.so.1"
strip -g "$out/opencl/"*

# The libraries' programs need NVIDIA's headers, which HEADERS names.
if [ -n "${HEADERS:-}" ]; then
	mkdir -p "$out/libraries/built"
	cp "$built"/lib*.so "$built/nearmetal-gpu-server" "$out/libraries/built/"
	rm -f "$out/libraries/built"/libfake*
	strip -g "$out/libraries/built/"*
	mkdir -p "$out/libraries/link"
	for library in libcuda.so.1 libcublas.so.13 libcufft.so.12 libcurand.so.10 libcusparse.so.12 libcudnn.so.9; do
		cp "$out/libraries/built/${library%.so.*}.so" "$out/libraries/link/$library"
	done
	make -s -C cudalibs/tests/programs INCLUDE="$HEADERS" LIBRARIES="$out/libraries/link" OUT="$out/libraries/programs"
	rm -r "$out/libraries/link"
	cp cudalibs/tests/programs/run.sh "$out/libraries/"
fi
du -sh "$out"
