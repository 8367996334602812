package passthrough

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is a kernel. Paths are absolute, and patterns those of path/filepath.Match. Any call may hang: Manager bounds them.
type Host interface {
	// ReadFile returns a file's text without the white space around it.
	ReadFile(name string) (string, error)
	// WriteFile writes to a file that exists.
	WriteFile(name, text string) error
	// Readlink returns the last part of a symbolic link's target; an error that is fs.ErrNotExist where there is no link.
	Readlink(name string) (string, error)
	// Glob returns what matches a pattern, sorted; nothing is no error.
	Glob(pattern string) ([]string, error)
	// GroupInUse reports whether a process has an IOMMU group open.
	GroupInUse(group string) (bool, error)
	// Memory maps a window of memory, and calls do with it.
	Memory(name string, bytes int64, do func([]byte) error) error
	// Users names processes that have one of these device nodes open.
	Users(nodes []string) []string
}

// Kernel is the running kernel as a Host.
type Kernel struct {
	// Root is where its file systems are: "/" but for tests.
	Root string
}

var _ Host = Kernel{}

func (k Kernel) at(name string) string { return filepath.Join(k.Root, name) }

// ReadFile implements Host.
func (k Kernel) ReadFile(name string) (string, error) {
	text, err := os.ReadFile(k.at(name))
	return strings.TrimSpace(string(text)), err
}

// WriteFile implements Host. Files of sysfs take their value in one write, and are never made.
func (k Kernel) WriteFile(name, text string) error {
	f, err := os.OpenFile(k.at(name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Readlink implements Host.
func (k Kernel) Readlink(name string) (string, error) {
	target, err := os.Readlink(k.at(name))
	if err != nil {
		return "", err
	}
	return path.Base(target), nil
}

// Glob implements Host.
func (k Kernel) Glob(pattern string) ([]string, error) {
	names, err := filepath.Glob(k.at(pattern))
	for i := range names {
		names[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(names[i], filepath.Clean(k.Root)), "/")
	}
	return names, err
}

// GroupInUse implements Host: a group can be opened once (Documentation/driver-api/vfio.rst).
func (k Kernel) GroupInUse(group string) (bool, error) {
	f, err := os.OpenFile(k.at("/dev/vfio/"+group), os.O_RDWR, 0)
	switch {
	case err == nil:
		return false, f.Close()
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, err
}

// Memory implements Host. A window that goes away while it is mapped is an error, not the end of the process.
func (k Kernel) Memory(name string, bytes int64, do func([]byte) error) (err error) {
	f, err := os.OpenFile(k.at(name), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(mapped)) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s went away while it was read: %v", name, fault)
		}
	}()
	return do(mapped)
}

// Users implements Host by the open files of all processes.
func (k Kernel) Users(nodes []string) []string {
	links, _ := filepath.Glob(k.at("/proc/[0-9]*/fd/*"))
	wanted := map[string]bool{}
	for _, node := range nodes {
		wanted[node] = true
	}
	var users []string
	seen := map[string]bool{}
	for _, link := range links {
		pid := path.Base(path.Dir(path.Dir(link)))
		to, err := os.Readlink(link)
		if err != nil || !wanted[to] || seen[pid] {
			continue
		}
		seen[pid] = true
		name, _ := os.ReadFile(k.at("/proc/" + pid + "/comm"))
		users = append(users, fmt.Sprintf("%q (PID %s)", strings.TrimSpace(string(name)), pid))
	}
	return users
}
