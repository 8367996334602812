package environment

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/filetree"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Image is a built environment whose files are wholly on this node.
type Image struct {
	// Digest is that of its manifest.
	Digest string
	// Layers are the root first, then the layers above it, the last one on top.
	Layers []Layer
	// Kernel is nil where the node does not boot the image.
	Kernel *Kernel
	// Disk is set for the disk of another system, whose file is the only layer.
	Disk *api.ForeignDisk
}

// Kernel is what boots an image.
type Kernel struct {
	// Path is the kernel's file, Initrd that of the initial RAM disk with its modules.
	Path, Initrd string
	// Arguments are the image's own, for the kernel's command line.
	Arguments string
}

// Layer is the file of a root or a layer.
type Layer struct {
	Path   string
	Format image.RootFormat
}

// Images is what a node holds of built environments. An error tells people why an image can't be used, and how far it is.
type Images interface {
	Image(digest string) (Image, error)
}

// Dir is a directory of a member's own, writable, made when the member starts.
type Dir struct {
	Path     string
	Mode     fs.FileMode
	UID, GID uint32
}

// What of an image's top level a member does not get: it has its own.
var ownTop = []string{"boot", "dev", "etc", "home", "lost+found", "media", "mnt", "proc", "root", "run", "sys", "tmp", "var"}

// RootOf is the root that members have of an image whose root is mounted at source, seen by this process at view: all of it read-only, the
// generated files of /etc above it. Of /var it shows read-only what holds files; the other directories are the member's own, with
// the image's owners and modes.
func RootOf(source, view string) (Root, error) {
	tree, err := filetree.OpenRoot(view)
	if err != nil {
		return Root{}, fmt.Errorf("read the image: %w", err)
	}
	defer tree.Close()
	var root Root
	r := imageReader{source: source, view: view, tree: tree, root: &root}
	top, err := r.list("/")
	if err != nil {
		return Root{}, err
	}
	for _, e := range top {
		if slices.Contains(ownTop, e.Name()) {
			continue
		}
		if e.IsDir() {
			root.Dirs = append(root.Dirs, Dir{Path: "/" + e.Name(), Mode: 0o755})
		}
		if err := r.add("/"+e.Name(), e); err != nil {
			return Root{}, err
		}
	}
	etc, err := r.list("/etc")
	if err != nil {
		return Root{}, err
	}
	for _, e := range etc {
		if err := r.add("/etc/"+e.Name(), e); err != nil {
			return Root{}, err
		}
	}
	if err := r.addVar("/var", 0); err != nil {
		return Root{}, err
	}
	if !slices.ContainsFunc(root.Binds, func(b Bind) bool { return b.Target == "/usr" }) {
		return Root{}, errors.New("the image has no /usr")
	}
	slices.SortFunc(root.Binds, func(a, b Bind) int { return strings.Compare(a.Target, b.Target) })
	return root, nil
}

type imageReader struct {
	source, view string
	tree         *filetree.Root
	root         *Root
}

// mostEntries is how many entries a directory may have that a member sees the entries of: each of them is a mount, a copy or a link.
const mostEntries = 5000

// list lists a directory of the image; one that is not there is empty. A link in its place, or on the way, is refused: below /etc or
// /var it would show the member the host's.
func (r imageReader) list(path string) ([]fs.DirEntry, error) {
	entries, err := r.tree.ReadDir(path, mostEntries)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the image: %w", err)
	}
	return entries, nil
}

// add shows an entry of the image as it is. Links are the member's own ones: nothing outside of it can be meant by them.
func (r imageReader) add(path string, e fs.DirEntry) error {
	switch {
	case e.Type() == fs.ModeSymlink:
		target, err := os.Readlink(filepath.Join(r.view, path))
		if err != nil {
			return fmt.Errorf("read the image: %w", err)
		}
		r.root.Links = append(r.root.Links, Link{Path: path, Target: target})
	case e.IsDir() || e.Type().IsRegular():
		r.root.Binds = append(r.root.Binds, Bind{Source: filepath.Join(r.source, path), Target: path, View: filepath.Join(r.view, path)})
	}
	return nil
}

// mostVarDepth is how deep below /var directories are a member's own; below that they are shown read-only.
const mostVarDepth = 4

// addVar takes over a directory below /var. One that holds files is shown read-only, the others are made anew.
func (r imageReader) addVar(path string, depth int) error {
	entries, err := r.list(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		switch {
		case name == "/var/run" || name == "/var/lock" || name == "/var/tmp": // every member has these
		case e.Type() == fs.ModeSymlink:
			if err := r.add(name, e); err != nil {
				return err
			}
		case !e.IsDir():
		default:
			files, err := r.holdsFiles(name)
			if err != nil {
				return err
			}
			if (files || depth >= mostVarDepth) && depth > 0 {
				r.root.Dirs = append(r.root.Dirs, Dir{Path: name, Mode: 0o755}) // to mount on
				if err := r.add(name, e); err != nil {
					return err
				}
				continue
			}
			if err := r.own(name, e); err != nil {
				return err
			}
			if err := r.addVar(name, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r imageReader) holdsFiles(path string) (bool, error) {
	entries, err := r.list(path)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Type().IsRegular() }), err
}

// own makes a directory of the image the member's own.
func (r imageReader) own(path string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	dir := Dir{Path: path, Mode: info.Mode().Perm() | info.Mode()&fs.ModeSticky}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		dir.UID, dir.GID = stat.Uid, stat.Gid
	}
	r.root.Dirs = append(r.root.Dirs, dir)
	return nil
}
