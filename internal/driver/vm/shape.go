package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
)

// shape is what a machine's memory fits: it goes on only in a machine of the same shape.
type shape struct {
	// Environment is the digest of its image.
	Environment string   `json:"environment"`
	MemoryBytes int64    `json:"memory_bytes"`
	CPUs        int      `json:"cpus"`
	MACs        []string `json:"macs"`
	// Disks are the names of its block volumes.
	Disks []string `json:"disks,omitempty"`
	// Chassis is what the machine was built with, nil for one whose size is fixed.
	Chassis *chassis `json:"chassis,omitempty"`
	// NUMANodes are the guest's: its CPUs and MiB of each.
	NUMANodes []string `json:"numa_nodes,omitempty"`
	// Machine is a digest of all that libvirt was given, but for what may be another on another host.
	Machine string `json:"machine"`
	// QEMU and Libvirt are the series, such as 7.2: within one, devices have the same places and states.
	QEMU    string `json:"qemu"`
	Libvirt string `json:"libvirt"`
	// CPU is the host's, where the guest sees it; nil where it is emulated.
	CPU *processor `json:"cpu,omitempty"`
}

// processor is what programs in a guest may have found out of a host's processor.
type processor struct {
	Vendor string   `json:"vendor"`
	Family string   `json:"family"`
	Model  string   `json:"model"`
	Flags  []string `json:"flags"`
}

// shapeOf is the shape that a member's machine in a chassis has on this host.
func (d *Driver) shapeOf(ctx context.Context, host *daemon, m driver.Member, image environment.Image, c *chassis) (shape, error) {
	h := d.hardware()
	s, err := newShape(m, image, h, c)
	if err != nil {
		return s, err
	}
	if h.KVM {
		text, err := os.ReadFile("/proc/cpuinfo")
		if err != nil {
			return s, err
		}
		s.CPU = readProcessor(string(text)).seenAs(m.Assignment.CPUModel)
	}
	// Not by libvirt, which would start the emulators of all architectures first.
	if s.QEMU, err = seriesOf(ctx, emulator); err != nil {
		return s, err
	}
	err = host.call(ctx, func(rpc *libvirt.Libvirt) error {
		version, err := rpc.ConnectGetLibVersion()
		s.Libvirt = fmt.Sprintf("%d.%d", version/1_000_000, version/1000%1000)
		return err
	})
	return s, err
}

// newShape is pure: the shape of a member's machine, without what only the host knows.
func newShape(m driver.Member, image environment.Image, h hardware, c *chassis) (shape, error) {
	s := shape{Environment: m.Assignment.EnvironmentDigest, Chassis: c}.sized(&m.Assignment)
	neutral := newDomain(m, image, viewOf("member"), "", h, c)
	if c != nil { // the present size is apart from the digest: it changes while the machine runs
		neutral.CPUs, neutral.PluggedBytes = make([]int, c.Processors), 0
	}
	neutral.Name, neutral.User, neutral.SpareCPUs = "member", 0, nil
	for n := range neutral.Cells {
		cell := &neutral.Cells[n]
		s.NUMANodes = append(s.NUMANodes, fmt.Sprintf("CPUs %v with %d MiB", cell.CPUs, cell.Bytes>>20))
		cell.HostNodes = nil
	}
	for n := range neutral.CPUs {
		neutral.CPUs[n] = 0
	}
	for n := range neutral.NICs {
		s.MACs = append(s.MACs, neutral.NICs[n].MAC)
		neutral.NICs[n].Device = fmt.Sprint("nic", n)
	}
	for _, d := range m.Disks {
		s.Disks = append(s.Disks, d.Name)
	}
	text, err := neutral.xml()
	sum := sha256.Sum256([]byte(text))
	s.Machine = hex.EncodeToString(sum[:])
	return s, err
}

// sized returns the shape of a machine that has the size of an assignment.
func (s shape) sized(a *api.Assignment) shape {
	s.MemoryBytes, s.CPUs = a.MemoryBytes(), len(vcpus(a))
	return s
}

// readProcessor reads /proc/cpuinfo (proc(5)).
func readProcessor(cpuinfo string) *processor {
	p := &processor{}
	for line := range strings.Lines(cpuinfo) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "vendor_id":
			p.Vendor = value
		case "cpu family":
			p.Family = value
		case "model":
			p.Model = value
		case "flags":
			p.Flags = strings.Fields(value)
		}
	}
	return p
}

// seenAs returns what a guest sees of the processor through a CPU model: where that is named, nothing but the model, and whose it is.
func (p *processor) seenAs(model string) *processor {
	if model == "" {
		return p
	}
	return &processor{Vendor: p.Vendor, Model: model}
}

// tracksWrites reports whether QEMU notices every write to a machine's memory while the machine runs and its memory is sent. QEMU before 9.0 loses some
// where it emulates processors ("physmem: Fix migration dirty bitmap coherency with TCG memory access", 2024): the machine goes on with old content in
// some pages, and its kernel or its programs crash.
func (s shape) tracksWrites() bool {
	text, _, _ := strings.Cut(s.QEMU, ".")
	major, err := strconv.Atoi(text)
	return s.CPU != nil || err == nil && major >= 9
}

// fits returns nil if a machine of shape s can go on in one of the other shape, or else driver.ErrUnfit with the difference.
func (s shape) fits(other shape) error {
	if err := s.difference(other); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnfit, err)
	}
	return nil
}

func (s shape) difference(other shape) error {
	switch {
	case s.QEMU != other.QEMU:
		return fmt.Errorf("it runs on QEMU %s, and this host has QEMU %s", s.QEMU, other.QEMU)
	case s.Libvirt != other.Libvirt:
		return fmt.Errorf("it runs on libvirt %s, and this host has libvirt %s", s.Libvirt, other.Libvirt)
	case (s.CPU == nil) != (other.CPU == nil):
		return errors.New("its processors are emulated and this host virtualizes them, or the other way round")
	case s.Environment != other.Environment:
		return fmt.Errorf("its environment is %s, not %s", s.Environment, other.Environment)
	case s.MemoryBytes != other.MemoryBytes || s.CPUs != other.CPUs:
		return fmt.Errorf("it has %d CPUs and %d MiB of memory, not %d and %d", s.CPUs, s.MemoryBytes>>20, other.CPUs, other.MemoryBytes>>20)
	case !slices.Equal(s.MACs, other.MACs):
		return fmt.Errorf("its ports have the MAC addresses %v, not %v", s.MACs, other.MACs)
	case !slices.Equal(s.Disks, other.Disks):
		return fmt.Errorf("its block volumes are %v, not %v", s.Disks, other.Disks)
	case !slices.Equal(s.NUMANodes, other.NUMANodes):
		return fmt.Errorf("its NUMA nodes are %v, and here they would be %v", s.NUMANodes, other.NUMANodes)
	case s.Machine != other.Machine:
		return errors.New("another version of nearmetal started it, and makes machines otherwise; start it again to change that")
	case s.CPU != nil:
		return s.CPU.difference(*other.CPU)
	}
	return nil
}

func (p processor) difference(other processor) error {
	if p.Vendor != other.Vendor || p.Family != other.Family || p.Model != other.Model {
		return fmt.Errorf("it runs on a processor of %s, family %s, model %s, and this host has one of %s, family %s, model %s", p.Vendor, p.Family, p.Model, other.Vendor, other.Family, other.Model)
	}
	missing := slices.DeleteFunc(slices.Clone(p.Flags), func(f string) bool { return slices.Contains(other.Flags, f) })
	if len(missing) > 0 {
		return fmt.Errorf("this host's processor lacks %s", strings.Join(missing, ", "))
	}
	return nil
}
