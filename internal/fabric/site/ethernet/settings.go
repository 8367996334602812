// Package ethernet makes networks on the switches of an Ethernet: each network is a VLAN, and a port is in one of them at most.
//
// Switches are reached through the contract Switch; openvswitch and linuxbridge below implement it. A port without a network hears nobody. A port from
// which a machine boots is in the provisioning network: open, where it also hears other such machines, or isolated, where it hears the server's port
// alone. The package must never touch a port that the settings don't name. Start with Parse, then Site.
package ethernet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/nearmetal/nearmetal/api"
)

// The backends.
const (
	BackendOpenVSwitch = "openvswitch"
	BackendLinuxBridge = "linuxbridge"
)

// Settings are one fabric's, as the operator writes them in YAML.
type Settings struct {
	// Backend is "openvswitch" or "linuxbridge".
	Backend string `yaml:"backend"`
	// Directory is the folder of the executor's own files, absolute; empty: one in the state directory.
	Directory string `yaml:"directory"`
	// VLANs is the range of VLAN IDs that networks of this site may have, such as 100-199.
	VLANs string `yaml:"vlans"`
	// ProvisioningVLAN is the VLAN of the machines that nobody has; 0: the fabric has no provisioning ports.
	ProvisioningVLAN int `yaml:"provisioning_vlan"`
	// Switches are those that are managed.
	Switches []SwitchSettings `yaml:"switches"`
}

// SwitchSettings are one switch's.
type SwitchSettings struct {
	// Name is how ports name the switch, as in NAME/PORT: best the system name that it tells its neighbours by LLDP.
	Name string `yaml:"name"`
	// Address is that of an Open vSwitch's database: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT.
	Address string `yaml:"address"`
	// CA, Certificate and Key are PEM files for ssl: the authority of the switch, and this server's identity.
	CA          string `yaml:"ca"`
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	// Bridge is the Open vSwitch bridge. Of Linux bridges it is how their names begin; the VLAN's number follows.
	Bridge string `yaml:"bridge"`
	// Ports are those that networks may have.
	Ports []string `yaml:"ports"`
	// ProvisioningPorts are those from which machines boot.
	ProvisioningPorts []string `yaml:"provisioning_ports"`
	// IsolatedVLAN is the VLAN of the provisioning ports of machines that a tenant has. Each switch has one of its own: a switch keeps its protected
	// ports apart, and not those of another one.
	IsolatedVLAN int `yaml:"isolated_vlan"`
	// parking is the VLAN that no other port has, for ports without a network. Only Open vSwitch needs one.
	parking int
}

// Parking is the VLAN of this switch that no frame is ever in.
func (s *SwitchSettings) Parking() int { return s.parking }

// maxSwitches bounds the switches of one fabric: each takes one VLAN ID for ports without a network.
const maxSwitches = 64

// nameForm is what names of switches, bridges and ports are made of. A slash may be part of a port's name, as in Ethernet1/2.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)

var portForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]*$`)

// maxBridgePrefix leaves room for a VLAN's four digits in the name of a link (IFNAMSIZ - 1).
const maxBridgePrefix = 15 - 4

// Parse reads settings. Dir is the folder for a fabric without a directory of its own.
func Parse(text []byte, dir string) (Settings, error) {
	var s Settings
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&s); err != nil {
		return Settings{}, errors.New(yaml.FormatError(err, false, true))
	}
	s.Directory = cmp.Or(s.Directory, dir)
	for i := range s.Switches {
		s.Switches[i].parking = api.MaxVLAN + 1 - i
	}
	if err := s.check(); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// Pool is the range of VLAN IDs.
func (s *Settings) Pool() api.VLANPool {
	pool, _ := api.ParseVLANPool(s.VLANs) // checked by Parse
	return pool
}

// Place is how the fabric knows a port of a switch.
func Place(sw, port string) string { return sw + "/" + port }

// Places are all managed ports, and whether a machine boots from each.
func (s *Settings) Places() map[string]bool {
	all := map[string]bool{}
	for _, sw := range s.Switches {
		for _, p := range sw.Ports {
			all[Place(sw.Name, p)] = false
		}
		for _, p := range sw.ProvisioningPorts {
			all[Place(sw.Name, p)] = true
		}
	}
	return all
}

func (s *Settings) check() error {
	switch {
	case s.Backend != BackendOpenVSwitch && s.Backend != BackendLinuxBridge:
		return fmt.Errorf("backend %q is unknown; write %s or %s", s.Backend, BackendOpenVSwitch, BackendLinuxBridge)
	case !filepath.IsAbs(s.Directory):
		return fmt.Errorf("directory: %q is not an absolute path", s.Directory)
	case len(s.Switches) == 0:
		return errors.New("switches: none is named; write a name, a bridge and ports of each")
	case len(s.Switches) > maxSwitches:
		return fmt.Errorf("switches: %d are more than %d in one fabric; give some of them to another cell", len(s.Switches), maxSwitches)
	}
	if _, err := api.ParseVLANPool(s.VLANs); err != nil {
		return fmt.Errorf("vlans: %w", err)
	}
	if v := s.ProvisioningVLAN; v != 0 && (v < api.MinVLAN || v > api.MaxVLAN) {
		return fmt.Errorf("provisioning_vlan: %d is no VLAN ID: they are %d to %d", v, api.MinVLAN, api.MaxVLAN)
	}
	names, bridges := map[string]bool{}, map[string]bool{}
	for i := range s.Switches {
		sw := &s.Switches[i]
		if !nameForm.MatchString(sw.Name) || names[sw.Name] {
			return fmt.Errorf("switches: name %q appears twice, or is not made of letters, digits and . _ : - alone", sw.Name)
		}
		at := sw.Address + " " + sw.Bridge
		if bridges[at] {
			return fmt.Errorf("switch %s: bridge %q is that of another switch", sw.Name, sw.Bridge)
		}
		names[sw.Name], bridges[at] = true, true
		if err := cmp.Or(s.checkAddress(sw), s.checkPorts(sw)); err != nil {
			return fmt.Errorf("switch %s: %w", sw.Name, err)
		}
	}
	return s.checkVLANs()
}

func (s *Settings) checkAddress(sw *SwitchSettings) error {
	switch {
	case !nameForm.MatchString(sw.Bridge):
		return fmt.Errorf("bridge: %q is no name of a bridge", sw.Bridge)
	case s.Backend == BackendLinuxBridge && (sw.Address != "" || sw.CA != "" || sw.Certificate != "" || sw.Key != ""):
		return fmt.Errorf("address, ca, certificate and key are for backend %s: Linux bridges are those of this machine", BackendOpenVSwitch)
	case s.Backend == BackendLinuxBridge && len(sw.Bridge) > maxBridgePrefix:
		return fmt.Errorf("bridge: %q is longer than %d characters; a VLAN's number follows in the name of each bridge", sw.Bridge, maxBridgePrefix)
	case s.Backend == BackendLinuxBridge:
		return nil
	}
	kind, rest, _ := strings.Cut(sw.Address, ":")
	encrypted := sw.CA != "" && sw.Certificate != "" && sw.Key != ""
	switch {
	case kind == "unix" && filepath.IsAbs(rest), kind == "tcp" && strings.Contains(rest, ":"), kind == "ssl" && strings.Contains(rest, ":"):
	default:
		return fmt.Errorf("address: %q is none of unix:/PATH, tcp:HOST:PORT and ssl:HOST:PORT", sw.Address)
	}
	if kind == "ssl" && !encrypted {
		return errors.New("an address of kind ssl needs ca, certificate and key: paths of PEM files")
	}
	if kind != "ssl" && (sw.CA != "" || sw.Certificate != "" || sw.Key != "") {
		return errors.New("ca, certificate and key are for an address of kind ssl:HOST:PORT")
	}
	for what, path := range map[string]string{"ca": sw.CA, "certificate": sw.Certificate, "key": sw.Key} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q is not an absolute path", what, path)
		}
	}
	return nil
}

func (s *Settings) checkPorts(sw *SwitchSettings) error {
	if len(sw.Ports)+len(sw.ProvisioningPorts) == 0 {
		return errors.New("it has neither ports nor provisioning_ports; nothing would be managed")
	}
	seen := map[string]bool{}
	for _, p := range slices.Concat(sw.Ports, sw.ProvisioningPorts) {
		if !portForm.MatchString(p) {
			return fmt.Errorf("%q is no name of a port", p)
		}
		if seen[p] {
			return fmt.Errorf("port %s is named twice; a port is for networks or for provisioning", p)
		}
		seen[p] = true
	}
	switch {
	case len(sw.ProvisioningPorts) == 0 && sw.IsolatedVLAN != 0:
		return errors.New("isolated_vlan is for a switch with provisioning_ports")
	case len(sw.ProvisioningPorts) > 0 && (s.ProvisioningVLAN == 0 || sw.IsolatedVLAN == 0):
		return errors.New("provisioning_ports need provisioning_vlan, for machines that nobody has, and the switch's isolated_vlan, for those that a tenant has")
	}
	return nil
}

// checkVLANs refuses a VLAN that would be two things.
func (s *Settings) checkVLANs() error {
	pool := s.Pool()
	taken := map[int]string{}
	take := func(vlan int, what string) error {
		switch {
		case vlan == 0:
			return nil
		case pool.Has(vlan):
			return fmt.Errorf("%s: %d is in vlans (%s), which are the tenants'", what, vlan, s.VLANs)
		case taken[vlan] != "":
			return fmt.Errorf("%s: %d is %s, too; each needs a VLAN of its own", what, vlan, taken[vlan])
		}
		taken[vlan] = what
		return nil
	}
	if err := take(s.ProvisioningVLAN, "provisioning_vlan"); err != nil {
		return err
	}
	for _, sw := range s.Switches {
		if v := sw.IsolatedVLAN; v != 0 && (v < api.MinVLAN || v > api.MaxVLAN) {
			return fmt.Errorf("switch %s: isolated_vlan: %d is no VLAN ID: they are %d to %d", sw.Name, v, api.MinVLAN, api.MaxVLAN)
		}
		if err := take(sw.IsolatedVLAN, "isolated_vlan of switch "+sw.Name); err != nil {
			return err
		}
		if s.Backend == BackendOpenVSwitch {
			if err := take(sw.parking, "the VLAN of unused ports of switch "+sw.Name); err != nil {
				return err
			}
		}
	}
	return nil
}
