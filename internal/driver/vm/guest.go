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
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
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
	dial := socket(d.path(id, filepath.Join(dirRun, fileGuest))).dial
	g := &guest{client: guestlink.NewClient(func(ctx context.Context) (net.Conn, error) {
		if err := d.awaitHungUp(ctx, id, guestChannel); err != nil {
			return nil, err
		}
		return dial(ctx)
	})}
	g.life, g.end = context.WithCancel(d.lifetime)
	d.guests[id] = g
	return g
}

// The channels of a machine by libvirt's names, in the order of its description.
const (
	guestChannel = "charchannel0"
	agentChannel = "charchannel1"
)

// longestPause is between two looks at a guest that does not notice, such as one that is paused.
const longestPause = time.Second

// awaitHungUp waits until the guest has closed its end of a channel. A guest that has the end of its last connection still ahead would take a new
// connection for the old one, and what is said first would be lost.
func (d *Driver) awaitHungUp(ctx context.Context, id, channel string) error {
	for pause := lookAgain; ; pause = min(2*pause, longestPause) {
		open, err := d.hasOpen(ctx, id, channel)
		if err != nil || !open {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("the guest has not noticed the end of its last connection: %w", ctx.Err())
		}
	}
}

// hasOpen reports whether a guest has its end of a channel open.
func (d *Driver) hasOpen(ctx context.Context, id, channel string) (bool, error) {
	host, done, err := d.use(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	var all []struct {
		Label string `json:"label"`
		Open  bool   `json:"frontend-open"`
	}
	if err := host.tell(ctx, id, command{Execute: "query-chardev"}, &all); err != nil {
		return false, err
	}
	for _, c := range all {
		if c.Label == channel {
			return c.Open, nil
		}
	}
	return false, fmt.Errorf("QEMU has no channel %q", channel)
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

// portMTU is the MTU of the guest's end of a port on a network.
func portMTU(p fabric.Port, n networkOf) (int, error) {
	if p.OnFunction() {
		return fabric.FunctionMTU(n), nil
	}
	return mtuOf(fabric.TAP(p).At)
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
