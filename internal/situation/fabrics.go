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
	for _, p := range a.Ports {
		if p.Fabric == "" {
			continue
		}
		attached, why := site.Unread, "this site has no executor for it"
		if keeper, n := f[p.Fabric], view.Network(p.Network); keeper != nil && n != nil {
			attached, why = keeper.Attached(n.FabricNumber(), p.At)
		}
		switch attached {
		case site.Absent:
			return api.MemberStarting, fmt.Sprintf("fabric %s: %s", p.Fabric, why)
		case site.Unread:
			phase, message = api.MemberUnknown, fmt.Sprintf("fabric %s: %s", p.Fabric, why)
		}
	}
	return phase, message
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
	for _, p := range a.Ports {
		if p.Fabric != fabric || passedOn(view, a, &p) {
			continue
		}
		n := view.Network(p.Network)
		if n == nil {
			return fmt.Errorf("network %s of port %s is not stored", p.Network, p.At)
		}
		if err := keeper.Clean(n.FabricNumber(), p.At); err != nil {
			return err
		}
	}
	return nil
}
