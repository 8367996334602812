package fabric

import (
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// ErrUnshaped reports that the port has a quality of service and the node's kernel can't provide it.
var ErrUnshaped = errors.New("this node can't provide rates and DSCP, so it refuses ports that have some")

// MaxShapedPorts is how many ports with rates a node can have.
const MaxShapedPorts = 4095

// validateQuality checks the quality of service of all ports.
func validateQuality(networks []Network) error {
	shaped := 0
	for _, n := range networks {
		for _, p := range n.Ports {
			if err := ValidateQuality(p.Quality); err != nil {
				return fmt.Errorf("network %d: port %s: %w", n.Index, p.ID, err)
			}
			if p.Shaped() {
				shaped++
			}
		}
	}
	if shaped > MaxShapedPorts {
		return fmt.Errorf("%d ports have a quality of service; the limit is %d", shaped, MaxShapedPorts)
	}
	return nil
}

// ValidateQuality reports what is wrong with a quality of service.
func ValidateQuality(q api.Quality) error {
	for _, r := range []api.Rate{q.MinRate, q.MaxRate} {
		if r != 0 && (r < api.MinRate || r > api.MaxRate) {
			return fmt.Errorf("rate %v is out of range; rates are from %v to %v", r, api.MinRate, api.MaxRate)
		}
	}
	if q.MaxRate != 0 && q.MinRate > q.MaxRate {
		return fmt.Errorf("minimum rate %v is above maximum rate %v", q.MinRate, q.MaxRate)
	}
	if q.DSCP != "" {
		if d, err := api.ParseDSCP(string(q.DSCP)); err != nil || d != q.DSCP {
			return fmt.Errorf("%q is not a DSCP as a number from 0 to 63", q.DSCP)
		}
	}
	return nil
}
