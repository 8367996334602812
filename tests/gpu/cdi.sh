#!/bin/sh
# Runs the container driver with the GPU of this machine: a member that holds it runs nvidia-smi and a CUDA program, and one that does not can't open it.
# It needs root, a driver of NVIDIA's, and the folder that tests/gpu/pack.sh made elsewhere. It takes less than 30 s and leaves nothing.
#
#   cdi.sh FOLDER [RECORDS]     RECORDS is a folder for the answers of nvidia-smi, which unit tests can be made of
set -u
[ $# -ge 1 ] || { echo "usage: $0 FOLDER [RECORDS]" >&2; exit 2; }
folder=$(cd "$1" && pwd)
records=${2:-}
PATH=$PATH:/usr/local/nvidia/bin

echo "== this machine"
uname -sr
echo "uid $(id -u), $(grep CapEff /proc/self/status)"
grep -E 'cgroup|/usr/local/nvidia' /proc/self/mountinfo | cut -c1-160
ls -l /dev/nvidia* 2>&1
ldconfig -p 2>/dev/null | grep -E 'libcuda\.so|libnvidia-ml' || echo "the loader's cache has no libcuda"
ls /usr/local/nvidia /usr/local/nvidia/lib64 2>/dev/null | grep -cE '\.so' || true
grep -E 'ModifyDeviceFiles|DeviceFileMode' /proc/driver/nvidia/params 2>/dev/null

# Without somebody who has the GPU open, the driver sets it up anew for each program, which takes seconds.
sleep 60 9<>/dev/nvidia0 &
keeper=$!
work=
trap 'kill $keeper 2>/dev/null; rm -rf "$work"' EXIT

if [ -n "$records" ]; then
	mkdir -p "$records"
	export LD_LIBRARY_PATH=/usr/local/nvidia/lib64
	timeout 10 nvidia-smi -q -x >"$records/query.xml" 2>&1
	timeout 5 nvidia-smi --query-gpu=uuid,compute_cap --format=csv,noheader >"$records/capability.csv" 2>&1
	timeout 5 nvidia-smi topo -m >"$records/topology.txt" 2>&1
	timeout 5 nvidia-smi mig -lgip >"$records/profiles.txt" 2>&1
	unset LD_LIBRARY_PATH
fi

if ! grep -qE ' /sys/fs/cgroup' /proc/self/mountinfo; then
	echo "== no control groups are mounted; mounting version 2"
	mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
fi

work=$(mktemp -d /tmp/gpu.XXXXXX) || exit 1
chmod 755 "$work"
mkdir "$work/bin" "$work/tmp"
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s/crun "$@"\n' "$folder" "$folder" >"$work/bin/crun"
chmod 755 "$work/bin/crun" "$folder/crun" "$folder/container.test" "$folder/cudacheck"
"$work/bin/crun" --version | head -1 || exit 1

echo "== the driver"
cd "$work" || exit 1
PATH=$work/bin:$PATH TMPDIR=$work/tmp NEARMETAL_TEST_CUDA_PROGRAM=$folder/cudacheck \
	"$folder/container.test" -test.v -test.timeout 25s -test.run 'TestARealGPU|TestAMemberReachesTheGPU|TestAMemberOpensTheGPU'
code=$?
echo "== left behind: $(ls "$work/tmp" | wc -l) files, $(find /sys/fs/cgroup -path '*nearmetal/*' -type d 2>/dev/null | wc -l) control groups"
exit $code
