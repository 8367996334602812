package vdc

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// BaseDir is where data centres have their folders.
const BaseDir = "/var/tmp/nearmetal-vdc"

// CacheDir keeps what all data centres use: the emulated BMCs' programs and what libvirt learned of QEMU.
const CacheDir = "/var/cache/nearmetal/testbed"

//go:embed inner peers
var files embed.FS

// Dir is the folder of the data centre of that name.
func Dir(name string) string { return filepath.Join(BaseDir, name) }

// ErrRunning: a data centre of that name exists.
var ErrRunning = errors.New("it is already running")

// claim makes a data centre's folder, and removes first what one that was killed together with its keeper has left. The lock is held until
// the keeper has ended, which removes folder and lock.
func claim(dir string) (*os.File, error) {
	lock, err := tryLock(dir)
	if err != nil {
		return nil, err
	}
	err = os.RemoveAll(dir)
	for _, sub := range []string{"run", "log", "disks", "bmc"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, sub), 0o700))
	}
	if err != nil {
		return nil, errors.Join(err, release(dir, lock))
	}
	return lock, nil
}

// tryLock takes the lock of a data centre's folder, or fails with ErrRunning.
func tryLock(dir string) (*os.File, error) {
	for {
		if err := os.MkdirAll(BaseDir, 0o700); err != nil {
			return nil, err
		}
		lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // the last one was just released, and the folder of all with it
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			lock.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, ErrRunning
			}
			return nil, fmt.Errorf("locking %s: %w", dir, err)
		}
		// A lock that was removed meanwhile, by who held it, is none.
		held, err := lock.Stat()
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if named, err := os.Stat(lock.Name()); err == nil && os.SameFile(held, named) {
			return lock, nil
		}
		lock.Close()
	}
}

// release removes what a data centre without a keeper has, and its lock.
func release(dir string, lock *os.File) error {
	err := errors.Join(os.RemoveAll(dir), os.Remove(lock.Name()), lock.Close())
	_ = os.Remove(BaseDir) // which fails while others are there
	return err
}

// keeper is the process that holds everything inside, and ends it when its standard input does.
type keeper struct {
	pid   int
	input io.Closer
	ended chan struct{}
	err   error
}

// startKeeper starts it inside the network namespace. It is not in the caller's process group, so that an interrupt at the keyboard
// does not end it before the caller has.
func startKeeper(dir string, lock *os.File, inside netns.Handle) (*keeper, error) {
	cmd := exec.Command("sh", filepath.Join(dir, "keeper.sh"), dir, provisioningUplink, dataUplink, bmcUplink)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{lock}
	cmd.Dir = "/"
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := inside.Do(cmd.Start); err != nil {
		return nil, err
	}
	k := &keeper{pid: cmd.Process.Pid, input: input, ended: make(chan struct{})}
	go func() {
		k.err = cmd.Wait()
		close(k.ended)
	}()
	return k, nil
}

// end ends everything inside and waits until it is gone.
func (k *keeper) end() error {
	k.input.Close()
	<-k.ended
	if k.err != nil {
		return fmt.Errorf("the keeper of the virtual data centre: %w", k.err)
	}
	return nil
}
