package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/loadercache"
)

// A member reaches the GPUs that it holds by their device nodes, which are bound into its /dev: its root can make none. Its control group lets it open
// no others, so that a node that came into a member by mistake would be of no use there.

// GPUs says what a container needs to use the GPUs that its member holds.
type GPUs interface {
	// Edits returns nil for a member that holds none. The error names a GPU that can't be used.
	Edits(ctx context.Context, claims []api.DeviceClaim) (*gpu.Edits, error)
	// Served returns what a server needs that hands out the memory of GPUs.
	Served(ctx context.Context, claims []api.DeviceClaim) (*gpu.Edits, error)
	// FrontEnds returns what a member needs whose programs call such a server.
	FrontEnds() (*gpu.Edits, error)
}

// fileLoaderCache is a member's own loader cache beside its staged root.
const fileLoaderCache = "ld.so.cache"

// gpusOf returns what a member needs to use its GPUs; nil: it holds none.
func (d *Driver) gpusOf(ctx context.Context, m *driver.Member) (*gpu.Edits, error) {
	a := &m.Assignment
	claims := slices.DeleteFunc(slices.Clone(a.Devices), func(c api.DeviceClaim) bool { return c.Class != api.ClassGPU })
	switch {
	case len(claims) == 0 && m.GPUServer == nil:
		return nil, nil //nolint:nilnil // nothing is needed
	case d.cfg.GPUs == nil:
		return nil, errors.New("this node hands out no GPUs")
	case a.ServesGPU():
		return d.cfg.GPUs.Served(ctx, claims)
	case m.GPUServer != nil:
		return d.cfg.GPUs.FrontEnds()
	}
	return d.cfg.GPUs.Edits(ctx, claims)
}

// stageGPUs prepares what a member needs for its GPUs. cache is the file of its own loader cache as the runtime sees it, "" for none.
func (d *Driver) stageGPUs(ctx context.Context, h *host, m driver.Member, plan etcPlan) (edits *gpu.Edits, cache string, err error) {
	if edits, err = d.gpusOf(ctx, &m); err != nil {
		return nil, "", err
	}
	staged := h.spawner.memberDir(m.Assignment.ID)
	has, err := stageLoaderCache(h.spawner.outside(staged), edits, plan)
	if has {
		cache = filepath.Join(staged, fileLoaderCache)
	}
	return edits, cache, err
}

// stageLoaderCache writes the loader cache of a member whose GPUs come with libraries beside its staged root, whose folder as the host sees it is dir: that
// of its environment, with those libraries first. It reports whether the member needs one.
func stageLoaderCache(dir string, edits *gpu.Edits, plan etcPlan) (bool, error) {
	if edits == nil || len(edits.Libraries) == 0 {
		return false, nil
	}
	var known []byte
	at := func(b environment.Bind) bool { return b.Target == loadercache.Path }
	for _, binds := range [][]environment.Bind{plan.binds, plan.copies} {
		if i := slices.IndexFunc(binds, at); i >= 0 {
			text, err := os.ReadFile(binds[i].Open())
			if err != nil {
				return false, fmt.Errorf("reading its environment's %s: %w", loadercache.Path, err)
			}
			known = text
		}
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return false, err
	}
	path := filepath.Join(dir, fileLoaderCache)
	return true, errors.Join(os.WriteFile(path, loadercache.With(known, edits.Libraries), 0o644), os.Chmod(path, 0o644))
}

// gpuMounts are what a member has of its GPUs: device nodes, files, and the loader cache where it is not "".
func gpuMounts(edits *gpu.Edits, cache string) []specs.Mount {
	if edits == nil {
		return nil
	}
	var mounts []specs.Mount
	for _, n := range edits.Devices {
		mounts = append(mounts, specs.Mount{Destination: n.Path, Type: "bind", Source: n.HostPath, Options: []string{"bind", "nosuid", "noexec"}})
	}
	for _, m := range edits.Mounts {
		options := []string{"bind", "nosuid", "nodev"}
		if m.ReadOnly {
			options = append(options, "ro")
		}
		mounts = append(mounts, specs.Mount{Destination: m.Path, Type: "bind", Source: m.HostPath, Options: options})
	}
	if cache != "" {
		mounts = append(mounts, specs.Mount{Destination: loadercache.Path, Type: "bind", Source: cache, Options: []string{"bind", "nosuid", "nodev", "ro"}})
	}
	return mounts
}

// deviceRules are what a member's control group lets it open: nothing, then what the runtime adds for every container (null, zero, terminals), its RDMA
// devices and its GPUs.
func deviceRules(rdma []specs.LinuxDevice, edits *gpu.Edits) []specs.LinuxDeviceCgroup {
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range rdma {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: "rw"})
	}
	if edits != nil {
		for _, n := range edits.Devices {
			rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &n.Major, Minor: &n.Minor, Access: n.Access})
		}
	}
	return rules
}

// checkClaims refuses devices that containers don't get.
func checkClaims(a *api.Assignment) error {
	for _, c := range a.Devices {
		if c.Class == api.ClassGPU && c.Way != api.WayWhole && c.Way != api.WayMIG && !a.ServesGPU() {
			return fmt.Errorf("it holds %q of GPU %s, and containers get whole GPUs and slices only", c.Way, c.Device)
		}
	}
	return driver.CheckDevices(a, api.ClassGPU)
}
