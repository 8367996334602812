package metal

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// ticks is how many of the units of /proc/stat are a second (USER_HZ, fixed for programs; proc_stat(5)).
const ticks = 100

// sectorBytes is the unit of /proc/diskstats (Documentation/admin-guide/iostats.rst).
const sectorBytes = 512

// Use implements driver.Meter: the member is the machine.
func (d *Driver) Use(id string) (api.MemberUse, error) {
	if _, err := d.known(id); err != nil {
		return api.MemberUse{}, err
	}
	return useOf(d.cfg.Root)
}

// useOf reads what the machine whose files are below root has used since its boot.
func useOf(root string) (api.MemberUse, error) {
	var use api.MemberUse
	stat, err := os.ReadFile(filepath.Join(root, "proc/stat"))
	if err != nil {
		return use, fmt.Errorf("read what the machine's processors did: %w", err)
	}
	first, _, _ := strings.Cut(string(stat), "\n")
	// cpu user nice system idle iowait irq softirq ...; what guests use is in user, and what a hypervisor took comes after these.
	for i, text := range strings.Fields(first) {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && i != 4 && i != 5 && i <= 7 {
			use.CPUSeconds += float64(n) / ticks
		}
	}
	memory, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return use, fmt.Errorf("read what the machine has in memory: %w", err)
	}
	values := map[string]int64{}
	for line := range strings.Lines(string(memory)) {
		if parts := strings.Fields(line); len(parts) >= 2 {
			values[parts[0]], _ = strconv.ParseInt(parts[1], 10, 64)
		}
	}
	use.MemoryBytes = max(values["MemTotal:"]-values["MemAvailable:"], 0) << 10
	disks, err := os.ReadFile(filepath.Join(root, "proc/diskstats"))
	if err != nil {
		return use, nil //nolint:nilerr // a kernel without disks
	}
	var read, written int64
	for line := range strings.Lines(string(disks)) {
		parts := strings.Fields(line)
		if len(parts) < 10 || !wholeDisk(root, parts[2]) {
			continue
		}
		r, _ := strconv.ParseInt(parts[5], 10, 64)
		w, _ := strconv.ParseInt(parts[9], 10, 64)
		read, written = read+r*sectorBytes, written+w*sectorBytes
	}
	use.DiskReadBytes, use.DiskWrittenBytes = &read, &written
	return use, nil
}

// wholeDisk reports whether a block device is a disk: partitions are no block devices of their own in sysfs, and what is made of disks has no device.
func wholeDisk(root, name string) bool {
	_, err := os.Stat(filepath.Join(root, "sys/block", name, "device"))
	return err == nil
}
