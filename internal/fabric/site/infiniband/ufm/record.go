package ufm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// record is what outlives the executor. It is durable before UFM hears what it is about.
type record struct {
	Epoch lifecycle.Epoch `json:"epoch"`
	// Late is until when UFM may carry out a request whose answer was lost.
	Late time.Time `json:"late"`
	// Places are all ports that were ever wanted in a network, in order.
	Places []string `json:"places"`
}

const recordName = "epoch.json"

// note adds a place.
func (r *record) note(at string) {
	if i, is := slices.BinarySearch(r.Places, at); !is {
		r.Places = slices.Insert(r.Places, i, at)
	}
}

// lock excludes other executors on the folder, those of other processes too, until it is unlocked.
func lock(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

func loadRecord(dir string) (r record, err error) {
	path := filepath.Join(dir, recordName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("the fabric's newest epoch can't be read: %s: %w; without it a former leader's orders can't be refused", path, err)
	}
	return r, nil
}

// store replaces the record at once, and returns when that outlasts a power cut.
func (r record) store(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durablefile.Write(filepath.Join(dir, recordName), data, 0o600)
}
