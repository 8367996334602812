// Package gpu finds the GPUs of a node, and says what a container needs to use those that its member holds.
//
// NVIDIA's GPUs are found by nvidia-smi, those of any vendor by the files of the Container Device Interface (CDI) on the node. It must never hand out
// what it could not read: a GPU with a problem is shown with the problem, and is offered to nobody. Start with Node.Read, then Node.Edits.
package gpu

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// Config is how a node's GPUs are looked for. The zero value looks at this machine.
type Config struct {
	// Root is where the machine's file system is; empty: /. Device nodes and libraries are looked for below it.
	Root string
	// CDIDirs are the folders with CDI files; nil: /etc/cdi and /var/run/cdi below Root. Of two files that name one device, the later folder's is valid.
	CDIDirs []string
	// Part is which of the GPUs are the node's: other nodes of the machine may have the others.
	Part inventory.Part
	// Allow are the GPUs that members get, by ID, PCI address or words of the model; none: all. Kinds are names of kinds.
	Allow []string
	Kinds []Kind
	// Passthrough gives GPUs to virtual machines; nil: nobody looks at the PCI bus. PassthroughGPUs are those that machines may get, as in Allow, or
	// PassthroughAll alone.
	Passthrough     Passthrough
	PassthroughGPUs []string
	// Remote is how the node takes part in remote GPUs.
	Remote Remote
	// Run runs a program and returns its standard output; nil: as a process of this machine.
	Run Runner
	// Every is how old what was read may become; 0: a minute. nvidia-smi takes seconds where no other program has the driver open.
	Every time.Duration
	Log   *slog.Logger
}

// Node is the GPUs of one node.
type Node struct {
	cfg Config

	// looking is held while the node is looked at, which may take long; mu is not.
	looking sync.Mutex
	mu      sync.Mutex
	found   *Found
	at      time.Time
	// changed: a GPU went to a machine, or came back, since it was looked.
	changed bool
}

// Found is what was found on a node.
type Found struct {
	GPUs []api.NodeGPU
	// Problems are why there may be more GPUs.
	Problems []string
	// Programs: the node has the programs of remote GPUs.
	Programs bool
	// sources are what a container needs to use each GPU that is offered, by ID.
	sources map[string]source
}

// source returns what a container needs to use a GPU.
type source func() (*Edits, error)

// New returns the GPUs of a node. Nothing is read yet.
func New(cfg Config) *Node {
	cfg.Root = cmp.Or(cfg.Root, "/")
	if cfg.CDIDirs == nil {
		cfg.CDIDirs = []string{filepath.Join(cfg.Root, "etc/cdi"), filepath.Join(cfg.Root, "var/run/cdi")}
	}
	if cfg.Run == nil {
		cfg.Run = runProgram
	}
	cfg.Every = cmp.Or(cfg.Every, time.Minute)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Node{cfg: cfg}
}

// Read returns the node's GPUs. It looks again where what was read is too old.
func (n *Node) Read(ctx context.Context) Found {
	n.looking.Lock()
	defer n.looking.Unlock()
	changed := n.takeChange() // before the look: what changes meanwhile is looked at again
	if found, at := n.last(); found != nil && !changed && time.Since(at) <= n.cfg.Every {
		return *found
	}
	found := n.look(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.found, n.at = &found, time.Now()
	return found
}

// takeChange reports whether the node's GPUs have changed hands, and forgets it.
func (n *Node) takeChange() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed := n.changed
	n.changed = false
	return changed
}

// last returns what was found last, and when; nil: nobody has looked yet.
func (n *Node) last() (*Found, time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.found, n.at
}

// look reads CDI files and asks nvidia-smi.
func (n *Node) look(ctx context.Context) Found {
	found := Found{sources: map[string]source{}}
	files, problems := readCDI(n.cfg)
	found.Problems = append(found.Problems, problems...)
	nvidia, err := n.readNVIDIA(ctx)
	if err != nil {
		found.Problems = append(found.Problems, err.Error())
	}
	named := files // slices are found by any of their names
	files = apart(files)
	for _, g := range nvidia {
		maps.Copy(found.sources, g.addSlices(n.cfg, named))
		edits, file := g.choose(n.cfg, files)
		shown := g.shown(file)
		if len(shown.Problems) == 0 && shown.MIG != "enabled" {
			found.sources[shown.ID] = edits
		}
		found.GPUs = append(found.GPUs, shown)
	}
	for _, d := range files {
		if d.vendor == vendorNVIDIA {
			continue // nvidia-smi says more of them, and where it says nothing they can't be used
		}
		shown := d.shown(n.cfg.Root)
		if len(shown.Problems) == 0 {
			found.sources[shown.ID] = d.edits(n.cfg.Root)
		}
		found.GPUs = append(found.GPUs, shown)
	}
	if err := n.addPassthrough(&found, files); err != nil {
		found.Problems = append(found.Problems, err.Error())
	}
	slices.SortStableFunc(found.GPUs, func(a, b api.NodeGPU) int {
		return cmp.Or(cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.ID, b.ID))
	})
	at := -1
	found.GPUs = slices.DeleteFunc(found.GPUs, func(g api.NodeGPU) bool {
		at++
		if n.cfg.Part.Has(at) {
			return false
		}
		found.withdraw(&g)
		return true
	})
	found.keep(n.cfg.Allow)
	n.cfg.Remote.addRemote(&found, n.cfg.Root)
	found.name(n.cfg.Kinds)
	return found
}

// Devices are the GPUs that members may have, as devices with counters.
func (f Found) Devices() []api.Device {
	var devices []api.Device
	for _, g := range f.GPUs {
		if len(g.Problems) > 0 || g.MIG == "enabled" {
			continue
		}
		d := api.Device{
			ID: g.ID, Class: api.ClassGPU, NUMANode: g.NUMANode, Model: g.Model, Kinds: g.Kinds, MemoryBytes: g.MemoryBytes, Counters: map[string]int64{}, Ways: map[string]api.DeviceWay{},
		}
		if g.ID != OpenCLID {
			d.Counters[api.CounterGPUs] = 1
			if n := slicesOf(g); n > 0 {
				d.Counters[api.CounterSlices] = n
			}
			if !g.Bare {
				d.Ways[api.WayWhole] = api.DeviceWay{Mode: api.WayWhole, Takes: maps.Clone(d.Counters)}
			}
			if g.Passthrough != nil && g.Passthrough.Offered {
				d.Ways[api.WayPassthrough] = api.DeviceWay{Mode: api.WayPassthrough, Takes: maps.Clone(d.Counters)}
			}
		}
		if mib := remoteMiB(g); mib > 0 {
			d.Counters[api.CounterRemoteMiB] = mib
			d.Ways[api.WayRemote] = api.DeviceWay{Mode: api.WayRemote, Takes: map[string]int64{api.CounterRemoteMiB: 1}}
		}
		devices = append(devices, d)
	}
	return append(devices, f.sliceDevices()...)
}

// withdraw keeps a GPU and its slices from containers.
func (f *Found) withdraw(g *api.NodeGPU) {
	delete(f.sources, g.ID)
	for _, s := range g.Slices {
		delete(f.sources, s.ID)
	}
}

// Edits returns what a container needs to use the GPUs that its member holds. The error names a GPU that is not there, or can't be used any more.
func (n *Node) Edits(ctx context.Context, claims []api.DeviceClaim) (*Edits, error) {
	if len(claims) == 0 {
		return nil, nil //nolint:nilnil // nothing is needed
	}
	found, _ := n.last() // a member's start does not wait for nvidia-smi; device nodes and files are looked at now
	if found == nil || n.hasChanged() {
		first := n.Read(ctx)
		found = &first
	}
	var all Edits
	for _, c := range claims {
		edits, ok := found.sources[c.Device]
		if !ok {
			return nil, fmt.Errorf("GPU %s: %s", c.Device, found.whyNot(c.Device))
		}
		own, err := edits()
		if err != nil {
			return nil, fmt.Errorf("GPU %s: %w", c.Device, err)
		}
		if err := all.add(own); err != nil {
			return nil, fmt.Errorf("GPU %s: %w", c.Device, err)
		}
	}
	return &all, nil
}

// whyNot says why a GPU can't be used.
func (f Found) whyNot(id string) string {
	for _, g := range f.GPUs {
		if g.ID == id && len(g.Problems) > 0 {
			return g.Problems[0]
		}
		if g.ID == id && g.MIG == "enabled" {
			return "it is in MIG mode: members get its slices"
		}
		for _, s := range g.Slices {
			if problems := slices.Concat(s.Problems, g.Problems); s.ID == id && len(problems) > 0 {
				return problems[0]
			}
		}
	}
	return "the node does not have it any more"
}
