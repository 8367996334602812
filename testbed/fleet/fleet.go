// Package fleet is thousands of machines in one process that boot as firmware, loader and boot agent do, over the real protocols: DHCP,
// TFTP, HTTP and the boot API.
//
// It is the client's side only and knows nothing of the server but what the packets say. All machines share one interface of a network
// namespace: DHCP goes over a raw socket with each machine's own MAC, everything else over sockets bound to the address a machine got. No
// machine runs anything: kernels are fetched and dropped. Start with New, then Machine.Boot in boot.go.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Config says what fleet there is.
type Config struct {
	// Interface is where the machines are plugged in, up and without an address, in Namespace; nil: the caller's.
	Interface string
	Namespace *netns.Handle
	// Seed decides names, MACs and hardware; two fleets of one seed are the same machines.
	Seed uint64
	// Patience is how long a machine waits for one answer before it asks again (DHCP, TFTP); 0: two seconds. It asks five times.
	Patience time.Duration
	// RootBytes is how much of the root a machine reads before its agent would start; 0: none, -1: all.
	RootBytes int64
	// Report changes what machine i reports, before it does; nil: what Hardware says, all healthy.
	Report func(i int, hw *api.Hardware)
}

// Fleet is machines on one interface.
type Fleet struct {
	cfg  Config
	wire *wire

	mu        sync.Mutex
	addresses map[netip.Addr]bool // on the interface
}

// New plugs a fleet in.
func New(cfg Config) (*Fleet, error) {
	if cfg.Patience == 0 {
		cfg.Patience = 2 * time.Second
	}
	f := &Fleet{cfg: cfg, addresses: map[netip.Addr]bool{}}
	err := f.inside(func() (err error) {
		f.wire, err = openWire(cfg.Interface)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("plug a fleet into %s: %w", cfg.Interface, err)
	}
	return f, nil
}

// Close takes the fleet's addresses off the interface; boots that go on fail.
func (f *Fleet) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.wire.Close()
	for address := range f.addresses {
		err = errors.Join(err, f.inside(func() error { return f.address(address, netlink.AddrDel) }))
	}
	clear(f.addresses)
	return err
}

// Machine is machine i of the fleet, from 0; half of them have BIOS and half UEFI, and of these every other one boots over HTTP.
func (f *Fleet) Machine(i int) *Machine {
	m := &Machine{fleet: f, index: i, Hardware: Hardware(f.cfg.Seed, i), HTTPBoot: i%4 == 3}
	if f.cfg.Report != nil {
		f.cfg.Report(i, &m.Hardware)
	}
	m.MAC, _ = net.ParseMAC(m.Hardware.NICs[0].MAC) // Hardware writes none that can't be read
	return m
}

// inside does something in the fleet's namespace. Sockets stay in the namespace they were made in.
func (f *Fleet) inside(do func() error) error {
	if f.cfg.Namespace == nil {
		return do()
	}
	return f.cfg.Namespace.Do(do)
}

// join puts a machine's address on the interface, with the route to its network, once.
func (f *Fleet) join(address netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.addresses[address.Addr()] {
		return nil
	}
	err := f.inside(func() error {
		if err := f.address(address.Addr(), netlink.AddrReplace); err != nil {
			return err
		}
		link, err := netlink.LinkByName(f.cfg.Interface)
		if err != nil {
			return err
		}
		network := address.Masked()
		return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(network)})
	})
	if err != nil {
		return fmt.Errorf("take the address %s: %w", address, err)
	}
	f.addresses[address.Addr()] = true
	return nil
}

// address adds or removes one address without a network.
func (f *Fleet) address(address netip.Addr, do func(netlink.Link, *netlink.Addr) error) error {
	link, err := netlink.LinkByName(f.cfg.Interface)
	if err != nil {
		return err
	}
	return do(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(address, address.BitLen()))})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Result is how one machine's boot went.
type Result struct {
	Machine *Machine
	Stages  Stages
	Err     error
}

// Boot boots machines from to to-1 at once and returns their results in their order.
func (f *Fleet) Boot(ctx context.Context, from, to int) []Result {
	results := make([]Result, to-from)
	var all sync.WaitGroup
	for i := from; i < to; i++ {
		all.Go(func() {
			m := f.Machine(i)
			stages, err := m.Boot(ctx)
			results[i-from] = Result{m, stages, err}
		})
	}
	all.Wait()
	return results
}
