#!/bin/sh
# Runs the programs on NVIDIA's libraries, then on the front ends of remote GPUs by shared memory and by TCP on this host.
#
# usage: run.sh PROGRAMS BUILT NVIDIA [PROGRAM...]
#   PROGRAMS  the directory with the built programs
#   BUILT     the directory with nearmetal-gpu-server and the front ends, as Cargo has built them
#   NVIDIA    directories with NVIDIA's libraries, with colons between them
# Ends with 1 when a run has failed. Set SERVER_FLAGS to give the server others, such as --cuda and --cublas for fakes.
set -u

programs=$1 built=$2 nvidia=$3
shift 3
[ $# -gt 0 ] || set -- blas fft rand sparse dnn

work=$(mktemp -d)
port=$((20000 + $$ % 20000))
server=
trap '[ -n "$server" ] && kill "$server"; rm -rf "$work"' EXIT

mkdir "$work/fronts"
for library in libcuda.so.1 libcublas.so.13 libcufft.so.12 libcurand.so.10 libcusparse.so.12 libcudnn.so.9; do
    ln -s "$(realpath "$built/${library%.so.*}.so")" "$work/fronts/$library"
done

# shellcheck disable=SC2086 # the flags are words
LD_LIBRARY_PATH=$nvidia "$built/nearmetal-gpu-server" --listen "unix:$work/socket" --listen "tcp:127.0.0.1:$port" ${SERVER_FLAGS:-} &
server=$!
for _ in $(seq 100); do
    [ -S "$work/socket" ] && break
    sleep 0.05
done

failed=0
run() {
    where=$1 libraries=$2 address=$3 program=$4
    echo "== $program, $where"
    if ! NEARMETAL_GPU_SERVER=$address LD_LIBRARY_PATH=$libraries timeout "${LIMIT_S:-60}" "$programs/$program" ${CHECKS:-}; then
        echo "FAIL $program, $where"
        failed=1
    fi
}

for program in "$@"; do
    [ -n "${SKIP_DIRECT:-}" ] || run direct "$nvidia" "" "$program"
    run "shared memory" "$work/fronts" "unix:$work/socket" "$program"
    run TCP "$work/fronts" "tcp:127.0.0.1:$port" "$program"
done
exit $failed
