// Package choice says, by their paths, which of the files that a member changed in its root are saved, for an environment or for the member itself.
//
// What Nearmetal wrote for one member is never saved, nor what makes a machine this machine. The package is pure: it knows no file. Start with Use.Omitted.
package choice

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Use is what changed files are saved for.
type Use string

// The uses of changed files.
const (
	// ForEnvironment is for others, and for other machines.
	ForEnvironment Use = ""
	// ForMember is for the same member after a pause.
	ForMember Use = "member"
)

// Check returns an error for a use that this version does not know.
func (u Use) Check() error {
	if u != ForEnvironment && u != ForMember {
		return fmt.Errorf("changed files can't be saved for %q: this version does not know it", u)
	}
	return nil
}

// trees are directories of which nothing is ever saved: they are mounted over, or the product's own.
var trees = []string{"dev", "proc", "run", "sys", "tmp", "etc/nearmetal", "var/lib/nearmetal"}

// passing are directories of which an environment has nothing: files for a while, and those that are so in every image. A member keeps them.
var passing = []string{"var/tmp", "var/lib/apt/lists", "var/cache/apt", "var/backups"}

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

// logs keeps its directories in an environment, whose owners matter to who writes there, and no files.
const logs = "var/log"

// unfinished ends the name of a generated file that is being written.
const unfinished = ".nearmetal-new"

// Omitted reports whether a path, relative to the root, is not saved, with all that is in it.
func (u Use) Omitted(name string, dir bool) bool {
	in := func(tree string) bool { return within(name, tree) }
	switch {
	case slices.ContainsFunc(trees, in):
		return true
	case u == ForEnvironment && (slices.ContainsFunc(passing, in) || within(name, logs) && !dir):
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
