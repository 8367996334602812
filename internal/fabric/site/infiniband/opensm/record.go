package opensm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// record is what outlives the executor: it is durable before the subnet manager can see what it is about.
type record struct {
	Epoch lifecycle.Epoch `json:"epoch"`
	// Marker is the partition key that marks the newest content of the file. Pending are the markers that may yet be carried out, oldest first,
	// with the newest one that was seen in force before them.
	Marker  int   `json:"marker"`
	Pending []int `json:"pending"`
	// Networks are what the file has now.
	Networks []site.Network `json:"networks"`
	// Places are the ports that were in networks at some time and have not been read as free of them since.
	Places []string `json:"places"`
}

const recordName = "epoch.json"

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

func loadRecord(dir string) (record, error) {
	path := filepath.Join(dir, recordName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	var r record
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("the fabric's newest epoch can't be read: %s: %w; without it a former leader's orders can't be refused", path, err)
	}
	return r, nil
}

func (r record) store(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durablefile.Write(filepath.Join(dir, recordName), data, 0o600)
}

// next returns the record with a marker for new content. Seen is the marker that was last seen in force.
func (r record) next(seen int) (record, error) {
	if i := slices.Index(r.Pending, seen); i > 0 {
		r.Pending = r.Pending[i:]
	}
	const markers = partitions.LastMarker - partitions.FirstMarker + 1
	marker := partitions.FirstMarker
	if r.Marker != 0 {
		marker = partitions.FirstMarker + (r.Marker-partitions.FirstMarker+1)%markers
	}
	if slices.Contains(r.Pending, marker) {
		return record{}, fmt.Errorf("the subnet manager has carried out none of the last %d changes; this one waits until it does", markers-1)
	}
	r.Marker, r.Pending = marker, append(slices.Clone(r.Pending), marker)
	return r, nil
}

// withPlaces returns the record with the places of its networks added, and without those that were read as free.
func (r record) withPlaces(free func(at string) bool) record {
	places := map[string]bool{}
	for _, at := range r.Places {
		if !free(at) {
			places[at] = true
		}
	}
	for _, n := range r.Networks {
		for _, p := range n.Ports {
			places[p.At] = true
		}
	}
	r.Places = slices.Sorted(maps.Keys(places))
	return r
}
