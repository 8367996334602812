package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// printMachine writes what is known of a node's machine besides phase and message, which are the node's.
func (a *app) printMachine(w io.Writer, n api.Node) {
	m := n.Machine
	rec := &m.Record
	address, observed, inspectedAt, verified := "", "", a.ageOf(rec.InspectedAt), a.ageOf(rec.LastVerifiedAt)
	if m.Address.IsValid() {
		address = m.Address.String()
	}
	if !rec.PowerObservedAt.IsZero() {
		observed = ", " + a.age(rec.PowerObservedAt) + " ago"
	}
	control := strings.TrimSpace(string(m.Spec.Power.Kind) + " " + m.Spec.Power.Address + " " + m.Spec.Power.System)
	fields(w, "Machine message", unsaid(rec.Message, n.Message), "Power", string(rec.Power)+observed,
		"Power trouble", unsaid(rec.PowerMessage, n.Message), "Power control", control, "Asked for", a.requestText(m), "MACs", strings.Join(m.Spec.MACs, ", "), "Boot network", bootPortText(n),
		"Address", address, "Firmware", string(firmwareOf(m)), "Architecture", rec.Architecture, "Console", m.Spec.Console,
		"Enrolled", a.age(m.EnrolledAt)+" ago", "Looked at", ago(inspectedAt), "Last seen booting", ago(verified),
		"Given to", tenantText(rec.Tenant), "Quarantine", a.quarantineText(rec.Quarantine), "Cleaning", a.cleaningText(rec))
	a.printBMC(w, rec.BMC)
	printHardware(w, m.Hardware)
	a.printBoot(w, m)
	printCleaning(w, lastCleaning(rec))
	a.printSensors(w, m.Sensors)
	if len(rec.Health) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "HEALTH CHECK", "OK", "SECONDS", "MESSAGE")
	for _, h := range rec.Health {
		t.row(h.Check, yesNo(h.OK), fmt.Sprintf("%.2f", h.DurationSeconds), h.Message)
	}
	t.flush()
}

// tenantText says whose member has the machine, or had it last and was not cleaned up after.
func tenantText(t *api.MachineTenant) string {
	switch {
	case t == nil:
		return ""
	case t.Cluster == "":
		return "a member of a cluster, and not cleaned since"
	case t.Paused:
		return "a member of cluster " + t.Cluster + ", which is paused: the machine is reserved"
	default:
		return "a member of cluster " + t.Cluster + ", and not cleaned since"
	}
}

// unsaid is a text unless it is part of what has been said.
func unsaid(text, said string) string {
	if strings.Contains(said, text) {
		return ""
	}
	return text
}

func ago(age string) string {
	if age == "" {
		return ""
	}
	return age + " ago"
}

// requestText is the newest power request, while it is not taken up.
func (a *app) requestText(m *api.MachinePart) string {
	r := m.Request
	if r.Number == 0 || m.Record.DoneRequest >= r.Number {
		return ""
	}
	text := "power " + string(r.Action)
	if r.Environment != "" {
		text += " with " + r.Environment
	}
	return fmt.Sprintf("%s, by %s %s ago", text, r.By, a.age(r.At))
}

// firmwareOf is what is known of a machine's firmware, what it says itself first.
func firmwareOf(m *api.MachinePart) api.Firmware {
	switch {
	case m.Hardware != nil && m.Hardware.Firmware != "":
		return m.Hardware.Firmware
	case m.Record.Firmware != "":
		return m.Record.Firmware
	default:
		return m.Spec.Firmware
	}
}

func printHardware(w io.Writer, hw *api.Hardware) {
	if hw == nil {
		return
	}
	fmt.Fprintln(w)
	cpu := fmt.Sprintf("%s, %s, %s, %s", hw.CPU.Model, plural(hw.CPU.Sockets, "socket"), plural(hw.CPU.Cores, "core"), plural(hw.CPU.Threads, "thread"))
	fields(w, "Model", strings.TrimSpace(hw.Vendor+" "+hw.Product), "Serial number", hw.Serial, "Firmware version", hw.FirmwareVersion, "Watchdog", hw.Watchdog,
		"Processors", cpu, "Memory", fmt.Sprintf("%s in %s", sizeText(hw.MemoryBytes), plural(len(hw.NUMANodes), "NUMA node")))
	if len(hw.Disks)+len(hw.NICs)+len(hw.HCAs)+len(hw.GPUs) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "DEVICE", "KIND", "WHAT", "NUMA", "DETAILS")
	for _, d := range hw.Disks {
		t.row(d.Name, "disk", orElse(d.Model, d.Transport), fmt.Sprint(d.NUMANode), sizeText(d.SizeBytes))
	}
	for i := range hw.NICs {
		nic := &hw.NICs[i]
		t.row(nic.Name, "NIC", nic.Driver, fmt.Sprint(nic.NUMANode), nicText(nic))
	}
	for _, h := range hw.HCAs {
		t.row(h.Name, "HCA", h.Type, fmt.Sprint(h.NUMANode), strings.Join(slices.Concat(h.Ports, functionsText(h.TotalVFs, h.IOMMU)), "; "))
	}
	for _, g := range hw.GPUs {
		t.row(g.PCI, "GPU", g.Model, fmt.Sprint(g.NUMANode), "")
	}
	t.flush()
}

// nicText is what matters of a NIC.
func nicText(nic *api.NIC) string {
	parts := []string{nic.MAC}
	if nic.Role != "" {
		parts = append(parts, nic.Role)
	}
	switch {
	case !nic.Carrier:
		parts = append(parts, "no carrier")
	case nic.SpeedMbps > 0:
		parts = append(parts, fmt.Sprintf("%d Mb/s", nic.SpeedMbps))
	}
	parts = append(parts, functionsText(nic.TotalVFs, nic.IOMMU)...)
	if nic.LLDP != nil {
		parts = append(parts, "at port "+nic.LLDP.Port+" of "+orElse(nic.LLDP.System, nic.LLDP.Chassis))
	}
	return strings.Join(parts, ", ")
}

// functionsText is what matters of an adapter's virtual functions; nothing where it has none.
func functionsText(total int, iommu *api.IOMMU) []string {
	switch {
	case total <= 0:
		return nil
	case iommu == nil:
		return []string{plural(total, "VF"), "no IOMMU"}
	case len(iommu.Company) > 0:
		return []string{plural(total, "VF"), "IOMMU group " + iommu.Group + " shared with " + strings.Join(iommu.Company, " and ") + " (enable ACS)"}
	}
	return []string{plural(total, "VF"), "IOMMU group " + iommu.Group}
}

// printBoot writes the stages of the newest boot, and how it compares with the target.
func (a *app) printBoot(w io.Writer, m *api.MachinePart) {
	boot := m.Record.Boot
	if boot == nil {
		return
	}
	fmt.Fprintln(w)
	read := ""
	if boot.RootBytes > 0 {
		read = fmt.Sprintf("%s of %s when its agent called", sizeText(boot.ReadyBytes), sizeText(boot.RootBytes))
	}
	local := ""
	if boot.Local {
		local = "yes: nothing of it is read over the network any more"
		if boot.PeerBytes > 0 {
			local = fmt.Sprintf("yes: %s, %s of it from other machines; nothing of it is read over the network any more",
				sizeText(boot.RootBytes), sizeText(boot.PeerBytes))
		}
	}
	fields(w, "Boot", fmt.Sprintf("%s (%s), decided %s ago", boot.Environment, boot.Purpose, a.age(boot.DecidedAt)), "Digest", shorten(boot.Digest, 30),
		"Loaded before the kernel", bytesText(boot.LoaderBytes), "Root read", read, "Root local", local)
	goesOn := len(boot.Stages) < len(api.BootStages()) && (m.Record.Phase == api.MachineBooting || m.Record.Phase == api.MachineInspecting || m.Record.Phase == api.MachineCleaning)
	if len(boot.Stages) == 0 && !goesOn {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "BOOT STAGE", "SECONDS", "SINCE START")
	total := 0.0
	for _, row := range stageRows(boot) {
		total += row.seconds
		t.row(string(row.stage), fmt.Sprintf("%.1f", row.seconds), fmt.Sprintf("%.1f", total))
	}
	if goesOn {
		t.row(string(underway(boot)), "goes on", fmt.Sprintf("%.1f", a.Now().Sub(boot.DecidedAt).Seconds()))
	}
	t.flush()
	if m.TargetSeconds > 0 && len(boot.Stages) == len(api.BootStages()) {
		verdict := "within"
		if total > m.TargetSeconds {
			verdict = "over"
		}
		fmt.Fprintf(w, "\n%.1fs in all, %s the target of %.0fs\n", total, verdict, m.TargetSeconds)
	}
}

func bytesText(n int64) string {
	if n == 0 {
		return ""
	}
	return sizeText(n)
}

// nodeEvents is `node events`.
func (a *app) nodeEvents() *cobra.Command {
	cmd := &cobra.Command{
		Use: "events NAME", Short: "Show the events of a machine", Args: oneArg("node"), ValidArgsFunction: a.completeMachines(1),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		events, err := c.NodeEvents(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, events, func(w io.Writer) {
			t := newTable(w, "TIME", "REASON", "MESSAGE")
			for _, e := range events {
				t.row(e.Time.Local().Format(timeFormat), e.Reason, e.Message)
			}
			t.flush()
		})
	}
	return cmd
}
