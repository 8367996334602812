package vdc

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Power tells a machine's power from libvirt, past any BMC.
func (dc *DataCentre) Power(machine string) (api.PowerState, error) {
	state, _, err := dc.virt.state(machine)
	return state, err
}

// PressPower starts a machine as its own button would.
func (dc *DataCentre) PressPower(machine string) error { return dc.virt.on(machine) }

// CutPower takes a machine's power at once, as a cable pulled out would. Its BMC still answers.
func (dc *DataCentre) CutPower(machine string) error { return dc.virt.off(machine) }

// HangFirmware makes a machine do nothing from its next start on: it is on and never boots. One that is on is halted at once. False: it goes on.
func (dc *DataCentre) HangFirmware(machine string, hung bool) error {
	m, err := dc.find(machine)
	if err != nil {
		return err
	}
	m.hung.Store(hung)
	state, _, err := dc.virt.state(machine)
	switch {
	case err != nil || state != api.PowerOn:
		return err
	case hung:
		return dc.virt.halt(machine)
	default:
		return dc.virt.resume(machine)
	}
}

// Network is one of a data centre's.
type Network string

// The networks.
const (
	Provisioning Network = "provisioning"
	Data         Network = "data"
)

// SetNIC cuts or restores the link of a machine's NIC, now and at later starts. A machine with a cut provisioning NIC doesn't wake on LAN.
func (dc *DataCentre) SetNIC(machine string, network Network, up bool) error {
	m, err := dc.find(machine)
	if err != nil {
		return err
	}
	mac := m.MAC
	if network == Data {
		mac = m.DataMAC
	} else {
		m.unplugged.Store(!up)
	}
	return dc.virt.setLink(machine, mac, up)
}

// Port is where a machine is plugged into a network: a link, and the network namespace that it is in, for those who look at what passes. The link is there
// while the machine is on.
func (dc *DataCentre) Port(machine string, network Network) (ns netns.Handle, link string, err error) {
	m, err := dc.find(machine)
	if err != nil {
		return netns.Handle{}, "", err
	}
	if network == Data {
		return dc.inside, dataPort + m.Name, nil
	}
	return dc.inside, provisioningPort + m.Name, nil
}

// SetBMCFault puts a fault in force at a machine's BMC, Redfish and IPMI alike, or ends it with a zero fault.
func (dc *DataCentre) SetBMCFault(machine string, fault BMCFault) error {
	m, err := dc.find(machine)
	if err != nil {
		return err
	}
	if fault, err = fault.complete(); err != nil {
		return err
	}
	if m.config.HostInterface != HostNone {
		return fmt.Errorf("the BMC of %s is OpenIPMI's, which has no faults", machine)
	}
	m.fault.set(fault)
	return writeFault(dc.dir, machine, fault)
}

// BMCSessions is how many sessions a machine's BMC has open.
func (dc *DataCentre) BMCSessions(machine string) (redfish, ipmi int, err error) {
	m, err := dc.find(machine)
	if err != nil {
		return 0, 0, err
	}
	text, err := os.ReadFile(filepath.Join(dc.dir, "bmc", machine+".sessions"))
	if err != nil {
		return 0, 0, err
	}
	ipmi, err = strconv.Atoi(string(text))
	return m.redfish.openSessions(), ipmi, err
}

// SetLoss drops a share of the frames between the outside and the machines on the provisioning network, each way: 0 to 1.
func (dc *DataCentre) SetLoss(share float64) error {
	if share < 0 || share > 1 {
		return fmt.Errorf("a loss of %v: it must be from 0 to 1", share)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(lossRules(share))
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := dc.inside.Do(cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, output.String())
	}
	return nil
}

// lossRules are for what the bridge forwards from and to the cable; each direction rolls its own dice.
func lossRules(share float64) string {
	const table = "table bridge loss\ndelete table bridge loss\n"
	const parts = 10000
	lost := int(share * parts)
	if lost == 0 {
		return table
	}
	dice := ""
	if lost < parts {
		dice = fmt.Sprintf("numgen random mod %d < %d ", parts, lost)
	}
	return fmt.Sprintf(`%stable bridge loss {
	chain forward {
		type filter hook forward priority 0
		iifname %q %sdrop
		oifname %q %[3]sdrop
	}
}
`, table, provisioningUplink, dice, provisioningUplink)
}

// interfaceXML cuts a NIC out of a machine's XML and gives it a link state.
func interfaceXML(domain, mac, state string) (string, error) {
	type element struct {
		XMLName  xml.Name
		Attrs    []xml.Attr `xml:",any,attr"`
		Text     string     `xml:",chardata"`
		Elements []*element `xml:",any"`
	}
	decoder := xml.NewDecoder(strings.NewReader(domain))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("no NIC has the address %s", mac)
		}
		if err != nil {
			return "", err
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "interface" {
			continue
		}
		var nic element
		if err := decoder.DecodeElement(&nic, &start); err != nil {
			return "", err
		}
		found := false
		kept := nic.Elements[:0]
		for _, e := range nic.Elements {
			found = found || e.XMLName.Local == "mac" && len(e.Attrs) == 1 && e.Attrs[0].Value == mac
			if e.XMLName.Local != "link" {
				kept = append(kept, e)
			}
		}
		if !found {
			continue
		}
		link := &element{XMLName: xml.Name{Local: "link"}, Attrs: []xml.Attr{{Name: xml.Name{Local: "state"}, Value: state}}}
		nic.Elements = append(kept, link)
		text, err := xml.Marshal(&nic)
		return string(text), err
	}
}
