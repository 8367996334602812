package dhcp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/presence"
)

// full is a store without room.
type full struct{}

func (full) All() []api.Lease                      { return nil }
func (full) Keep(context.Context, api.Lease) error { return errors.New("the disk is full") }
func (full) Drop(context.Context, string) error    { return nil }

func TestALeaseThatIsNotStoredIsNotOffered(t *testing.T) {
	for _, tc := range []struct {
		leases netboot.Leases
		want   string
	}{{full{}, "the disk is full"}, {&counted{}, string(api.StageFirmware)}} {
		var told []string
		v := view()
		// That an answer goes out is told before it is sent.
		who := presence.New("boot0", func(e netboot.Event) { told = append(told, string(e.Stage)+e.Problem) })
		who.SetTable(&netboot.Table{Term: 1, Machines: v.Table.Machines, Stranger: v.Table.Stranger})
		s := &Server{
			network: v.Network, presence: who, loaders: v.Loaders, leases: tc.leases, now: now, log: slog.New(slog.DiscardHandler),
			pool: v.Pool, problems: newQuiet(), keeping: map[string]bool{}, stored: newSpacing(),
		}
		var stored sync.WaitGroup
		s.handle(t.Context(), &stored, &net.UDPConn{}, sent(stranger, dhcpv4.MessageTypeDiscover, uefi(), dhcpv4.WithBroadcast(true)), ServerPort, netip.AddrPort{})
		stored.Wait()
		if len(told) != 1 || !strings.Contains(told[0], tc.want) {
			t.Errorf("told %q, want one with %q", told, tc.want)
		}
	}
}

func TestAnAddressThatWasNotGivenIsRefused(t *testing.T) {
	v := view()
	v.Pool.Put(api.Lease{MAC: stranger, Address: ip("10.77.2.1"), ExpiresAt: now().Add(time.Hour)}, true, now())
	for _, tc := range []struct{ mac, wanted string }{{known, "10.77.1.2"}, {stranger, "10.77.2.2"}, {stranger, "10.77.1.1"}, {"02:00:00:00:00:98", "10.77.2.1"}} {
		d := Answer(sent(tc.mac, dhcpv4.MessageTypeRequest, requesting(tc.wanted)), ServerPort, v, now())
		if reply(t, d) != dhcpv4.MessageTypeNak || d.Address.IsValid() || d.Keep != nil {
			t.Errorf("%s asks for %s: %s", tc.mac, tc.wanted, dump(d))
		}
	}
}

func TestARefusalGoesToAll(t *testing.T) {
	// It has an address that it must not use: what is sent there may come to somebody else.
	request := sent(known, dhcpv4.MessageTypeRequest, having("10.77.1.2"))
	d := Answer(request, ServerPort, view(), now())
	if to := destination(request, d.Reply, netip.MustParseAddrPort("10.77.1.2:68")); reply(t, d) != dhcpv4.MessageTypeNak || to.addr.String() != "255.255.255.255:68" {
		t.Errorf("to %s: %s", to.addr, dump(d))
	}
}

func TestAnotherServerIsKnownByWhatItGives(t *testing.T) {
	ours, other := ip("10.77.0.1"), ip("10.77.0.53")
	offer := func(server, yours netip.Addr, kind dhcpv4.MessageType) []byte {
		r := sent(known, kind, option(54, server.AsSlice()...))
		r.OpCode, r.YourIPAddr = dhcpv4.OpcodeBootReply, yours.AsSlice()
		return r.ToBytes()
	}
	for name, tc := range map[string]struct {
		content []byte
		want    bool
	}{
		"an offer":           {offer(other, ip("10.77.9.9"), dhcpv4.MessageTypeOffer), true},
		"an acknowledgement": {offer(other, ip("10.77.9.9"), dhcpv4.MessageTypeAck), true},
		"our own":            {offer(ours, ip("10.77.9.9"), dhcpv4.MessageTypeOffer), false},
		"ProxyDHCP":          {offer(other, netip.IPv4Unspecified(), dhcpv4.MessageTypeOffer), false},
		"a refusal":          {offer(other, ip("10.77.9.9"), dhcpv4.MessageTypeNak), false},
		"a client's":         {sent(known, dhcpv4.MessageTypeDiscover).ToBytes(), false},
	} {
		server, ok := otherServer(tc.content, ip("10.77.0.77"), ours)
		if ok != tc.want || ok && server != other {
			t.Errorf("%s: %s, %v; want %v", name, server, ok, tc.want)
		}
	}
}

func TestAMachineOfAnotherArchitectureIsNotBooted(t *testing.T) {
	v := view()
	boot := *v.Table.Machines[known].Boot
	boot.Architecture = "aarch64"
	v.Table.Machines[known] = &netboot.Machine{Name: "n1", MAC: known, Address: ip("10.77.1.1"), Boot: &boot}
	d := Answer(sent(known, dhcpv4.MessageTypeDiscover, uefi()), ServerPort, v, now())
	if reply(t, d) != dhcpv4.MessageTypeOffer || d.Reply.BootFileName != "" || !strings.Contains(d.Problem, "is x86_64, but its boot image is for aarch64") {
		t.Errorf("%s", dump(d))
	}
}
