package vm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// inNamespace runs f on a thread in a mount namespace of its own.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	needs.Root(t, "makes a mount namespace")
	done := make(chan error, 1)
	go onOwnThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			done <- err
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
			done <- err
			return
		}
		done <- f()
	})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestLibvirtdSeesTheDeviceOfKVMOnlyWhereItRunsMachines(t *testing.T) {
	for name, usable := range map[string]bool{"processors are virtualized": true, "processors are emulated": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			device := filepath.Join(dir, "kvm")
			inNamespace(t, func() error {
				// A device that everybody can open, whatever the host has: /dev/null's number.
				if err := errors.Join(unix.Mount("tmpfs", dir, "tmpfs", 0, ""), unix.Mknod(device, unix.S_IFCHR, int(unix.Mkdev(1, 3))), os.Chmod(device, 0o600)); err != nil {
					return err
				}
				if err := showKVM(device, filepath.Join(dir, "private"), usable); err != nil {
					return err
				}
				info, err := os.Stat(device)
				if err != nil {
					return err
				}
				file, err := os.OpenFile(device, os.O_RDWR, 0)
				if err == nil {
					err = file.Close()
				}
				if usable && (err != nil || info.Mode().Perm() != 0o666) {
					t.Errorf("the device has mode %v and can't be opened (%v), want one that all users can open", info.Mode(), err)
				}
				if !usable && (!errors.Is(err, unix.ENXIO) || info.Mode().Perm() != 0) {
					t.Errorf("the device has mode %v, and root opens it (%v); want one that nobody can open", info.Mode(), err)
				}
				return nil
			})
		})
	}
}

func TestLibvirtdFindsItsHostsAddressWithoutAResolver(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	inNamespace(t, func() error {
		if err := errors.Join(unix.Mount(dir, "/etc", "", unix.MS_BIND, ""), nameLocally()); err != nil {
			return err
		}
		hosts, err := os.ReadFile("/etc/hosts")
		if err != nil {
			return err
		}
		order, err := os.ReadFile("/etc/nsswitch.conf")
		if err != nil {
			return err
		}
		if !strings.Contains(string(hosts), " "+host+"\n") {
			t.Errorf("/etc/hosts is %q, want a line for host %q", hosts, host)
		}
		if !strings.Contains(string(order), "hosts: files\n") {
			t.Errorf("/etc/nsswitch.conf is %q, want names of hosts from files only", order)
		}
		return nil
	})
}
