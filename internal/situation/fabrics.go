package situation

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Fabrics are the fabrics that the site has an executor for, by cell.
type Fabrics map[string]*site.Keeper

// Names are the cells, in order.
func (f Fabrics) Names() []string { return slices.Sorted(maps.Keys(f)) }

// Limit takes what the node of a member says of it, and makes a ready one no more than its ports are: it is starting while one is not in its
// network, or while the port that its machine booted from reaches more than the server. One whose place can't be read is not known to be either.
func (f Fabrics) Limit(view *state.View, a *api.Assignment, phase api.MemberPhase, message string) (api.MemberPhase, string) {
	if phase != api.MemberReady {
		return phase, message
	}
	for _, p := range f.bootPorts(view, a) {
		switch attached, why := f[p.Fabric].Attached(f[p.Fabric].Switching().Isolated(), p.At); attached {
		case site.Absent:
			return api.MemberStarting, fmt.Sprintf("fabric %s: provisioning port %s is not isolated yet: %s", p.Fabric, p.At, why)
		case site.Unread:
			phase, message = api.MemberUnknown, fmt.Sprintf("fabric %s: %s", p.Fabric, why)
		}
	}
	for _, p := range placesOf(view, a) {
		attached, why := site.Unread, "this site has no executor for it"
		if keeper := f[p.fabric]; keeper != nil && p.known {
			attached, why = keeper.Attached(p.number, p.at)
		}
		switch attached {
		case site.Absent:
			return api.MemberStarting, fmt.Sprintf("fabric %s: %s", p.fabric, why)
		case site.Unread:
			phase, message = api.MemberUnknown, fmt.Sprintf("fabric %s: %s", p.fabric, why)
		}
	}
	return phase, message
}

// fabricPlace is a port of an assignment on a fabric, in a network that the fabric knows by a number.
type fabricPlace struct {
	fabric, at, network string
	number              int
	// known: the network is stored.
	known bool
	// port is nil for a port of an adapter in a whole machine.
	port *api.PortClaim
}

// placesOf are the ports of an assignment on fabrics.
func placesOf(view *state.View, a *api.Assignment) []fabricPlace {
	var all []fabricPlace
	for i := range a.Ports {
		if p := &a.Ports[i]; p.Fabric != "" {
			n := view.Network(p.Network)
			place := fabricPlace{fabric: p.Fabric, at: p.At, network: p.Network, known: n != nil, port: p}
			if n != nil {
				place.number = n.FabricNumber()
			}
			all = append(all, place)
		}
	}
	for _, h := range a.HCAs {
		n := view.Network(h.Network)
		place := fabricPlace{fabric: h.Fabric, at: h.At, network: h.Network, known: n != nil}
		if n != nil {
			place.number = n.Index
		}
		all = append(all, place)
	}
	return all
}

// bootPorts are the provisioning ports of a whole node that a member has.
func (f Fabrics) bootPorts(view *state.View, a *api.Assignment) []api.NodePort {
	n := view.Node(a.Node)
	if !a.Whole || n == nil {
		return nil
	}
	return ProvisioningPorts(view, n, offer.Site{Switches: f.Switches()})
}

// passedOn reports whether the place of a port is held by the same member in another assignment, which it goes on as or comes back from. The place stays in
// the network for that one, whose end proves it clean.
func passedOn(view *state.View, a *api.Assignment, p *api.PortClaim) bool {
	c := view.ClusterByUID(a.ClusterUID)
	if c == nil {
		return false
	}
	for other := range c.Held() {
		if other.ID == a.ID || other.Member != a.Member {
			continue
		}
		for _, q := range other.Ports {
			if q.Network == p.Network && q.Fabric == p.Fabric && q.At == p.At {
				return true
			}
		}
	}
	return false
}

// unclean returns why it is not proved that a fabric has none of an assignment's ports in their networks, or nil when it is.
func (f Fabrics) unclean(view *state.View, a *api.Assignment, fabric string) error {
	keeper := f[fabric]
	if keeper == nil {
		return fmt.Errorf("this site has no executor for fabric %s", fabric)
	}
	for _, p := range placesOf(view, a) {
		if p.fabric != fabric || p.port != nil && passedOn(view, a, p.port) {
			continue
		}
		if !p.known {
			return fmt.Errorf("network %s of port %s is not stored", p.network, p.at)
		}
		if err := keeper.Clean(p.number, p.at); err != nil {
			return err
		}
	}
	return nil
}
