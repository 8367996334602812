package health

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// probeBytes are read at each end of a disk: a multiple of every block size in use.
const probeBytes = 64 << 10

// checkDisks reads the first and the last blocks of each disk and asks it whether it fails.
func checkDisks(ctx context.Context, m Machine) (string, error) {
	var problems []error
	known := 0
	for _, disk := range m.Hardware.Disks {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if err := readEnds(m.Disks, disk); err != nil {
			problems = append(problems, err)
			continue
		}
		wear, err := m.Disks.Wear(disk)
		switch {
		case err != nil:
			problems = append(problems, err)
		case wear.Failing != "":
			problems = append(problems, fmt.Errorf("%s (%s, serial %s): %s", disk.Name, disk.Model, disk.Serial, wear.Failing))
		case wear.Known:
			known++
		}
	}
	if len(problems) > 0 {
		return "", sentences(problems)
	}
	if len(m.Hardware.Disks) == 0 {
		return "no disks", nil
	}
	read := fmt.Sprintf("%d disks read at both ends", len(m.Hardware.Disks))
	if len(m.Hardware.Disks) == 1 {
		read = "1 disk read at both ends"
	}
	switch known {
	case 0:
		return read + "; none reports its wear", nil
	case len(m.Hardware.Disks):
		return read + ", all report good health", nil
	}
	return fmt.Sprintf("%s; %d report good health, the others report nothing", read, known), nil
}

func readEnds(disks Disks, disk api.Disk) error {
	file, err := disks.Open(disk.Name)
	if err != nil {
		return fmt.Errorf("%s can't be opened: %w", disk.Name, err)
	}
	defer file.Close()
	buffer := make([]byte, min(probeBytes, disk.SizeBytes))
	for _, offset := range []int64{0, disk.SizeBytes - int64(len(buffer))} {
		if _, err := file.Seek(offset, io.SeekStart); err != nil {
			return fmt.Errorf("%s can't be read at byte %d: %w", disk.Name, offset, err)
		}
		if _, err := io.ReadFull(file, buffer); err != nil {
			return fmt.Errorf("%s can't be read at byte %d: %w", disk.Name, offset, err)
		}
	}
	return nil
}

// checkNICs looks whether the NIC it booted from has its link and whether NICs that are alike run at the same speed: a lower one is a bad
// cable, module or switch port. A NIC without a link may just have no cable.
func checkNICs(_ context.Context, m Machine) (string, error) {
	fastest := map[string]api.NIC{} // by kind of device
	linked := 0
	for _, nic := range m.Hardware.NICs {
		if !nic.Carrier {
			if m.BootMAC != "" && strings.EqualFold(nic.MAC, m.BootMAC) {
				return "", fmt.Errorf("%s, the interface that the machine booted from, has no link", nic.Name)
			}
			continue
		}
		linked++
		if kind := kindOf(m.Hardware, nic); nic.SpeedMbps > fastest[kind].SpeedMbps {
			fastest[kind] = nic
		}
	}
	var problems []error
	for _, nic := range m.Hardware.NICs {
		if m.Tree.Text("sys/class/net/"+nic.Name+"/duplex") == "half" {
			problems = append(problems, fmt.Errorf("%s runs at half duplex; check the switch port's settings", nic.Name))
		}
		best := fastest[kindOf(m.Hardware, nic)]
		if nic.Carrier && nic.SpeedMbps > 0 && nic.SpeedMbps < best.SpeedMbps {
			problems = append(problems, fmt.Errorf("%s runs at %d Mb/s, but %s of the same model at %d Mb/s; check its cable and switch port",
				nic.Name, nic.SpeedMbps, best.Name, best.SpeedMbps))
		}
	}
	if len(problems) > 0 {
		return "", sentences(problems)
	}
	return fmt.Sprintf("%d of %d NICs have a link", linked, len(m.Hardware.NICs)), nil
}

// kindOf is the vendor and device of a NIC's PCI function.
func kindOf(hw api.Hardware, nic api.NIC) string {
	for _, f := range hw.PCI {
		if f.Address == nic.PCI {
			return f.Device
		}
	}
	return nic.Name
}

// checkHCAs looks whether each port with a cable is active. The link comes up by itself, but an InfiniBand port is active only once a
// subnet manager has configured it.
func checkHCAs(_ context.Context, m Machine) (string, error) {
	var problems []error
	active, ports := 0, 0
	for _, hca := range m.Hardware.HCAs {
		dir := "sys/class/infiniband/" + hca.Name + "/ports/"
		for _, port := range m.Tree.Names(dir) {
			ports++
			state, physical := m.Tree.Text(dir+port+"/state"), m.Tree.Text(dir+port+"/phys_state")
			switch {
			case strings.HasPrefix(state, "4:"): // IB_PORT_ACTIVE
				active++
			case !strings.HasPrefix(physical, "5:"): // not LinkUp: no cable, or nothing at its other end
			case m.Tree.Text(dir+port+"/link_layer") == "InfiniBand":
				problems = append(problems, fmt.Errorf("port %s of %s has a link and is %s: no subnet manager has configured it; is one running?",
					port, hca.Name, stateName(state)))
			default:
				problems = append(problems, fmt.Errorf("port %s of %s has a link and is %s; is its network interface up?", port, hca.Name, stateName(state)))
			}
		}
	}
	if len(problems) > 0 {
		return "", sentences(problems)
	}
	if ports == 0 {
		return "no HCAs", nil
	}
	return fmt.Sprintf("%d of %d ports active, the others have no cable", active, ports), nil
}

// stateName is a state as sysfs has it ("2: INIT") without its number.
func stateName(s string) string {
	if _, name, ok := strings.Cut(s, ": "); ok {
		return strings.ToLower(name)
	}
	return "in an unknown state"
}

// checkGPUs looks whether each GPU still answers on its bus: one that has fallen off it reads as all ones.
func checkGPUs(_ context.Context, m Machine) (string, error) {
	var problems []error
	for _, gpu := range m.Hardware.GPUs {
		head, err := m.Tree.Bytes("sys/bus/pci/devices/" + gpu.PCI + "/config")
		switch {
		case err != nil || len(head) < 4:
			problems = append(problems, fmt.Errorf("%s at %s can't be read: %w", gpu.Model, gpu.PCI, err))
		case binary.LittleEndian.Uint32(head) == 0xffffffff:
			problems = append(problems, fmt.Errorf("%s at %s has fallen off its bus; power the machine off and on, and replace it if that happens again",
				gpu.Model, gpu.PCI))
		}
	}
	if len(problems) > 0 {
		return "", sentences(problems)
	}
	if len(m.Hardware.GPUs) == 0 {
		return "no GPUs", nil
	}
	return fmt.Sprintf("%d GPUs answer", len(m.Hardware.GPUs)), nil
}

// checkPCIe looks for fatal errors, and for links of fewer lanes than both their ends have: a card that is not well seated works, at half
// its bandwidth. Speed is not compared: idle devices lower theirs.
func checkPCIe(_ context.Context, m Machine) (string, error) {
	const dir = "sys/bus/pci/devices/"
	var problems []error
	for _, f := range m.Hardware.PCI {
		at := m.Tree.Real(dir + f.Address)
		if at == "" {
			continue
		}
		for line := range strings.Lines(m.Tree.Text(at + "/aer_dev_fatal")) {
			var n int64
			if _, err := fmt.Sscanf(line, "TOTAL_ERR_FATAL %d", &n); err == nil && n > 0 {
				problems = append(problems, fmt.Errorf("%s at %s had %d fatal PCIe errors since boot", f.Name, f.Address, n))
			}
		}
		width, _ := m.Tree.Int(at + "/current_link_width")
		own, _ := m.Tree.Int(at + "/max_link_width")
		slot, ok := m.Tree.Int(at[:strings.LastIndex(at, "/")] + "/max_link_width")
		if !ok {
			slot = own
		}
		if could := min(own, slot); width > 0 && own < 255 && width < could { // 255: unknown
			problems = append(problems, fmt.Errorf("%s at %s uses %d of %d PCIe lanes; reseat the card", f.Name, f.Address, width, could))
		}
	}
	if len(problems) > 0 {
		return "", sentences(problems)
	}
	return "all links at full width, no fatal errors", nil
}

// sentences makes one error of several, in one line.
func sentences(problems []error) error {
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}
