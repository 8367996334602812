package node

import (
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

func TestAPortThatIsGoneKeepsNoOtherFromBeingBroughtUpToDate(t *testing.T) {
	f := &Fabric{}
	for _, attribute := range []string{"mtu", "master", "state"} {
		for kind, gone := range map[plan.Kind]bool{plan.KindVeth: true, plan.KindBridge: false} {
			err := f.setLink(plan.SetLink{Link: plan.Link{Name: "nmnosuch0", Kind: kind, MTU: 1500}, Attribute: attribute})
			if (err == nil) != gone {
				t.Errorf("%s of a %s that does not exist: got %v, want an error: %v", attribute, kind, err, !gone)
			}
		}
	}
}
