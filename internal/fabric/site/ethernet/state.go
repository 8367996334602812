package ethernet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

// Isolated is the number of the network of provisioning ports that reach the server alone. It is no VLAN ID: each switch has a VLAN of its own for it.
const Isolated = 4096

// State is what a port is. The zero value is a port that hears nobody.
type State struct {
	// VLAN is whose frames pass, without a tag; 0: none pass.
	VLAN int
	// Protected: no frames pass between it and other protected ports of its switch.
	Protected bool
}

// Check implements site.Checker.
func (s *Settings) Check(networks []site.Network) error {
	if err := site.Validate(networks); err != nil {
		return err
	}
	pool, places, in := s.Pool(), s.Places(), map[string]int{}
	for _, n := range networks {
		if n.Number != Isolated && !pool.Has(n.Number) {
			return &site.Refusal{Number: n.Number, Err: fmt.Errorf("VLAN %d is not in the fabric's vlans (%s)", n.Number, s.VLANs)}
		}
		for _, p := range n.Ports {
			if other, is := in[p.At]; is {
				return &site.Refusal{Err: fmt.Errorf("port %s can be in one network, and is to be in %d and %d", p.At, other, n.Number)}
			}
			in[p.At] = n.Number
			if err := s.checkPort(n.Number, p, places); err != nil {
				return &site.Refusal{Err: err}
			}
		}
	}
	return nil
}

func (s *Settings) checkPort(number int, p site.Port, places map[string]bool) error {
	provisioning, managed := places[p.At]
	switch {
	case !managed:
		return fmt.Errorf("port %s is none of the ports in the fabric's settings", p.At)
	case provisioning && number != Isolated:
		return fmt.Errorf("port %s is one of provisioning_ports, which no network can have", p.At)
	case !provisioning && number == Isolated:
		return fmt.Errorf("port %s is none of provisioning_ports, and can't be isolated as one", p.At)
	case number == Isolated && !p.Limited:
		return fmt.Errorf("port %s is to be isolated, and would be a full member", p.At)
	case number != Isolated && p.Limited && len(s.Switches) > 1:
		return fmt.Errorf("port %s can't be limited to full members: no switch keeps its ports from those of other switches", p.At)
	default:
		return nil
	}
}

// desired is what all managed ports are to be, by switch and port. Places that the settings don't name are left out.
func (s *Settings) desired(networks []site.Network) map[string]map[string]State {
	in := map[string]State{}
	for _, n := range networks {
		for _, p := range n.Ports {
			in[p.At] = State{n.Number, p.Limited}
		}
	}
	all := map[string]map[string]State{}
	for _, sw := range s.Switches {
		ports := map[string]State{}
		for _, p := range sw.Ports {
			ports[p] = in[Place(sw.Name, p)]
		}
		for _, p := range sw.ProvisioningPorts {
			ports[p] = State{VLAN: s.ProvisioningVLAN}
			if _, isolated := in[Place(sw.Name, p)]; isolated {
				ports[p] = State{sw.IsolatedVLAN, true}
			}
		}
		all[sw.Name] = ports
	}
	return all
}

// network is the network that a port was found in; false: it is in none, or open for provisioning.
func (s *Settings) network(sw *SwitchSettings, port string, is State) (number int, limited, in bool) {
	if slices.Contains(sw.ProvisioningPorts, port) {
		switch is {
		case State{VLAN: s.ProvisioningVLAN}:
			return 0, false, false
		case State{sw.IsolatedVLAN, true}:
			return Isolated, true, true
		}
	}
	return is.VLAN, is.Protected, is.VLAN != 0
}

// networksOf puts ports in order.
func networksOf(by map[int][]site.Port) []site.Network {
	var all []site.Network
	for _, number := range slices.Sorted(maps.Keys(by)) {
		slices.SortFunc(by[number], func(a, b site.Port) int { return cmp.Compare(a.At, b.At) })
		all = append(all, site.Network{Number: number, Ports: by[number]})
	}
	return all
}
