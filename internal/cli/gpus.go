package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// machinePart is a flag for a part of what the machine has.
type machinePart struct{ *inventory.Part }

func (p machinePart) Set(text string) (err error) {
	*p.Part, err = inventory.ParsePart(text)
	return err
}

func (machinePart) Type() string { return "part" }

func gpuFlags(cmd *cobra.Command, opts *config.Agent) {
	cmd.Flags().Var(machinePart{&opts.GPUs}, "gpus", "GPUs of this machine to give to members: all, none, or a part such as 2/3, the second of three equal parts")
	cmd.Flags().StringArrayVar(&opts.GPUAllow, "gpu-allow", nil, "give members only GPUs of this ID, PCI address or model (repeatable; default: all of --gpus)")
	cmd.Flags().StringArrayVar(&opts.GPUKinds, "gpu-kind", nil, "NAME=WHAT: a name by which users ask for GPUs of this ID, PCI address or model, such as big=H200 (repeatable)")
	passthroughFlags(cmd, &opts.PassthroughGPUs, &opts.PassthroughClearing)
	remoteGPUFlags(cmd, &opts.RemoteGPUs, &opts.GPUPrograms)
	cdiFlag(cmd, &opts.CDIDirs)
}

// passthroughFlags are for what virtual machines get.
func passthroughFlags(cmd *cobra.Command, gpus *[]string, clearing *string) {
	cmd.Flags().StringArrayVar(gpus, "passthrough-gpus", nil, "give virtual machines GPUs of this ID, PCI address or model as PCI devices, or all that can be given (repeatable; default: none)")
	cmd.Flags().StringVar(clearing, "passthrough-clearing", "", "how memory of GPUs is cleared between virtual machines: proven, overwritten and read back (default), or reset, for GPUs whose vendor says that a reset clears it")
}

// passthroughSpec reads the flags of a machine; nil: it gives virtual machines no GPUs. --passthrough-gpus "" stands for none.
func (f *enrollFlags) passthroughSpec() (*api.MachinePassthrough, error) {
	gpus := slices.DeleteFunc(slices.Clone(f.passthrough), func(value string) bool { return value == "" })
	switch {
	case len(gpus) > 0:
		return &api.MachinePassthrough{GPUs: gpus, Clearing: f.clearing}, nil
	case f.clearing != "":
		return nil, usage("--passthrough-clearing %s: name the GPUs, with --passthrough-gpus", f.clearing)
	}
	return nil, nil //nolint:nilnil // as above
}

// remoteGPUFlags are for what servers hand out, and where their programs are.
func remoteGPUFlags(cmd *cobra.Command, what *config.RemoteGPUs, programs *string) {
	cmd.Flags().Var(what, "remote-gpus", "GPUs whose memory servers hand out to members of any node: none, all that no member has whole, or opencl:SIZE of the host's own OpenCL device, its processor")
	cmd.Flags().StringVar(programs, "gpu-programs", "", "folder with the server and the front ends of remote GPUs (default: gpuremote beside this program, else /usr/lib/nearmetal/gpuremote)")
}

// cdiFlag is for development: other folders than the system's make devices that no other program of the machine sees.
func cdiFlag(cmd *cobra.Command, dirs *[]string) {
	cmd.Flags().StringArrayVar(dirs, "cdi-dir", nil, "folder with files of the Container Device Interface that describe GPUs, instead of /etc/cdi and /var/run/cdi (repeatable)")
	_ = cmd.Flags().MarkHidden("cdi-dir")
}

// printGPUs writes the GPUs of a node, with why some are not given to members.
func (a *app) printGPUs(w io.Writer, n api.Node) {
	if n.Agent == nil || len(n.Agent.GPUs)+len(n.Agent.GPUProblems) == 0 {
		return
	}
	fmt.Fprintln(w)
	if len(n.Agent.GPUs) > 0 {
		table := newTable(w, "GPU", "MODEL", "MEMORY", "PCI", "NUMA", "DRIVER", "CUDA", "COMPUTE", "MIG", "NVLINK PEERS", "REMOTE", "PASSTHROUGH", "BUSY", "PROBLEMS")
		for _, g := range n.Agent.GPUs {
			numa, memory, links := "", "", ""
			if g.NUMANode >= 0 {
				numa = strconv.Itoa(g.NUMANode)
			}
			if g.MemoryBytes > 0 {
				memory = api.Bytes(g.MemoryBytes).String()
			}
			if n := len(g.NVLinkPeers); n > 0 {
				links = strconv.Itoa(n)
			}
			mig := g.MIG
			if len(g.MIGProfiles) > 0 {
				mig += " (" + strings.Join(g.MIGProfiles, " ") + ")"
			}
			model := g.Model
			if len(g.Kinds) > 0 {
				model += " (" + strings.Join(g.Kinds, ", ") + ")"
			}
			table.row(g.ID, model, memory, g.PCI, numa, g.Driver, g.CUDA, g.ComputeCapability, mig, links, yesNo(g.Remote), passthroughText(g.Passthrough), busyText(g.Load), strings.Join(g.Problems, "; "))
		}
		table.flush()
	}
	printSlices(w, n.Agent.GPUs)
	printGPUUses(w, n.GPUUses)
	a.printRoundTrips(w, n.RoundTrips)
	for _, problem := range n.Agent.GPUProblems {
		fmt.Fprintf(w, "GPUs: %s\n", problem)
	}
}

// passthroughText says how virtual machines get a GPU: with its IOMMU group and what comes along, or why not.
func passthroughText(p *api.GPUPassthrough) string {
	switch {
	case p == nil:
		return ""
	case p.Problem != "":
		return "no: " + p.Problem
	case !p.Offered:
		return "no"
	}
	text := "yes (group " + p.IOMMUGroup + ", reset by " + p.Reset
	if len(p.Functions) > 0 {
		text += ", with " + strings.Join(p.Functions, " ")
	}
	return text + ")"
}

// printSlices writes the slices of GPUs in MIG mode, with why some are not given to members.
func printSlices(w io.Writer, gpus []api.NodeGPU) {
	if !slices.ContainsFunc(gpus, func(g api.NodeGPU) bool { return len(g.Slices) > 0 }) {
		return
	}
	fmt.Fprintln(w)
	table := newTable(w, "SLICE", "PROFILE", "MEMORY", "OF GPU", "CDI", "PROBLEMS")
	for _, g := range gpus {
		for _, s := range g.Slices {
			memory, problems := "", s.Problems
			if s.MemoryBytes > 0 {
				memory = api.Bytes(s.MemoryBytes).String()
			}
			if len(g.Problems) > 0 {
				problems = append(slices.Clone(problems), "its GPU has a problem")
			}
			table.row(s.ID, s.Profile, memory, g.ID, s.CDI, strings.Join(problems, "; "))
		}
	}
	table.flush()
}

// printGPUUses writes who holds which part of a node's GPUs.
func printGPUUses(w io.Writer, uses []api.DeviceUse) {
	if len(uses) == 0 {
		return
	}
	fmt.Fprintln(w)
	table := newTable(w, "GPU", "HELD", "MEMBER", "CALLS", "WAITS", "BUSY", "WAIT", "EXPECTED", "OBSERVED", "REASON")
	for _, u := range uses {
		calls, waits, busy, wait := "", "", "", ""
		if s := u.Service; s != nil {
			calls, waits, busy = strconv.FormatInt(s.Calls, 10), strconv.FormatInt(s.Waits, 10), fmt.Sprintf("%.3gs", s.BusySeconds)
			if s.WaitSeconds > 0 {
				wait = fmt.Sprintf("%.1fus", s.WaitSeconds*1e6)
			}
		}
		table.row(u.Device, deviceAmount(u.MemberDevice), orElse(u.Member, "of another project"), calls, waits, busy, wait, times(u.Cost), times(u.Observed), u.Why)
	}
	table.flush()
}

// printRoundTrips writes how far it is to other nodes, as it was measured.
func (a *app) printRoundTrips(w io.Writer, trips map[string]api.RoundTrip) {
	if len(trips) == 0 {
		return
	}
	fmt.Fprintln(w)
	table := newTable(w, "TO NODE", "ROUND TRIP", "MEASURED")
	for _, name := range slices.Sorted(maps.Keys(trips)) {
		table.row(name, fmt.Sprintf("%.0fus", trips[name].Seconds*1e6), a.age(trips[name].At)+" ago")
	}
	table.flush()
}

// busyText is how busy a GPU was, "" where that is not known.
func busyText(load *api.GPULoad) string {
	if load == nil {
		return ""
	}
	return fmt.Sprintf("%.0f%%", load.Busy*100)
}

// groupGPUs is what each member of a group has of GPUs: 2 H200, or 1 of 80GiB; "" for none.
func groupGPUs(g api.Group) string {
	var parts []string
	for _, r := range g.Devices {
		if r.Class != api.ClassGPU {
			continue
		}
		text := strconv.Itoa(r.Count)
		if r.Model != "" {
			text += " " + r.Model
		}
		if r.Way == api.WayRemote || r.Way == api.WayAny || r.Way == api.WayMIG {
			text += " " + r.Way
		}
		if r.Profile != "" {
			text += " " + r.Profile
		}
		if r.Memory > 0 {
			text += " of " + r.Memory.String()
		}
		if r.Way != api.WayWhole && r.Way != api.WayPassthrough && r.Way != api.WayMIG && !r.MayBeServed() {
			text += " (" + r.Way + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
