package vm

import (
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// Programs of a member call the server of its remote GPUs by front ends, which are files of the node. The guest mounts their folder as it mounts volumes:
// read-only, and from the server of the member's home (package homeserver). Which server that is, the member's generated files say, and the way there is the
// cluster's own network. So a machine that has front ends when it begins keeps them until it ends, whatever becomes of the server.

// frontEndsDir is where a guest has the front ends, and as what they are exported to it.
const frontEndsDir = gpu.Dir + "/lib"

// loaderConfig has the guest's own ldconfig find the front ends, too: it would else forget them when the tenant installs a library.
const loaderConfig = "/etc/ld.so.conf.d/000-nearmetal-gpu.conf"

// frontEndsOf returns the folder of the node with the front ends of a member, and the libraries among them by name. ok: the member has remote GPUs.
func (d *Driver) frontEndsOf(m driver.Member) (folder string, libraries map[string]string, ok bool, err error) {
	if m.GPUServer == nil {
		return "", nil, false, nil
	}
	if d.cfg.GPUs == nil {
		return "", nil, false, errors.New("this node has no programs of remote GPUs")
	}
	edits, err := d.cfg.GPUs.FrontEnds()
	if err != nil {
		return "", nil, false, err
	}
	for _, mount := range edits.Mounts {
		if mount.Path == frontEndsDir {
			return mount.HostPath, edits.Libraries, true, nil
		}
	}
	return "", nil, false, fmt.Errorf("the programs of remote GPUs have nothing for %s", frontEndsDir)
}

// withFrontEnds adds to a guest's setup what finds the front ends.
func (d *Driver) withFrontEnds(s *guestlink.Setup, m driver.Member) error {
	_, libraries, ok, err := d.frontEndsOf(m)
	if err != nil || !ok {
		return err
	}
	s.Libraries = libraries
	s.Files = append(s.Files, guestlink.File{Path: loaderConfig, Content: []byte(frontEndsDir + "\n"), Mode: 0o644})
	return nil
}

// keepsFrontEnds gives a member that runs the front ends that its machine began with, or none.
func keepsFrontEnds(m *driver.Member, began driver.Member) { m.GPUServer = began.GPUServer }
