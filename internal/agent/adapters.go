package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/fabric"
	fabricnode "github.com/nearmetal/nearmetal/internal/fabric/node"
	"github.com/nearmetal/nearmetal/internal/fabric/node/simulated"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/kerneltree"
)

// adapters are the node's adapters that members may have, as the options name them.
type adapters struct {
	functions *sriov.Manager
	// cells and rails are by PCI address.
	cells map[string]string
	rails map[string]int
	// missing are those that the options name and the node lacks. problems are why the options could not be carried out, by PCI address.
	missing  []api.Adapter
	problems map[string][]string
	virtual  []string
	log      *slog.Logger
}

// openFabric opens what ports of members are made by: the node's adapters and its networks. key is the public one for an encrypted underlay.
func openFabric(ctx context.Context, opts config.Agent, underlay netip.Addr, dir string, log *slog.Logger) (networks *fabricnode.Fabric, read adapterReader, key string, err error) {
	cfg := fabricnode.Config{Config: plan.Config{Underlay: underlay, UplinkRate: int64(opts.UplinkRate), Trunk: opts.TrunkInterface}, Logger: log}
	if cfg.Functions, read, err = openFunctions(ctx, opts, dir, log); err != nil {
		return nil, nil, "", err
	}
	networks, key, err = openNetworks(ctx, cfg, dir)
	return networks, read, key, err
}

// adapterReader reads what the node offers of its adapters, and what is to be said of them; nil: the options name none.
type adapterReader func(context.Context) ([]api.Device, []api.Adapter, error)

// openFunctions opens the node's adapters, or the simulated one.
func openFunctions(ctx context.Context, opts config.Agent, dir string, log *slog.Logger) (fabricnode.FunctionHolder, adapterReader, error) {
	if opts.Simulated != (config.SimulatedPort{}) {
		adapter, err := simulated.Open(filepath.Join(dir, "functions"), opts.Simulated.Cell, opts.Simulated.GUID)
		if err != nil {
			return nil, nil, err
		}
		return adapter, adapter.Offer, nil
	}
	if len(opts.Fabrics) > 0 { // a machine that Nearmetal boots has nothing else that would load it
		if out, err := exec.CommandContext(ctx, "modprobe", fabric.DriverVFIO).CombinedOutput(); err != nil {
			log.InfoContext(ctx, "virtual machines can't have functions of adapters", "module", fabric.DriverVFIO, "error", err, "said", strings.TrimSpace(string(out)))
		}
	}
	ports, err := openAdapters(ctx, opts, dir, sriov.Kernel{Tree: kerneltree.Tree{Root: "/"}}, log)
	if err != nil {
		return nil, nil, err
	}
	go ports.keep(ctx)
	if len(ports.cells)+len(ports.missing) == 0 {
		return ports.functions, nil, nil
	}
	return ports.functions, ports.read, nil
}

// openAdapters carries the options about adapters out: adapters forget the number of their functions at a reboot. What can't be done is reported with
// the node, which is of use without.
func openAdapters(ctx context.Context, opts config.Agent, dir string, host sriov.Host, log *slog.Logger) (*adapters, error) {
	x := &adapters{cells: map[string]string{}, rails: map[string]int{}, problems: map[string][]string{}, virtual: opts.VirtualPorts, log: log}
	var err error
	x.functions, err = sriov.Open(sriov.Config{
		Host: host, Dir: filepath.Join(dir, "functions"), Log: log,
		VirtualPorts: func(pf string) bool { return slices.Contains(x.virtual, x.cells[pf]) },
	})
	if err != nil {
		return nil, err
	}
	next := map[string]int{}
	for _, p := range opts.Fabrics {
		rail := next[p.Cell] // also of an adapter that is missing: the others keep theirs
		next[p.Cell]++
		pci, err := x.functions.Find(p.Adapter)
		if err == nil && x.cells[pci] != "" {
			err = fmt.Errorf("adapter %s is given to cell %s already", pci, x.cells[pci])
		}
		if err != nil {
			log.WarnContext(ctx, "an adapter can't be offered", "adapter", p.Adapter, "cell", p.Cell, "error", err)
			x.missing = append(x.missing, api.Adapter{ID: p.Adapter, Cell: p.Cell, NUMANode: -1, Rail: rail, Problems: []string{err.Error()}})
			continue
		}
		x.cells[pci], x.rails[pci] = p.Cell, rail
		if n, wanted := opts.VirtualFunctions[p.Adapter]; wanted {
			x.note(ctx, pci, x.functions.SetCount(ctx, pci, n))
		}
		x.note(ctx, pci, x.functions.Up(ctx, pci))
	}
	return x, nil
}

func (x *adapters) note(ctx context.Context, pci string, err error) {
	if err == nil {
		return
	}
	x.log.WarnContext(ctx, "an adapter can't be prepared", "adapter", pci, "cell", x.cells[pci], "error", err)
	x.problems[pci] = append(x.problems[pci], err.Error())
}

// auditAdaptersEvery is the pause between two audits of functions.
const auditAdaptersEvery = 30 * time.Second

// keep audits the functions that members have, until ctx ends.
func (x *adapters) keep(ctx context.Context) {
	again := time.NewTicker(auditAdaptersEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		found, err := x.functions.Audit(ctx)
		for _, d := range found {
			x.log.WarnContext(ctx, "a function drifted; it is set up again",
				"function", d.Function, "assignment", d.Owner.Assignment, "want", d.Want, "got", d.Got)
		}
		if err != nil && ctx.Err() == nil {
			x.log.WarnContext(ctx, "functions can't be audited", "error", err)
		}
	}
}

// read returns what the node offers of its adapters, and what is to be said of them.
func (x *adapters) read(ctx context.Context) ([]api.Device, []api.Adapter, error) {
	found, err := x.functions.Adapters(ctx)
	if err != nil {
		return nil, nil, err
	}
	var devices []api.Device
	all := slices.Clone(x.missing)
	seen := map[string]bool{}
	for _, a := range found {
		cell := x.cells[a.PCI]
		if cell == "" {
			continue
		}
		seen[a.PCI] = true
		addressed := false
		if a.Problem == "" && a.Quarantine == "" {
			if addressed, err = x.functions.Addressed(a); err != nil {
				a.Problem = err.Error()
			}
		}
		device, shown := offerAdapter(a, port{cell, x.rails[a.PCI]}, addressed, slices.Contains(x.virtual, cell))
		shown.Problems = append(slices.Clone(x.problems[a.PCI]), shown.Problems...)
		all = append(all, shown)
		if len(device.Ways) > 0 {
			devices = append(devices, device)
		}
	}
	for pci, cell := range x.cells {
		if !seen[pci] {
			problem := fmt.Sprintf("%s has no SR-IOV: enable it in the firmware of the machine and of the adapter", pci)
			all = append(all, api.Adapter{ID: pci, Cell: cell, NUMANode: -1, Rail: x.rails[pci], Problems: append(slices.Clone(x.problems[pci]), problem)})
		}
	}
	slices.SortFunc(all, func(a, b api.Adapter) int { return strings.Compare(a.ID, b.ID) })
	return devices, all, nil
}

// Classes of adapters, their counters and the ways to hand them out.
const (
	classEthernet   = "nic"
	classInfiniBand = "hca"
	counterVF       = "vf"
	counterPort     = "port"
	wayVF           = "vf"
	wayPF           = "pf"
	wayMACVTAP      = "macvtap"
	modeFunctions   = "sriov"
	modeWhole       = "whole"
)

// port is where an adapter is connected: the cell of a fabric, and the rail there.
type port struct {
	cell string
	rail int
}

// offerAdapter derives from an adapter what members may have of it. It is pure. An adapter that can't be used has no ways.
func offerAdapter(a sriov.Adapter, at port, addressed, virtualPorts bool) (api.Device, api.Adapter) {
	shown := api.Adapter{
		ID: a.PCI, Cell: at.cell, NUMANode: a.NUMANode, Rail: at.rail, Interface: a.Interface, RDMA: a.RDMA, LinkLayer: string(a.Layer), RoCE: a.RoCEv2, GUID: a.GUID,
		RateMbps: a.RateMbps, Up: a.Up, VirtualFunctions: a.VFs, TotalVirtualFunctions: a.TotalVFs,
	}
	device := api.Device{ID: a.PCI, Class: classEthernet, NUMANode: a.NUMANode, Cell: at.cell, Rail: at.rail, Counters: map[string]int64{}, Ways: map[string]api.DeviceWay{}}
	if a.Layer == sriov.InfiniBand {
		device.Class, device.GUID = classInfiniBand, a.GUID
	}
	say := func(format string, args ...any) {
		shown.Problems = append(shown.Problems, fmt.Sprintf(format, args...))
	}
	// A member that has the whole port takes it away from the node, which then sees neither its interface nor its link.
	taken := a.Owner != nil || a.Driver == fabric.DriverVFIO
	switch {
	case a.Quarantine != "":
		say("it is quarantined: %s did not end in time; reboot the node, or replace the adapter", a.Quarantine)
		return device, shown
	case a.Problem != "":
		say("it can't be read: %s", a.Problem)
		return device, shown
	case a.Driver == "":
		say("no driver has it; run: echo %s >/sys/bus/pci/drivers_probe", a.PCI)
		return device, shown
	case !a.Up && !taken:
		say("its link is down: plug its cable in, or switch the other end on")
		return device, shown
	}
	n := usable(a, virtualPorts, say)
	device.Counters[counterPort] = 1
	if n > 0 {
		device.Counters[counterVF] = n
		device.Ways[wayVF] = api.DeviceWay{Mode: modeFunctions, Takes: map[string]int64{counterVF: 1}}
		if a.Layer != sriov.InfiniBand {
			device.Ways[wayMACVTAP] = api.DeviceWay{Mode: modeFunctions, Takes: map[string]int64{counterVF: 1}}
		}
	}
	if addressed {
		say("the node itself uses interface %s, so no member gets the whole port", a.Interface)
		return device, shown
	}
	whole := map[string]int64{counterPort: 1}
	if n > 0 {
		whole[counterVF] = n
	}
	device.Ways[wayPF] = api.DeviceWay{Mode: modeWhole, Takes: whole}
	return device, shown
}

// usable returns how many of an adapter's virtual functions members may have, from index 0 up: placement counts, and chooses the lowest free index.
func usable(a sriov.Adapter, virtualPorts bool, say func(format string, args ...any)) int64 {
	switch {
	case a.Eswitch == "switchdev":
		say("its functions are not offered: its embedded switch is in switchdev mode; run: devlink dev eswitch set pci/%s mode legacy", a.PCI)
		return 0
	case a.Layer == sriov.InfiniBand && a.Driver == "mlx5_core" && !virtualPorts:
		say("its functions are not offered: virtual ports need a subnet manager with virtualization; if that of the cell has it, start the agent with --virtual-ports CELL")
		return 0
	}
	n := int64(0)
	for _, f := range a.Functions {
		if f.Index != int(n) {
			say("vf%d is not there", n)
			break
		}
		if f.Foreign != "" {
			say("vf%d and those after it are not offered: %s", n, f.Foreign)
			break
		}
		n++
	}
	for _, f := range a.Functions[:n] {
		if f.Problem != "" {
			say("vf%d is not clean: %s", f.Index, f.Problem)
		}
	}
	if n > 0 {
		first := a.Functions[0]
		switch {
		case first.IOMMUGroup == "":
			say("virtual machines can't have its functions: the node has no IOMMU; 'nearmetal node check' says what to do")
		case len(first.Company) > 0:
			say("virtual machines can't have its functions: IOMMU group %s of vf0 also holds %s; enable ACS in the firmware, or use another slot", first.IOMMUGroup, strings.Join(first.Company, ", "))
		}
	}
	return n
}

// errAdaptersChanged ends a stream whose greeting is no longer true.
var errAdaptersChanged = errors.New("the node's adapters changed, and are reported again")

// measureAdapters adds the node's adapters to what it is about to report. What can't be read is reported as before.
func (a *Agent) measureAdapters(ctx context.Context, node *api.NodeRecord) {
	if a.cfg.Adapters == nil {
		return
	}
	devices, all, err := a.cfg.Adapters(ctx)
	if err != nil {
		a.cfg.Log.WarnContext(ctx, "the node's adapters can't be read", "error", err)
	} else {
		a.opening.devices, a.opening.adapters = devices, all
	}
	node.Capacity.Devices = slices.Concat(a.cfg.Node.Capacity.Devices, a.opening.devices)
	node.Adapters = a.opening.adapters
}

// watchAdapters returns when the node's adapters are not as they were reported.
func (a *Agent) watchAdapters(ctx context.Context, devices []api.Device, reported []api.Adapter) error {
	look := time.NewTicker(a.opening.underlayEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
		now, all, err := a.cfg.Adapters(ctx)
		if err == nil && !(reflect.DeepEqual(now, devices) && reflect.DeepEqual(all, reported)) {
			a.cfg.Log.InfoContext(ctx, "the node's adapters changed")
			return errAdaptersChanged
		}
	}
}

// readmit lets a member have the functions again that cleaning up after a start that failed has released.
func (a *Agent) readmit(ctx context.Context, id string) error {
	attacher, has := a.cfg.Fabric.(fabric.FunctionAttacher)
	if !has {
		return nil
	}
	return attacher.Readmit(ctx, id)
}
