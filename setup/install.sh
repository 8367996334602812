#!/bin/sh
# Install what Nearmetal needs from this machine's own package sources: setup/install.sh [--dry-run] [GROUP...]
#
# Groups are those of setup/packages.txt; without any: run build test. Packages that are there already are left alone, and when all
# are, this ends in well under a second. It works as root or with sudo, starts no service, enables no service and changes
# no package source.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
say() { echo "set-up: $*"; }
die() { echo "set-up: $*" >&2; exit 1; }

dry_run=
[ "${1-}" != --dry-run ] || { dry_run=yes; shift; }
[ $# -gt 0 ] || set -- run build test

# wanted GROUP...: the packages of these groups.
wanted() {
	for group; do
		awk -v group="$group" '
			$1 !~ /^#/ && $2 == group { print $1; found = 1 }
			END { if (!found) exit 1 }' "$here/packages.txt" || die "unknown group \"$group\"; see setup/packages.txt"
	done
}

# missing PACKAGE...: those of them that are not installed.
missing() {
	dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
		awk -v all="$*" '
			$2 == "installed" { have[$1] = 1 }
			END { n = split(all, p, " "); for (i = 1; i <= n; i++) if (!(p[i] in have)) print p[i] }'
}

command -v dpkg-query >/dev/null || die "this is not a Debian system; install the packages of setup/packages.txt and Go 1.26 yourself"
packages=$(wanted "$@") || exit 1
absent=$(missing $packages | tr '\n' ' ')
need_go=
"$here/go.sh" >/dev/null 2>&1 || need_go=yes
need_rust=
case " $* " in
*" gpu "*) "$here/rust.sh" >/dev/null 2>&1 || need_rust=yes ;;
esac
if [ -z "$absent$need_go$need_rust" ]; then
	say "everything is installed ($*)"
	exit 0
fi

say "will install Debian packages: $absent${need_go:+golang-go (1.21 or later; it fetches Go 1.26 from the module proxy) }${need_rust:+cargo (1.85 or later, with clippy and rustfmt)}"
[ -z "$dry_run" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || die "needs root to install packages: run \"setup/install.sh $*\" as root once, or install sudo"
	sudo=sudo
fi
scratch=$(mktemp -d)
policy=/usr/sbin/policy-rc.d
made_policy=
cleanup() {
	[ -z "$made_policy" ] || $sudo rm -f "$policy"
	rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

apt() {
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" \
		>>"$scratch/log" 2>&1 </dev/null || { tail -n 30 "$scratch/log" >&2; die "apt-get $* failed (see above)"; }
}

# Maintainer scripts start services unless policy-rc.d forbids it (Debian policy 9.3.3.2).
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
	$sudo chmod 755 "$policy"
	made_policy=yes
fi

say "reading the package lists"
apt update
if [ -n "$absent" ]; then
	apt install --no-install-recommends $absent
fi

# Services installed just now must not start at the next boot either.
if [ -d /run/systemd/system ]; then
	for unit in $([ -z "$absent" ] || dpkg -L $absent | sed -n 's,.*/systemd/system/\([^/@]*\.\(service\|socket\|timer\)\)$,\1,p' | sort -u); do
		if systemctl is-enabled -q "$unit" 2>/dev/null; then
			$sudo systemctl disable -q "$unit" 2>/dev/null || true
			say "left disabled: $unit"
		fi
	done
fi

# version_ok VERSION: is this Debian version of golang-go 1.21 or later?
version_ok() { dpkg --compare-versions "${1:-0}" ge '2:1.21'; }

# install_go takes golang-go from the machine's sources, or from the backports of its release on the same mirror. The backports
# are listed for this one installation only: the machine's sources stay as they are.
install_go() {
	candidate=$(LC_ALL=C apt-cache policy golang-go | awk '/Candidate:/ { print $2 }')
	if version_ok "$candidate"; then
		say "installing golang-go $candidate"
		apt install --no-install-recommends golang-go
		return
	fi
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
	mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(SITE)' 'Created-By: Packages' |
		awk -v c="$codename" '$1 == c && $2 == "main" { print $3; exit }')
	[ -n "$mirror" ] || die "this machine's sources have no Go 1.21 or later, and no mirror of $codename with backports; install Go 1.26"
	mkdir "$scratch/sources"
	cp -r /etc/apt/sources.list.d/. "$scratch/sources/" 2>/dev/null || true
	cp /etc/apt/sources.list "$scratch/sources/base.list" 2>/dev/null || true
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $codename-backports main" >"$scratch/sources/backports.list"
	chmod -R a+rX "$scratch"
	set -- -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$scratch/sources"
	say "installing golang-go from $codename-backports"
	apt "$@" update
	apt "$@" install --no-install-recommends -t "$codename-backports" golang-go
	apt update
}
# install_rust takes the latest Rust that the machine's sources have. Debian 12 has two, of which one follows what browsers need.
install_rust() {
	for packages in "cargo-web rustc-web rust-web-clippy rustfmt-web" "cargo rustc rust-clippy rustfmt"; do
		candidate=$(LC_ALL=C apt-cache policy "${packages%% *}" | awk '/Candidate:/ { print $2 }')
		if dpkg --compare-versions "${candidate:-0}" ge 1.85; then
			say "installing cargo $candidate"
			apt install --no-install-recommends $packages
			return
		fi
	done
	die "this machine's sources have no Rust 1.85 or later; install it with clippy and rustfmt"
}
[ -z "$need_go" ] || install_go
[ -z "$need_rust" ] || install_rust
"$here/go.sh" >/dev/null || die "the installed go command can't build this project; install Go 1.26"
[ -z "$need_rust" ] || "$here/rust.sh" >/dev/null || die "the installed cargo command can't build gpuremote/; install Rust 1.85"
say "done"
