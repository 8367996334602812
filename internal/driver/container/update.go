package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
)

// Update rewrites the generated files of a member's /etc. Each is replaced at once; those no longer asked for are removed.
func (d *Driver) Update(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if err := d.update(ctx, m); err != nil {
		return fmt.Errorf("updating member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) update(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	m, err := d.asContainer(m)
	if err != nil {
		return err
	}
	if err := checkMember(m); err != nil {
		return err
	}
	before, err := d.recall(id)
	if err != nil {
		return err
	}
	binds, err := d.boundIn(ctx, before)
	if err != nil {
		return err
	}
	if _, err := planEtc(m.Files, environment.Root{}, isSmallFile); err != nil {
		return err
	}
	if m, err = d.withAccounts(m); err != nil {
		return err
	}
	has := before.Member // new files are no other volumes
	m.Mounts, m.Assignment.Volumes, m.Assignment.VolumesNumber = has.Mounts, has.Assignment.Volumes, has.Assignment.VolumesNumber
	m.LayersNumber = has.LayersNumber
	old, wanted := paths(before.Member.Files), paths(m.Files)
	for _, path := range wanted {
		for _, target := range binds {
			if !slices.Contains(old, path) && (path == target || strings.HasPrefix(path, target+"/")) {
				return fmt.Errorf("generated file %s would be hidden by the environment's %s until the member is restarted", path, target)
			}
		}
	}
	// The list of generated files is written before there are new ones and after there are no old ones, so that a crash
	// leaves none unknown.
	if err := d.remember(m, before.PID, append(old, wanted...)); err != nil {
		return err
	}
	tree, err := d.openRoot(id)
	if err != nil {
		return err
	}
	defer tree.Close()
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", tree.Fd()))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := replaceFiles(root, m, old); err != nil {
		return err
	}
	return d.remember(m, before.PID, wanted)
}

// boundIn are the places in a member where what its environment has is mounted.
func (d *Driver) boundIn(ctx context.Context, r record) ([]string, error) {
	a := r.Member.Assignment
	var targets []string
	if a.EnvironmentDigest != "" { // the image need not be mounted any more but in the member itself
		data, err := os.ReadFile(d.path(a.ID, fileBinds))
		if err == nil {
			err = json.Unmarshal(data, &targets)
		}
		if err != nil {
			return nil, fmt.Errorf("reading its environment's mount points: %w", err)
		}
		return targets, nil
	}
	env, err := d.cfg.Environments.Lookup(a.Environment)
	if err != nil {
		return nil, err
	}
	root, err := env.Root(ctx)
	if err != nil {
		return nil, fmt.Errorf("environment %q: %w", env.Name(), err)
	}
	for _, b := range root.Binds {
		targets = append(targets, b.Target)
	}
	return targets, nil
}

// replaceFiles writes the member's generated files and removes those of old that are not among them.
func replaceFiles(root *os.Root, m driver.Member, old []string) error {
	for _, f := range m.Files {
		if err := writeFile(root, m, f); err != nil {
			return err
		}
	}
	wanted := paths(m.Files)
	for _, path := range old {
		if slices.Contains(wanted, path) {
			continue
		}
		if err := root.Remove(inRoot(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// openRoot opens a running member's root directory for writing. The root is in memory and mounted in the member's mount
// namespace only, read-only; a clone of that mount, which is attached nowhere and seen by nobody else, is made writable.
func (d *Driver) openRoot(id string) (*os.File, error) {
	h, err := d.host()
	if err != nil {
		return nil, err
	}
	seen := d.look(h, id)
	if !seen.alive() {
		return nil, fmt.Errorf("the member is %s and must be restarted", seen.state)
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", seen.init))
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	if !h.cgroups.Contains(id, seen.init) {
		return nil, errors.New("the member has just ended")
	}
	type result struct {
		tree int
		err  error
	}
	results := make(chan result)
	go onOwnThread(func() {
		tree, err := writableRoot(namespace)
		results <- result{tree, err}
	})
	r := <-results
	if r.err != nil {
		return nil, fmt.Errorf("opening its root: %w", r.err)
	}
	return os.NewFile(uintptr(r.tree), "root of "+id), nil
}

// writableRoot moves the calling thread into a mount namespace and returns a writable clone of the mount at /, see
// open_tree(2) and mount_setattr(2). The mounts on it are not cloned: what they hide is what was staged.
func writableRoot(namespace *os.File) (int, error) {
	if err := join(namespace); err != nil {
		return -1, err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("cloning the mount at /: %w", err)
	}
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return -1, errors.Join(fmt.Errorf("making the clone of the mount at / writable: %w", err), unix.Close(tree))
	}
	return tree, nil
}

func paths(files []driver.File) []string {
	list := make([]string, 0, len(files))
	for _, f := range files {
		list = append(list, f.Path)
	}
	return list
}

// record is what is kept of a started member, for recovery.
type record struct {
	// PID is its first process.
	PID int `json:"pid"`
	// Member is what it was started with. Of its files there are the paths only, as keys are among them.
	Member driver.Member `json:"member"`
}

// remember writes a member's record.
func (d *Driver) remember(m driver.Member, pid int, files []string) error {
	m.Files = nil
	for _, path := range files {
		m.Files = append(m.Files, driver.File{Path: path})
	}
	return writeJSON(d.path(m.Assignment.ID, fileMember), record{PID: pid, Member: m})
}

// recall reads what remember wrote; ErrNotFound for a member that was never started.
func (d *Driver) recall(id string) (record, error) {
	var r record
	data, err := os.ReadFile(d.path(id, fileMember))
	if errors.Is(err, fs.ErrNotExist) {
		return r, driver.ErrNotFound
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("reading %s: %w", fileMember, err)
	}
	if r.PID <= 0 {
		return r, fmt.Errorf("reading %s: the process ID is missing", fileMember)
	}
	return r, nil
}

// writeJSON writes a file of the member's directory at once.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
