package situation

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Fabrics are the fabrics that the site has an executor for, by cell.
type Fabrics map[string]*site.Keeper

// Names are the cells, in order.
func (f Fabrics) Names() []string { return slices.Sorted(maps.Keys(f)) }

// Limit takes what the node of a member says of it, and makes a ready one no more than its ports are: it is starting while one is not in its
// network. One whose place can't be read is not known to be either.
func (f Fabrics) Limit(view *state.View, a *api.Assignment, phase api.MemberPhase, message string) (api.MemberPhase, string) {
	if phase != api.MemberReady {
		return phase, message
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

// unclean returns why it is not proved that a fabric has none of an assignment's ports in their networks, or nil when it is.
func (f Fabrics) unclean(view *state.View, a *api.Assignment, fabric string) error {
	keeper := f[fabric]
	if keeper == nil {
		return fmt.Errorf("this site has no executor for fabric %s", fabric)
	}
	for _, p := range a.Ports {
		if p.Fabric != fabric {
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
