#!/bin/bash
# Runs pyopencl's own test suite on this host's OpenCL and on remote GPUs, and compares the results test by test.
#
# Usage: gpuremote/opencl/tests/pyopencl.sh FOLDER [PYTEST ARGUMENT...]
#
# FOLDER takes the virtual environment, the suite and the results; what lies there already is used again. PyPI must be reachable the first
# time. Differences are listed, and make the script fail, but for tests of shared virtual memory (SVM): remote devices report that they have
# none, so those are left out there.
set -euo pipefail

folder=$(realpath -m "$1")
shift
workspace=$(realpath "$(dirname "$0")/../..")
built=$workspace/../.build/gpuremote/release
mkdir -p "$folder"

(cd "$workspace" && cargo build --quiet --release --package gpuremote-server --package gpuremote-opencl)

if [ ! -x "$folder/venv/bin/python" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet pyopencl pytest numpy mako
fi
if [ ! -d "$folder/suite" ]; then
    version=$("$folder/venv/bin/python" -c 'import importlib.metadata as m; print(m.version("pyopencl"))')
    "$folder/venv/bin/pip" download --quiet --no-deps --no-build-isolation --no-binary pyopencl "pyopencl==$version" --dest "$folder/source"
    mkdir -p "$folder/suite"
    tar -xzf "$folder/source/pyopencl-$version.tar.gz" -C "$folder/suite" --strip-components=1
fi

# Runs the suite with the environment's OpenCL, and lists each test with its result.
suite() {
    local name=$1
    shift
    (
        cd "$folder/suite/test"
        export XDG_CACHE_HOME=$folder/cache-$name POCL_CACHE_DIR=$folder/cache-$name/pocl
        mkdir -p "$POCL_CACHE_DIR"
        # A failed test is a result, not the end of this script.
        "$folder/venv/bin/python" -m pytest -q --tb=short -o cache_dir="$XDG_CACHE_HOME/pytest" --junitxml="$folder/$name.xml" "$@" \
            > "$folder/$name.log" 2>&1 || true
    )
    "$folder/venv/bin/python" - "$folder/$name.xml" > "$folder/$name.txt" << 'PYTHON'
import sys
from xml.etree import ElementTree

for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    kinds = [child for child in case if child.tag in ("failure", "error", "skipped")]
    result = kinds[0].tag if kinds else "passed"
    svm = result == "skipped" and "SVM" in (kinds[0].get("message") or "")
    # Objects' addresses differ from run to run.
    name = case.get("name").split(" at 0x")[0]
    print(case.get("classname"), name, "skipped: SVM" if svm else result)
PYTHON
    echo "$name: $(awk '{ count[$NF]++ } END { for (result in count) printf "%s %s  ", count[result], result }' "$folder/$name.txt")"
}

suite direct "$@"

mkdir -p "$folder/vendors"
echo "$built/libnearmetal_opencl.so" > "$folder/vendors/nearmetal.icd"
port=${PORT:-7733}
POCL_CACHE_DIR=$folder/cache-server "$built/nearmetal-gpu-server" --listen "unix:$folder/socket" --listen "tcp:127.0.0.1:$port" \
    2> "$folder/server.log" &
server=$!
trap 'kill $server' EXIT
for _ in $(seq 100); do
    [ -S "$folder/socket" ] && break
    sleep 0.1
done
export OCL_ICD_VENDORS=$folder/vendors
NEARMETAL_GPU_SERVER=unix:$folder/socket suite unix "$@"
NEARMETAL_GPU_SERVER=tcp:127.0.0.1:$port suite tcp "$@"

differs=0
for name in unix tcp; do
    # A test that is left out for the want of SVM has no counterpart to compare with.
    left_out=$(grep ' skipped: SVM$' "$folder/$name.txt" | sed 's/ skipped: SVM$//' || true)
    keep() { grep -vF -f <(echo "${left_out:-no test has this name}") "$1"; }
    if ! diff <(keep "$folder/direct.txt") <(keep "$folder/$name.txt") > "$folder/$name.diff"; then
        echo "$name differs from direct:"
        cat "$folder/$name.diff"
        differs=1
    fi
done
[ $differs = 0 ] && echo "the results are the same, but for $(grep -c ' skipped: SVM$' "$folder/unix.txt" || true) tests of SVM"
exit $differs
