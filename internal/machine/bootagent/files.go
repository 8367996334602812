package bootagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// writeFiles writes what makes the image this machine: names, resolver, root's password and keys. root is the image's root.
func writeFiles(root string, w boot.Welcome, n *network) error {
	name := w.Name
	if name == "" {
		name = "localhost"
	}
	if root == "/" {
		_ = unix.Sethostname([]byte(name))
	}
	var errs []error
	write := func(path, text string, mode fs.FileMode) {
		errs = append(errs, replace(filepath.Join(root, path), text, mode))
	}
	write("etc/hostname", name+"\n", 0o644)
	write("etc/hosts", hosts(w.Name, n.Address.Addr().AsSlice()), 0o644)
	write("etc/resolv.conf", resolvConf(n), 0o644)
	// An identity of this boot (machine-id(5)): two machines with one image must not share it.
	write("etc/machine-id", machineID(w.Session), 0o444)
	if w.RootPasswordHash != "" {
		shadow, err := os.ReadFile(filepath.Join(root, "etc/shadow"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		write("etc/shadow", withRootPassword(string(shadow), w.RootPasswordHash), 0o640)
	}
	if len(w.AuthorizedKeys) > 0 {
		errs = append(errs, os.MkdirAll(filepath.Join(root, "root/.ssh"), 0o700))
		write("root/.ssh/authorized_keys", strings.Join(w.AuthorizedKeys, "\n")+"\n", 0o600)
	}
	return errors.Join(errs...)
}

// replace writes a file, in place of a link too: images link resolv.conf to what some other init would write.
func replace(path, text string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func resolvConf(n *network) string {
	var b strings.Builder
	if n.Domain != "" {
		fmt.Fprintf(&b, "search %s\n", n.Domain)
	}
	for _, server := range n.Nameservers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	return b.String()
}

// withRootPassword returns the text of shadow(5) with root's password replaced, and without an age that would have it changed.
func withRootPassword(shadow, hash string) string {
	var b strings.Builder
	found := false
	for line := range strings.Lines(shadow) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if fields[0] == "root" {
			found = true
			line = "root:" + hash + ":20000:0:99999:7:::\n"
		}
		b.WriteString(line)
	}
	if !found {
		b.WriteString("root:" + hash + ":20000:0:99999:7:::\n")
	}
	return b.String()
}
