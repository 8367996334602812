package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// leftovers are patterns (path.Match) of what an image must not hold: it tells of the build or the node, differs from build to build, is a
// secret that all machines would share, or can be made again.
var leftovers = []string{
	"etc/hostname", "etc/resolv.conf", "etc/.pwd.lock", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-",
	"etc/ssh/ssh_host_*", "etc/ssl/private/ssl-cert-snakeoil.key", "etc/ssl/certs/ssl-cert-snakeoil.pem", "etc/munge/munge.key",
	"root/.bash_history", "root/.wget-hsts", "root/.cache", ".dockerenv",
	"var/cache/apt/*", "var/cache/ldconfig/*", "var/cache/debconf/*-old", "var/cache/fontconfig/*", "var/cache/man/*", "var/cache/dnf/*",
	"var/lib/apt/lists/*", "var/lib/apt/listchanges*", "var/lib/dbus/machine-id", "var/lib/dpkg/*-old", "var/lib/dpkg/lock*", "var/lib/dpkg/triggers/Lock",
	"var/lib/systemd/random-seed", "var/lib/systemd/credential.secret", "var/lib/systemd/catalog/database", "var/lib/ucf/*.[0-9]", "var/lib/urandom/*",
	"var/backups/*", "var/tmp/*", "tmp/*", "run/*", "dev/*", "proc/*", "sys/*",
}

// normalize removes leftovers, empties the machine ID (machine-id(5)) and the logs, and of a layer what overlayfs noted for itself.
func (w *worker) normalize(context.Context) error {
	if w.tree != w.root {
		if err := unix.Unmount(w.tree, 0); err != nil {
			return fmt.Errorf("unmount the overlay: %w", err)
		}
		w.tree = w.root
		if err := stripOverlay(w.root); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(w.root)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, pattern := range leftovers {
		if err := removeMatches(root, pattern); err != nil {
			return fmt.Errorf("clean %s: %w", pattern, err)
		}
	}
	if err := emptyLogs(root); err != nil {
		return err
	}
	if _, err := root.Lstat("etc/machine-id"); err == nil {
		if err := errors.Join(root.Remove("etc/machine-id"), root.WriteFile("etc/machine-id", nil, 0o444)); err != nil {
			return err
		}
	}
	if w.Recipe.Base.Environment == "" {
		return mountPoints(root)
	}
	return dropUntouched(root)
}

// removeMatches removes what a pattern whose last element may hold '*' matches.
func removeMatches(root *os.Root, pattern string) error {
	dir, last := path.Split(pattern)
	dir = path.Clean(dir)
	entries, err := fs.ReadDir(root.FS(), dir)
	if err != nil {
		return nil // it is not there, or a link out of the root, which is nothing of ours
	}
	for _, e := range entries {
		if ok, _ := path.Match(last, e.Name()); ok && !whiteout(e) {
			if err := root.RemoveAll(path.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// whiteout tells whether an entry of a layer says that something below it is gone (overlayfs: a character device 0:0).
func whiteout(e fs.DirEntry) bool { return e.Type()&fs.ModeCharDevice != 0 }

// emptyLogs removes files below /var/log and keeps directories, whose owners matter to who writes there.
func emptyLogs(root *os.Root) error {
	if _, err := root.Stat("var/log"); err != nil {
		return nil
	}
	return fs.WalkDir(root.FS(), "var/log", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || whiteout(d) {
			return err
		}
		return root.Remove(name)
	})
}

// mountPoints are there in every root, with the usual modes, for whoever mounts something in it.
func mountPoints(root *os.Root) error {
	for name, mode := range map[string]os.FileMode{
		"dev": 0o755, "proc": 0o555, "sys": 0o555, "run": 0o755, "tmp": 0o777 | os.ModeSticky, "mnt": 0o755, "home": 0o755, "root": 0o700,
	} {
		if err := root.Mkdir(name, mode.Perm()); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if info, err := root.Lstat(name); err != nil || !info.IsDir() {
			continue // a link of the base's own making
		}
		if err := root.Chmod(name, mode); err != nil {
			return err
		}
	}
	return nil
}

// dropUntouched removes what a container left at the top of a layer without changing anything: empty directories it mounted something on.
func dropUntouched(root *os.Root) error {
	for _, name := range []string{"dev", "proc", "sys", "run", "tmp"} {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// overlayNotes are attributes by which overlayfs finds lower files again; they tell of file handles of this node.
var overlayNotes = []string{"trusted.overlay.origin", "trusted.overlay.impure", "trusted.overlay.nlink", "trusted.overlay.upper", "trusted.overlay.uuid"}

// stripOverlay removes overlayfs's notes from a layer's tree; that directories are opaque stays.
func stripOverlay(dir string) error {
	return walkAll(dir, func(name string) error {
		for _, note := range overlayNotes {
			if err := unix.Lremovexattr(name, note); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
				return fmt.Errorf("strip %s: %w", name, err)
			}
		}
		return nil
	})
}

// stricter is what a machine must have to satisfy both.
func stricter(a, b api.Requirements) api.Requirements {
	if a.Architecture == "" {
		a.Architecture = b.Architecture
	}
	if a.Firmware == "" {
		a.Firmware = b.Firmware
	}
	a.MemoryBytes, a.DiskBytes = max(a.MemoryBytes, b.MemoryBytes), max(a.DiskBytes, b.DiskBytes)
	a.CPUFlags, a.Devices = union(a.CPUFlags, b.CPUFlags), union(a.Devices, b.Devices)
	return a
}

func union[T ~string](a, b []T) []T {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
