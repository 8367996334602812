package member

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// slurmStates is where controllers keep their state in the cluster's home: each below its cluster's UID, in a directory of its own.
const slurmStates = ".slurm"

// openState opens the directory of a controller's state. When it is not there it gets what the latest of the cluster's controllers before left in its
// own, which is removed: a controller that was cut off and goes on running can't write over what this one does. It tells whether there was any.
//
// A home may be its user's, who can rename what root has there, and put something else in its place. So root's directories are known by their owner once
// they are open, and what is in them is reached from there.
func openState(home, cluster, assignment string) (dir *os.File, adopted bool, err error) {
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = root.Close() }()
	states, err := openOwn(root, slurmStates)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = states.Close() }()
	of, err := openOwn(states, cluster)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = of.Close() }()
	if adopted, err = adoptState(of, assignment); err != nil {
		return nil, false, err
	}
	dir, err = of.Open(assignment)
	return dir, adopted, err
}

// openOwn opens a directory of this process's user, and makes it when it is not there.
func openOwn(parent *os.Root, name string) (*os.Root, error) {
	if err := parent.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := parent.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat(".")
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return nil, errors.Join(fmt.Errorf("%s is not root's alone; remove it", dir.Name()), dir.Close())
	}
	return dir, nil
}

// adoptState makes the directory name in that of the cluster.
func adoptState(of *os.Root, name string) (adopted bool, err error) {
	if _, err := of.Lstat(name); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	const made = ".new"
	if err := of.RemoveAll(made); err != nil {
		return false, err
	}
	others, err := fs.ReadDir(of.FS(), ".")
	if err != nil {
		return false, err
	}
	if err := of.Mkdir(made, 0o700); err != nil {
		return false, err
	}
	if before := latestState(others); before != "" {
		adopted = true
		if err := copyTree(of, before, made); err != nil {
			return false, err
		}
	}
	if err := of.Rename(made, name); err != nil {
		return false, err
	}
	for _, other := range others {
		if err := of.RemoveAll(other.Name()); err != nil {
			return adopted, err
		}
	}
	return adopted, nil
}

// latestState is the directory in which slurmctld last replaced a file, empty when there are none. Single files tell less: for moments, they are not
// there.
func latestState(dirs []fs.DirEntry) string {
	latest, at := "", time.Time{}
	for _, dir := range dirs {
		if info, err := dir.Info(); err == nil && info.IsDir() && info.ModTime().After(at) {
			latest, at = dir.Name(), info.ModTime()
		}
	}
	return latest
}

// copyTree copies the files of a directory, and of those in it, which hold the scripts of jobs. Those that go meanwhile are left out.
func copyTree(of *os.Root, from, to string) error {
	return fs.WalkDir(of.FS(), from, func(name string, entry fs.DirEntry, err error) error {
		target := to + name[len(from):]
		switch {
		case name == from:
		case err != nil:
		case entry.IsDir():
			err = of.Mkdir(target, 0o700)
		case entry.Type().IsRegular():
			err = copyFile(of, name, target)
		}
		if errors.Is(err, fs.ErrNotExist) && name != from {
			return nil
		}
		return err
	})
}

func copyFile(of *os.Root, from, to string) error {
	in, err := of.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := of.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
