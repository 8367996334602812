#!/bin/sh
# Makes an environment's root by hand: the same packages of the same Debian, by the same mmdebstrap and mkfs.erofs with the same options, as the
# shipped recipe asks for. It makes no kernel, initrd, chunk list or manifest, and leaves the root as it came: with time stamps, caches and names of
# this machine in it.
#
#   image.sh RELEASE PACKAGES EXCLUDES CACHE OUT     EXCLUDES: a file with a pattern a line; CACHE: packages that are kept between runs
set -eu
release=$1 packages=$2 excludes=$3 cache=$4 out=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$cache"
set -- --quiet --variant=minbase --mode=root --format=directory --aptopt='APT::Install-Recommends false' --aptopt='Acquire::Languages none' \
	--dpkgopt=force-unsafe-io --include="$packages,linux-image-amd64,tiny-initramfs" --hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr \
	--skip=download/empty --skip=essential/unlink \
	--setup-hook="mkdir -p \"\$1/var/cache/apt/archives\"; cp -al \"$cache/.\" \"\$1/var/cache/apt/archives/\" || true" \
	--customize-hook="cp -n \"\$1\"/var/cache/apt/archives/*.deb \"$cache/\"; true"
while read -r pattern; do
	set -- "$@" --dpkgopt="path-exclude=$pattern"
done <"$excludes"
# From the mirrors that this machine's apt has.
apt-get indextargets --format 'deb $(SITE) $(RELEASE) main' 'Created-By: Packages' | grep -E " $release(-updates|-security)? " | sort -u >"$work/sources"
mmdebstrap "$@" "$release" "$work/root" "$work/sources"
rm -f "$out"
mkfs.erofs --quiet -zlz4hc,9 -C65536 "$out" "$work/root"
