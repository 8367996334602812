package manifest

import "github.com/nearmetal/nearmetal/api"

// anyFabric is how a request names no technology.
const anyFabric = "any"

// interconnect checks what a group asks of its nodes' fabric, and returns it in its normal form: "any" is no technology.
func (n *normalizer) interconnect(path string, i api.Interconnect) api.Interconnect {
	at := join(path, "technology")
	switch i.Technology {
	case api.FabricEthernet, api.FabricInfiniBand:
	case anyFabric:
		i.Technology = ""
	case "":
		if n.src.Has(at) {
			n.add(at, "", "is empty; use %q, %q or %q", api.FabricInfiniBand, api.FabricEthernet, anyFabric)
		}
	default:
		hint := Closest(string(i.Technology), []string{string(api.FabricInfiniBand), string(api.FabricEthernet), anyFabric})
		if hint != "" {
			hint = "; did you mean \"" + hint + "\"?"
		}
		n.add(at, string(i.Technology), "%q is not the technology of a fabric; use %q, %q or %q%s", i.Technology, api.FabricInfiniBand, api.FabricEthernet, anyFabric, hint)
	}
	return i
}
