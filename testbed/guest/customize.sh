#!/bin/sh
# Run by mmdebstrap as a customize hook: make vmlinuz, initrd and root.img in $OUT from the finished root $1.
set -eu
root=$1
version=$(basename "$root"/boot/vmlinuz-* | sed 's/^vmlinuz-//')
cp "$root/boot/vmlinuz-$version" "$OUT/vmlinuz"

# The initrd holds only what finds the root: busybox, the modules of a virtio disk with ext4, in loading order, and init.
initrd=$root/tmp/initrd
mkdir -p "$initrd/bin" "$initrd/modules" "$initrd/dev" "$initrd/proc" "$initrd/sys" "$initrd/root"
cp "$root/bin/busybox" "$initrd/bin/busybox"
n=100
for module in virtio_pci virtio_blk ext4; do
	for file in $(chroot "$root" modprobe -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'); do
		name=$(basename "$file")
		ls "$initrd/modules" | grep -q "^[0-9]*-$name\$" && continue
		cp "$root$file" "$initrd/modules/$n-$name"
		n=$((n + 1))
	done
done
cat >"$initrd/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in /modules/*; do insmod "$module"; done
mount -t ext4 -o noatime /dev/vda /root || exec poweroff -f
for dir in dev proc sys; do mount --move /$dir /root/$dir; done
exec switch_root /root /sbin/guest-init
INIT
chmod 755 "$initrd/init"
chroot "$root" sh -c 'cd /tmp/initrd && find . | busybox cpio -o -H newc 2>/dev/null' >"$OUT/initrd"
rm -rf "$initrd"

# The machine's first process: what systemd would mount, then the one command, then off. Its output and exit code leave by
# serial ports of their own, so that kernel messages don't mix with them.
cat >"$root/sbin/guest-init" <<'INIT'
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p /dev/pts /dev/shm /run/control /run/lock
mount -t devpts -o ptmxmode=666,mode=620,gid=5 pts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
mount --make-rshared /
hostname guest
ip link set lo up
stty -F /dev/ttyS1 raw -echo
stty -F /dev/ttyS2 raw -echo
mount -t 9p -o trans=virtio,version=9p2000.L,ro control /run/control && bash /run/control/run </dev/null >/dev/ttyS1 2>&1
echo "exit $?" >/dev/ttyS2
sync
exec busybox poweroff -f
INIT
chmod 755 "$root/sbin/guest-init"
echo guest >"$root/etc/hostname"
printf '127.0.0.1 localhost guest\n::1 localhost\n' >"$root/etc/hosts"

# Nothing in the guest needs these, and they are most of its size. igb and igbvf drive the adapter whose functions QEMU emulates.
intel=$root/lib/modules/$version/kernel/drivers/net/ethernet/intel
mv "$intel/igb" "$intel/igbvf" "$root/tmp/"
for dir in sound drivers/gpu drivers/media drivers/net/wireless drivers/net/ethernet drivers/usb drivers/iio drivers/staging drivers/hwmon; do
	rm -rf "$root/lib/modules/$version/kernel/$dir"
done
mkdir -p "$intel"
mv "$root/tmp/igb" "$root/tmp/igbvf" "$intel/"
chroot "$root" depmod "$version"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/boot/vmlinuz-* "$root"/boot/initrd*
truncate -s 3G "$OUT/root.img"
# mmdebstrap has proc, sys and dev mounted in the root; they don't belong in the image.
unshare -m sh -c 'for dir in proc sys dev; do umount -R -q "$1/$dir" || true; done
	exec mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1 -d "$1" "$2"' mke2fs "$root" "$OUT/root.img"
