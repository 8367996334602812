package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IOLimit bounds what a member reads from a file system in a second, and what it writes to it.
type IOLimit struct {
	// Dir is a directory of the file system, which lies on a block device of its own.
	Dir            string
	BytesPerSecond int64
}

// unlimited is the rate of a device that has no limit.
const unlimited = 0

// rates are bytes per second by block device, as in "7:0".
type rates map[string]int64

// throttle is how one member's control group is held to rates of block devices.
type throttle struct {
	dir string
	v2  bool
}

// The files of a group that hold rates: blkio.throttle.* with cgroup v1 (cgroup-v1/blkio-controller.rst), io.max with v2 (cgroup-v2.rst).
var (
	throttlesV1 = []string{"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"}
	throttlesV2 = []string{"rbps", "wbps"}
)

const throttleV2 = "io.max"

// LimitIO holds a member to limits of I/O, and lifts all others. It returns nil once the kernel reports exactly these. On error the limits that could be
// set are in force, and LimitIO may be repeated. Without limits, and on a host that has none to lift, it does nothing.
func (c *Groups) LimitIO(id string, limits []IOLimit) error {
	want, err := devices(limits)
	t, there := c.throttle(id)
	if !there {
		if len(limits) == 0 {
			return nil
		}
		return errors.New(c.UnlimitedIO())
	}
	if t.v2 && len(want) > 0 && !isThere(filepath.Join(t.dir, throttleV2)) {
		// It was started before the controller was handed down.
		err = errors.Join(err, c.MakeParents())
	}
	return errors.Join(err, t.set(want))
}

// UnlimitedIO returns what limits of I/O do not bound on this host, and why, in words; "" where they bound everything.
func (c *Groups) UnlimitedIO() string {
	if c.V2() {
		text, _ := os.ReadFile(filepath.Join(c.trees[0].mountPoint, "cgroup.controllers"))
		if slices.Contains(strings.Fields(string(text)), "io") {
			return ""
		}
		return "all reads and writes, because its control groups have no controller \"io\"; boot a kernel with CONFIG_BLK_CGROUP and CONFIG_BLK_DEV_THROTTLING"
	}
	if c.blkio() < 0 {
		return "all reads and writes, because its control groups have no controller \"blkio\"; run: " +
			"mkdir /sys/fs/cgroup/blkio && mount -t cgroup -o blkio none /sys/fs/cgroup/blkio, and restart the agent and the members"
	}
	return "writes that the kernel buffers, because its control groups are of version 1"
}

// blkio is the tree of version 1 that limits I/O, -1 where there is none.
func (c *Groups) blkio() int {
	return slices.IndexFunc(c.trees, func(h hierarchy) bool { return slices.Contains(h.controllers, "blkio") })
}

// throttle finds the group by which a member is limited, false where the host has none.
func (c *Groups) throttle(id string) (throttle, bool) {
	i, v2 := c.blkio(), c.V2()
	if v2 {
		i = 0
	}
	if i < 0 {
		return throttle{}, false
	}
	return throttle{dir: c.Dirs(id)[i], v2: v2}, true
}

// devices returns the rates of the block devices of limits. The lower limit counts where two are of one device. It returns those that it could find, too,
// with an error.
func devices(limits []IOLimit) (rates, error) {
	all := rates{}
	var errs []error
	for _, l := range limits {
		device, err := deviceOf(l.Dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if has, ok := all[device]; !ok || l.BytesPerSecond < has {
			all[device] = l.BytesPerSecond
		}
	}
	return all, errors.Join(errs...)
}

// deviceOf returns the number of the block device of a directory's file system.
func deviceOf(dir string) (string, error) {
	var at unix.Stat_t
	if err := unix.Stat(dir, &at); err != nil {
		return "", fmt.Errorf("find the block device of %s: %w", dir, err)
	}
	major, minor := unix.Major(at.Dev), unix.Minor(at.Dev)
	if major == 0 { // of file systems that are on the network, in memory, or on several devices
		return "", fmt.Errorf("the file system of %s has no block device of its own", dir)
	}
	return fmt.Sprintf("%d:%d", major, minor), nil
}

// set brings a group to rates, and reads back that the kernel has them and no others.
func (t throttle) set(want rates) error {
	for n := range throttlesV1 {
		have, err := t.read(n)
		if err != nil {
			return t.explain(want, err)
		}
		devices := maps.Clone(have)
		maps.Copy(devices, want)
		for _, device := range slices.Sorted(maps.Keys(devices)) {
			if have[device] == want[device] {
				continue
			}
			err := t.write(n, device, want[device])
			if errors.Is(err, unix.ENODEV) && want[device] == unlimited {
				continue // the device is gone, and its entry goes with it
			}
			if err != nil {
				return fmt.Errorf("limit the I/O of %s with block device %s: %w", t.dir, device, err)
			}
		}
	}
	for n := range throttlesV1 {
		have, err := t.read(n)
		if err != nil {
			return t.explain(want, err)
		}
		if !maps.Equal(have, want) {
			return fmt.Errorf("limit the I/O of %s: the kernel reports the rates %v, and not %v, in bytes per second by block device", t.dir, have, want)
		}
	}
	return nil
}

// explain says why a group can't be read. One without the files has no limits either.
func (t throttle) explain(want rates, err error) error {
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case len(want) == 0:
		return nil
	case isThere(t.dir):
		return fmt.Errorf("this kernel can't limit I/O; boot one with CONFIG_BLK_DEV_THROTTLING: %w", err)
	default:
		return fmt.Errorf("the member has no control group that limits I/O; restart the member: %w", err)
	}
}

// read returns the rates that the kernel has, of reads (0) or of writes (1).
func (t throttle) read(n int) (rates, error) {
	name := throttlesV1[n]
	if t.v2 {
		name = throttleV2
	}
	text, err := os.ReadFile(filepath.Join(t.dir, name))
	if err != nil {
		return nil, err
	}
	return parseRates(string(text), n, t.v2)
}

// parseRates reads lines such as "7:0 1048576" of version 1, and "7:0 rbps=1048576 wbps=max riops=max wiops=max" of version 2.
func parseRates(text string, n int, v2 bool) (rates, error) {
	all := rates{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		value := fields[1]
		if v2 {
			i := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, throttlesV2[n]+"=") })
			if i < 0 {
				continue
			}
			value = strings.TrimPrefix(fields[i], throttlesV2[n]+"=")
		}
		if value == "max" {
			continue
		}
		rate, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the limits of I/O: %q is no rate", strings.TrimSpace(line))
		}
		all[fields[0]] = rate
	}
	return all, nil
}

// write sets one rate, of reads (0) or of writes (1).
func (t throttle) write(n int, device string, rate int64) error {
	name, line := throttlesV1[n], fmt.Sprintf("%s %d", device, rate)
	if t.v2 {
		value := "max"
		if rate != unlimited {
			value = strconv.FormatInt(rate, 10)
		}
		name, line = throttleV2, fmt.Sprintf("%s %s=%s", device, throttlesV2[n], value)
	}
	return os.WriteFile(filepath.Join(t.dir, name), []byte(line), 0)
}
