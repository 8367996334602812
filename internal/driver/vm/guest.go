package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// networkOf is one of a member's networks.
type networkOf = api.Network

// guest is the way to a member's guest.
type guest struct {
	client *guestlink.Client
	// newest counts setups: one that waits for a paused guest gives way to a later one. sending is held while one is sent.
	newest  int
	mu      sync.Mutex
	sending sync.Mutex
	life    context.Context
	end     context.CancelFunc
}

// guest returns the way to a member's guest, which is opened when it is used.
func (d *Driver) guest(id string) *guest {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.guests[id]; g != nil {
		return g
	}
	g := &guest{client: guestlink.NewClient(socket(d.path(id, filepath.Join(dirRun, fileGuest))).dial)}
	g.life, g.end = context.WithCancel(d.lifetime)
	d.guests[id] = g
	return g
}

// forget closes the way to a member's guest, whatever waits for it.
func (d *Driver) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.guests[id]; g != nil {
		g.close()
		delete(d.guests, id)
	}
}

func (g *guest) close() {
	g.end()
	g.client.Close()
}

// next makes a setup the newest one.
func (g *guest) next() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.newest++
	return g.newest
}

// send gives the guest a setup unless a later one is on its way.
func (g *guest) send(ctx context.Context, number int, s guestlink.Setup) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.life, cancel)()
	g.sending.Lock()
	defer g.sending.Unlock()
	g.mu.Lock()
	late := number < g.newest
	g.mu.Unlock()
	if late {
		return nil
	}
	return g.client.Setup(ctx, s)
}

// mtuOf is the MTU of a port's device, which the guest's end must have, too. The agent is in the network namespace of its node.
func mtuOf(device string) (int, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return 0, fmt.Errorf("its port's device %s: %w", device, err)
	}
	return link.MTU, nil
}

func prefixOf(address netip.Addr, network netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(address, network.Bits())
}

func ownerOf(info fs.FileInfo) (uid uint32, ok bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return stat.Uid, true
}

var errNotRunning = errors.New("the member is not running")

// hasCarrier reports a device that nobody has open.
func hasCarrier(device string) error {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	if link.Flags&net.FlagRunning == 0 {
		return errors.New("it has no carrier")
	}
	return nil
}
