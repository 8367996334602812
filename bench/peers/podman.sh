#!/bin/bash
# The same members by Podman: what one gets from the container engine at hand, told to make members as alike as it can.
#
#   podman.sh create DIR COUNT     makes COUNT members below DIR; returns when SSH answers on all of them
#   podman.sh delete DIR           removes them and DIR
#   podman.sh pid DIR NUMBER       prints the PID of a member's first process
#
# The root is the same as byhand.sh's: a directory with the machine's /usr and the same entries of /etc read-only, tmpfs for the
# rest, a shared home, generated files. `podman run` gets it by --rootfs; the network is a bridge of Podman's own. Storage and run
# time state are below DIR, so that nothing of Podman stays. Members are made at once, JOBS at a time.
#
# Environment: as byhand.sh, whose functions make the files.
set -euo pipefail

INDEX=${INDEX:-4002}
# Create and delete must be called in one mount namespace (variable BYHAND_INSIDE=1 says so; `go run ./bench` makes it): Podman keeps
# network namespaces as mounts in /run/netns. There /sys/fs/cgroup/unified must be hidden, because crun fails with an empty cgroup v2
# beside v1 ("drop all controllers from cgroupv2"), and tmpfs on /run/netns and /var/lib/cni keep the host clean.
[ -n "${BYHAND_INSIDE:-}" ] || { echo "podman.sh: needs the mount namespace that go run ./bench makes" >&2; exit 1; }
# shellcheck source=byhand.sh
BYHAND_LIBRARY=1 source "$(dirname "$(realpath "$0")")/byhand.sh"

engine() { podman --root "$DIR/storage" --runroot "$DIR/run" --tmpdir "$DIR/tmp" --network-config-dir "$DIR/networks" --cgroup-manager cgroupfs --runtime crun --log-level error "$@"; }

podman_member() {
	local i=$1 dir=$DIR/members/m$1 address name volumes=()
	prepare "$i"
	ADDR $((i + 2))
	address=$REPLY
	for name in "${ETC[@]}"; do
		if [ -e "/etc/$name" ] && [ ! -L "/etc/$name" ]; then volumes+=(--volume "/etc/$name:/etc/$name:ro"); fi
	done
	local half=$((MEMORY / 2))
	engine run --detach --name "m$i" --hostname "m$i" --no-hosts --pidfile "$dir/pid" --cgroup-parent "/$BRIDGE" \
		--network "$BRIDGE" --ip "$address" --cpuset-cpus "${CPUS[i % ${#CPUS[@]}]}" --memory "$MEMORY" --pids-limit 4096 \
		--uidmap "0:$IDBASE:65536" --gidmap "0:$IDBASE:65536" --ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" --ulimit "nproc=4096:4096" --security-opt no-new-privileges --log-driver none \
		--cap-drop all --cap-add CHOWN,DAC_OVERRIDE,FOWNER,FSETID,KILL,NET_BIND_SERVICE,SETGID,SETUID,SYS_CHROOT \
		--read-only --read-only-tmpfs=false --tmpfs "/tmp:size=$half,mode=1777" --tmpfs "/root:size=$half,mode=700" \
		--tmpfs "/var:size=$half" --tmpfs "/run:size=$half" \
		--volume "$DIR/home:/home" --volume "/usr:/usr:ro" --volume "$dir/etc:/etc:ro" "${volumes[@]}" \
		--rootfs "$DIR/root" /usr/sbin/sshd -D -e >"$dir/output" 2>&1 </dev/null ||
		die "member m$i: podman: $(<"$dir/output")"
	answers "$address" "$(<"$dir/pid")" || die "member m$i: sshd does not answer"
}

podman_create() {
	DIR=$1 COUNT=$2
	[ ! -e "$DIR" ] || die "$DIR exists"
	mkdir -p "$DIR"
	DIR=$(realpath "$DIR")
	mkfifo "$DIR/never"
	ADDR 1
	local gateway=$REPLY
	ADDR 0
	engine network create --disable-dns --subnet "$REPLY/20" --gateway "$gateway" "$BRIDGE" >"$DIR/network" &
	local making=$!
	shared
	wait $making || die "the network could not be made"
	TEMPLATE=
	parallel podman_member || die "not all members could be made"
}

podman_delete() {
	DIR=$(realpath "$1")
	engine rm --all --force --time 0 >"$DIR/removed"
	engine network rm --force "$BRIDGE" >>"$DIR/removed"
	umount "$DIR/storage/overlay" 2>/dev/null || true
	remove_cgroups
	rm -rf "$DIR"
}

case "${1:-}" in
create) [ $# -eq 3 ] || die "usage: podman.sh create DIR COUNT"; podman_create "$2" "$3" ;;
delete) [ $# -eq 2 ] || die "usage: podman.sh delete DIR"; podman_delete "$2" ;;
pid) cat "$2/members/m$3/pid" ;;
*) die "usage: podman.sh create DIR COUNT | delete DIR | pid DIR NUMBER" ;;
esac
