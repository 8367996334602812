package cgroup

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Use is what the processes of a control group have used.
type Use struct {
	CPUSeconds  float64
	MemoryBytes int64
	// ReadBytes and WrittenBytes are nil where no controller counts them.
	ReadBytes, WrittenBytes *int64
}

// Use reads what a member has used, by the files of either version of control groups (cgroup-v2.rst; cpuacct.rst, memory.rst and blkio-controller.rst of
// version 1). A member without control groups is fs.ErrNotExist.
func (c *Groups) Use(id string) (Use, error) {
	var out Use
	found := false
	for _, dir := range c.Dirs(id) {
		read := func(name string) (string, bool) {
			text, err := os.ReadFile(filepath.Join(dir, name))
			return strings.TrimSpace(string(text)), err == nil
		}
		if text, ok := read("cpu.stat"); ok {
			if n, ok := field(text, "usage_usec"); ok {
				out.CPUSeconds, found = float64(n)/1e6, true
			}
		}
		if text, ok := read("cpuacct.usage"); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				out.CPUSeconds, found = float64(n)/1e9, true
			}
		}
		for current, droppable := range map[string]string{"memory.current": "inactive_file", "memory.usage_in_bytes": "total_inactive_file"} {
			text, ok := read(current)
			if !ok {
				continue
			}
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				continue
			}
			if stat, ok := read("memory.stat"); ok {
				files, _ := field(stat, droppable)
				n -= files
			}
			out.MemoryBytes, found = max(n, 0), true
		}
		if text, ok := read("io.stat"); ok {
			r, w := ioBytes(text)
			out.ReadBytes, out.WrittenBytes = &r, &w
		}
		if text, ok := read("blkio.throttle.io_service_bytes_recursive"); ok {
			r, w := blkioBytes(text)
			out.ReadBytes, out.WrittenBytes = &r, &w
		}
	}
	if !found {
		return Use{}, fmt.Errorf("reading what member %q uses: %w", id, fs.ErrNotExist)
	}
	return out, nil
}

// field reads the number of a line "NAME NUMBER".
func field(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if number, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			n, err := strconv.ParseInt(number, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// ioBytes sums the bytes of all devices in io.stat: lines "MAJOR:MINOR rbytes=N wbytes=N ...".
func ioBytes(text string) (read, written int64) {
	for part := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(part, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
		case key == "rbytes":
			read += n
		case key == "wbytes":
			written += n
		}
	}
	return read, written
}

// blkioBytes sums the bytes of all devices in a file of version 1: lines "MAJOR:MINOR Read N" and "MAJOR:MINOR Write N".
func blkioBytes(text string) (read, written int64) {
	for line := range strings.Lines(text) {
		parts := strings.Fields(line)
		if len(parts) != 3 {
			continue
		}
		n, err := strconv.ParseInt(parts[2], 10, 64)
		switch {
		case err != nil:
		case parts[1] == "Read":
			read += n
		case parts[1] == "Write":
			written += n
		}
	}
	return read, written
}
