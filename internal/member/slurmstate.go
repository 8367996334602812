package member

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// adoptState makes slurmctld's directory. When it is not there it gets what the latest of the cluster's controllers before left in its own, which is
// removed: a controller that was cut off and goes on running can't write over what this one does. It tells whether there was any. The path
// is absolute; its last element is the member's, the one before the cluster's.
func adoptState(state string) (adopted bool, err error) {
	cluster := filepath.Dir(state)
	for _, dir := range []string{filepath.Dir(cluster), cluster} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return false, err
		}
		if err := isOurs(dir); err != nil {
			return false, err
		}
	}
	if err := isOurs(state); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	others, err := os.ReadDir(cluster)
	if err != nil {
		return false, err
	}
	made := filepath.Join(cluster, ".new")
	if err := os.RemoveAll(made); err != nil {
		return false, err
	}
	if err := os.Mkdir(made, 0o700); err != nil {
		return false, err
	}
	if before := latestState(cluster, others); before != "" {
		adopted = true
		if err := copyFiles(before, made); err != nil {
			return false, err
		}
	}
	if err := os.Rename(made, state); err != nil {
		return false, err
	}
	for _, other := range others {
		if err := os.RemoveAll(filepath.Join(cluster, other.Name())); err != nil {
			return adopted, err
		}
	}
	return adopted, nil
}

// isOurs refuses what this process's user did not make: the home is shared.
func isOurs(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is no directory of root's; remove it", dir)
	}
	return nil
}

// latestState is the directory whose jobs were written last, empty when there are none.
func latestState(cluster string, dirs []os.DirEntry) string {
	latest, at := "", time.Time{}
	for _, dir := range dirs {
		path := filepath.Join(cluster, dir.Name())
		if info, err := os.Stat(filepath.Join(path, "job_state")); err == nil && info.ModTime().After(at) && isOurs(path) == nil {
			latest, at = path, info.ModTime()
		}
	}
	return latest
}

// copyFiles copies the files of a directory, and of those in it, which hold the scripts of jobs.
func copyFiles(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != from {
			return nil // it ended, or was replaced, meanwhile
		}
		if err != nil || path == from {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case entry.IsDir():
			return os.Mkdir(target, 0o700)
		case entry.Type().IsRegular():
			err := copyFile(path, target)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		return nil
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
