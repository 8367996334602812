package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// enrollFlags are the flags of `node enroll`.
type enrollFlags struct {
	bmc                         bmcFlags
	name, candidate, file       string
	macs                        []string
	console, firmware, trunk    string
	fabrics, functions          []string
	switchPorts                 []string
	passthrough                 []string
	clearing                    string
	labels                      map[string]string
	inspect, noInspect, waiting bool
	timeout                     time.Duration
}

func (a *app) nodeEnroll() *cobra.Command {
	var f enrollFlags
	cmd := &cobra.Command{
		Use: "enroll NAME --mac MAC[,MAC...] --power KIND | --candidate MAC | -f FILE", Short: "Enroll machines, to control their power and boot",
		Long: `Enroll machines: from then on, this site controls their power and boot. A machine is identified by the MAC addresses of its provisioning
NICs, its boot NIC first. It is powered on and inspected, unless --no-inspect is given. --wait waits for the inspection to end.

An unknown machine that booted on the provisioning network waits as a candidate ('nearmetal node candidates'). --candidate enrolls it with
the hardware that was found. It is inspected again, which proves that its power can be controlled and that it is healthy.

With -f, all machines in a file are enrolled. Fields at its top level are defaults for the machines below, and --inspect and --no-inspect
override the file:

  power: {kind: redfish, user: admin}
  password: secret              # of the BMCs; let nobody else read the file
  labels: {rack: r1}
  inspect: false                # do not power them on yet; by default they are inspected
  machines:
    - name: n1
      spec: {macs: ["52:54:00:12:34:56"], power: {address: "https://10.9.1.1"}}
    - name: n2
      password: another
      spec: {macs: ["52:54:00:12:34:57"], power: {kind: ipmi, address: 10.9.1.2}, console: ipmi-sol}

The BMC's password is read from a file, or asked for; the server seals it, and shows it to nobody.`,
		Example: `  nearmetal node enroll n1 --mac 52:54:00:12:34:56 --power redfish --bmc https://10.9.1.1 --bmc-user admin --wait
  nearmetal node enroll n2 --mac 52:54:00:12:34:57 --power wol --console tcp://10.9.1.250:7002
  nearmetal node enroll n5 --candidate 52:54:00:12:34:60 --power manual
  nearmetal node enroll -f rack.yaml`,
		Args: cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	f.bmc.add(cmd)
	flags.StringSliceVar(&f.macs, "mac", nil, "MAC addresses of its provisioning NICs, the one it boots from first")
	flags.StringVar(&f.candidate, "candidate", "", "enroll the candidate with this MAC")
	flags.StringVar(&f.name, "name", "", "its name, as NAME")
	flags.StringVarP(&f.file, "file", "f", "", "file that lists machines, YAML or JSON, - for standard input")
	flags.StringVar(&f.console, "console", "", "where its serial console is: tcp://HOST:PORT or ipmi-sol")
	flags.StringVar(&f.firmware, "firmware", "", "bios or uefi (default: detected at its first boot)")
	flags.StringToStringVar(&f.labels, "labels", nil, "labels KEY=VALUE,...")
	flags.StringVar(&f.trunk, "trunk-mac", "", "MAC address of the NIC that carries VLANs of networks (default: none, and no members of such networks)")
	f.adapterFlags(cmd, "")
	passthroughFlags(cmd, &f.passthrough, &f.clearing)
	f.switchPortFlag(cmd, "")
	flags.BoolVar(&f.inspect, "inspect", true, "power it on and inspect its hardware at once")
	flags.BoolVar(&f.noInspect, "no-inspect", false, "do not power it on until a user requests it")
	flags.BoolVar(&f.waiting, "wait", false, "wait until the inspection has ended")
	flags.Var(timeoutFlag(&f.timeout, 0), "timeout", "how long --wait waits (default: no limit)")
	completeFirmware(cmd)
	// Only fails for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("candidate", a.completeCandidates)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(cmd); err != nil {
			return err
		}
		machines, err := a.machines(cmd, args, &f)
		if err != nil {
			return err
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		if f.candidate != "" {
			if err := isCandidate(cmd.Context(), c, machines[0].Spec.MACs[0]); err != nil {
				return err
			}
		}
		return a.enroll(cmd.Context(), c, machines, f)
	}
	return cmd
}

// check refuses flags that contradict each other.
func (f *enrollFlags) check(cmd *cobra.Command) error {
	switch {
	case cmd.Flags().Changed("inspect") && cmd.Flags().Changed("no-inspect"):
		return usage("--inspect conflicts with --no-inspect")
	case f.waiting && !f.looksAt():
		return usage("--wait conflicts with --no-inspect")
	}
	return nil
}

func (f *enrollFlags) looksAt() bool { return f.inspect && !f.noInspect }

// isCandidate refuses a MAC that no stranger came with: it would wait for ever to be looked at.
func isCandidate(ctx context.Context, c *client.Client, mac string) error {
	all, err := c.Candidates(ctx)
	if err != nil || slices.ContainsFunc(all, func(k api.Candidate) bool { return k.MAC == mac }) {
		return err
	}
	return &exitError{ExitNotFound, fmt.Errorf("there is no candidate %s; 'nearmetal node candidates' lists them; use --mac to enroll a machine that has not booted yet", mac)}
}

// machines are those that file or flags describe, checked.
func (a *app) machines(cmd *cobra.Command, args []string, f *enrollFlags) ([]api.EnrollRequest, error) {
	name := f.name
	if len(args) == 1 {
		if name != "" && name != args[0] {
			return nil, usage("--name is %q, but %q was named too; give one name", name, args[0])
		}
		name = args[0]
	}
	if f.file != "" {
		return a.machinesOfFile(cmd, name, f)
	}
	req := api.EnrollRequest{Name: name, Inspect: f.looksAt(), Spec: api.MachineSpec{
		MACs: f.macs, Firmware: api.Firmware(f.firmware), Power: f.bmc.control(), Console: f.console, Labels: f.labels, TrunkMAC: f.trunk,
	}}
	var err error
	if req.Spec.Adapters, err = f.adapters(); err != nil {
		return nil, err
	}
	if req.Spec.Passthrough, err = f.passthroughSpec(); err != nil {
		return nil, err
	}
	if req.Spec.SwitchPorts, err = parseSwitchPorts(f.switchPorts); err != nil {
		return nil, err
	}
	if f.candidate != "" {
		req.Spec.MACs = append([]string{f.candidate}, f.macs...)
	}
	switch {
	case name == "":
		return nil, usage("name the machine: '%s'", cmd.UseLine())
	case len(req.Spec.MACs) == 0:
		return nil, usage("give the MAC address of the NIC it boots from: --mac 52:54:00:12:34:56")
	case f.bmc.kind == "":
		return nil, usage("say how its power is controlled: --power redfish, ipmi, wol or manual")
	}
	if _, err := manifest.NormalizeMachine(req, nil); err != nil { // before anybody types a password
		return nil, machineFlagsError(err)
	}
	if req.Password, err = a.password(&f.bmc); err != nil {
		return nil, err
	}
	if req, err = manifest.NormalizeMachine(req, nil); err != nil {
		return nil, machineFlagsError(err)
	}
	return []api.EnrollRequest{req}, nil
}

// withFile are the flags that go together with a file of machines; all else says the file.
var withFile = []string{"file", "inspect", "no-inspect", "wait", "timeout", "addr", "token-file"}

// machinesOfFile are those of a file. Whether they are looked at say the flags, if they say anything, for all of them.
func (a *app) machinesOfFile(cmd *cobra.Command, name string, f *enrollFlags) ([]api.EnrollRequest, error) {
	if name != "" {
		return nil, usage("-f names the machines in the file; omit %q", name)
	}
	var other error
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if !slices.Contains(withFile, flag.Name) {
			other = usage("--%s: with -f it stands in the file, for a machine or at the top for all; leave the flag away", flag.Name)
		}
	})
	if other != nil {
		return nil, other
	}
	machines, err := a.machineFile(f.file)
	if given := cmd.Flags().Changed; given("inspect") || given("no-inspect") {
		for i := range machines {
			machines[i].Inspect = f.looksAt()
		}
	}
	return machines, err
}

// machineFile reads a file that lists machines.
func (a *app) machineFile(path string) ([]api.EnrollRequest, error) {
	var data []byte
	var err error
	if path == "-" {
		path = "standard input"
		data, err = io.ReadAll(io.LimitReader(a.Streams.In, manifest.MaxMachineBytes+1))
	} else {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, usage("-f: %s", fileProblem(path, err))
	}
	machines, err := manifest.DecodeMachines(data, manifest.Detect(data))
	if err != nil {
		return nil, &exitError{ExitUsage, fmt.Errorf("%s: %w", path, err)}
	}
	return machines, nil
}

// enrollAtOnce is how many machines are taken in at once: the server writes each to its disk.
const enrollAtOnce = 16

// enroll takes all in that can be, and waits for those that are looked at.
func (a *app) enroll(ctx context.Context, c *client.Client, machines []api.EnrollRequest, f enrollFlags) error {
	errs := make([]error, len(machines))
	var group errgroup.Group
	group.SetLimit(enrollAtOnce)
	for i := range machines {
		group.Go(func() error {
			_, errs[i] = c.EnrollNode(ctx, machines[i])
			return nil
		})
	}
	_ = group.Wait() // errors are told in the order of the machines
	var waiting []string
	var failed []error
	for i, m := range machines {
		switch {
		case errs[i] != nil && f.file != "":
			failed = append(failed, fmt.Errorf("node %s: %w", m.Name, errs[i]))
		case errs[i] != nil:
			failed = append(failed, machineFlagsError(errs[i]))
		case m.Inspect && f.waiting:
			waiting = append(waiting, m.Name)
		case m.Inspect:
			fmt.Fprintf(a.Streams.Out, "node %s is enrolled, and its inspection begins\n", m.Name)
		default:
			fmt.Fprintf(a.Streams.Out, "node %s is enrolled\n", m.Name)
		}
	}
	err := a.awaitNodes(ctx, c, waiting, f.timeout, "looked at", inspected(nil), func(n api.Node) {
		fmt.Fprintf(a.Streams.Out, "node %s is enrolled: %s\n", n.Name, hardwareText(n.Machine.Hardware))
	})
	if err != nil {
		failed = append(failed, err)
	}
	return joined(failed)
}

func (a *app) nodeCandidates() *cobra.Command {
	cmd := &cobra.Command{Use: "candidates", Short: "List strangers that booted on the provisioning network", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Candidates(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			t := newTable(w, "MAC", "ADDRESS", "HARDWARE", "FIRST SEEN", "LAST SEEN", "PROBLEM")
			for _, k := range all {
				address := ""
				if k.Address.IsValid() {
					address = k.Address.String()
				}
				t.row(k.MAC, address, hardwareText(k.Hardware), a.age(k.FirstSeenAt), a.age(k.LastSeenAt), k.Problem)
			}
			t.flush()
		})
	}
	return cmd
}

// hardwareText is a machine's hardware in a few words.
func hardwareText(hw *api.Hardware) string {
	if hw == nil {
		return ""
	}
	var disks int64
	for _, d := range hw.Disks {
		disks += d.SizeBytes
	}
	parts := []string{plural(hw.CPU.Cores, "core"), sizeText(hw.MemoryBytes) + " memory"}
	for _, some := range []struct {
		n    int
		what string
	}{{len(hw.Disks), "disk"}, {len(hw.NICs), "NIC"}, {len(hw.HCAs), "HCA"}, {len(hw.GPUs), "GPU"}} {
		if some.n > 0 {
			parts = append(parts, plural(some.n, some.what))
		}
	}
	if model := strings.TrimSpace(hw.Vendor + " " + hw.Product); model != "" {
		parts = append(parts, model)
	}
	return strings.Join(parts, ", ")
}

func (a *app) nodeInspect() *cobra.Command {
	var force, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "inspect NAME", Short: "Inspect a machine's hardware", Args: oneArg("node"), ValidArgsFunction: a.completeMachines(1),
		Long: `Boot a machine into the environment "inspect", which inspects its hardware and checks its health. --wait shows the result.
Inspection is refused while members run on the machine, unless --force is given.`,
	}
	cmd.Flags().BoolVar(&force, "force", false, "proceed even if running members are lost")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the inspection has ended, and show the hardware")
	cmd.Flags().Var(timeoutFlag(&timeout, 0), "timeout", "how long --wait waits (default: no limit)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		before, err := c.Node(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		n, err := c.InspectNode(cmd.Context(), args[0], force)
		if err != nil {
			return err
		}
		if !wait {
			fmt.Fprintf(a.Streams.Out, "the inspection of node %s begins; see 'nearmetal node show %s'\n", n.Name, n.Name)
			return nil
		}
		return a.awaitNodes(cmd.Context(), c, []string{n.Name}, timeout, "looked at", inspected(lastInspected(before)), func(n api.Node) {
			fields(a.Streams.Out, "Name", n.Name, "Phase", string(n.Phase), "Message", messageText(n))
			a.printMachine(a.Streams.Out, n)
		})
	}
	return cmd
}

func lastInspected(n api.Node) *time.Time {
	if n.Machine == nil {
		return nil
	}
	return n.Machine.Record.InspectedAt
}

func (a *app) nodeRemove() *cobra.Command {
	var force, wait bool
	cmd := &cobra.Command{
		Use: "remove NAME...", Aliases: []string{"rm"}, Short: "Remove machines from the site", Args: someArgs("nodes to remove"),
		ValidArgsFunction: a.completeNodes(0),
		Long: `Remove machines from the site: each is powered off, then forgotten. --wait waits until they are gone. Removal is refused while members run on
a machine, unless --force is given. A node that was never enrolled is forgotten, as by 'node forget'.

A machine whose power nothing can read or cut (wol, manual) is asked to power off, and forgotten once it is silent or five minutes have
passed; 'node show' shows the reason for a wait. If you know that it is off, --force ends the wait, even during a removal.`,
	}
	cmd.Flags().BoolVar(&force, "force", false, "proceed even if running members are lost, and treat machines with unreadable power as off")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until they are gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var failed []error
		var waiting []string
		for _, name := range unique(args) {
			if err := c.RemoveNode(cmd.Context(), name, force); err != nil {
				failed = append(failed, err)
				continue
			}
			if wait {
				waiting = append(waiting, name)
				continue
			}
			fmt.Fprintf(a.Streams.Out, "node %s is being removed\n", name)
		}
		there := func(api.Node) (bool, error) { return false, nil }
		err = a.awaitNodes(cmd.Context(), c, waiting, 0, gone, there, func(n api.Node) { fmt.Fprintf(a.Streams.Out, "node %s is removed\n", n.Name) })
		if err != nil {
			failed = append(failed, err)
		}
		return joined(failed)
	}
	return cmd
}

func (a *app) completeCandidates(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Candidates(ctx)
		var macs []string
		for _, k := range all {
			macs = append(macs, k.MAC+"\t"+hardwareText(k.Hardware))
		}
		return macs, err
	})
}
