#!/bin/sh
# cloud.sh TREE OUT: makes OUT/cloud.qcow2 of a Debian tree, as a cloud's images are: GPT, an EFI system partition with one unified kernel image, and
# a root that cloud-init sets up. Nothing is mounted. It runs as mmdebstrap's last hook.
set -eu
root=$1 out=$2
version=$(ls "$root/lib/modules")
cat >"$root/etc/fstab" <<EOT
LABEL=root / ext4 defaults 0 1
EOT
cat >"$root/etc/cloud/cloud.cfg.d/10-image.cfg" <<EOT
datasource_list: [NoCloud, None]
system_info:
  network:
    renderers: [networkd]
EOT
# cloud-init writes networkd's configuration and leaves it to the image to run networkd.
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf /lib/systemd/system/systemd-networkd.service "$root/etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/hostname" "$root/etc/resolv.conf"
: >"$root/etc/machine-id"
rm -rf "$root"/var/cache/apt "$root"/var/lib/apt/lists/*
cp "$root/boot/vmlinuz-$version" "$out/vmlinuz"
cp "$root/boot/initrd.img-$version" "$out/initrd"
printf 'root=LABEL=root rw console=ttyS0 quiet' >"$out/cmdline"
objcopy \
	--add-section .cmdline="$out/cmdline" --change-section-vma .cmdline=0x30000 \
	--add-section .linux="$out/vmlinuz" --change-section-vma .linux=0x2000000 \
	--add-section .initrd="$out/initrd" --change-section-vma .initrd=0x3000000 \
	/usr/lib/systemd/boot/efi/linuxx64.efi.stub "$out/BOOTX64.EFI"
# mmdebstrap has proc, sys and dev mounted in the root: one file system only, or all of the host's comes along.
cp -a --one-file-system "$root" "$out/copy"
rm -rf "$out/copy/dev" "$out/copy/boot"
mkdir "$out/copy/dev" "$out/copy/boot"
truncate -s 96M "$out/esp"
mkfs.vfat -n ESP "$out/esp" >/dev/null
mmd -i "$out/esp" ::/EFI ::/EFI/BOOT
mcopy -i "$out/esp" "$out/BOOTX64.EFI" ::/EFI/BOOT/BOOTX64.EFI
truncate -s 1400M "$out/root"
mke2fs -q -t ext4 -L root -d "$out/copy" "$out/root"
truncate -s 1500M "$out/disk"
sfdisk -q "$out/disk" <<EOT
label: gpt
start=2048, size=96MiB, type=uefi
size=1400MiB, type=linux
EOT
dd if="$out/esp" of="$out/disk" bs=1M seek=1 conv=notrunc,sparse status=none
dd if="$out/root" of="$out/disk" bs=1M seek=97 conv=notrunc,sparse status=none
qemu-img convert -f raw -O qcow2 -c "$out/disk" "$out/cloud.qcow2"
rm -rf "$out/copy" "$out/esp" "$out/root" "$out/disk" "$out/initrd" "$out/cmdline" "$out/BOOTX64.EFI"
