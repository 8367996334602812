package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// nodeSet changes what was said of a machine when it was enrolled.
func (a *app) nodeSet() *cobra.Command {
	var f enrollFlags
	cmd := &cobra.Command{
		Use: "set NAME [flags]", Short: "Change how a machine is reached", Args: oneArg("node"), ValidArgsFunction: a.completeMachines(1),
		Long: `Change how a machine's power is controlled, where its console is, its firmware, its labels, its trunk, its adapters or its
ports of switches. What is not given stays, the BMC's password
too unless --bmc-password-file is given. Name and MACs can't be changed: remove the machine and enroll it again.`,
		Example: "  nearmetal node set n1 --bmc-password-file /root/new-password\n  nearmetal node set n1 --console tcp://10.9.1.250:7003 --labels rack=r2",
	}
	flags := cmd.Flags()
	f.bmc.add(cmd)
	flags.StringVar(&f.console, "console", "", "where its serial console is: tcp://HOST:PORT or ipmi-sol; empty: nowhere")
	flags.StringVar(&f.firmware, "firmware", "", "bios or uefi; empty: detected at its next boot")
	completeFirmware(cmd)
	flags.StringToStringVar(&f.labels, "labels", nil, "labels KEY=VALUE,..., instead of those it has")
	flags.StringVar(&f.trunk, "trunk-mac", "", "MAC address of the NIC that carries VLANs of networks from its next boot on; empty: none")
	f.adapterFlags(cmd, ", instead of those it has, from its next boot on")
	passthroughFlags(cmd, &f.passthrough, &f.clearing)
	f.switchPortFlag(cmd, ", instead of those it has")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		n, err := c.Node(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if n.Machine == nil {
			return usage("node %q joined by itself and has no settings here; set the options of its agent instead", n.Name)
		}
		if cmd.Flags().NFlag() == 0 {
			return usage("say what to change: '%s'; see 'nearmetal node set --help'", cmd.UseLine())
		}
		req := api.EnrollRequest{Name: n.Name, Spec: n.Machine.Spec}
		adapters, err := f.adapters()
		if err != nil {
			return err
		}
		ports, err := parseSwitchPorts(f.switchPorts)
		if err != nil {
			return err
		}
		overlay := f.overlay(cmd, &req.Spec)
		if cmd.Flags().Changed("switch-port") {
			req.Spec.SwitchPorts, overlay["switch_ports"] = ports, ports
		}
		if cmd.Flags().Changed("fabric") {
			req.Spec.Adapters, overlay["adapters"] = adapters, adapters
		}
		if cmd.Flags().Changed("passthrough-gpus") || cmd.Flags().Changed("passthrough-clearing") {
			if !cmd.Flags().Changed("passthrough-gpus") && n.Machine.Spec.Passthrough != nil {
				f.passthrough = n.Machine.Spec.Passthrough.GPUs
			}
			if req.Spec.Passthrough, err = f.passthroughSpec(); err != nil {
				return err
			}
			overlay["passthrough"] = req.Spec.Passthrough
		}
		patch := api.MergePatch{"spec": overlay}
		// A machine that gets a BMC gets a password.
		if cmd.Flags().Changed("bmc-password-file") || f.bmc.hasBMC() && !hasBMC(n.Machine.Spec.Power.Kind) {
			if req.Password, err = a.password(&f.bmc); err != nil {
				return err
			}
			patch["password"] = req.Password
		}
		if _, err := manifest.NormalizeMachine(req, nil); err != nil {
			return machineFlagsError(err)
		}
		if _, err = c.PatchMachine(cmd.Context(), n.Name, patch); err != nil {
			return machineFlagsError(err)
		}
		_, err = fmt.Fprintf(a.Streams.Out, "node %s is changed\n", n.Name)
		return err
	}
	return cmd
}

// overlay puts the flags that were given over what a machine has, and returns the same change as a merge patch.
func (f *enrollFlags) overlay(cmd *cobra.Command, spec *api.MachineSpec) api.MergePatch {
	given := cmd.Flags().Changed
	patch, power := api.MergePatch{}, api.MergePatch{}
	if given("power") {
		spec.Power.Kind = api.PowerKind(f.bmc.kind)
		power["kind"] = f.bmc.kind
		if kind := spec.Power.Kind; kind == api.PowerWakeOnLAN || kind == api.PowerManual {
			spec.Power = api.PowerControl{Kind: kind}
			power = api.MergePatch{"kind": f.bmc.kind, "address": nil, "user": nil, "system": nil, "certificate_sha256": nil}
		}
	}
	for flag, field := range map[string]struct {
		to    *string
		value string
		of    api.MergePatch
		name  string
	}{
		"bmc": {&spec.Power.Address, f.bmc.address, power, "address"}, "bmc-user": {&spec.Power.User, f.bmc.user, power, "user"},
		"bmc-system":      {&spec.Power.System, f.bmc.system, power, "system"},
		"bmc-certificate": {&spec.Power.CertificateSHA256, f.bmc.certificate, power, "certificate_sha256"},
		"console":         {&spec.Console, f.console, patch, "console"},
		"trunk-mac":       {&spec.TrunkMAC, f.trunk, patch, "trunk_mac"},
	} {
		if given(flag) {
			*field.to, field.of[field.name] = field.value, field.value
		}
	}
	if given("firmware") {
		spec.Firmware, patch["firmware"] = api.Firmware(f.firmware), f.firmware
	}
	if given("labels") {
		labels := api.MergePatch{}
		for key := range spec.Labels {
			labels[key] = nil
		}
		for key, value := range f.labels {
			labels[key] = value
		}
		spec.Labels, patch["labels"] = f.labels, labels
	}
	if len(power) > 0 {
		patch["power"] = power
	}
	return patch
}
