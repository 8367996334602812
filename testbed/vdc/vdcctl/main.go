// Command vdcctl brings virtual data centres up and down by hand, and makes faults in them. Run it without arguments for its usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const usage = `vdcctl: virtual data centres (needs root)

  vdcctl up [FLAGS]                     start a data centre in the background, all machines off; print how to enroll them
  vdcctl serve [FLAGS]                  start a data centre in the foreground, until interrupted
  vdcctl down [-name NAME | -all]       stop a data centre, or all of them, and remove everything they made
  vdcctl list                           list the running data centres
  vdcctl show [-name NAME]              show a data centre's machines
  vdcctl power [-name NAME] MACHINE     show whether a machine is on
  vdcctl press [-name NAME] MACHINE     press a machine's power button: it goes on
  vdcctl oem [-name NAME] MACHINE TEXT...
                                        set a machine's SMBIOS OEM strings from its next start on; with nearmetal-enroll:TOKEN it enrolls itself
  vdcctl fault [-name NAME] KIND ...    inject a fault:
      power-loss MACHINE                    cut a machine's power at once
      hang MACHINE, unhang MACHINE          stop a machine's CPUs, or resume them
      unplug MACHINE [data], plug ...       take a NIC's link down, or up again
      loss SHARE                            drop this share (0 to 1) of the provisioning network's frames
      bmc MACHINE KIND                      a BMC fault: none, slow, says-on, says-off, unknown, garbage, sessions, refuse, silent

Flags of up and serve:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "vdcctl:", err)
		os.Exit(1)
	}
}

// options are the flags of all commands.
type options struct {
	set                     *flag.FlagSet
	name, bmcNetwork        string
	provisioning, bmc, data string
	bios, uefi, cpus        int
	memoryMiB               int
	diskGiB                 int
	address                 string
	kvm, all, igb, managed  bool
}

func newOptions() *options {
	o := &options{set: flag.NewFlagSet("vdcctl", flag.ContinueOnError)}
	o.set.StringVar(&o.name, "name", "dc", "`NAME` of the data centre")
	o.set.IntVar(&o.bios, "bios", 1, "machines with BIOS firmware")
	o.set.IntVar(&o.uefi, "uefi", 1, "machines with UEFI firmware")
	o.set.IntVar(&o.cpus, "cpus", 2, "CPUs of each machine")
	o.set.IntVar(&o.memoryMiB, "memory", 1536, "memory of each machine in `MiB`")
	o.set.IntVar(&o.diskGiB, "disk", 4, "disk of each machine in `GiB`, sparse")
	o.set.StringVar(&o.provisioning, "provisioning-link", "nmprov0", "`LINK` that reaches the provisioning network")
	o.set.StringVar(&o.address, "server-address", "", "`ADDRESS/BITS` that this machine gets on the provisioning network; empty: none")
	o.set.StringVar(&o.bmc, "bmc-link", "nmbmc0", "`LINK` that reaches the BMCs")
	o.set.StringVar(&o.data, "data-link", "", "`LINK` that reaches the data network; empty: none")
	o.set.StringVar(&o.bmcNetwork, "bmc-network", "10.98.0.0/24", "the BMCs' addresses, a `PREFIX`")
	o.set.BoolVar(&o.igb, "igb", false, "give each machine an adapter with SR-IOV (igb) on the data network, and an IOMMU; \"make qemu10\" gets the QEMU for it")
	o.set.BoolVar(&o.managed, "switch", false, "make the data network a managed switch, an Open vSwitch in userspace, instead of a bridge")
	o.set.BoolVar(&o.kvm, "kvm", false, "use KVM")
	o.set.BoolVar(&o.all, "all", false, "")
	return o
}

// forUp are the flags of "up" and "serve".
func (o *options) forUp() *flag.FlagSet {
	set := flag.NewFlagSet("up", flag.ContinueOnError)
	set.SetOutput(o.set.Output())
	o.set.VisitAll(func(f *flag.Flag) {
		if f.Name != "all" {
			set.Var(f.Value, f.Name, f.Usage)
		}
	})
	return set
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := newOptions()
	o.set.Usage = func() {
		fmt.Fprint(o.set.Output(), usage)
		o.forUp().PrintDefaults()
	}
	if len(args) == 0 {
		o.set.Usage()
		return errors.New("a command is missing; \"vdcctl help\" lists them")
	}
	if err := o.set.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	rest := o.set.Args()
	switch args[0] {
	case "up":
		return up(ctx, o, args[1:], out)
	case "serve":
		return serve(ctx, o, out)
	case "down":
		return down(ctx, o, out)
	case "list":
		names, err := vdc.Names()
		for _, name := range names {
			fmt.Fprintln(out, name)
		}
		return err
	case "show":
		machines, err := vdc.Inventory(o.name)
		if err != nil {
			return err
		}
		return printMachines(out, machines)
	case "power", "press":
		if len(rest) != 1 {
			return fmt.Errorf("%s needs the name of a machine", args[0])
		}
		return give(ctx, o, out, vdc.Order{Do: args[0], Machine: rest[0]})
	case "oem":
		if len(rest) < 1 {
			return errors.New("oem needs a machine and its strings")
		}
		return give(ctx, o, out, vdc.Order{Do: args[0], Machine: rest[0], OEMStrings: rest[1:]})
	case "fault":
		order, err := faultOrder(rest)
		if err != nil {
			return err
		}
		return give(ctx, o, out, order)
	case "help", "-h", "--help":
		o.set.Usage()
		return nil
	default:
		return fmt.Errorf("unknown command %q; \"vdcctl help\" lists them", args[0])
	}
}

func give(ctx context.Context, o *options, out io.Writer, order vdc.Order) error {
	answer, err := vdc.Give(ctx, o.name, order)
	if answer != "" && err == nil {
		fmt.Fprintln(out, answer)
	}
	return err
}

// config is the data centre that the flags describe.
func (o *options) config() (vdc.Config, error) {
	network, err := netip.ParsePrefix(o.bmcNetwork)
	if err != nil {
		return vdc.Config{}, err
	}
	c := vdc.Config{
		Name: o.name, ProvisioningLink: o.provisioning, BMCLink: o.bmc, DataLink: o.data, BMCNetwork: network, KVM: o.kvm, Switch: o.managed,
	}
	add := func(firmware api.Firmware, letter string, count int) {
		for i := range count {
			c.Machines = append(c.Machines, vdc.MachineConfig{
				Name: letter + strconv.Itoa(i+1), Firmware: firmware, CPUs: o.cpus, MemoryMiB: o.memoryMiB,
				DiskBytes: []int64{int64(o.diskGiB) << 30}, SRIOV: o.igb,
			})
		}
	}
	add(api.FirmwareBIOS, "bios", o.bios)
	add(api.FirmwareUEFI, "uefi", o.uefi)
	return c, nil
}

// up starts "serve" in the background and waits until it says that it is up, or ends.
func up(ctx context.Context, o *options, args []string, out io.Writer) error {
	if _, err := o.config(); err != nil {
		return err
	}
	running, err := vdc.Names()
	if err != nil {
		return err
	}
	if slices.Contains(running, o.name) {
		machines, err := vdc.Inventory(o.name)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is already up\n", o.name)
		return printMachines(out, machines)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	began := time.Now()
	log, err := os.CreateTemp("", "vdcctl-")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd := exec.Command(self, append([]string{"serve"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = log
	cmd.Dir = "/"
	said, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })()
	// It closes its standard output once it is up.
	text, err := io.ReadAll(said)
	if err != nil {
		return err
	}
	if len(text) == 0 {
		_ = cmd.Wait()
		problem, _ := os.ReadFile(log.Name())
		return errors.New(strings.TrimSpace(strings.TrimPrefix(string(problem), "vdcctl: ")))
	}
	fmt.Fprintf(out, "%s\nup in %.1f s; stop it with: vdcctl down -name %s\n", text, time.Since(began).Seconds(), o.name)
	return cmd.Process.Release()
}

func serve(ctx context.Context, o *options, out io.Writer) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	dc, err := vdc.Start(ctx, cfg)
	if err != nil {
		return err
	}
	if err := errors.Join(o.setAddress(), printMachines(out, dc.Machines())); err != nil {
		return errors.Join(err, dc.Close())
	}
	if o.address != "" {
		ethernet := ""
		if o.managed {
			ethernet = " --ethernet " + cell + "=" + vdc.SettingsFile(o.name)
		}
		fmt.Fprintf(out, "\nnearmetal dev --provision %s%s\n", o.provisioning, ethernet)
	}
	// Who started this in the background waits for the end of what it says.
	if file, ok := out.(*os.File); ok {
		file.Close()
	}
	select {
	case <-ctx.Done():
	case <-dc.Down():
	}
	return dc.Close()
}

// setAddress makes this machine the one that can serve the provisioning network. The address goes with the link.
func (o *options) setAddress() error {
	if o.address == "" {
		return nil
	}
	address, err := netlink.ParseAddr(o.address)
	if err != nil {
		return fmt.Errorf("-server-address %s: %w; write ADDRESS/BITS, like 10.99.0.1/24", o.address, err)
	}
	link, err := netlink.LinkByName(o.provisioning)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, address), netlink.LinkSetUp(link))
}

func down(ctx context.Context, o *options, out io.Writer) error {
	names := []string{o.name}
	if o.all {
		var err error
		if names, err = vdc.Names(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, name := range names {
		if err := vdc.TakeDown(ctx, name); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is down\n", name)
	}
	return nil
}

// faultOrder reads what follows "fault".
func faultOrder(args []string) (vdc.Order, error) {
	if len(args) < 2 {
		return vdc.Order{}, errors.New("a fault needs a kind and a machine, or a share; \"vdcctl help\" lists them")
	}
	order := vdc.Order{Do: args[0], Machine: args[1]}
	switch args[0] {
	case "power-loss", "hang", "unhang":
	case "unplug", "plug":
		if len(args) > 2 {
			order.Network = vdc.Network(args[2])
		}
	case "loss":
		share, err := strconv.ParseFloat(args[1], 64)
		if err != nil {
			return order, err
		}
		order.Machine, order.Share = "", share
	case "bmc":
		if len(args) != 3 {
			return order, errors.New("fault bmc needs a machine and a kind")
		}
		if args[2] != "none" {
			order.Fault.Kind = vdc.FaultKind(args[2])
		}
	default:
		return order, fmt.Errorf("unknown fault %q; \"vdcctl help\" lists them", args[0])
	}
	return order, nil
}

// printMachines is a table for people, and commands to paste.
func printMachines(out io.Writer, machines []vdc.Machine) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MACHINE\tFIRMWARE\tMAC\tREDFISH\tIPMI\tCONSOLE")
	for _, m := range machines {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, m.Firmware, m.MAC, m.RedfishURL, m.IPMI, m.Console)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(machines) > 0 {
		fmt.Fprintf(out, "\nBMC user %s, password %s\n\n", machines[0].User, machines[0].Password)
	}
	for i, m := range machines {
		fmt.Fprintln(out, enrollCommand(m, i))
	}
	return nil
}

// cell is that of the managed switch, in the commands to paste.
const cell = "lan"

// enrollCommand takes turns through the kinds of power control.
func enrollCommand(m vdc.Machine, number int) string {
	command := fmt.Sprintf("nearmetal node enroll %s --mac %s --console %s", m.Name, m.MAC, m.Console)
	if m.SwitchPort != "" {
		command += fmt.Sprintf(" --switch-port %s=%s:%s/%s", m.DataMAC, cell, vdc.SwitchName, m.SwitchPort)
	}
	credentials := fmt.Sprintf("--bmc-user %s --bmc-password-file %s", m.User, m.PasswordFile)
	switch number % 3 {
	case 0:
		return fmt.Sprintf("%s --power redfish --bmc %s %s", command, m.RedfishURL, credentials)
	case 1:
		return fmt.Sprintf("%s --power ipmi --bmc %s %s", command, m.IPMI, credentials)
	default:
		return command + " --power wol"
	}
}
