package gpu

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/nearmetal/nearmetal/api"
)

// A GPU in MIG mode is handed out by its slices. Operators make and destroy those; Nearmetal only finds them. nvidia-smi -q -x has the memory of each and
// the numbers of its instances, nvidia-smi -L its UUID and its profile, and a CDI file of the node its device nodes.

// mostSlices bounds the slices of a GPU: 7 compute instances are the most (NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles").
const mostSlices = 16

// smiSlice is a MIG device in the answer to nvidia-smi -q -x.
type smiSlice struct {
	Index   string `xml:"index"`
	GPU     string `xml:"gpu_instance_id"`
	Compute string `xml:"compute_instance_id"`
	Memory  string `xml:"fb_memory_usage>total"`
}

// nvidiaSlice is a MIG device: its number among those of its GPU, and the numbers of its GPU instance and of its compute instance.
type nvidiaSlice struct {
	api.GPUSlice
	index, gpuInstance, computeInstance int
}

var (
	// gpuLine and sliceLine are the lines of nvidia-smi -L: "GPU 0: NVIDIA H200 (UUID: GPU-...)", and "  MIG 1g.18gb     Device  0: (UUID: MIG-...)" below it.
	gpuLine   = regexp.MustCompile(`^GPU ([0-9]{1,3}): .*\(UUID: (GPU-[0-9a-f-]{36})\)`)
	sliceLine = regexp.MustCompile(`^\s+MIG\s+(\S+)\s+Device\s+([0-9]{1,3}):\s+\(UUID:\s+(\S+)\)`)
	// sliceID is the UUID of a MIG device: its own, or, with drivers before 470, its GPU's with the numbers of its instances.
	sliceID     = regexp.MustCompile(`^MIG-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9]{1,2}/[0-9]{1,2})$`)
	profileName = regexp.MustCompile(api.MIGProfilePattern)
)

// parseSlices reads the MIG devices of a GPU. The error names one that can't be read: then none of the GPU is offered.
func parseSlices(found []smiSlice) ([]nvidiaSlice, error) {
	if len(found) > mostSlices {
		return nil, fmt.Errorf("nvidia-smi lists %d slices of it; at most %d are possible", len(found), mostSlices)
	}
	var all []nvidiaSlice
	for _, f := range found {
		var s nvidiaSlice
		for _, number := range []struct {
			text string
			to   *int
		}{{f.Index, &s.index}, {f.GPU, &s.gpuInstance}, {f.Compute, &s.computeInstance}} {
			n, err := strconv.Atoi(strings.TrimSpace(number.text))
			if err != nil || n < 0 {
				return nil, fmt.Errorf("nvidia-smi lists a slice of it with the number %q", firstLine(number.text))
			}
			*number.to = n
		}
		if slices.ContainsFunc(all, func(o nvidiaSlice) bool { return o.index == s.index }) {
			return nil, fmt.Errorf("nvidia-smi lists its slice %d twice", s.index)
		}
		s.MemoryBytes = bytesOf(f.Memory)
		all = append(all, s)
	}
	return all, nil
}

// nameSlices gives the slices of GPUs the UUIDs and profiles that nvidia-smi -L has for them, and GPUs their numbers. A GPU for which the two answers
// differ, since its layout changed in between, has a problem until both agree.
func nameSlices(gpus []nvidiaGPU, text []byte) {
	var of *nvidiaGPU
	named := map[string]bool{}
	for line := range bytes.Lines(text) {
		if at := gpuLine.FindSubmatch(line); at != nil {
			of = nil
			if i := slices.IndexFunc(gpus, func(g nvidiaGPU) bool { return g.ID == string(at[2]) }); i >= 0 {
				of = &gpus[i]
				of.index, _ = strconv.Atoi(string(at[1]))
			}
			continue
		}
		at := sliceLine.FindSubmatch(line)
		if at == nil || of == nil || of.MIG != "enabled" {
			continue
		}
		profile, id := string(at[1]), string(at[3])
		index, _ := strconv.Atoi(string(at[2]))
		i := slices.IndexFunc(of.slices, func(s nvidiaSlice) bool { return s.index == index })
		switch {
		case !sliceID.MatchString(id) || !profileName.MatchString(profile) || named[id]:
			of.say("nvidia-smi -L lists its slice %d with the profile %q and the UUID %q, which can't be used", index, firstLine(profile), firstLine(id))
		case i < 0 || of.slices[i].ID != "":
			of.say("nvidia-smi -L and nvidia-smi -q list different slices of it; they are read again")
		default:
			named[id] = true
			of.slices[i].ID, of.slices[i].Profile = id, profile
		}
	}
	for i := range gpus {
		g := &gpus[i]
		if len(g.Problems) == 0 && slices.ContainsFunc(g.slices, func(s nvidiaSlice) bool { return s.ID == "" }) {
			g.say("nvidia-smi -q lists a slice of it that nvidia-smi -L lacks; they are read again")
		}
	}
}

// addSlices adds the slices of a GPU in MIG mode to what is shown of it, and returns what a container needs to use each that can be handed out, by ID.
func (g *nvidiaGPU) addSlices(cfg Config, files []cdiDevice) map[string]source {
	if g.MIG != "enabled" {
		return nil
	}
	if len(g.slices) == 0 && len(g.Problems) == 0 {
		g.say("it is in MIG mode and has no slices; make some by nvidia-smi mig -i %s -cgi PROFILE -C, or end the mode by nvidia-smi -i %s -mig 0", g.PCI, g.PCI)
	}
	sources := map[string]source{}
	entries := make([]*cdiDevice, len(g.slices))
	for i := range g.slices {
		if g.slices[i].ID != "" {
			entries[i] = g.entryOf(&g.slices[i], files)
		}
	}
	for i := range g.slices {
		s := &g.slices[i]
		if s.ID == "" {
			continue // the GPU has a problem
		}
		edits, err := g.sliceEdits(cfg.Root, s, entries, i)
		if err == nil && len(g.Problems) == 0 {
			_, err = edits()
		}
		if entries[i] != nil {
			s.CDI = entries[i].name
		}
		if err != nil {
			s.Problems = append(s.Problems, err.Error())
		} else if len(g.Problems) == 0 {
			sources[s.ID] = edits
		}
		g.Slices = append(g.Slices, s.GPUSlice)
	}
	return sources
}

// entryOf finds the CDI device of a slice: by its UUID, or else by the numbers of GPU and slice, as nvidia-ctk cdi generate names them (its
// --device-name-strategy: uuid, index, type-index). nil: no file has it.
func (g *nvidiaGPU) entryOf(s *nvidiaSlice, files []cdiDevice) *cdiDevice {
	names := []string{s.ID}
	if g.index >= 0 {
		names = append(names, fmt.Sprintf("%d:%d", g.index, s.index), fmt.Sprintf("mig%d:%d", g.index, s.index))
	}
	for _, name := range names {
		if i := slices.IndexFunc(files, func(d cdiDevice) bool { return d.name == vendorNVIDIA+"/"+classGPU+"="+name }); i >= 0 {
			return &files[i]
		}
	}
	return nil
}

// sliceEdits returns what a container needs to use the i-th slice of a GPU. The device nodes are those of its CDI device. If members can have the rest of
// that, too, they get it, and else the driver's own nodes and libraries, as with whole GPUs: the files that nvidia-ctk makes have hooks.
func (g *nvidiaGPU) sliceEdits(root string, s *nvidiaSlice, entries []*cdiDevice, i int) (source, error) {
	entry := entries[i]
	switch {
	case entry == nil:
		return nil, errors.New("no CDI file of the node has it; run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
	case len(ownNodes(entry, entries, i)) == 0:
		return nil, fmt.Errorf("CDI device %s has no device node that no other slice has, so nothing keeps other members from it; run nvidia-ctk cdi generate again", entry.name)
	}
	of := *s
	checked := func(edits source) source {
		return func() (*Edits, error) { // the layout may have changed since it was read
			if err := of.checkCaps(root, g.minor, entry); err != nil {
				return nil, err
			}
			return edits()
		}
	}
	if entry.problem == "" {
		return checked(entry.edits(root)), nil
	}
	own := &specs.ContainerEdits{}
	for _, n := range entry.own.DeviceNodes {
		if strings.HasPrefix(n.Path, "/dev/nvidia") { // others, such as those below /dev/dri, are for pictures
			own.DeviceNodes = append(own.DeviceNodes, n)
		}
	}
	if why := whyNotCDI(own); why != "" {
		return nil, errors.New(why)
	}
	return checked(func() (*Edits, error) {
		nodes, err := convert(root, own)
		if err != nil {
			return nil, err
		}
		driver, err := g.driverEdits(root)
		if err != nil {
			return nil, err
		}
		return nodes, nodes.add(driver)
	}), nil
}

// ownNodes are the device nodes of a slice that no other slice of its GPU has.
func ownNodes(entry *cdiDevice, entries []*cdiDevice, i int) (own []string) {
	for _, path := range entry.nodes() {
		if !slices.ContainsFunc(slices.Concat(entries[:i], entries[i+1:]), func(o *cdiDevice) bool { return o != nil && slices.Contains(o.nodes(), path) }) {
			own = append(own, path)
		}
	}
	return own
}

// capsNode is the path of a device node by which the driver gives access to an instance, with its minor number.
var capsNode = regexp.MustCompile(`^/dev/nvidia-caps/nvidia-cap([0-9]+)$`)

// checkCaps compares the capabilities that a CDI device has with those of a slice's instances, as the driver tells them: a file that is older than the
// layout names those of other slices. (NVIDIA Multi-Instance GPU User Guide, "Device Nodes and Capabilities")
func (s *nvidiaSlice) checkCaps(root string, minor int, entry *cdiDevice) error {
	all := filepath.Join(root, "proc/driver/nvidia/capabilities")
	if _, err := os.Stat(all); errors.Is(err, fs.ErrNotExist) {
		return nil // the driver does not tell
	}
	dir := filepath.Join(all, fmt.Sprintf("gpu%d/mig/gi%d", minor, s.gpuInstance))
	var want []string
	for _, file := range []string{"access", fmt.Sprintf("ci%d/access", s.computeInstance)} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return fmt.Errorf("its capabilities can't be read: %w", err)
		}
		want = append(want, valueOf(text, "DeviceFileMinor"))
	}
	var has []string
	for _, path := range entry.nodes() {
		if at := capsNode.FindStringSubmatch(path); at != nil {
			has = append(has, at[1])
		}
	}
	slices.Sort(want)
	slices.Sort(has)
	if !slices.Equal(want, has) {
		return fmt.Errorf("CDI device %s has the capabilities %s, and its instances have %s: the file is older than the layout; run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
			entry.name, cmp.Or(strings.Join(has, " and "), "(none)"), strings.Join(want, " and "))
	}
	return nil
}

// computeSlices is how many of the parts into which its GPU can be divided a slice of a profile has: 3 for 3g.40gb, and 1 for 1c.3g.40gb.
func computeSlices(profile string) int64 {
	at := profileName.FindStringSubmatch(profile)
	if at == nil {
		return 1
	}
	n, _ := strconv.ParseInt(cmp.Or(at[1], at[2]), 10, 64)
	return max(1, n)
}

// sliceDevices are the slices of a node that members may have, as devices, the smallest first: of slices that would do, the first is chosen.
func (f Found) sliceDevices() []api.Device {
	var devices []api.Device
	for _, g := range f.GPUs {
		if len(g.Problems) > 0 {
			continue
		}
		for _, s := range g.Slices {
			if len(s.Problems) > 0 {
				continue
			}
			takes := map[string]int64{api.CounterSlices: computeSlices(s.Profile)}
			devices = append(devices, api.Device{
				ID: s.ID, Class: api.ClassGPU, NUMANode: g.NUMANode, Model: g.Model, Kinds: g.Kinds, MemoryBytes: s.MemoryBytes, Parent: g.ID, Profile: s.Profile,
				Counters: takes, Ways: map[string]api.DeviceWay{api.WayMIG: {Mode: api.WayMIG, Takes: takes}},
			})
		}
	}
	slices.SortStableFunc(devices, func(a, b api.Device) int {
		return cmp.Or(cmp.Compare(a.Counters[api.CounterSlices], b.Counters[api.CounterSlices]), cmp.Compare(a.MemoryBytes, b.MemoryBytes))
	})
	return devices
}
