#!/bin/sh
# Measures remote GPUs on a machine that has one: the folder that tests/gpu/bundle.sh made elsewhere, a folder for results, and the parts to run.
# No part takes longer than its limit; a failed one does not stop the others.
#
#   remote.sh FOLDER RESULTS [PART...]
set -u
[ $# -ge 2 ] || { echo "usage: $0 FOLDER RESULTS [PART...]" >&2; exit 2; }
folder=$(cd "$1" && pwd)
mkdir -p "$2"
results=$(cd "$2" && pwd)
shift 2
[ $# -gt 0 ] || set -- machine correct runtime micro kernels quota share

# Where the driver is when the loader does not know: some machines mount it there.
[ ! -d /usr/local/nvidia/lib64 ] || export LD_LIBRARY_PATH=/usr/local/nvidia/lib64
PATH=$PATH:/usr/local/nvidia/bin
work=$(mktemp -d /tmp/gpuremote.XXXXXX) || exit 1
driver=$(ldconfig -p 2>/dev/null | awk '/libcuda\.so\.1 .*x86-64/ { print $NF; exit }')
[ -n "$driver" ] || driver=/usr/local/nvidia/lib64/libcuda.so.1
kernels=$folder/nearmetal-gpu-kernels
servers=
trap 'for s in $servers; do kill "$s" 2>/dev/null; done; rm -rf "$work"' EXIT

# server NAME FLAG...: starts a server that listens on unix:$work/NAME.sock and on the next port.
port=7700
server() {
	name=$1
	shift
	port=$((port + 1))
	"$folder/nearmetal-gpu-server" --listen "unix:$work/$name.sock" --listen "tcp:127.0.0.1:$port" --cuda "$driver" "$@" 2>>"$results/server.log" &
	servers="$servers $!"
	for _ in 1 2 3 4 5 6 7 8 9 10; do [ -S "$work/$name.sock" ] && break; sleep 0.1; done
	sleep 0.1
}

# hidden COMMAND...: runs a program that can't open this machine's GPUs.
hidden() {
	unshare -m sh -c 'for device in /dev/nvidia*; do [ ! -c "$device" ] || mount --bind /dev/null "$device" || exit 125; done; exec "$@"' sh "$@"
}

# by WAY COMMAND...: runs a program with this machine's own driver, or, without its GPUs, with the server's by shared memory or TCP.
by() {
	way=$1
	shift
	case $way in
	local) "$@" ;;
	memory) hidden env NEARMETAL_GPU_SERVER=unix:$work/all.sock LD_LIBRARY_PATH=$folder/lib "$@" ;;
	tcp) hidden env NEARMETAL_GPU_SERVER=tcp:127.0.0.1:7701 LD_LIBRARY_PATH=$folder/lib "$@" ;;
	esac
}
library() { [ "$1" = local ] && echo "$driver" || echo "$folder/lib/libcuda.so.1"; }

# Somebody has the GPU open all the time, or the driver would set it up anew for each program, which takes seconds.
sleep 900 9<>/dev/nvidia0 &
servers="$servers $!"
server all

for part; do
	echo "== $part"
	begun=$(date +%s)
	case $part in
	machine)
		nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,mig.mode.current,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
		uname -sr; nproc; ldd --version | head -1
		echo "driver: $driver"; ls -l "$driver"
		lscpu | grep -E 'Model name|NUMA node0'
		;;
	correct)
		for way in local memory tcp; do
			echo "-- $way"
			by $way timeout 60 "$kernels" --api cuda --size test --runs 1 --library "$(library $way)" 2>&1 | cut -c1-120
		done
		;;
	runtime)
		for runtime in theirs ours; do
			for way in local memory tcp; do
				[ "$runtime$way" = theirsmemory ] && continue
				[ "$runtime$way" = theirstcp ] && continue
				echo "-- runtime of $runtime, $way"
				extra=$folder/$runtime
				( export LD_LIBRARY_PATH; case $way in
				local) LD_LIBRARY_PATH=$extra:${LD_LIBRARY_PATH:-} ;;
				memory) LD_LIBRARY_PATH=$extra:$folder/lib NEARMETAL_GPU_SERVER=unix:$work/all.sock; export NEARMETAL_GPU_SERVER ;;
				tcp) LD_LIBRARY_PATH=$extra:$folder/lib NEARMETAL_GPU_SERVER=tcp:127.0.0.1:7701; export NEARMETAL_GPU_SERVER ;;
				esac
				timeout 60 sh "$folder/programs.sh" "$folder/programs" )
			done
		done
		;;
	micro)
		for way in local memory tcp; do
			echo "-- $way"
			by $way timeout 60 "$kernels" micro --api cuda --library "$(library $way)" --json "$results/micro-$way.json" 2>&1
		done
		;;
	kernels)
		# The ways take turns, so that what changes on the machine meanwhile meets all of them.
		for size in ${SIZES:-published}; do
			for kernel in ${KERNELS:-backprop bfs cfd hotspot lud nn nw pathfinder}; do
				for way in local memory tcp; do
					by $way timeout 100 "$kernels" --api cuda --size "$size" --kernel "$kernel" --runs "${RUNS:-5}" --library "$(library $way)" \
						--json "$results/$size-$kernel-$way.json" 2>&1 | grep -vE '^kernel|driver' | sed "s/^/$way /"
				done
			done
		done
		;;
	quota)
		server small --memory-mib 2048
		for way in memory tcp; do
			echo "-- $way, 2,048 MiB allowed"
			case $way in memory) a=unix:$work/small.sock ;; tcp) a=tcp:127.0.0.1:$port ;; esac
			NEARMETAL_GPU_SERVER=$a LD_LIBRARY_PATH=$folder/lib timeout 30 "$kernels" share --api cuda --memory-until-refused \
				--library "$folder/lib/libcuda.so.1" 2>&1
		done
		;;
	share)
		for way in local memory tcp; do
			at=$(($(date +%s) + 5))
			for client in 1 2 3 4 5 6 7 8; do
				by $way timeout 40 "$kernels" share --api cuda --seconds "${SECONDS_SHARED:-6}" --at $at --library "$(library $way)" \
					--json "$results/share-$way-$client.json" >"$work/share-$client" 2>&1 &
				eval "client_$client=$!"
			done
			for client in 1 2 3 4 5 6 7 8; do eval "wait \$client_$client"; done
			echo "-- $way, 8 clients"
			cat "$work"/share-? | grep -iE 'per second|launches|fail|error' | cut -c1-150
		done
		;;
	*)
		if [ -x "$folder/parts/$part" ]; then
			DRIVER=$driver SERVER_UNIX=unix:$work/all.sock SERVER_TCP=tcp:127.0.0.1:7701 timeout 240 "$folder/parts/$part" "$folder" "$results"
		else
			echo "no such part"
		fi
		;;
	esac
	echo "-- $part took $(($(date +%s) - begun)) s"
done 2>&1 | tee "$results/log"
[ ! -s "$results/server.log" ] || { echo "== the server said"; sort "$results/server.log" | uniq -c | sort -rn | head -20; }
