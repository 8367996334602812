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

	"github.com/nearmetal/nearmetal/internal/kerneltree"
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
type Kernel struct{ kerneltree.Tree }

var _ Host = Kernel{}

// Memory implements Host. A window that goes away while it is mapped is an error, not the end of the process.
func (k Kernel) Memory(name string, bytes int64, do func([]byte) error) (err error) {
	f, err := os.OpenFile(k.At(name), os.O_RDWR, 0)
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
	links, _ := filepath.Glob(k.At("/proc/[0-9]*/fd/*"))
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
		name, _ := os.ReadFile(k.At("/proc/" + pid + "/comm"))
		users = append(users, fmt.Sprintf("%q (PID %s)", strings.TrimSpace(string(name)), pid))
	}
	return users
}
