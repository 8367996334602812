package apiserver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestAnMTUThatSomeNodeHasNoRoomForIsRefusedAndChangesNothing(t *testing.T) {
	s := twoProjects(t)
	create := func(mtu int) error {
		_, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: fmt.Sprintf("n%d", mtu), MTU: mtu})
		return err
	}
	refused := func(mtu int, want string) {
		t.Helper()
		if err := create(mtu); !client.HasCode(err, "invalid_request") || !strings.Contains(fmt.Sprintf("%+v", err), want) {
			t.Errorf("an MTU of %d: %v; want %q", mtu, err, want)
		}
	}
	refused(575, "575 bytes is below 576, the smallest MTU of a network")
	refused(-1, "-1 bytes is below 576")
	refused(65522, "65522 bytes is above 65521, the largest MTU of a network")
	s.AddNodeUnder("n7", 9000)
	s.AddNodeUnder("n8", 1500)
	s.AddNodeUnder("n9", 0) // it says nothing
	refused(1451, "1451 bytes do not fit node n8: its underlay has an MTU of 1500 bytes, of which a tunnel takes 50; give at most 1450, or raise the MTU of that node's underlay")
	_, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: "six", IPv6: true, MTU: 1279})
	if !client.HasCode(err, "invalid_request") || !strings.Contains(fmt.Sprintf("%+v", err), "1279 bytes is below 1280, the smallest MTU of a network") {
		t.Errorf("an MTU below what IPv6 needs: %v", err)
	}
	if all, err := s.Client().Networks(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after refusals there are %+v, %v", all, err)
	}
	if err := create(1450); err != nil {
		t.Errorf("as much as the smallest underlay carries: %v", err)
	}
	if n, err := s.Client().Network(t.Context(), "project/n1450"); err != nil || n.MTU != 1450 {
		t.Errorf("the network is %+v, %v", n, err)
	}
	if node, err := s.Client().Node(t.Context(), "n8"); err != nil || node.Agent.UnderlayMTU != 1500 {
		t.Errorf("the node is %+v, %v", node, err)
	}
	s.AddNodeUnder("n6", 600)
	refused(1400, "1400 bytes do not fit node n6: its underlay has an MTU of 600 bytes, of which a tunnel takes 50; raise the MTU of that node's underlay")
}
