package manifest

import (
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// technology checks what a network is carried by, and what goes with it.
func (n *normalizer) technology(req api.NetworkRequest, src *Source) {
	vlan := req.Technology == api.TechnologyVLAN
	if req.Technology != "" && req.Technology != api.TechnologyVXLAN && req.Technology != api.TechnologyInfiniBand && !vlan {
		n.add("technology", string(req.Technology), "%q is no technology of networks; write %s, %s or %s", req.Technology, api.TechnologyVXLAN, api.TechnologyVLAN,
			api.TechnologyInfiniBand)
	}
	if vlan && req.Routed {
		n.add("routed", "true", "is not possible on a VLAN, which does not tell which node's router sent a frame; omit it, or choose technology %s", api.TechnologyVXLAN)
	}
	if req.VLAN == 0 && !src.Has("vlan") {
		return
	}
	switch {
	case !vlan:
		n.add("vlan", strconv.Itoa(req.VLAN), "is for networks of technology %s only", api.TechnologyVLAN)
	case req.VLAN < api.MinVLAN || req.VLAN > api.MaxVLAN:
		n.add("vlan", strconv.Itoa(req.VLAN), "%d is no VLAN ID; those are %d to %d", req.VLAN, api.MinVLAN, api.MaxVLAN)
	}
}
