package openvswitch

import (
	"context"
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/ethernettest"
)

// ovs is a switch with its executors.
type ovs struct {
	*ethernettest.OVS
	t *testing.T
	// stuck are VLANs that somebody puts on ports again and again.
	stuck map[string]string
}

func newOVS(t *testing.T) *ovs {
	t.Helper()
	return &ovs{ethernettest.NewOVS(t), t, map[string]string{}}
}

// executor is a new one, as after a restart of the server.
func (o *ovs) executor() *ethernet.Site {
	o.t.Helper()
	s, err := ethernet.New(o.Settings, map[string]ethernet.Switch{"sw": New(o.Settings.Switches[0])})
	if err != nil {
		o.t.Fatal(err)
	}
	return s
}

// fabricOf is a switch as the suite wants it.
type fabricOf struct{ *ovs }

func (f fabricOf) Executor() site.Site { return ethernettest.Named{Site: f.executor(), Switch: "sw"} }

// Settle waits for the switch, while somebody puts VLANs back.
func (f fabricOf) Settle() {
	for port, vlan := range f.stuck {
		f.VSCtl("set", "port", port, "vlan_mode=access", "tag="+vlan, "trunks=[]", "protected=false")
	}
	f.ovs.Settle()
}

func (f fabricOf) Plant(network int, at string) {
	f.VSCtl("set", "port", at, "vlan_mode=access", fmt.Sprintf("tag=%d", network), "trunks=[]", "protected=false")
}

// Blind lets the switch find no device for a port.
func (f fabricOf) Blind(at, why string) {
	kind := "system"
	if why != "" {
		kind = "nosuchkind"
	}
	f.VSCtl("set", "interface", at, "type="+kind)
	f.ovs.Settle()
}

func (f fabricOf) Stick(at string, on bool) {
	delete(f.stuck, at)
	if on {
		f.stuck[at] = f.VSCtl("get", "port", at, "tag")
	}
}

func TestSiteConformance(t *testing.T) {
	t.Parallel()
	fabrictest.RunSite(t, fabrictest.SiteHarness{
		New: func(t *testing.T) fabrictest.SiteFabric {
			o := newOVS(t)
			if err := o.executor().Apply(context.Background(), before, nil); err != nil { // the switch's own trunks go
				t.Fatal(err)
			}
			o.Settle()
			return fabricOf{o}
		},
		Access: true,
	})
}
