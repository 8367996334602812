#!/bin/busybox sh
# The first program of a machine that is booted by hand (wholehand.go): it loads drivers, asks for an address, fetches the root, mounts it with a layer in
# memory, and starts sshd in it. It is busybox's shell, in an archive beside the environment's own initrd, which has the kernel's modules.
/bin/busybox mkdir -p /proc /sys /dev /run /lower /rw /new /usr/bin /sbin
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
exec </dev/console >/dev/console 2>&1
say() { echo "by hand: $*"; }
fail() { say "failed: $*"; sleep 1000; }
argument() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

# Twice: a bus has its devices once it has its own driver.
for _ in 1 2; do
	find /sys/devices -name modalias -exec cat {} + | sort -u | xargs modprobe -q -a
done
modprobe -a crc32c_generic loop erofs overlay || fail "modules of the root"
say "kernel runs"

mac=$(argument hand.mac)
for link in /sys/class/net/*; do
	[ "$(cat "$link/address")" = "$mac" ] && nic=${link##*/}
done
ip link set lo up
ip link set "$nic" up
udhcpc -q -n -t 20 -i "$nic" -s /udhcpc.sh >/dev/null || fail "no address for $nic"

wget -q -O /run/root "$(argument hand.root)" || fail "the root can't be fetched"
mount -t erofs -o ro,loop /run/root /lower || fail "the root can't be mounted"
mount -t tmpfs tmpfs /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "the layer in memory can't be mounted"
say "root mounted"

mkdir -p /new/root/.ssh /new/run
cp /keys/id /new/root/.ssh/id_ed25519
cp /keys/id.pub /new/root/.ssh/authorized_keys
cp /keys/config /new/root/.ssh/config
cp /keys/host /new/etc/ssh/ssh_host_ed25519_key
chmod 700 /new/root/.ssh
chmod 600 /new/root/.ssh/* /new/etc/ssh/ssh_host_ed25519_key
cp /keys/hosts /new/etc/hosts
name=$(awk -v ip="$(cat /run/address)" '$1 == ip { print $2 }' /keys/hosts)
hostname "$name"
for dir in proc sys dev; do mount --move "/$dir" "/new/$dir"; done
exec switch_root -c /dev/console /new /bin/sh -c '
	PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH
	mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp
	mkdir -p /run/sshd /dev/pts /dev/shm
	mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm
	/usr/sbin/sshd && echo "by hand: sshd started"
	while :; do sleep 1000; done'
