#!/bin/bash
# The yardstick: the members of a cluster made by hand, as fast as one knows how, without a control plane.
#
#   byhand.sh create DIR COUNT     makes COUNT members below DIR; returns when SSH answers on all of them
#   byhand.sh delete DIR           removes them and DIR
#   byhand.sh pid DIR NUMBER       prints the PID of a member's first process
#
# A member is what Nearmetal's container stack makes: user, PID, network, IPC, UTS, mount and cgroup namespaces, one core, a
# memory limit, the capabilities and the seccomp profile (file SECCOMP, if set), the machine's /usr and the same entries of /etc
# read-only, private tmpfs for the rest, a shared home, a veth on a bridge of the cluster, nftables rules that keep clusters
# apart, names, hostfile, an SSH authority with certificates for hosts and user, and sshd.
#
# What makes it fast: members are made at once (JOBS at a time), no process where a shell builtin does, one crun call a member
# (the network is plugged into the running container; sshd needs none to start), links and addresses in one ip call each, and
# no sleep other than the poll for sshd (1 ms).
#
# Environment: JOBS (twice the cores), INDEX (4001: names the bridge, subnet, IDs), MEMORY (bytes, 256 MiB), CPUS (list, "0 1 2 ..."), SECCOMP.
set -euo pipefail

INDEX=${INDEX:-4001}
JOBS=${JOBS:-$((2 * $(nproc)))}
MEMORY=${MEMORY:-268435456}
read -ra CPUS <<<"${CPUS:-$(seq -s ' ' 0 $(($(nproc) - 1)))}"
BRIDGE=byhand$INDEX
TABLE=byhand$INDEX
GROUP=$((7000000 + INDEX))
# A /20 out of 10.64.0.0/10, as Nearmetal's pool.
NET=$((INDEX % 1024 * 4096))
ADDR() { local a=$((NET + $1)); REPLY="10.$((64 + (a >> 16))).$((a >> 8 & 255)).$((a & 255))"; }
IDBASE=$((1000000 + INDEX * 65536))
ETC=(alternatives ca-certificates.conf debian_version host.conf libibverbs.d ld.so.cache ld.so.conf ld.so.conf.d locale.alias
	localtime login.defs magic mime.types networks openmpi os-release protocols rpc services shells ssl/certs ssl/openssl.cnf
	terminfo timezone)

# crun refuses a machine that mounts an empty cgroup v2 beside v1; hide that from it, in a mount namespace of our own. The
# tmpfs takes the directories that crun makes there all the same, and goes with the namespace.
HYBRID=/sys/fs/cgroup/unified
if [ -z "${BYHAND_INSIDE:-}" ] && mountpoint -q $HYBRID; then
	BYHAND_INSIDE=1 exec unshare --mount --propagation slave \
		bash -c "umount -l $HYBRID && mount -t tmpfs none $HYBRID"' && exec "$@"' - "$BASH" "$0" "$@"
fi

die() { echo "byhand.sh: $*" >&2; exit 1; }

# parallel FUNCTION: calls it with 0 .. COUNT-1, JOBS at a time; fails when one failed.
parallel() {
	local i running=0
	for ((i = 0; i < COUNT; i++)); do
		if ((running++ >= JOBS)); then wait -n || return 1; fi
		"$1" "$i" &
	done
	while ((running-- > 0)); do
		if wait -n; then :; else
			local code=$?
			((code == 127)) && return 0 # none left
			return 1
		fi
	done
}

# shared makes what all members have in common.
shared() {
	local root=$DIR/root ssh=$DIR/ssh etc=$DIR/etc i name
	mkdir -p "$root"/{dev,etc,home,mnt,opt,proc,root,run,srv,sys,tmp,usr,var} "$ssh" "$DIR/home/hpc/.ssh" "$DIR/members" "$DIR/crun" \
		"$etc"/{ssh,ssl/certs,alternatives,libibverbs.d,ld.so.conf.d,openmpi,terminfo}
	for name in "${ETC[@]}"; do # mount points
		if [ -L "/etc/$name" ]; then continue; elif [ -f "/etc/$name" ]; then : >"$etc/$name"; fi
	done
	for name in bin sbin lib lib32 lib64 libx32; do
		[ -L "/$name" ] && ln -s "$(readlink "/$name")" "$root/$name"
	done
	mkdir -p "$root/var"/{cache,empty,lib,log,mail,spool,tmp} "$root/run"/{lock,sshd,user}
	ln -s /run "$root/var/run"
	chmod 1777 "$root/var/tmp" "$root/tmp"
	ssh-keygen -q -t ed25519 -N '' -C ca -f "$ssh/ca" &
	local making=$!
	ssh-keygen -q -t ed25519 -N '' -C user -f "$ssh/user"
	wait $making
	ssh-keygen -q -s "$ssh/ca" -I user -n hpc "$ssh/user.pub"
	{
		printf '127.0.0.1\tlocalhost\n'
		for ((i = 0; i < COUNT; i++)); do ADDR $((i + 2)); printf '%s\tm%d\n' "$REPLY" "$i"; done
	} >"$etc/hosts"
	for ((i = 0; i < COUNT; i++)); do printf 'm%d slots=1\n' "$i"; done >"$etc/hostfile"
	printf '@cert-authority * %s' "$(<"$ssh/ca.pub")" >"$etc/ssh/ssh_known_hosts"
	cat >"$etc/passwd" <<-END
		root:*:0:0:root:/root:/bin/bash
		sshd:*:101:65534:sshd:/run/sshd:/usr/sbin/nologin
		hpc:*:1000:1000:hpc:/home/hpc:/bin/bash
		nobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
	END
	printf 'root:*:0:\ntty:*:5:\nhpc:*:1000:\nnogroup:*:65534:\n' >"$etc/group"
	printf 'passwd: files\ngroup: files\nhosts: files\n' >"$etc/nsswitch.conf"
	cat >"$etc/ssh/sshd_config" <<-END
		HostKey /etc/ssh/host
		HostCertificate /etc/ssh/host-cert.pub
		TrustedUserCAKeys /etc/ssh/ca.pub
		PasswordAuthentication no
		KbdInteractiveAuthentication no
		UsePAM no
		UseDNS no
		PidFile none
		MaxStartups 4096
		MaxSessions 1024
		SetEnv OMPI_MCA_orte_default_hostfile=/etc/hostfile
	END
	cat >"$etc/ssh/ssh_config" <<-END
		Host *
		  User hpc
		  IdentityFile /etc/ssh/user
		  CertificateFile /etc/ssh/user-cert.pub
		  GSSAPIAuthentication no
		  StrictHostKeyChecking yes
		  UpdateHostKeys no
	END
	cp "$ssh/ca.pub" "$ssh/user" "$ssh/user.pub" "$ssh/user-cert.pub" "$etc/ssh"
	chown -hR "$IDBASE:$IDBASE" "$root" "$DIR/home" "$etc"
	chown -R "$((IDBASE + 1000)):$((IDBASE + 1000))" "$DIR/home/hpc" "$etc/ssh/user"
	chmod 755 "$DIR" "$root"
}

# network makes the bridge and its rules. Without an address of its own the bridge takes the lowest of its ports', which changes
# as members come, and what others know of it is wrong for seconds.
network() {
	ADDR 1
	ip -batch - <<-END
		link add $BRIDGE address $(printf '02:00:%02x:%02x:00:01' $((INDEX >> 8)) $((INDEX & 255))) group $GROUP type bridge
		addr add $REPLY/20 dev $BRIDGE
		link set $BRIDGE up
	END
	# The first ARP request through a port that is just coming up may be lost; ask again after 10 ms and not after 1 s.
	echo 10 >"/proc/sys/net/ipv4/neigh/$BRIDGE/retrans_time_ms"
	nft -f - <<-END
		table inet $TABLE {
			chain forward { type filter hook forward priority 0; policy accept
				iifname "$BRIDGE" oifname != "$BRIDGE" drop
				oifname "$BRIDGE" iifname != "$BRIDGE" drop
			}
			chain input { type filter hook input priority 0; policy accept
				iifname "$BRIDGE" ct state established,related accept
				iifname "$BRIDGE" drop
			}
		}
	END
}

# mounts prints the mounts of the OCI configuration that all members share; %ETC% stands for the member's own /etc.
mounts() {
	local half=$((MEMORY / 2)) name
	cat <<-END
		{"destination":"/proc","type":"proc","source":"proc","options":["nosuid","noexec","nodev"]},
		{"destination":"/dev","type":"tmpfs","source":"tmpfs","options":["nosuid","noexec","mode=755","size=65536k"]},
		{"destination":"/dev/pts","type":"devpts","source":"devpts","options":["nosuid","noexec","newinstance","ptmxmode=0666","mode=0620","gid=5"]},
		{"destination":"/dev/shm","type":"tmpfs","source":"tmpfs","options":["nosuid","nodev","mode=1777","size=$half","noexec"]},
		{"destination":"/dev/mqueue","type":"mqueue","source":"mqueue","options":["nosuid","noexec","nodev"]},
		{"destination":"/sys","type":"sysfs","source":"sysfs","options":["nosuid","noexec","nodev","ro"]},
		{"destination":"/tmp","type":"tmpfs","source":"tmpfs","options":["nosuid","nodev","mode=1777","size=$half"]},
		{"destination":"/var","type":"tmpfs","source":"tmpfs","options":["nosuid","nodev","mode=755","size=$half","tmpcopyup"]},
		{"destination":"/run","type":"tmpfs","source":"tmpfs","options":["nosuid","nodev","mode=755","size=$half","tmpcopyup"]},
		{"destination":"/root","type":"tmpfs","source":"tmpfs","options":["nosuid","nodev","mode=700","size=$half"]},
		{"destination":"/home","type":"bind","source":"$DIR/home","options":["bind","nosuid","nodev"]},
		{"destination":"/usr","type":"bind","source":"/usr","options":["bind","nosuid","nodev","ro","idmap"]},
	END
	for name in "${ETC[@]}"; do
		[ -e "/etc/$name" ] && [ ! -L "/etc/$name" ] &&
			printf '{"destination":"/etc/%s","type":"bind","source":"/etc/%s","options":["bind","nosuid","nodev","ro"]},\n' "$name" "$name"
	done
	return 0
}

# template prints the OCI configuration with the marks %NAME%, %CPU%.
template() {
	local caps='["CAP_CHOWN","CAP_DAC_OVERRIDE","CAP_FOWNER","CAP_FSETID","CAP_KILL","CAP_NET_BIND_SERVICE","CAP_SETGID","CAP_SETUID","CAP_SYS_CHROOT"]'
	local all seccomp=''
	all=$(mounts)
	# /etc itself must be mounted before what is mounted in it.
	all=${all/'{"destination":"/etc/'/'{"destination":"/etc","type":"bind","source":"'$DIR'/members/%NAME%/etc","options":["bind","nosuid","nodev","ro"]},{"destination":"/etc/'}
	[ -n "${SECCOMP:-}" ] && seccomp=",\"seccomp\":$(<"$SECCOMP")"
	cat <<-END
		{"ociVersion":"1.0.2","hostname":"%NAME%","root":{"path":"$DIR/root","readonly":true},
		"process":{"user":{"uid":0,"gid":0},"args":["/usr/sbin/sshd","-D","-e"],"cwd":"/","noNewPrivileges":true,
		"env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin","HOME=/root","LANG=C.UTF-8"],
		"capabilities":{"bounding":$caps,"effective":$caps,"permitted":$caps}},
		"mounts":[${all%,}],
		"linux":{"cgroupsPath":"/$BRIDGE/%NAME%",
		"resources":{"cpu":{"cpus":"%CPU%","mems":"0"},"memory":{"limit":$MEMORY},"pids":{"limit":4096}},
		"uidMappings":[{"containerID":0,"hostID":$IDBASE,"size":65536}],"gidMappings":[{"containerID":0,"hostID":$IDBASE,"size":65536}],
		"namespaces":[{"type":"user"},{"type":"pid"},{"type":"network"},{"type":"ipc"},{"type":"uts"},{"type":"mount"},{"type":"cgroup"}],
		"maskedPaths":["/proc/acpi","/proc/asound","/proc/interrupts","/proc/kcore","/proc/keys","/proc/latency_stats","/proc/sched_debug","/proc/scsi","/proc/timer_list","/proc/timer_stats","/sys/devices/virtual/powercap","/sys/firmware"],
		"readonlyPaths":["/proc/bus","/proc/fs","/proc/irq","/proc/sys","/proc/sysrq-trigger"]$seccomp}}
	END
}

# prepare makes a member's own files. It needs nothing of the other members but the authority.
prepare() {
	local i=$1 dir=$DIR/members/m$1 etc=$DIR/members/m$1/etc config
	mkdir "$dir"
	cp -a "$DIR/etc" "$dir"
	ADDR $((i + 2))
	ssh-keygen -q -t ed25519 -N '' -C "m$i" -f "$etc/ssh/host"
	ssh-keygen -q -s "$DIR/ssh/ca" -h -I "m$i" -n "m$i,$REPLY" "$etc/ssh/host.pub"
	chown "$IDBASE:$IDBASE" "$etc/ssh/host"
	config=${TEMPLATE//%NAME%/m$i}
	printf '%s' "${config//%CPU%/${CPUS[i % ${#CPUS[@]}]}}" >"$dir/config.json"
}

# member makes one member and returns when its sshd answers on its own address.
member() {
	local i=$1 dir=$DIR/members/m$1 pid address
	prepare "$i"
	crun --root "$DIR/crun" run --detach --bundle "$dir" --pid-file "$dir/pid" "$BRIDGE-m$i" </dev/null >"$dir/output" 2>&1 ||
		die "member m$i: crun: $(<"$dir/output")"
	pid=$(<"$dir/pid")
	ADDR $((i + 2))
	address=$REPLY
	ip link add "bh$INDEX-$i" group "$GROUP" master "$BRIDGE" up type veth peer name eth0 netns "$pid"
	nsenter --target "$pid" --net ip -batch - <<-END
		link set lo up
		addr add $address/20 dev eth0
		link set eth0 up
	END
	answers "$address" "$pid" || die "member m$i: sshd does not answer: $(<"$dir/output")"
}

# answers ADDRESS PID waits for the banner of an SSH server, up to 30 s and as long as its process lives. It first looks whether
# somebody listens (port 22 is 0016, state 0A): a connection tried too early may lose its first packet, and TCP repeats that after 1 s.
answers() {
	local banner sockets deadline=$((SECONDS + 30))
	while ((SECONDS < deadline)) && [ -d "/proc/$2" ]; do
		read -r -d '' sockets <"/proc/$2/net/tcp" || true
		if [[ $sockets == *':0016 00000000:0000 0A '* ]] &&
			{ read -r -t 5 banner <"/dev/tcp/$1/22"; } 2>/dev/null && [[ $banner == SSH-2.0-* ]]; then
			return 0
		fi
		read -r -t 0.001 <>"$DIR/never" || true
	done
	return 1
}

remove() {
	crun --root "$DIR/crun" delete --force "$BRIDGE-m$1" 2>/dev/null || true
}

create() {
	DIR=$1 COUNT=$2
	[ ! -e "$DIR" ] || die "$DIR exists"
	mkdir -p "$DIR"
	DIR=$(realpath "$DIR")
	mkfifo "$DIR/never"
	network &
	local making=$!
	shared
	TEMPLATE=$(template)
	wait $making || die "the network could not be made"
	parallel member || die "not all members could be made"
}

delete() {
	DIR=$(realpath "$1")
	COUNT=$(wc -l <"$DIR/etc/hostfile")
	parallel remove
	# Links go with their network namespaces, but the kernel takes its time for that. One call removes all that are left.
	ip link del group "$GROUP"
	nft delete table inet "$TABLE"
	remove_cgroups
	rm -rf "$DIR"
}

# remove_cgroups removes what the runtime leaves of the members' common cgroup.
remove_cgroups() {
	local c tries
	for c in /sys/fs/cgroup/*/"$BRIDGE" /sys/fs/cgroup/"$BRIDGE"; do
		if [[ $c == "$HYBRID"/* ]]; then continue; fi # in the tmpfs
		# A cgroup is busy for a moment after its last process ended, and there is nothing to wait on.
		for ((tries = 0; tries < 1000; tries++)); do
			[ -d "$c" ] || break
			rmdir "$c"/*/ "$c" 2>/dev/null || read -r -t 0.001 <>"$DIR/never" || true
		done
		if [ -d "$c" ]; then die "$c can't be removed"; fi
	done
}

if [ -n "${BYHAND_LIBRARY:-}" ]; then return; fi

case "${1:-}" in
create) [ $# -eq 3 ] || die "usage: byhand.sh create DIR COUNT"; create "$2" "$3" ;;
delete) [ $# -eq 2 ] || die "usage: byhand.sh delete DIR"; delete "$2" ;;
pid) cat "$2/members/m$3/pid" ;;
*) die "usage: byhand.sh create DIR COUNT | delete DIR | pid DIR NUMBER" ;;
esac
