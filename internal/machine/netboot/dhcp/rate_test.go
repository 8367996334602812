package dhcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/presence"
)

// counted counts what is stored, while it is not full.
type counted struct {
	stores atomic.Int64
	full   bool
}

func (*counted) All() []api.Lease                     { return nil }
func (c *counted) Drop(context.Context, string) error { c.stores.Add(1); return nil }
func (c *counted) Keep(context.Context, api.Lease) error {
	if c.full {
		return errors.New("no space is left")
	}
	c.stores.Add(1)
	return nil
}

// storing is a server without sockets that stores its leases there.
func storing(leases netboot.Leases, at *time.Time) *Server {
	v := view()
	who := presence.New("boot0", func(netboot.Event) {})
	who.SetTable(&netboot.Table{Term: 1, Machines: v.Table.Machines, Stranger: v.Table.Stranger})
	return &Server{
		network: v.Network, presence: who, loaders: v.Loaders, leases: leases, now: func() time.Time { return *at }, log: slog.New(slog.DiscardHandler),
		pool: v.Pool, problems: newQuiet(), keeping: map[string]bool{}, stored: newSpacing(),
	}
}

func TestALeaseThatCanNotBeRenewedIsKeptUntilItsEnd(t *testing.T) {
	at, leases := now(), &counted{}
	s := storing(leases, &at)
	const mac = "52:54:00:00:00:99"
	ask := func(request *dhcpv4.DHCPv4) {
		var stored sync.WaitGroup
		s.handle(t.Context(), &stored, &net.UDPConn{}, request, ServerPort, netip.AddrPort{})
		stored.Wait()
	}
	ask(sent(mac, dhcpv4.MessageTypeDiscover, dhcpv4.WithBroadcast(true)))
	given, ok := s.pool.Of(mac, at)
	if !ok {
		t.Fatal("it has no lease")
	}
	at, leases.full = at.Add(leaseTime/2+time.Minute), true
	ask(sent(mac, dhcpv4.MessageTypeRequest, having(given.Address.String())))
	if kept, _ := s.pool.Of(mac, at); kept != given {
		t.Errorf("it has %+v, want the lease from before, %+v", kept, given)
	}
	if other, err := s.pool.Choose("52:54:00:00:00:98", given.Address, at); err != nil || other.Address == given.Address {
		t.Errorf("another one is given %s, %v", other.Address, err)
	}
	ask(sent("52:54:00:00:00:98", dhcpv4.MessageTypeDiscover, dhcpv4.WithBroadcast(true)))
	if lease, ok := s.pool.Of("52:54:00:00:00:98", at); ok {
		t.Errorf("a lease that is not stored is there: %+v", lease)
	}
}

func TestAStrangerThatTakesAndReleasesDoesNotKeepTheStoreBusy(t *testing.T) {
	at, leases := now(), &counted{}
	s := storing(leases, &at)
	const mac = "52:54:00:00:00:99"
	for range 5000 { // five seconds of a client at full speed
		var stored sync.WaitGroup
		for _, request := range []*dhcpv4.DHCPv4{
			sent(mac, dhcpv4.MessageTypeDiscover, dhcpv4.WithBroadcast(true)), sent(mac, dhcpv4.MessageTypeRelease, having("10.77.2.1")),
			sent(mac, dhcpv4.MessageTypeRelease, having("10.77.2.2")), sent(mac, dhcpv4.MessageTypeRelease, having("10.77.2.3")),
		} {
			s.handle(t.Context(), &stored, &net.UDPConn{}, request, ServerPort, netip.AddrPort{})
			stored.Wait()
		}
		at = at.Add(time.Millisecond)
	}
	if n := leases.stores.Load(); n > 5 || n < 2 {
		t.Errorf("%d writes in 5 s", n)
	}
}

func TestWhoHadSomethingStoredLongAgoIsForgotten(t *testing.T) {
	s, at := newSpacing(), now()
	for i := range 5 * maxQuiet {
		s.take(fmt.Sprint(i), at)
		at = at.Add(storeEvery / maxQuiet)
	}
	if n := len(s.last); n > 3*maxQuiet {
		t.Errorf("%d are remembered; %d had something stored in the last %s", n, maxQuiet, storeEvery)
	}
}
