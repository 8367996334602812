#!/bin/sh
# Put a QEMU that models the SR-IOV adapter igb beside the system's: setup/qemu10.sh DIR. The emulator is DIR/qemu-system-x86_64.
#
# Debian 12's QEMU 7.2 has no igb, and no release before 8.0 has. Its backports have 10.0. Their packages are fetched from the mirror of this
# machine's own sources and unpacked into DIR, with libraries that are not installed: nothing is installed, and no package source is changed.
# Where the installed QEMU models igb, DIR only leads to it. A DIR that is complete is left alone. It needs no root.
set -eu
say() { echo "set-up: $*"; }
die() { echo "set-up: $*" >&2; exit 1; }
[ $# = 1 ] || die "the folder for QEMU is missing: setup/qemu10.sh DIR"

dir=${1%/}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
emulator=$dir/qemu-system-x86_64
exec 9>"$dir.lock"
flock 9
[ ! -e "$dir/complete" ] || exit 0

# models_igb EMULATOR: has it the device?
models_igb() { "$1" -device help 2>/dev/null | grep -q '^name "igb"'; }

# finish says that DIR is complete, after a look at the emulator itself.
finish() {
	chmod 755 "$emulator"
	models_igb "$emulator" || die "$emulator does not model igb: $("$emulator" --version 2>&1 | head -n 1)"
	say "$emulator is $("$emulator" --version | head -n 1)"
	touch "$dir/complete"
	exit 0
}

if models_igb qemu-system-x86_64; then
	printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v qemu-system-x86_64)" >"$emulator"
	finish
fi

[ "$(uname -m)" = x86_64 ] || die "the machines with SR-IOV are emulated on x86_64 only, and this machine is $(uname -m)"
command -v apt-get >/dev/null || die "the installed QEMU models no igb, and this is not a Debian system; install QEMU 8.0 or later"
codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(SITE)' 'Created-By: Packages' |
	awk -v c="$codename" '$1 == c && $2 == "main" { print $3; exit }')
[ -n "$mirror" ] || die "the installed QEMU models no igb, and this machine's sources name no mirror of $codename with backports; install QEMU 8.0 or later"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$scratch/sources" "$scratch/lists/partial" "$scratch/cache/archives/partial"
for suite in "$codename" "$codename-backports"; do
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
done >"$scratch/sources/qemu.list"

# apt with lists and archives of its own. It reads which packages are installed, and writes nothing outside of scratch.
apt() {
	apt-get -q -y -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$scratch/sources" -o Dir::State::lists="$scratch/lists" \
		-o Dir::Cache="$scratch/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none \
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::http::Timeout=60 -o Acquire::Retries=2 \
		"$@" >>"$scratch/log" 2>&1 </dev/null
}

# failed WHAT: what apt-get said last, and the end.
failed() { tail -n 20 "$scratch/log" >&2; die "$1 (see above); the machines with SR-IOV need QEMU 8.0 or later"; }

say "reading the lists of $codename-backports"
apt -o APT::Update::Error-Mode=any update || failed "$codename-backports can't be had from this machine's mirror"
# An emulator that misses a module here takes the installed one, of another version, and aborts. So all modules that are installed come too:
# those of spice and opengl are in qemu-system-common of Debian 12.
packages="qemu-system-x86 qemu-system-modules-spice qemu-system-modules-opengl"
for package in qemu-system-gui qemu-block-extra; do
	! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || packages="$packages $package"
done
say "fetching QEMU from $codename-backports"
apt install --download-only --no-install-recommends -t "$codename-backports" $packages || failed "QEMU could not be fetched"

rm -rf "$dir/usr"
for package in "$scratch"/cache/archives/*.deb; do
	dpkg-deb --fsys-tarfile "$package" | tar -x -C "$dir" --no-same-owner ./usr
done
# Firmware that is not unpacked, such as the network boot ROMs, is the installed one.
cat >"$emulator" <<END
#!/bin/sh
export LD_LIBRARY_PATH=$dir/usr/lib/x86_64-linux-gnu QEMU_MODULE_DIR=$dir/usr/lib/x86_64-linux-gnu/qemu
exec $dir/usr/bin/qemu-system-x86_64 -L $dir/usr/share/qemu -L $dir/usr/share/seabios -L /usr/share/qemu -L /usr/share/seabios -L /usr/lib/ipxe/qemu "\$@"
END
finish
