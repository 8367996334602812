package node

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// partition is a network on InfiniBand that carries IP, with one port on a function.
func partition(mode api.IPoIBMode) fabric.Network {
	n := functionNetwork()
	n.Technology, n.VLAN, n.PKey, n.Partition = api.TechnologyInfiniBand, 0, 0x112, api.Partition{IPoIB: true, IPoIBMode: mode}
	n.Ports[0].Function.GUID, n.Ports[0].Interface = "0e6d000000010002", "eth1"
	return n
}

// TestPlansOfIPoIB writes what is done for each adapter and mode, and what is done the second time. No adapter of this kind runs here: the plans are the
// proof.
func TestPlansOfIPoIB(t *testing.T) {
	var got strings.Builder
	for _, adapter := range []struct {
		name string
		// key is the partition key at index 0 of the port's table.
		key int
	}{
		{"a function of mlx4, whose only partition is at index 0", 0x8112},
		{"the same as a limited member", 0x0112},
		{"a whole port, with the default partition at index 0", 0xffff},
		{"a whole port that is a limited member of the default partition", 0x7fff},
	} {
		for _, mode := range []api.IPoIBMode{"", api.IPoIBConnected} {
			network := partition(mode)
			want, carried := ipoibOf(network, network.Ports[0])
			if !carried {
				t.Fatal("the network carries no IP")
			}
			port := ipoib{name: portName(want, ipoib{key: adapter.key}), key: adapter.key, index: 5}
			fmt.Fprintf(&got, "%s, %s\n", adapter.name, orDatagram(mode))
			fmt.Fprintf(&got, "  move the port as %s\n", port.name)
			steps, err := planIPoIB(want, []ipoib{port})
			if err != nil {
				t.Fatal(err)
			}
			seen := []ipoib{port}
			for _, s := range steps {
				fmt.Fprintf(&got, "  %s\n", s)
				made := s.ipoib
				if s.Make == "" {
					seen = nil
				}
				seen = append(seen, ipoib{name: made.name, key: made.key | fullMember, connected: made.connected, index: 6})
			}
			fmt.Fprintf(&got, "  set %s to MTU %d and address %v\n", want.name, fabric.FunctionMTU(network.Network), network.Ports[0].Address)
			if again, err := planIPoIB(want, seen); err != nil || len(again) > 0 {
				t.Errorf("%s, %s: done again, %v, %v", adapter.name, mode, again, err)
			}
		}
	}
	file := filepath.Join("testdata", "ipoib.golden")
	want, err := os.ReadFile(file)
	if err != nil || string(want) != got.String() {
		t.Errorf("%v\ngot\n%s\nwant (%s)\n%s", err, &got, file, want)
	}
}

func orDatagram(mode api.IPoIBMode) api.IPoIBMode {
	if mode == "" {
		return api.IPoIBDatagram
	}
	return mode
}

func TestOtherInterfacesInPlaceOfAMembersAreRefused(t *testing.T) {
	want := ipoib{name: "eth1", key: 0x112}
	for says, seen := range map[string][]ipoib{
		"partition key 0x8113, not 0x8112":       {{name: "eth1", key: 0x8113}},
		"neither an interface eth1 nor the port": nil,
		"nor the port eth1-ib to make it on":     {{name: "eth0-ib", key: 0xffff}},
		"has partition key 0xffff, not 0x8112":   {{name: "eth1-ib", key: 0xffff}, {name: "eth1", key: 0xffff}},
	} {
		if steps, err := planIPoIB(want, seen); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: got %v, %v, want an error with %q", seen, steps, err, says)
		}
	}
}

// recorded are messages of iproute2 6.1, from byte 16 on, where the header ends:
// strace -e trace=sendmsg -e write=3 ip link add link lo name eth1 type ipoib pkey 0x8112 mode connected umcast 0.
const (
	recordedMake = "00000000000000000000000000000000 0800050001000000 0900030065746831 00000000 2c001200 0900010069706f69 62000000 1c000200 0600010012810000 0600020001000000 0600030000000000"
	recordedMode = "00000000010000000000000000000000 24001200 0900010069706f69 62000000 14000200 0600020000000000 0600030000000000"
)

func TestMessagesForIPoIBAreThoseOfIproute2(t *testing.T) {
	on := ipoib{name: "lo", index: 1}
	for name, c := range map[string]struct {
		step     ipoibStep
		recorded string
		flags    uint16
	}{
		"ip link add link lo name eth1 type ipoib pkey 0x8112 mode connected umcast 0": {
			ipoibStep{Make: "eth1", On: on, ipoib: ipoib{name: "eth1", key: 0x112, connected: true}},
			recordedMake,
			unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_EXCL | unix.NLM_F_CREATE,
		},
		"ip link set dev lo type ipoib mode datagram umcast 0": {ipoibStep{On: on, ipoib: ipoib{name: "lo", key: 0x112}}, recordedMode, unix.NLM_F_REQUEST | unix.NLM_F_ACK},
	} {
		req := c.step.request()
		want, err := hex.DecodeString(strings.ReplaceAll(c.recorded, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := req.Serialize()[unix.SizeofNlMsghdr:]; !bytes.Equal(got, want) {
			t.Errorf("%s:\ngot  %x\nwant %x", name, got, want)
		}
		if req.Type != unix.RTM_NEWLINK || req.Flags != c.flags {
			t.Errorf("%s: type %d, flags %#x, want %#x", name, req.Type, req.Flags, c.flags)
		}
	}
}

func TestWhatTheKernelRefusesOfIPoIBIsExplained(t *testing.T) {
	for says, c := range map[string]struct {
		step ipoibStep
		err  error
	}{
		"--ipoib-mode datagram": {ipoibStep{Make: "eth1", ipoib: ipoib{connected: true}}, unix.EINVAL},
		"modprobe ib_ipoib":     {ipoibStep{Make: "eth1"}, unix.EOPNOTSUPP},
	} {
		if err := ipoibError(c.step, c.err); !errors.Is(err, fabric.ErrFunctionUnfit) || !errors.Is(err, c.err) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
	if err := ipoibError(ipoibStep{}, unix.EBUSY); errors.Is(err, fabric.ErrFunctionUnfit) {
		t.Errorf("a kernel that is busy is taken for an unfit function: %v", err)
	}
}

func TestWhatAMemberLeavesOnAPortIsRemoved(t *testing.T) {
	const lower = 5
	child := &netlink.IPoIB{LinkAttrs: netlink.LinkAttrs{Index: 9, ParentIndex: lower}}
	for name, c := range map[string]struct {
		link netlink.Link
		want bool
	}{
		"a child of the port":             {child, true},
		"the port itself":                 {&netlink.IPoIB{LinkAttrs: netlink.LinkAttrs{Index: lower, ParentIndex: lower}}, false},
		"a child of another port":         {&netlink.IPoIB{LinkAttrs: netlink.LinkAttrs{Index: 9, ParentIndex: 6}}, false},
		"a macvtap device on a function":  {&netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Index: 9, ParentIndex: lower}}}, true},
		"the operator's VLAN on the port": {&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 9, ParentIndex: lower}}, false},
	} {
		if got := onInterface(c.link, lower); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestAnInterfaceThatIsNotIPoIBIsNotMoved(t *testing.T) {
	n, played := functionNode(t)
	network := partition("")
	if err := n.fabric.Apply(t.Context(), []fabric.Network{network}); err != nil {
		t.Fatal(err)
	}
	member := newSpace(t)
	err := n.fabric.Attach(t.Context(), network.Ports[0], fabric.Place{Kind: api.PortVF, At: playedPCI, Namespace: member.Path()})
	if !errors.Is(err, fabric.ErrFunctionUnfit) || !strings.Contains(err.Error(), "modprobe ib_ipoib") {
		t.Errorf("got %v", err)
	}
	n.run(t, "ip link show "+played.netdev)
	network.Partition = api.Partition{} // the port is for RDMA alone, and moves as it is
	if err := n.fabric.Apply(t.Context(), []fabric.Network{network}); err != nil {
		t.Fatal(err)
	}
	if err := n.fabric.Attach(t.Context(), network.Ports[0], fabric.Place{Kind: api.PortVF, At: playedPCI, Namespace: member.Path()}); err != nil {
		t.Error(err)
	}
	if played.settings[network.Ports[0].Function].PKey != 0x112 {
		t.Errorf("the adapter was told %+v", played.settings)
	}
}

func TestAPortThatMovedBeforeACrashIsNotGivenToAnotherDriverAgain(t *testing.T) {
	n, played := functionNode(t)
	network := partition("")
	if err := n.fabric.Apply(t.Context(), []fabric.Network{network}); err != nil {
		t.Fatal(err)
	}
	member := newSpace(t)
	member.run(t, "ip tuntap add eth1-ib mode tap") // what plays the port can have no child
	err := n.fabric.Attach(t.Context(), network.Ports[0], fabric.Place{Kind: api.PortVF, At: playedPCI, Namespace: member.Path()})
	if err == nil || !strings.Contains(err.Error(), "neither an interface eth1 nor the port eth1-ib") || len(played.owners) > 0 {
		t.Errorf("got %v, owners %v; want that the port is found in the member", err, played.owners)
	}
}
