// Package changedfiles says which of the files that a member changed in its root become an environment, and searches what was saved for keys.
//
// What Nearmetal wrote for one member is never saved, nor what makes a machine this machine, nor logs and files for a while. What users wrote is saved,
// but private keys among it only where they are named. The package reads archives and trees and changes neither. Start with Omitted, then CheckArchive.
package changedfiles

import (
	"path"
	"slices"
	"strings"
)

// trees are directories of which nothing is saved: they are mounted over, for a while only, or the product's own.
var trees = []string{
	"dev", "proc", "run", "sys", "tmp", "var/tmp",
	"etc/nearmetal", "var/lib/nearmetal",
	"var/lib/apt/lists", "var/cache/apt", "var/backups", // as in every image
}

// patterns (path.Match) are files that are not saved.
var patterns = []string{
	// Generated for each member. Accounts are, too, but merged with those of the image, so that those which users added stay.
	"etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/nsswitch.conf", "etc/profile", "etc/profile.d/nearmetal.sh",
	"etc/ssh/sshd_config", "etc/ssh/ssh_config", "etc/ssh/ssh_known_hosts", "etc/ssh/nearmetal_ca.pub", "etc/ssh/authorized_principals",
	"etc/slurm/slurm.conf", "etc/slurm/cgroup.conf", "etc/slurm/gres.conf",
	"root/.ssh/authorized_keys",
	// Two machines must not have the same.
	"etc/machine-id", "var/lib/dbus/machine-id", "etc/ssh/ssh_host_*", "etc/munge/munge.key", "var/lib/systemd/random-seed", "var/lib/systemd/credential.secret",
	"var/lib/urandom/*", "etc/ssl/private/ssl-cert-snakeoil.key", "etc/ssl/certs/ssl-cert-snakeoil.pem",
	// Locks and former versions, which have the passwords of before.
	"etc/.pwd.lock", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-",
}

// logs keeps its directories, whose owners matter to who writes there, and no files.
const logs = "var/log"

// unfinished ends the name of a generated file that is being written.
const unfinished = ".nearmetal-new"

// Omitted reports whether a path, relative to the root, is not saved, with all that is in it.
func Omitted(name string, dir bool) bool {
	switch {
	case slices.ContainsFunc(trees, func(tree string) bool { return within(name, tree) }):
		return true
	case within(name, logs) && !dir:
		return true
	case strings.HasSuffix(name, unfinished):
		return true
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		for at := name; at != "."; at = path.Dir(at) {
			if ok, _ := path.Match(pattern, at); ok {
				return true
			}
		}
		return false
	})
}

func within(name, tree string) bool { return name == tree || strings.HasPrefix(name, tree+"/") }
