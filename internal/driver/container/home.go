package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// prepareHome gives the shared home to the cluster: the directory to the member's root, the user's own below it to the user.
//
// Tenants' roots write there, so nothing is followed: a link they put in the way of the next member's start must not hand
// them a file of the host. Only what still belongs to the host's root, which no tenant can make, changes hands.
//
// A home that is a volume is mounted with its owners mapped: there, the host's root is nobody, who can give files to the cluster and make none.
func prepareHome(m driver.Member) error {
	if m.HomeDir == "" {
		return nil // it is in the member's own memory
	}
	if err := giveDir(nil, m.HomeDir, m.Assignment.UserIDs.First, m.Assignment.UserIDs.First); err != nil {
		return fmt.Errorf("shared home: %w", err)
	}
	home, err := os.OpenRoot(m.HomeDir)
	if err != nil {
		return fmt.Errorf("shared home: %w", err)
	}
	defer home.Close()
	err = home.Mkdir(m.User.Name, 0o700)
	if errors.Is(err, unix.EOVERFLOW) {
		err = makeMapped(home, m)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("shared home: %w", err)
	}
	if err := giveDir(home, m.User.Name, m.Assignment.UserIDs.First+m.User.UID, m.Assignment.UserIDs.First+m.User.GID); err != nil {
		return fmt.Errorf("shared home: %w", err)
	}
	return nil
}

// giveDir gives a directory that belongs to the host's root to another owner; root nil means that name is a host path.
func giveDir(root *os.Root, name string, uid, gid uint32) error {
	lstat, lchown := os.Lstat, os.Lchown
	if root != nil {
		lstat, lchown = root.Lstat, root.Lchown
	}
	info, err := lstat(name)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return nil // whatever a tenant has made of it is the tenant's own affair
	}
	if stat.Uid != 0 || uid == 0 {
		return nil
	}
	return lchown(name, int(uid), int(gid))
}

// unfinished is the mode of a user's directory that was made, and may not have been given to the user yet.
const unfinished = 0

// makeMapped makes the user's directory where owners are mapped: in the name of who owns the home, to be given to the user.
func makeMapped(home *os.Root, m driver.Member) error {
	ids := m.Assignment.UserIDs
	top, err := home.Lstat(".")
	if err != nil {
		return err
	}
	owner := top.Sys().(*syscall.Stat_t).Uid
	if owner < ids.First || owner-ids.First >= ids.Count {
		return fmt.Errorf("its directory belongs to user %d of the host, who is none of the cluster's", owner)
	}
	err = mkdirAs(home, m.User.Name, unfinished, owner)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := home.Lstat(m.User.Name)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || info.Mode().Perm() != unfinished || stat.Uid != owner {
		return nil // it was made before, and is the tenant's own affair
	}
	return errors.Join(home.Lchown(m.User.Name, int(ids.First+m.User.UID), int(ids.First+m.User.GID)), home.Chmod(m.User.Name, 0o700))
}

// mkdirAs makes a directory in the name of another user, who has the same number as a group.
func mkdirAs(dir *os.Root, name string, mode uint32, id uint32) error {
	open, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer open.Close()
	made := make(chan error, 1)
	go onOwnThread(func() { // which ends, and its IDs with it
		// Raw calls change one thread; package unix would change all of them.
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(id), 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(id), 0, 0)
		made <- unix.Mkdirat(int(open.Fd()), name, mode)
	})
	return <-made
}
