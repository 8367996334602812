package linuxbridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// upFlag is that a link was set up, whatever its carrier.
const upFlag = unix.IFF_UP

const epochName = "epoch.json"

// lock excludes other executors on the folder, those of other processes too, until it is unlocked.
func lock(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// loadEpoch is zero before the first.
func loadEpoch(dir string) (e lifecycle.Epoch, err error) {
	path := filepath.Join(dir, epochName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	if err != nil {
		return lifecycle.Epoch{}, fmt.Errorf("the switch's newest epoch can't be read: %s: %w; without it a former leader's orders can't be refused", path, err)
	}
	return e, nil
}

// storeEpoch returns when the epoch outlasts a power cut.
func storeEpoch(dir string, e lifecycle.Epoch) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return durablefile.Write(filepath.Join(dir, epochName), data, 0o600)
}
