// Package kerneltree reads and writes the kernel's files, those of sysfs and VFIO above all. Start with Tree.
package kerneltree

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is where the kernel's file systems are.
type Tree struct {
	// Root is "/" but for tests.
	Root string
}

// At is where a file of the kernel is.
func (t Tree) At(name string) string { return filepath.Join(t.Root, name) }

// ReadFile returns what a file says, without space around it.
func (t Tree) ReadFile(name string) (string, error) {
	text, err := os.ReadFile(t.At(name))
	return strings.TrimSpace(string(text)), err
}

// WriteFile writes to a file that is there. Files of sysfs take their value in one write.
func (t Tree) WriteFile(name, text string) error {
	f, err := os.OpenFile(t.At(name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Readlink returns the last part of what a link leads to.
func (t Tree) Readlink(name string) (string, error) {
	target, err := os.Readlink(t.At(name))
	if err != nil {
		return "", err
	}
	return path.Base(target), nil
}

// Glob returns the names of files that fit a pattern (filepath.Match).
func (t Tree) Glob(pattern string) ([]string, error) {
	names, err := filepath.Glob(t.At(pattern))
	for i := range names {
		names[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(names[i], filepath.Clean(t.Root)), "/")
	}
	return names, err
}

// GroupInUse reports whether a process has an IOMMU group open: a group can be opened once (Documentation/driver-api/vfio.rst of Linux).
func (t Tree) GroupInUse(group string) (bool, error) {
	f, err := os.OpenFile(t.At("/dev/vfio/"+group), os.O_RDWR, 0)
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
