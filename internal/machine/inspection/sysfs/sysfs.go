// Package sysfs reads the kernel's files of one value each, below the root of the running machine or of a recorded tree.
//
// What is not there, or what a driver refuses to tell, is the empty value: sysfs has no file for a thing that a machine does not have,
// and many drivers answer EINVAL for what does not apply at the moment (the speed of a link that is down). It never writes. Start with At.
package sysfs

import (
	"cmp"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxBytes bounds what is read of one file; the largest are /proc/cpuinfo and pci.ids.
const maxBytes = 16 << 20

// Tree is the files below a root.
type Tree struct{ root string }

// At is the tree below root, "/" for the running machine.
func At(root string) Tree {
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real
	}
	return Tree{root: filepath.Clean(root)}
}

// Live tells whether the tree is the running machine's.
func (t Tree) Live() bool { return t.root == "/" }

// Path is where a file of the tree is.
func (t Tree) Path(name string) string { return filepath.Join(t.root, name) }

// Bytes is a file's content.
func (t Tree) Bytes(name string) ([]byte, error) {
	f, err := os.Open(t.Path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytes))
}

// Text is a file's content without the space around it; "" when there is none.
func (t Tree) Text(name string) string {
	data, err := t.Bytes(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(data), ""))
}

// Int is the number in a file, decimal or with 0x; false when there is none.
func (t Tree) Int(name string) (int64, bool) {
	n, err := strconv.ParseInt(t.Text(name), 0, 64)
	return n, err == nil
}

// Names are what is in a folder, numbers in names by their value: eth2 before eth10.
func (t Tree) Names(dir string) []string {
	entries, err := os.ReadDir(t.Path(dir))
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.SortFunc(names, Compare)
	return names
}

// Exists tells whether a file is there.
func (t Tree) Exists(name string) bool {
	_, err := os.Stat(t.Path(name))
	return err == nil
}

// Link is the last part of where a symbolic link points, which is a driver's, subsystem's or device's name; "" when there is none.
func (t Tree) Link(name string) string {
	target, err := os.Readlink(t.Path(name))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// Real is a file's place in the tree with all links resolved, beginning with a slash; "" when there is none.
func (t Tree) Real(name string) string {
	real, err := filepath.EvalSymlinks(t.Path(name))
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(t.root, real)
	if err != nil || strings.HasPrefix(rel, "..") {
		return ""
	}
	return "/" + rel
}

// Compare orders names with the numbers in them by value.
func Compare(a, b string) int {
	for a != "" && b != "" {
		an, bn := digits(a), digits(b)
		if an > 0 && bn > 0 {
			x, y := strings.TrimLeft(a[:an], "0"), strings.TrimLeft(b[:bn], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y), cmp.Compare(an, bn)); c != 0 {
				return c
			}
			a, b = a[an:], b[bn:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits is the number of digits s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
