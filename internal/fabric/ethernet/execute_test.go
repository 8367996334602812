package ethernet

import "testing"

func TestAPortThatIsGoneKeepsNoOtherFromBeingBroughtUpToDate(t *testing.T) {
	f := &Fabric{}
	for _, attribute := range []string{"mtu", "master", "state"} {
		for kind, gone := range map[Kind]bool{KindVeth: true, KindBridge: false} {
			err := f.setLink(SetLink{Link: Link{Name: "nmnosuch0", Kind: kind, MTU: 1500}, Attribute: attribute})
			if (err == nil) != gone {
				t.Errorf("%s of a %s that does not exist: got %v, want an error: %v", attribute, kind, err, !gone)
			}
		}
	}
}
