package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// prepareHome gives the shared home to the cluster: the directory to the member's root, the user's own below it to the user.
//
// Tenants' roots write there, so nothing is followed: a link they put in the way of the next member's start must not hand
// them a file of the host. Only what still belongs to the host's root, which no tenant can make, changes hands.
func prepareHome(m driver.Member) error {
	if err := giveDir(nil, m.HomeDir, m.Assignment.UserIDs.First, m.Assignment.UserIDs.First); err != nil {
		return fmt.Errorf("shared home: %w", err)
	}
	home, err := os.OpenRoot(m.HomeDir)
	if err != nil {
		return fmt.Errorf("shared home: %w", err)
	}
	defer home.Close()
	if err := home.Mkdir(m.User.Name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
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
