package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// errNotRoot: only root changes a host.
var errNotRoot = errors.New("preparing a host needs root; run it with sudo")

// policyFile keeps Debian's package scripts from starting services (invoke-rc.d(8)): no service of a package that is installed here is needed.
const (
	policyFile = "usr/sbin/policy-rc.d"
	policyText = "#!/bin/sh\nexit 101\n"
)

// Apply carries out the changes in their order. show is called before each. It ends at the first that fails; those before it hold.
func Apply(ctx context.Context, h Host, f Facts, changes []Change, show func(Change)) error {
	if len(changes) > 0 && !f.Root {
		return errNotRoot
	}
	for _, c := range changes {
		show(c)
		if err := h.apply(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	return nil
}

// name is the change without its reason.
func (c Change) name() string {
	switch {
	case c.Path != "":
		return "write /" + c.Path
	case c.Setting != "":
		return "sysctl -w " + c.Setting + "=" + c.Value
	case c.Attribute != "":
		return "echo " + c.Value + " >/" + c.Attribute
	default:
		return strings.Join(c.Command, " ")
	}
}

func (h Host) apply(ctx context.Context, c Change) error {
	switch {
	case c.Path != "":
		return h.write(c.Path, c.Text)
	case c.Setting != "":
		return h.setSysctl(c.Setting, c.Value)
	case c.Attribute != "":
		return h.setAttribute(c.Attribute, c.Value)
	case c.Command[0] == "apt-get":
		return h.apt(ctx, c.Command[1:])
	default:
		said, err := h.Run(ctx, c.Command[0], c.Command[1:]...)
		return withLastWords(said, err)
	}
}

// withLastWords adds the end of what a program printed to its error.
func withLastWords(said string, err error) error {
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return fmt.Errorf("%w: %s", err, strings.Join(lines[max(0, len(lines)-3):], "; "))
}

// write replaces a file at once.
func (h Host) write(path, text string) error {
	at := h.path(path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(at+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// overwrite writes to a file that exists, in place, as the kernel's files want it.
func overwrite(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// setSysctl sets a setting and reads it back: the kernel reserves fewer huge pages than it is asked for where memory is fragmented.
func (h Host) setSysctl(setting, value string) error {
	at := "proc/sys/" + strings.ReplaceAll(setting, ".", "/")
	if err := os.WriteFile(h.path(at), []byte(value), 0o644); err != nil {
		return err
	}
	if got := h.text(at); got != value {
		return fmt.Errorf("read back, it is %s: it is set at the next boot, when memory is not fragmented; reboot", got)
	}
	return nil
}

// apt runs apt-get without questions, and without services being started.
func (h Host) apt(ctx context.Context, args []string) (err error) {
	if !h.has(policyFile) {
		if err := h.write(policyFile, policyText); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.Remove(h.path(policyFile))) }()
		if err := os.Chmod(h.path(policyFile), 0o755); err != nil {
			return err
		}
	}
	said, err := h.Run(ctx, "env", append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get"}, args...)...)
	return withLastWords(said, err)
}
