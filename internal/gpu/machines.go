package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/gpu/passthrough"
)

// Virtual machines get whole GPUs as PCI devices. What the vendor's tools know of a GPU and what the PCI bus shows are joined by its PCI address. While a
// machine has a GPU, the tools do not see it, and it is shown as it was.

// PassthroughAll offers all GPUs that can be given to virtual machines.
const PassthroughAll = "all"

// Passthrough gives GPUs to virtual machines.
type Passthrough interface {
	// Cards returns the GPUs on the PCI bus.
	Cards() ([]passthrough.Card, error)
	// Away returns the GPUs that machines have, and those in quarantine, as they were before.
	Away() []api.NodeGPU
	// Take makes a GPU an assignment's, and Give takes all of an assignment's back.
	Take(ctx context.Context, owner string, gpu api.NodeGPU) (passthrough.Group, error)
	Give(ctx context.Context, owner string) error
}

// addPassthrough notes of each GPU how machines can get it, and adds those that only machines can have.
func (n *Node) addPassthrough(found *Found, files []cdiDevice) error {
	if n.cfg.Passthrough == nil {
		return nil
	}
	cards, err := n.cfg.Passthrough.Cards()
	if err != nil {
		return fmt.Errorf("the GPUs on the PCI bus can't be read: %w", err)
	}
	unplaced := placeCDI(found, files, n.cfg.Root)
	found.addAway(n.cfg.Passthrough.Away())
	for _, card := range cards {
		i := slices.IndexFunc(found.GPUs, func(g api.NodeGPU) bool { return g.PCI == card.PCI })
		bare := i < 0
		if bare {
			i = len(found.GPUs)
			found.GPUs = append(found.GPUs, api.NodeGPU{ID: card.PCI, PCI: card.PCI, NUMANode: card.NUMANode, Model: modelOf(card), Bare: true})
		}
		g := &found.GPUs[i]
		g.Passthrough = &api.GPUPassthrough{IOMMUGroup: card.Group, Functions: card.Others(), Reset: card.Reset(), Problem: card.Problem()}
		if driver := card.Functions[0].Driver; g.Passthrough.Problem == "" && bare && unplaced != "" && driver != "" && driver != vfioPCI {
			g.Passthrough.Problem = fmt.Sprintf("driver %s has it, and it may be %s, whose place on the PCI bus is not known", driver, unplaced)
		}
		if g.MIG == "enabled" {
			g.Passthrough.Problem = cmp.Or(g.Passthrough.Problem, "it is in MIG mode, and its slices are no PCI devices of their own")
		}
		wanted := n.offersToMachines(*g)
		g.Passthrough.Offered = wanted && g.Passthrough.Problem == "" && len(g.Problems) == 0
		if g.Bare && !wanted && len(g.Problems) == 0 {
			found.GPUs = slices.Delete(found.GPUs, i, i+1) // the chip that shows the firmware's screen is nobody's concern
			continue
		}
		if g.Bare && g.Passthrough.Problem != "" {
			g.Problems = append(g.Problems, g.Passthrough.Problem)
		}
	}
	for _, what := range n.cfg.PassthroughGPUs {
		if what != PassthroughAll && !slices.ContainsFunc(found.GPUs, func(g api.NodeGPU) bool { return is(g, what) }) {
			found.Problems = append(found.Problems, fmt.Sprintf("--passthrough-gpus %q is none of the node's GPUs", what))
		}
	}
	return nil
}

const vfioPCI = "vfio-pci"

// offersToMachines reports whether the operator offers a GPU to virtual machines.
func (n *Node) offersToMachines(g api.NodeGPU) bool {
	return slices.ContainsFunc(n.cfg.PassthroughGPUs, func(what string) bool { return what == PassthroughAll || is(g, what) })
}

// addAway adds the GPUs that machines have, or that are in quarantine. No container gets those.
func (f *Found) addAway(away []api.NodeGPU) {
	for _, g := range away {
		i := slices.IndexFunc(f.GPUs, func(o api.NodeGPU) bool { return o.ID == g.ID || o.PCI == g.PCI })
		if i < 0 {
			f.GPUs = append(f.GPUs, g)
			continue
		}
		f.GPUs[i].Problems = append(f.GPUs[i].Problems, g.Problems...)
		if len(g.Problems) > 0 {
			f.withdraw(&f.GPUs[i])
		}
	}
}

// placeCDI finds the PCI addresses of the GPUs of CDI files, by the device nodes that they name. It returns one whose address can't be found, "" for none.
func placeCDI(found *Found, files []cdiDevice, root string) (unplaced string) {
	for i := range found.GPUs {
		g := &found.GPUs[i]
		if g.PCI != "" {
			continue
		}
		for _, d := range files {
			if d.name == g.ID {
				g.PCI = d.pci(root)
			}
		}
		if g.PCI == "" {
			unplaced = g.ID
		}
	}
	return unplaced
}

// pci is the address of a CDI device, by the first of its own device nodes that is a PCI function's; "" where none is.
func (d cdiDevice) pci(root string) string {
	for _, node := range d.own.DeviceNodes {
		path := node.HostPath
		if path == "" {
			path = node.Path
		}
		var stat unix.Stat_t
		if unix.Stat(filepath.Join(root, path), &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		number := strconv.Itoa(int(unix.Major(stat.Rdev))) + ":" + strconv.Itoa(int(unix.Minor(stat.Rdev)))
		real, err := filepath.EvalSymlinks(filepath.Join(root, "sys/dev/char", number, "device"))
		if err == nil && pciText.MatchString(filepath.Base(real)) {
			return filepath.Base(real)
		}
	}
	return ""
}

// vendorNames are those of GPUs, by their numbers in the PCI ID database.
var vendorNames = map[string]string{"10de": "NVIDIA", "1002": "AMD", "8086": "Intel", "1234": "QEMU", "1a03": "ASPEED", "102b": "Matrox"}

// modelOf names a GPU by its numbers alone.
func modelOf(c passthrough.Card) string {
	return strings.TrimSpace(vendorNames[c.Vendor] + " GPU " + c.Vendor + ":" + c.Device)
}

// Take makes the GPUs that a machine holds its own.
func (n *Node) Take(ctx context.Context, owner string, claims []api.DeviceClaim) ([]passthrough.Group, error) {
	if n.cfg.Passthrough == nil {
		return nil, errors.New("this node gives no GPUs to virtual machines")
	}
	found, _ := n.last()
	if found == nil {
		first := n.Read(ctx)
		found = &first
	}
	var groups []passthrough.Group
	for _, c := range claims {
		i := slices.IndexFunc(found.GPUs, func(g api.NodeGPU) bool { return g.ID == c.Device })
		if i < 0 {
			return nil, fmt.Errorf("GPU %s: %s", c.Device, found.whyNot(c.Device))
		}
		g := found.GPUs[i]
		if g.Passthrough == nil || !g.Passthrough.Offered {
			return nil, fmt.Errorf("GPU %s: it is not offered to virtual machines any more", c.Device)
		}
		group, err := n.cfg.Passthrough.Take(ctx, owner, g)
		n.lookAgain()
		if err != nil {
			return nil, fmt.Errorf("GPU %s: %w", c.Device, err)
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// Give takes back the GPUs of a machine that is no more.
func (n *Node) Give(ctx context.Context, owner string) error {
	if n.cfg.Passthrough == nil {
		return nil
	}
	defer n.lookAgain()
	return n.cfg.Passthrough.Give(ctx, owner)
}

// lookAgain has the next reading look at the node, whose GPUs have changed.
func (n *Node) lookAgain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = true
}

func (n *Node) hasChanged() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}
