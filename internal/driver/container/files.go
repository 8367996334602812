package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
)

// skeletonDirs are the directories of a member's root, "var" and "run" ones being copied into a tmpfs.
var skeletonDirs = []struct {
	path string
	mode fs.FileMode
}{
	{"dev", 0o755},
	{"etc", 0o755},
	{"home", 0o755},
	{"mnt", 0o755},
	{"opt", 0o755},
	{"proc", 0o555},
	{"root", 0o700},
	{"srv", 0o755},
	{"sys", 0o555},
	{"tmp", 0o1777},
	{"usr", 0o755},
	{"run", 0o755},
	{"run/lock", 0o1777},
	{"run/nearmetal", 0o755},
	{"run/sshd", 0o755},
	{"run/user", 0o755},
	{"var", 0o755},
	{"var/cache", 0o755},
	{"var/empty", 0o755},
	{"var/lib", 0o755},
	{"var/log", 0o755},
	{"var/mail", 0o755},
	{"var/spool", 0o755},
	{"var/tmp", 0o1777},
}

var skeletonLinks = []environment.Link{{Path: "/var/run", Target: "/run"}, {Path: "/var/lock", Target: "/run/lock"}}

// makeSkeleton makes the member's root directory, owned by the member's root: empty directories to mount on, and links.
func makeSkeleton(root string, owner uint32, of environment.Root) error {
	uid := int(owner)
	for _, d := range append([]struct {
		path string
		mode fs.FileMode
	}{{".", 0o755}}, skeletonDirs...) {
		dir := filepath.Join(root, d.path)
		// Mkdir's mode is cut by the umask and has no sticky bit, so it is set after.
		if err := errors.Join(os.Mkdir(dir, 0o700), unix.Chmod(dir, uint32(d.mode)), os.Lchown(dir, uid, uid)); err != nil {
			return fmt.Errorf("making the member's root: %w", err)
		}
	}
	for _, d := range of.Dirs {
		dir := filepath.Join(root, d.Path)
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue // every member has it
		}
		if err := errors.Join(err, os.Lchown(dir, uid, uid), os.Chmod(dir, 0o755)); err != nil {
			return fmt.Errorf("making the member's root: %w", err)
		}
	}
	for _, l := range slices.Concat(skeletonLinks, of.Links) {
		if belowEtc(l.Path) {
			continue // in the member's own /etc
		}
		link := filepath.Join(root, l.Path)
		if err := errors.Join(os.Symlink(l.Target, link), os.Lchown(link, uid, uid)); err != nil {
			return fmt.Errorf("making the member's root: %w", err)
		}
	}
	return nil
}

// giveDirs gives the directories of a member's own their owners and modes. It is done in the member's tmpfs, before its first process is
// let go: a runtime that copies them there could not read those it does not own.
func giveDirs(pid int, base uint32, dirs []environment.Dir) error {
	for _, d := range dirs {
		dir := filepath.Join(fmt.Sprintf("/proc/%d/root", pid), d.Path)
		mode := uint32(d.Mode.Perm())
		if d.Mode&fs.ModeSticky != 0 {
			mode |= unix.S_ISVTX
		}
		if !strings.HasPrefix(d.Path, "/var/") || d.UID == 0 && d.GID == 0 && mode == 0o755 {
			continue
		}
		if err := errors.Join(os.Lchown(dir, int(base+d.UID), int(base+d.GID)), unix.Chmod(dir, mode)); err != nil {
			return fmt.Errorf("making the member's own %s: %w", d.Path, err)
		}
	}
	return nil
}

// etcPlan is how a member's /etc is put together. The generated files win. Host directories that generated files go into are
// copied instead of bound, and so are small files: a mount takes longer than a copy.
type etcPlan struct {
	files  []driver.File
	binds  []environment.Bind
	copies []environment.Bind
	links  []environment.Link
}

// planEtc is pure; small tells which host entries are small files. It refuses generated files outside /etc: nothing else of a
// member's root can hold them.
func planEtc(files []driver.File, root environment.Root, small func(source string) bool) (etcPlan, error) {
	plan := etcPlan{files: files}
	for _, f := range files {
		if path.Clean(f.Path) != f.Path || !belowEtc(f.Path) {
			return etcPlan{}, fmt.Errorf("generated file %q: only clean paths below /etc can be generated in a container", f.Path)
		}
	}
	generated := func(target string) (same, below bool) {
		for _, f := range files {
			same = same || f.Path == target || strings.HasPrefix(target, f.Path+"/")
			below = below || strings.HasPrefix(f.Path, target+"/")
		}
		return same, below
	}
	for _, b := range root.Binds {
		if !belowEtc(b.Target) {
			continue
		}
		same, below := generated(b.Target)
		switch {
		case same:
		case below || small(b.Open()):
			plan.copies = append(plan.copies, b)
		default:
			plan.binds = append(plan.binds, b)
		}
	}
	for _, l := range root.Links {
		if same, below := generated(l.Path); belowEtc(l.Path) && !same && !below {
			plan.links = append(plan.links, l)
		}
	}
	return plan, nil
}

// smallFile is the most bytes a host file may have to be copied into each member's memory.
const smallFile = 32 << 10

func isSmallFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() <= smallFile && info.Mode()&0o004 != 0
}

// fillEtc puts /etc into a new root. The member sees it read-only; only the host's root can write there. Nothing leaves the root,
// whatever links an image brought into it.
func fillEtc(rootDir string, m driver.Member, plan etcPlan) error {
	root, err := os.OpenRoot(rootDir)
	if err != nil {
		return err
	}
	defer root.Close()
	owner := m.Assignment.UserIDs.First
	copier := copier{root: root, owner: owner, left: mostCopied}
	for _, c := range plan.copies {
		if err := makeDirs(root, path.Dir(c.Target), owner); err != nil {
			return err
		}
		if err := copier.tree(c.Open(), c.Target); err != nil {
			return fmt.Errorf("copying %s: %w", c.Source, err)
		}
	}
	for _, b := range plan.binds {
		if err := makeMountPoint(root, b, owner); err != nil {
			return err
		}
	}
	for _, l := range plan.links {
		if err := makeDirs(root, path.Dir(l.Path), owner); err != nil {
			return err
		}
		if err := root.Symlink(l.Target, inRoot(l.Path)); err != nil {
			return err
		}
	}
	for _, f := range plan.files {
		if err := writeFile(root, m, f); err != nil {
			return err
		}
	}
	return nil
}

// inRoot is a path of the member as os.Root takes it.
func inRoot(name string) string { return strings.Trim(name, "/") }

// makeMountPoint makes what a bind of a file or directory is mounted on.
func makeMountPoint(root *os.Root, b environment.Bind, owner uint32) error {
	info, err := os.Stat(b.Open())
	if err != nil {
		return err
	}
	if info.IsDir() {
		return makeDirs(root, b.Target, owner)
	}
	if err := makeDirs(root, path.Dir(b.Target), owner); err != nil {
		return err
	}
	return root.WriteFile(inRoot(b.Target), nil, 0o444)
}

// makeDirs makes a directory below root and those on the way, owned by the member's root.
func makeDirs(root *os.Root, name string, owner uint32) error {
	dir := ""
	for part := range strings.SplitSeq(inRoot(name), "/") {
		dir = path.Join(dir, part)
		err := root.Mkdir(dir, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err := errors.Join(err, root.Chmod(dir, 0o755), root.Lchown(dir, int(owner), int(owner))); err != nil {
			return err
		}
	}
	return nil
}

// writeFile puts a generated file in place at once: members never see half of one.
func writeFile(root *os.Root, m driver.Member, f driver.File) error {
	owner, group := m.Assignment.UserIDs.First, m.Assignment.UserIDs.First
	if f.OwnedByUser {
		owner, group = owner+m.User.UID, group+m.User.GID
	}
	if err := makeDirs(root, path.Dir(f.Path), m.Assignment.UserIDs.First); err != nil {
		return fmt.Errorf("generated file %s: %w", f.Path, err)
	}
	// In the root beside /etc, since rename needs the same mount; until it is in place it is the host root's alone.
	const temporary = ".new"
	err := root.WriteFile(temporary, f.Content, 0o600)
	if err == nil {
		err = errors.Join(root.Lchown(temporary, int(owner), int(group)), root.Chmod(temporary, fs.FileMode(f.Mode)&fs.ModePerm))
	}
	if err == nil {
		err = root.Rename(temporary, inRoot(f.Path))
	}
	if err != nil {
		return fmt.Errorf("generated file %s: %w", f.Path, err)
	}
	return nil
}

// mostCopied is how many bytes of an environment's /etc are copied for each member, in memory; an entry counts as a small page.
const mostCopied = 64 << 20

// copier copies what of an environment's /etc can't be mounted.
type copier struct {
	root  *os.Root
	owner uint32
	left  int64
}

// tree copies the regular files and links of a directory that everyone on the host may read; the rest is left out.
func (c *copier) tree(source, target string) error {
	return filepath.WalkDir(source, func(from string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if c.left -= 4096; c.left < 0 {
			return fmt.Errorf("its files exceed %d MiB", mostCopied>>20)
		}
		rel, err := filepath.Rel(source, from)
		if err != nil {
			return err
		}
		to := inRoot(path.Join(target, rel))
		switch {
		case entry.IsDir():
			return makeDirs(c.root, to, c.owner)
		case entry.Type() == fs.ModeSymlink:
			link, err := os.Readlink(from)
			if err != nil {
				return err
			}
			return c.root.Symlink(link, to)
		case entry.Type().IsRegular():
			return c.file(from, to)
		default:
			return nil
		}
	})
}

func (c *copier) file(from, to string) error {
	info, err := os.Stat(from)
	if err != nil || info.Mode()&0o004 == 0 {
		return err
	}
	if c.left -= info.Size(); c.left < 0 {
		return fmt.Errorf("its files exceed %d MiB", mostCopied>>20)
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(c.root.WriteFile(to, content, 0o644), c.root.Chmod(to, 0o644), c.root.Lchown(to, int(c.owner), int(c.owner)))
}
