// Package responder answers DHCP, DNS and ARP for the members on a node's tenant networks.
//
// Every node answers for its own members, at the address of each network's gateway, whether or not there is a way out. So there is no central
// server to lose, and no address that only one node has. Frames are read from the network's bridge and written to it by a packet socket. The
// rules of package fabric/plan bring members' questions there and keep them from other members, tunnels and the node's own stack.
//
// Package responder makes no links and no rules: when its process ends, nothing of it is left. It must never decide an address or a name.
// Start with Responder.Run. What is answered is decided purely, in dhcp.go and dns.go.
package responder

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Network is a network with local ports, and the names that the members at these ports know.
type Network struct {
	fabric.Network
	// Members are the members at the network's ports, by port ID. A port without one gets an address and no names.
	Members map[string]Member
}

// Member is the member at a port.
type Member struct {
	Name  string
	Names *Names
	// Routes are what the member reaches through the gateway of the port's network.
	Routes []netip.Prefix
}

// retryPause is how long a network waits that could not be listened on.
const retryPause = time.Second

// Responder answers on the networks of the network namespace in which it was made.
type Responder struct {
	space netns.Handle
	log   *slog.Logger
	// wanted holds the newest networks until Run takes them.
	wanted chan []Network
	// ended gets the links that stopped reading.
	ended chan *link
}

// New returns a responder for the network namespace of the calling thread. It answers nothing before Run.
func New(log *slog.Logger) (*Responder, error) {
	space, err := netns.Current()
	if err != nil {
		return nil, err
	}
	return &Responder{space: space, log: log, wanted: make(chan []Network, 1), ended: make(chan *link)}, nil
}

// Close lets go of the network namespace. Run must have ended.
func (r *Responder) Close() error { return r.space.Close() }

// Serve replaces the networks that are answered on. It does not wait. One goroutine at a time may call it.
func (r *Responder) Serve(networks []Network) {
	select {
	case <-r.wanted:
	default:
	}
	r.wanted <- networks
}

// Run answers until ctx ends.
func (r *Responder) Run(ctx context.Context) {
	links := map[string]*link{}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for len(links) > 0 { // each says so when it has ended
			l := <-r.ended
			delete(links, l.name)
		}
	}()
	var want []Network
	retry := time.NewTimer(retryPause)
	for {
		select {
		case <-ctx.Done():
			return
		case want = <-r.wanted:
		case l := <-r.ended:
			delete(links, l.name)
			retry.Reset(retryPause) // its bridge is gone, and mostly its network as well, as Serve is about to say
			continue
		case <-retry.C:
		}
		if !r.converge(ctx, links, want) {
			retry.Reset(retryPause)
		}
	}
}

// converge opens and ends links until there is one for each network. It reports whether that is so now.
func (r *Responder) converge(ctx context.Context, links map[string]*link, want []Network) bool {
	complete, wanted := true, map[string]bool{}
	for _, n := range want {
		name := fabric.BridgeName(n.Index)
		wanted[name] = true
		if err := r.keep(ctx, links, name, newSubnet(n)); err != nil {
			complete = false
			r.log.WarnContext(ctx, "DHCP and DNS are not answered on a network; trying again", "network", n.Index, "error", err)
		}
	}
	for name, l := range links {
		if !wanted[name] {
			l.end()
		}
	}
	return complete
}

// keep makes the link of a network answer with what the network is now. A link whose bridge was replaced ends, and is opened again after that.
func (r *Responder) keep(ctx context.Context, links map[string]*link, name string, s *subnet) error {
	var iface device
	err := r.space.Do(func() (err error) {
		iface, err = findDevice(name)
		return err
	})
	if err != nil {
		return fmt.Errorf("finding bridge %s: %w", name, err)
	}
	s.mtu = iface.MTU
	if l := links[name]; l != nil {
		if l.index != iface.Index {
			l.end()
		}
		l.subnet.Store(s)
		return nil
	}
	l, err := r.open(ctx, iface, s)
	if err != nil {
		return err
	}
	links[name] = l
	go func() {
		l.run()
		r.ended <- l
	}()
	return nil
}
