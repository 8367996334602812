package environment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// LocalName is the name of the environment that every node has.
const LocalName = "local"

// localEtc is the allow-list of the host's /etc: what installed programs need to run (loader cache, alternatives, defaults of
// libraries) and nothing that tells of the host's users, network, keys or services.
var localEtc = []string{
	"alternatives",         // update-alternatives: mpirun, cc, editor ... resolve through it
	"ca-certificates.conf", // which of the public CA certificates below ssl are in use
	"debian_version",
	"host.conf",
	"libibverbs.d", // userspace drivers of RDMA devices
	"ld.so.cache",  // without it the loader finds only the default library paths
	"ld.so.conf",
	"ld.so.conf.d",
	"locale.alias",
	"localtime",
	"login.defs",
	"magic",
	"mime.types",
	"networks",
	"openmpi", // MCA defaults
	"os-release",
	"protocols",
	"rpc",
	"services",
	"shells",
	"ssl/certs", // public CA certificates; ssl/private stays hidden
	"ssl/openssl.cnf",
	"terminfo",
	"timezone",
}

// localPrograms are the programs every member needs, and the Debian package of each.
var localPrograms = []struct{ path, pkg string }{
	{"/usr/sbin/sshd", "openssh-server"},
	{"/usr/bin/ssh", "openssh-client"},
	{"/usr/bin/mpirun", "openmpi-bin"},
	{"/bin/sh", "dash"},
}

// rootLinks are the top-level directories that a merged /usr turns into links (Debian 12 requires it).
var rootLinks = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// Local is the embedded default: the machine's own /usr read-only, an allow-list of its /etc, and nothing else. It needs no
// build; its content is whatever is installed on the node, which the digest tells.
type Local struct {
	// root is where the host's file system is looked at; "/" but for tests.
	root string
}

// NewLocal returns the environment of this machine.
func NewLocal() *Local { return &Local{root: "/"} }

// Name is "local".
func (l *Local) Name() string { return LocalName }

// Description tells what it is.
func (l *Local) Description() string {
	return "the node's own /usr, read-only: members have the software installed on the node; needs no build"
}

// Stacks are those that can use the host's files directly.
func (l *Local) Stacks() []api.Stack { return []api.Stack{api.StackContainer} }

// Inspect checks that what members need is installed, and takes the digest.
func (l *Local) Inspect(ctx context.Context) api.EnvironmentOnNode {
	found := api.EnvironmentOnNode{Name: LocalName, Description: l.Description(), Stacks: l.Stacks()}
	for _, p := range localPrograms {
		info, err := os.Stat(filepath.Join(l.root, p.path))
		if err != nil || info.Mode()&0o111 == 0 {
			found.Problems = append(found.Problems, fmt.Sprintf("%s is missing; run: apt-get install %s", p.path, p.pkg))
		}
	}
	if _, err := l.Root(ctx); err != nil {
		found.Problems = append(found.Problems, err.Error())
	}
	digest, err := l.digest()
	if err != nil {
		found.Problems = append(found.Problems, err.Error())
	}
	found.Digest = digest
	found.OK = len(found.Problems) == 0
	return found
}

// Root lists /usr, the links a merged /usr needs, and those entries of the allow-list that this host has.
func (l *Local) Root(context.Context) (Root, error) {
	root := Root{Binds: []Bind{{Source: filepath.Join(l.root, "usr"), Target: "/usr"}}}
	for _, name := range rootLinks {
		target, err := os.Readlink(filepath.Join(l.root, name))
		switch {
		case err == nil:
			root.Links = append(root.Links, Link{Path: "/" + name, Target: target})
		case !errors.Is(err, fs.ErrNotExist):
			return Root{}, fmt.Errorf("/%s is not a link into /usr, so this host's /usr is not merged; run: apt-get install usrmerge", name)
		}
	}
	for _, name := range localEtc {
		path := filepath.Join(l.root, "etc", name)
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Root{}, fmt.Errorf("allow-listed host file: %w", err)
		}
		if info.Mode().Type() == fs.ModeSymlink {
			target, err := os.Readlink(path)
			if err != nil {
				return Root{}, fmt.Errorf("allow-listed host file: %w", err)
			}
			// Only links into /usr mean the same inside; any other would be followed on the host when it is bound.
			if inUsr(filepath.Dir("/etc/"+name), target) {
				root.Links = append(root.Links, Link{Path: "/etc/" + name, Target: target})
			}
			continue
		}
		root.Binds = append(root.Binds, Bind{Source: path, Target: "/etc/" + name})
	}
	slices.SortFunc(root.Binds, func(a, b Bind) int { return strings.Compare(a.Target, b.Target) })
	return root, nil
}

// inUsr tells whether a link in dir with this target leads into /usr.
func inUsr(dir, target string) bool {
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	return strings.HasPrefix(filepath.Clean(target), "/usr/")
}

// digest identifies what is installed: the package database (dpkg's status file: every package, version and the hashes of its
// configuration files) and the allow-list. Files put below /usr by hand are seen only by the names and sizes of the top of
// /usr/local, so two nodes with equal digests have the same packages, not provably the same bytes.
func (l *Local) digest() (string, error) {
	h := sha256.New()
	status, err := os.Open(filepath.Join(l.root, "var/lib/dpkg/status"))
	if err != nil {
		return "", fmt.Errorf("the digest of environment %q needs the package database: %w", LocalName, err)
	}
	defer status.Close()
	if _, err := io.Copy(h, status); err != nil {
		return "", fmt.Errorf("reading the package database: %w", err)
	}
	var seen bytes.Buffer
	for _, name := range localEtc {
		fmt.Fprintf(&seen, "etc %s\n", name)
	}
	for _, pattern := range []string{"usr/local/*", "usr/local/*/*"} {
		paths, err := filepath.Glob(filepath.Join(l.root, pattern))
		if err != nil {
			return "", fmt.Errorf("listing /usr/local: %w", err)
		}
		for _, path := range paths {
			info, err := os.Lstat(path)
			if err != nil {
				continue
			}
			name := strings.TrimPrefix(path, filepath.Clean(l.root))
			fmt.Fprintf(&seen, "local %s %v", name, info.Mode())
			if info.Mode().IsRegular() {
				fmt.Fprintf(&seen, " %d", info.Size())
			}
			seen.WriteByte('\n')
		}
	}
	h.Write(seen.Bytes())
	return "local-sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
