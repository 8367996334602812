package container

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

const (
	// gpuCountsName is the file beside a server's socket in which the server says what it did.
	gpuCountsName = "counts"
	// mostCounts bounds what is read of that file, in bytes.
	mostCounts = 4096
)

var _ driver.GPUMeter = (*Driver)(nil)

// ServedGPUs returns the servers of remote GPUs that run. One that says nothing, or what can't be, has only its processor time.
func (d *Driver) ServedGPUs() (all []driver.ServedGPU) {
	h, err := d.host()
	if err != nil {
		return nil
	}
	ids, err := d.found(h)
	if err != nil {
		return nil
	}
	for _, id := range ids {
		r, err := d.recall(id)
		if err != nil || !r.Member.Assignment.ServesGPU() {
			continue
		}
		used, err := d.Use(id)
		if err != nil {
			continue
		}
		s := driver.ServedGPU{ID: id, CPUSeconds: used.CPUSeconds, CPUs: len(r.Member.Assignment.CPUs)}
		for _, c := range r.Member.Assignment.Devices {
			s.Devices = append(s.Devices, c.Device)
		}
		if s.Service, err = readCounts(filepath.Join(gpuSocketSource(&r.Member), gpuCountsName)); err != nil && !errors.Is(err, os.ErrNotExist) {
			d.log.Info("what a GPU server did can't be read", "server", id, "error", err)
		}
		all = append(all, s)
	}
	return all
}

// readCounts reads what a server says that it did: lines of a name and a number (gpuremote/server/src/counts.rs). The directory is also the server's, and
// programs of its cluster may have got hold of that: nothing but a small plain file is read.
func readCounts(path string) (api.GPUService, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return api.GPUService{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return api.GPUService{}, fmt.Errorf("%s is no plain file", path)
	}
	numbers := map[string]int64{}
	lines := bufio.NewScanner(io.LimitReader(file, mostCounts))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return api.GPUService{}, fmt.Errorf("%s has %q for %.20q, which is no number", path, firstBytes(value), name)
		}
		numbers[name] = n
	}
	seconds := func(name string) float64 { return time.Duration(numbers[name]).Seconds() }
	s := api.GPUService{Calls: numbers["calls"], Waits: numbers["waits"], BusySeconds: seconds("busy_ns"), WaitSeconds: seconds("wait_ns")}
	if s.Waits > s.Calls {
		return api.GPUService{}, fmt.Errorf("%s has more calls that were waited for than calls", path)
	}
	return s, lines.Err()
}

// firstBytes are as many of a text as a message has room for.
func firstBytes(text string) string { return text[:min(len(text), 20)] }
