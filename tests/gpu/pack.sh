#!/bin/sh
# Packs what tests/gpu/cdi.sh needs on a machine with a GPU into a folder: the driver's tests as one static program, a CUDA program, and crun with its
# libraries. The folder works on any machine of the same architecture whose C library is as new as this one's.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
(cd "$here/../.." && CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o "$out/container.test" ./internal/driver/container)
cc -O2 -Wall -Wextra -o "$out/cudacheck" "$here/cudacheck.c" -ldl
crun=$(command -v crun)
cp -L "$crun" "$out/crun"
# Not the C library: the loader of the other machine wants its own.
ldd "$crun" | awk '$2 == "=>" && $3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt)\.so/ { print $3 }' | while read -r lib; do
	cp -L "$lib" "$out/"
done
cp "$here/cdi.sh" "$out/"
du -sh "$out"
