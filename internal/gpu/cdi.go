package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/nearmetal/nearmetal/api"
)

const (
	// classGPU is the class of CDI devices that are GPUs: example.com/gpu.
	classGPU     = "gpu"
	vendorNVIDIA = "nvidia.com"
	// mostFile and mostDevices bound what is read of CDI files.
	mostFile    = 4 << 20
	mostName    = 64
	mostDevices = 256
)

// cdiDevice is a GPU that a CDI file describes.
type cdiDevice struct {
	// name is qualified: example.com/gpu=gpu0.
	vendor, name, file string
	// common is what all devices of the file need, own what this one needs besides.
	common, own *specs.ContainerEdits
	problem     string
}

// readCDI reads the CDI files of a node: the GPUs of each under all their names, and why some can't be read.
func readCDI(cfg Config) (devices []cdiDevice, problems []string) {
	for _, dir := range cfg.CDIDirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Sprintf("the CDI files of the node can't be read: %v", err))
		}
		for _, e := range entries {
			file := filepath.Join(dir, e.Name())
			if ext := filepath.Ext(file); e.IsDir() || ext != ".json" && ext != ".yaml" {
				continue
			}
			of, err := readFile(file)
			if err != nil {
				problems = append(problems, fmt.Sprintf("CDI file %s: %v", file, err))
				continue
			}
			for _, d := range of {
				if at := slices.IndexFunc(devices, func(o cdiDevice) bool { return o.name == d.name }); at >= 0 {
					if path.Dir(devices[at].file) == dir {
						problems = append(problems, fmt.Sprintf("CDI device %s is in %s, too, which counts; remove one of them", d.name, devices[at].file))
						continue
					}
					devices[at] = d
					continue
				}
				devices = append(devices, d)
			}
		}
	}
	if len(devices) > mostDevices {
		return nil, append(problems, fmt.Sprintf("the CDI files describe %d GPUs; at most %d are possible", len(devices), mostDevices))
	}
	return devices, problems
}

// readFile reads one CDI file: its GPUs. A file about other devices has none.
func readFile(file string) ([]cdiDevice, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > mostFile {
		return nil, fmt.Errorf("it is no regular file of at most %d MiB", mostFile>>20)
	}
	spec, err := cdi.ReadSpec(file, 0)
	if err != nil {
		return nil, errors.New(firstLine(err.Error()))
	}
	if spec.GetClass() != classGPU {
		return nil, nil
	}
	var devices []cdiDevice
	for i := range spec.Devices {
		d := &spec.Devices[i]
		one := cdiDevice{vendor: spec.GetVendor(), name: spec.Kind + "=" + d.Name, file: file, common: &spec.ContainerEdits, own: &d.ContainerEdits}
		if len(one.name) > mostName {
			return nil, fmt.Errorf("the name of device %.40s... has more than %d characters", one.name, mostName)
		}
		if one.problem = whyNotCDI(one.common); one.problem == "" {
			one.problem = whyNotCDI(one.own)
		}
		if one.problem == "" && len(d.ContainerEdits.DeviceNodes) == 0 {
			one.problem = "its CDI file gives it no device node of its own, so nothing keeps other members from it"
		}
		devices = append(devices, one)
	}
	return devices, nil
}

// whyNotCDI says why members can't have container edits, "" where they can.
func whyNotCDI(e *specs.ContainerEdits) string {
	switch {
	case len(e.Hooks) > 0:
		return fmt.Sprintf("its CDI file wants a program run on the node for each container (%s), which members don't get; make the file without hooks", firstLine(e.Hooks[0].Path))
	case len(e.NetDevices) > 0:
		return "its CDI file moves a network interface into containers, which members get as ports only"
	case e.IntelRdt != nil:
		return "its CDI file sets cache classes (Intel RDT), which members don't get"
	}
	for _, m := range e.Mounts {
		if m.Type != "" && m.Type != "bind" {
			return fmt.Sprintf("its CDI file mounts a file system of type %s, and members get only files of the node", firstLine(m.Type))
		}
		if !filepath.IsAbs(m.HostPath) || !below(m.ContainerPath, mountPlaces) {
			return fmt.Sprintf("its CDI file mounts %s at %s, and members have room for that below %s only", firstLine(m.HostPath), firstLine(m.ContainerPath), strings.Join(mountPlaces, ", "))
		}
	}
	for _, d := range e.DeviceNodes {
		if d.Type != "" && d.Type != "c" && d.Type != "u" || !below(d.Path, []string{"/dev"}) {
			return fmt.Sprintf("its CDI file gives it %s, which is no character device below /dev", firstLine(d.Path))
		}
	}
	for _, v := range e.Env {
		if name, _, _ := strings.Cut(v, "="); !variable.MatchString(name) || slices.Contains([]string{"PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "HOME"}, name) {
			return fmt.Sprintf("its CDI file sets the variable %s, which members don't get", firstLine(name))
		}
	}
	return ""
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// mountPlaces are folders of a member that are memory, so that there is room for further files; all others are read-only and the environment's.
var mountPlaces = []string{"/run", "/tmp", "/var"}

// below reports whether a clean path is below one of some folders.
func below(name string, folders []string) bool {
	return path.Clean(name) == name && slices.ContainsFunc(folders, func(f string) bool { return strings.HasPrefix(name, f+"/") })
}

// apart leaves out names that stand for several GPUs at once, such as "all", and further names of a GPU: what has the device nodes of others, too, and what
// has the same as another.
func apart(devices []cdiDevice) []cdiDevice {
	var kept []cdiDevice
	for i, d := range devices {
		own := d.nodes()
		superfluous := false
		for j, o := range devices {
			others := o.nodes()
			if i == j || len(others) == 0 || o.vendor != d.vendor {
				continue
			}
			all := !slices.ContainsFunc(others, func(p string) bool { return !slices.Contains(own, p) })
			superfluous = superfluous || all && (len(others) < len(own) || j < i)
		}
		if !superfluous {
			kept = append(kept, d)
		}
	}
	return kept
}

// nodes are the paths of the device nodes of its own.
func (d cdiDevice) nodes() []string {
	var paths []string
	for _, n := range d.own.DeviceNodes {
		paths = append(paths, n.Path)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// shown is a CDI device for people.
func (d cdiDevice) shown(root string) api.NodeGPU {
	g := api.NodeGPU{ID: d.name, NUMANode: -1, CDI: d.file}
	problem := d.problem
	if problem == "" {
		if _, err := d.edits(root)(); err != nil {
			problem = err.Error()
		}
	}
	if problem != "" {
		g.Problems = append(g.Problems, problem)
	}
	return g
}

// edits are what a container needs to use the device.
func (d cdiDevice) edits(root string) source {
	return func() (*Edits, error) {
		if d.problem != "" {
			return nil, errors.New(d.problem)
		}
		var all Edits
		for _, part := range []*specs.ContainerEdits{d.common, d.own} {
			edits, err := convert(root, part)
			if err != nil {
				return nil, err
			}
			if err := all.add(edits); err != nil {
				return nil, err
			}
		}
		return &all, nil
	}
}

// convert turns container edits of CDI into those of a member. It looks at the node's devices: their numbers may change at each boot.
func convert(root string, e *specs.ContainerEdits) (*Edits, error) {
	edits := &Edits{Env: slices.Clone(e.Env)}
	for _, n := range e.DeviceNodes {
		host, access := n.HostPath, n.Permissions
		if host == "" {
			host = n.Path
		}
		switch {
		case capsNode.MatchString(host): // nobody may write to those
			access = "r"
		case access == "":
			access = "rw"
		}
		node, err := deviceNode(root, host, n.Path, strings.ReplaceAll(access, "m", ""))
		if err != nil {
			return nil, err
		}
		edits.Devices = append(edits.Devices, node)
	}
	for _, m := range e.Mounts {
		if _, err := os.Stat(filepath.Join(root, m.HostPath)); err != nil {
			return nil, fmt.Errorf("what its CDI file mounts: %w", err)
		}
		edits.Mounts = append(edits.Mounts, Mount{Path: m.ContainerPath, HostPath: m.HostPath, ReadOnly: true})
	}
	return edits, nil
}
