#!/bin/sh
# bare.sh KERNEL OUT TEXT: makes OUT/bare.qcow2, a disk with a master boot record, GRUB behind it, and a file system with a kernel and an initial RAM
# disk of one program. Nothing is mounted.
set -eu
kernel=$1 out=$2 text=$3
mkdir -p "$out/root/bin" "$out/root/dev" "$out/root/proc" "$out/boot/boot/grub"
cp "$(command -v busybox)" "$out/root/bin/busybox"
for library in $(ldd "$out/root/bin/busybox" | grep -o '/[^ ]*'); do
	mkdir -p "$out/root$(dirname "$library")"
	cp -L "$library" "$out/root$library"
done
cat >"$out/root/init" <<EOT
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox mount -t proc none /proc
exec >/dev/ttyS0 2>&1
echo "$text"
while :; do /bin/busybox sleep 1000; done
EOT
chmod +x "$out/root/init"
(cd "$out/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$out/boot/initrd"
cp "$kernel" "$out/boot/vmlinuz"
cat >"$out/early.cfg" <<'EOT'
set root=(hd0,msdos1)
linux /vmlinuz console=ttyS0 quiet
initrd /initrd
boot
EOT
grub-mkimage -O i386-pc -p '(hd0,msdos1)/boot/grub' -c "$out/early.cfg" -o "$out/core.img" biosdisk part_msdos ext2 linux
truncate -s 63M "$out/files"
mke2fs -q -t ext2 -d "$out/boot" "$out/files"
truncate -s 64M "$out/disk"
echo 'start=2048, type=83, bootable' | sfdisk -q --label dos "$out/disk"
dd if=/usr/lib/grub/i386-pc/boot.img of="$out/disk" bs=440 count=1 conv=notrunc status=none
dd if="$out/core.img" of="$out/disk" bs=512 seek=1 conv=notrunc status=none
dd if="$out/files" of="$out/disk" bs=1M seek=1 conv=notrunc,sparse status=none
qemu-img convert -f raw -O qcow2 -c "$out/disk" "$out/bare.qcow2"
rm -rf "$out/root" "$out/boot" "$out/early.cfg" "$out/core.img" "$out/files" "$out/disk"
