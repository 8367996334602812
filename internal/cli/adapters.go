package cli

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// adapterName is a PCI address, or a name that the kernel takes for an interface.
var adapterName = regexp.MustCompile(`^([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]|[A-Za-z0-9][A-Za-z0-9_.-]{0,14})$`)

// portGUID is the GUID of an InfiniBand port.
var portGUID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// adapterOptions are the options of the agent that concern adapters, as they are written.
type adapterOptions struct {
	fabrics, functions, virtualPorts []string
	simulated                        string
}

func (o *adapterOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&o.fabrics, "fabric", nil, "adapter whose functions or ports are given to members one by one, with the cell it is connected to: CELL=ADAPTER, by PCI address or interface, like ib1=0000:3b:00.0 (repeatable; --fabric-port is for members that get the whole machine)")
	cmd.Flags().StringArrayVar(&o.functions, "virtual-functions", nil, "number of virtual functions that an adapter gets whenever the agent starts: ADAPTER=N, named as in --fabric; may be repeated")
	cmd.Flags().StringSliceVar(&o.virtualPorts, "virtual-ports", nil, "InfiniBand cells whose subnet manager has virtualization, which functions of mlx5 adapters need")
	cmd.Flags().StringVar(&o.simulated, "simulated-adapter", "", "CELL/GUID of the port of a simulated adapter, which 'nearmetal dev --infiniband' gives its nodes")
	_ = cmd.Flags().MarkHidden("simulated-adapter")
}

// read checks the options and adds them to opts.
func (o *adapterOptions) read(opts *config.Agent) (err error) {
	if opts.Fabrics, err = fabricPorts(o.fabrics); err != nil {
		return err
	}
	if len(o.functions) > 0 {
		if opts.VirtualFunctions, err = functionCounts(o.functions); err != nil {
			return err
		}
	}
	opts.VirtualPorts = o.virtualPorts
	if o.simulated != "" {
		var found bool
		if opts.Simulated.Cell, opts.Simulated.GUID, found = strings.Cut(o.simulated, "/"); !found || !portGUID.MatchString(opts.Simulated.GUID) {
			return usage("--simulated-adapter %q: write CELL/GUID, such as ib0/0002c90000200001", o.simulated)
		}
		if len(opts.Fabrics) > 0 {
			return usage("--simulated-adapter: a node with real adapters (--fabric) has no simulated one")
		}
	}
	return checkAdapters(*opts)
}

// fabricPorts reads the values of --fabric, CELL=ADAPTER.
func fabricPorts(values []string) ([]config.FabricPort, error) {
	var all []config.FabricPort
	for _, value := range values {
		cell, adapter, found := strings.Cut(value, "=")
		if problem := manifest.LabelProblem(cell, manifest.MaxLabel); !found || problem != "" {
			return nil, usage("--fabric %q: write CELL=ADAPTER, such as ib1=0000:3b:00.0 or lan=enp59s0f0; the cell is a DNS label", value)
		}
		if !adapterName.MatchString(adapter) {
			return nil, usage("--fabric %s: %q is neither a PCI address such as 0000:3b:00.0 nor the name of an interface", value, adapter)
		}
		if slices.ContainsFunc(all, func(p config.FabricPort) bool { return p.Adapter == adapter }) {
			return nil, usage("--fabric names adapter %s twice; an adapter is connected to one cell", adapter)
		}
		all = append(all, config.FabricPort{Cell: cell, Adapter: adapter})
	}
	return all, nil
}

// functionCounts reads the values of --virtual-functions, ADAPTER=N.
func functionCounts(values []string) (map[string]int, error) {
	all := map[string]int{}
	for _, value := range values {
		adapter, count, _ := strings.Cut(value, "=")
		n, err := strconv.Atoi(count)
		if err != nil || n < 0 || n > manifest.MaxFunctions || !adapterName.MatchString(adapter) {
			return nil, usage("--virtual-functions %q: write ADAPTER=N, such as 0000:3b:00.0=7", value)
		}
		if _, twice := all[adapter]; twice {
			return nil, usage("--virtual-functions names adapter %s twice", adapter)
		}
		all[adapter] = n
	}
	return all, nil
}

// adapterFlags adds the flags of a machine's adapters. instead ends their descriptions.
func (f *enrollFlags) adapterFlags(cmd *cobra.Command, instead string) {
	cmd.Flags().StringArrayVar(&f.fabrics, "fabric", nil, "adapter that members may have, with the cell it is connected to: CELL=PCI, like lan1=0000:3b:00.0; may be repeated"+instead)
	cmd.Flags().StringArrayVar(&f.functions, "virtual-functions", nil, "number of virtual functions that an adapter of --fabric gets at each boot: PCI=N; may be repeated")
}

// adapters reads the flags of a machine's adapters. --fabric "" stands for none.
func (f *enrollFlags) adapters() ([]api.MachineAdapter, error) {
	ports, err := fabricPorts(slices.DeleteFunc(slices.Clone(f.fabrics), func(value string) bool { return value == "" }))
	if err != nil {
		return nil, err
	}
	counts, err := functionCounts(f.functions)
	if err != nil {
		return nil, err
	}
	if err := checkAdapters(config.Agent{Fabrics: ports, VirtualFunctions: counts}); err != nil {
		return nil, err
	}
	adapters := []api.MachineAdapter{} // a list in a patch, also where it is empty
	for _, p := range ports {
		adapters = append(adapters, api.MachineAdapter{PCI: p.Adapter, Cell: p.Cell, VirtualFunctions: counts[p.Adapter]})
	}
	return adapters, nil
}

// checkAdapters refuses options about adapters and cells that no --fabric names.
func checkAdapters(opts config.Agent) error {
	for adapter := range opts.VirtualFunctions {
		if !slices.ContainsFunc(opts.Fabrics, func(p config.FabricPort) bool { return p.Adapter == adapter }) {
			return usage("--virtual-functions %s: give the adapter a cell first, with --fabric CELL=%s", adapter, adapter)
		}
	}
	for _, cell := range opts.VirtualPorts {
		if !slices.ContainsFunc(opts.Fabrics, func(p config.FabricPort) bool { return p.Cell == cell }) {
			return usage("--virtual-ports %q: no --fabric names that cell", cell)
		}
	}
	return nil
}

// printAdapters writes the adapters that members of a node may have, with why parts of them are not offered.
func printAdapters(w io.Writer, n api.Node) {
	if n.Agent == nil || len(n.Agent.Adapters) == 0 {
		return
	}
	fmt.Fprintln(w)
	table := newTable(w, "ADAPTER", "CELL", "RAIL", "NUMA", "LINK", "INTERFACE", "FUNCTIONS", "PROBLEMS")
	for _, a := range n.Agent.Adapters {
		numa := ""
		if a.NUMANode >= 0 {
			numa = strconv.Itoa(a.NUMANode)
		}
		table.row(a.ID, a.Cell, strconv.Itoa(a.Rail), numa, adapterLink(a), a.Interface, fmt.Sprintf("%d of %d", a.VirtualFunctions, a.TotalVirtualFunctions), strings.Join(a.Problems, "; "))
	}
	table.flush()
}

// adapterLink is what an adapter's link is, in words.
func adapterLink(a api.Adapter) string {
	text := a.LinkLayer
	if a.RoCE {
		text += " with RoCE"
	}
	switch {
	case text == "":
		return ""
	case !a.Up:
		return text + ", down"
	case a.RateMbps > 0:
		return text + ", " + api.Rate(a.RateMbps*1_000_000).String()
	}
	return text + ", up"
}
