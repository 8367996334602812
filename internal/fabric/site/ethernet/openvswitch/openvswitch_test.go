package openvswitch

import (
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/ethernettest"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// before is earlier than every epoch of the suite.
var before = lifecycle.Epoch{Term: 0, Revision: 1}

// framesOf is a switch as the suite of frames wants it.
type framesOf struct{ *ovs }

func (f framesOf) Executor() *ethernet.Site { return f.executor() }
func (f framesOf) Meddle(port string) {
	f.VSCtl("clear", "port", port, "vlan_mode", "tag", "trunks", "--", "set", "port", port, "protected=false")
}

func (f framesOf) Ready() { f.Forwarding() }

func (f framesOf) Heard(from string, tag []byte) []string {
	return f.HeardFrame(from, tag, f.Passed)
}

func TestFrames(t *testing.T) {
	ethernettest.Run(t, func(t *testing.T) ethernettest.Lab { return framesOf{newOVS(t)} })
}
