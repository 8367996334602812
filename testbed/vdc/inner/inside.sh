# First process of a virtual data centre's PID namespace, in its own network and mount namespaces. $1 is the data centre's folder, which
# holds environment: VENV, the emulated BMCs' Python environment, and CACHE, what libvirt learned of QEMU.
set -eu
dir=$1
. "$dir/environment"
# /proc still is the outer one, and tells the outer PID.
read -r pid rest </proc/self/stat
echo "$pid" >"$dir/init.pid"
mount --make-rprivate /
mount -t proc proc /proc
# A new sysfs shows this network namespace's links, and no cgroups: libvirt makes none then.
mount -t sysfs sysfs /sys
# What libvirt writes below /run, /etc and /var is in memory and seen in here only; its sockets are reached through the folder.
mount -t tmpfs -o mode=755 tmpfs /run
for top in /etc /var/lib /var/log /var/cache; do
	mkdir -p "/run/private$top/upper" "/run/private$top/work"
	mount -t overlay -o "lowerdir=$top,upperdir=/run/private$top/upper,workdir=/run/private$top/work" overlay "$top"
done
mkdir -p /run/tmp /run/libvirt /etc/libvirt /var/cache/libvirt /var/log/libvirt/qemu
mount --bind "$dir/run" /run/libvirt
mount --bind "$CACHE" /var/cache/libvirt
mount --bind "$dir/log" /var/log/libvirt/qemu
cp "$dir/libvirtd.conf" "$dir/qemu.conf" /etc/libvirt/
# libvirt looks up the accounts it was built with, though it uses none of them here.
for account in libvirt-qemu:64055 libvirt:64056 kvm:64057; do
	name=${account%:*} id=${account#*:}
	getent passwd "$name" >/dev/null || echo "$name:x:$id:$id::/nonexistent:/usr/sbin/nologin" >>/etc/passwd
	getent group "$name" >/dev/null || echo "$name:x:$id:" >>/etc/group
done
# sushy-tools keeps a database in TMPDIR, which others of its kind would lock.
export HOME=/run TMPDIR=/run/tmp LC_ALL=C SUSHY_EMULATOR_CONFIG="$dir/sushy.conf"
# A data network that is a managed switch: its database and its forwarding, in userspace.
if [ -d "$dir/switch" ]; then
	export OVS_RUNDIR="$dir/switch" OVS_LOGDIR="$dir/switch" OVS_DBDIR="$dir/switch"
	ovsdb-server "$dir/switch/conf.db" "--remote=punix:$dir/switch/db.sock" "--unixctl=$dir/switch/db.ctl" >>"$dir/log/switch.log" 2>&1 &
	ovs-vswitchd "unix:$dir/switch/db.sock" --disable-system "--unixctl=$dir/switch/vs.ctl" >>"$dir/log/switch.log" 2>&1 &
fi
libvirtd >"$dir/log/libvirtd.log" 2>&1 &
"$VENV/bin/python" "$VENV/bin/sushy-emulator" >"$dir/log/redfish.log" 2>&1 &
# BMCs that their machines reach by KCS. They would end with a machine that goes off while they write to it.
for bmc in "$dir"/kcs/*; do
	[ -d "$bmc" ] || continue
	(
		trap '' PIPE
		exec ipmi_sim -n -c "$bmc/sim.conf" -f "$bmc/sim.emu" -s "$bmc"
	) >>"$dir/log/kcs-$(basename "$bmc").log" 2>&1 </dev/null &
done
"$VENV/bin/python" "$dir/ipmi.py" "$dir" >"$dir/log/ipmi.log" 2>&1 &
wait
