package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Edits is what a container needs to use GPUs: what CDI calls container edits, as far as members may have them.
type Edits struct {
	Devices []DeviceNode
	Mounts  []Mount
	// Env are variables of the container's first process, NAME=VALUE.
	Env []string
	// Libraries are files of the container that its loader is to find, by the names that programs know them by.
	Libraries map[string]string
}

// DeviceNode is a character device of the host that the container has at a path.
type DeviceNode struct {
	Path, HostPath string
	Major, Minor   int64
	// Access is what the container may do with it, in the letters of a device control group: r, w and m.
	Access string
}

// Mount is a file or folder of the host that the container has at a path.
type Mount struct {
	Path, HostPath string
	ReadOnly       bool
}

// add adds the edits of a further GPU. What several GPUs need is there once; what contradicts is an error.
func (e *Edits) add(o *Edits) error {
	for _, d := range o.Devices {
		at := slices.IndexFunc(e.Devices, func(have DeviceNode) bool { return have.Path == d.Path })
		switch {
		case at < 0:
			e.Devices = append(e.Devices, d)
		case e.Devices[at] != d:
			return fmt.Errorf("%s would be two devices of the host, %s and %s", d.Path, e.Devices[at].HostPath, d.HostPath)
		}
	}
	for _, m := range o.Mounts {
		at := slices.IndexFunc(e.Mounts, func(have Mount) bool { return have.Path == m.Path })
		switch {
		case at < 0:
			e.Mounts = append(e.Mounts, m)
		case e.Mounts[at] != m:
			return fmt.Errorf("%s would be two files of the host, %s and %s", m.Path, e.Mounts[at].HostPath, m.HostPath)
		}
	}
	for _, v := range o.Env {
		name, _, _ := strings.Cut(v, "=")
		at := slices.IndexFunc(e.Env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		switch {
		case at < 0:
			e.Env = append(e.Env, v)
		case e.Env[at] != v:
			return fmt.Errorf("the variable %s would have two values", name)
		}
	}
	for name, file := range o.Libraries {
		if e.Libraries == nil {
			e.Libraries = map[string]string{}
		}
		e.Libraries[name] = file
	}
	return nil
}

// deviceNode looks at a character device of the host. Members' users are others to it, whatever its group is: a device that others may not use is
// refused, and the error says what to do.
func deviceNode(root, hostPath, path, access string) (DeviceNode, error) {
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(root, hostPath), &stat); err != nil {
		return DeviceNode{}, fmt.Errorf("device node %s: %w", hostPath, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return DeviceNode{}, fmt.Errorf("%s is no character device", hostPath)
	}
	needs := os.FileMode(0o006)
	if access == "r" {
		needs = 0o004
	}
	if mode := os.FileMode(stat.Mode).Perm(); mode&needs != needs {
		return DeviceNode{}, fmt.Errorf("%s has mode %#o, so that users of members can't use it; write a udev rule with MODE=\"0666\" for it: only members that hold the GPU reach it", hostPath, uint32(mode))
	}
	return DeviceNode{Path: path, HostPath: hostPath, Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev)), Access: access}, nil
}
