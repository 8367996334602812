// Package presence knows who is on the provisioning network now: which MAC has which address, at which port it came in, and how far its
// boot has come. DHCP tells it, TFTP and HTTP ask it.
//
// It is memory only. After a restart it answers from the table and the stored leases; what more it knew (ports, stages) is heard again with
// the next packets. It never decides what a machine boots. Start with Presence.
package presence

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

// maxStrangers bounds how many unknown MACs are remembered.
const maxStrangers = 16384

// Presence is safe for concurrent use.
type Presence struct {
	sink  netboot.Sink
	table atomic.Pointer[netboot.Table]

	mu        sync.Mutex
	port      string // of machines whose port was not heard
	entries   map[string]*entry
	byAddress map[netip.Addr]string
	assigned  map[netip.Addr]string // of the table
}

// entry is what is known of one MAC.
type entry struct {
	address      netip.Addr
	port         string
	firmware     api.Firmware
	architecture string
	progress     progress
}

// progress is how far one boot has come.
type progress struct {
	boot                  *netboot.Boot
	heard                 bool // DHCP
	fetching              bool // a loader or a script
	script                bool
	kernel, initrd, agent bool
	over                  bool // kernel and initrd are handed over
	bytes                 int64
}

// Client is a machine at an address.
type Client struct {
	MAC     string
	Address netip.Addr
	// Port is where its DHCP request came in.
	Port         string
	Firmware     api.Firmware
	Architecture string
	// Name is empty for a stranger.
	Name string
	// Boot is what it shall boot now; nil: nothing. Waits is as in netboot.Machine.
	Boot  *netboot.Boot
	Waits bool
}

// New returns a presence that knows nobody. Port is that of machines that no relay tells more about: the server's interface.
func New(port string, sink netboot.Sink) *Presence {
	p := &Presence{
		sink: sink, port: port,
		entries: map[string]*entry{}, byAddress: map[netip.Addr]string{}, assigned: map[netip.Addr]string{},
	}
	p.table.Store(&netboot.Table{})
	return p
}

// Table is the newest table; its Machines may be nil, it itself is not.
func (p *Presence) Table() *netboot.Table { return p.table.Load() }

// SetTable takes a table unless a newer one was taken; it reports whether it did.
func (p *Presence) SetTable(t *netboot.Table) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.table.Load()
	if t.Term < now.Term || t.Term == now.Term && t.Revision < now.Revision {
		return false
	}
	assigned := make(map[netip.Addr]string, len(t.Machines))
	for mac, m := range t.Machines {
		// Of a machine's several NICs its first one stands for it until another one is heard.
		if m.Address.IsValid() && (assigned[m.Address] == "" || mac == m.MAC) {
			assigned[m.Address] = mac
		}
	}
	p.assigned = assigned
	p.table.Store(t)
	return true
}

// BootOf is what a MAC boots by a table, and the name of its machine; nil, "" for a stranger that is not answered.
func BootOf(t *netboot.Table, mac string) (boot *netboot.Boot, name string) {
	if m := t.Machines[mac]; m != nil {
		return m.Boot, m.Name
	}
	return t.Stranger, ""
}

// Heard is what a DHCP packet of a client told.
type Heard struct {
	MAC  string
	Port string // "" when no relay told
	// Netboot: firmware or loader, not an operating system; Loader: iPXE.
	Netboot, Loader bool
	// Discover: it begins anew.
	Discover     bool
	Firmware     api.Firmware
	Architecture string
}

// Hear takes note of a DHCP packet that was answered, and tells when a boot begins by it.
func (p *Presence) Hear(h Heard, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entry(h.MAC)
	if e == nil {
		return
	}
	if h.Port != "" {
		e.port = h.Port
	}
	if !h.Netboot {
		return
	}
	if h.Firmware != "" {
		e.firmware, e.architecture = h.Firmware, h.Architecture
	}
	boot, _ := BootOf(p.Table(), h.MAC)
	began := h.Discover && (e.progress.script || e.progress.over || !h.Loader && e.progress.fetching)
	if began || !same(e.progress.boot, boot) {
		e.progress = progress{boot: boot}
	}
	if !e.progress.heard {
		e.progress.heard = true
		p.tell(h.MAC, e, api.StageFirmware, now)
	}
}

// Bind takes note that a MAC has an address now.
func (p *Presence) Bind(mac string, address netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entry(mac)
	if e == nil {
		return
	}
	if last, ok := p.byAddress[address]; ok && last != mac {
		if other := p.entries[last]; other != nil && other.address == address {
			other.address = netip.Addr{}
		}
	}
	if e.address.IsValid() && e.address != address && p.byAddress[e.address] == mac {
		delete(p.byAddress, e.address)
	}
	e.address = address
	p.byAddress[address] = mac
}

// Holder is who was heard last to have an address.
func (p *Presence) Holder(address netip.Addr) (mac string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mac, ok = p.byAddress[address]
	return mac, ok
}

// At is the client at an address.
func (p *Presence) At(address netip.Addr) (Client, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mac := p.macAt(address)
	if mac == "" {
		return Client{}, false
	}
	return p.client(mac, address), true
}

// Of is the client of that MAC if it is at that address: by what DHCP gave, or by the table.
func (p *Presence) Of(mac string, address netip.Addr) (Client, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.Table().Machines[mac]
	e := p.entries[mac]
	if (m == nil || m.Address != address) && (e == nil || e.address != address) {
		return Client{}, false
	}
	if holder, ok := p.byAddress[address]; ok && holder != mac {
		return Client{}, false
	}
	return p.client(mac, address), true
}

// Fetching takes note that a client asked for a loader, or its script.
func (p *Presence) Fetching(address netip.Addr, script bool, now time.Time) {
	p.update(address, func(mac string, e *entry) {
		e.progress.script = e.progress.script || script
		if !e.progress.fetching {
			e.progress.fetching = true
			p.tell(mac, e, api.StageDHCP, now)
		}
	})
}

// Sent takes note of bytes sent to a client while it loads.
func (p *Presence) Sent(address netip.Addr, bytes int64) {
	p.update(address, func(_ string, e *entry) {
		if !e.progress.over {
			e.progress.bytes += bytes
		}
	})
}

// Delivered takes note that a client has got the whole of some content.
func (p *Presence) Delivered(address netip.Addr, digest image.Digest, now time.Time) {
	p.update(address, func(mac string, e *entry) {
		boot := e.progress.boot
		if boot == nil || e.progress.over {
			return
		}
		e.progress.kernel = e.progress.kernel || digest == boot.Kernel
		e.progress.initrd = e.progress.initrd || digest == boot.Initrd
		e.progress.agent = e.progress.agent || digest == boot.Agent
		if e.progress.kernel && e.progress.initrd && (e.progress.agent || boot.Agent == "") {
			e.progress.over = true
			p.tell(mac, e, api.StageLoader, now)
		}
	})
}

// Problem tells operators about a client.
func (p *Presence) Problem(mac, text string, now time.Time) {
	hw, _ := net.ParseMAC(mac)
	p.sink(netboot.Event{MAC: hw, At: now, Problem: text})
}

func (p *Presence) update(address netip.Addr, change func(string, *entry)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mac := p.macAt(address)
	if mac == "" {
		return
	}
	e := p.entry(mac)
	if e == nil {
		return
	}
	boot, _ := BootOf(p.Table(), mac)
	if !same(e.progress.boot, boot) { // what it fetches belongs to what it boots now
		e.progress = progress{boot: boot, heard: true}
	}
	change(mac, e)
}

func (p *Presence) tell(mac string, e *entry, stage api.BootStage, now time.Time) {
	hw, _ := net.ParseMAC(mac)
	event := netboot.Event{MAC: hw, Stage: stage, At: now, Firmware: e.firmware, Architecture: e.architecture, Bytes: e.progress.bytes}
	if e.progress.boot != nil {
		event.Generation = e.progress.boot.Generation
	}
	p.sink(event)
}

// entry returns what is known of a MAC, newly made if need be; nil when too many are known.
func (p *Presence) entry(mac string) *entry {
	if e := p.entries[mac]; e != nil {
		return e
	}
	t := p.Table()
	if t.Machines[mac] == nil && len(p.entries) >= maxStrangers+len(t.Machines) {
		p.forgetStranger(t)
	}
	boot, _ := BootOf(t, mac)
	e := &entry{progress: progress{boot: boot}}
	p.entries[mac] = e
	return e
}

// forgetStranger drops any one that the table does not know.
func (p *Presence) forgetStranger(t *netboot.Table) {
	for mac, e := range p.entries {
		if t.Machines[mac] == nil {
			if p.byAddress[e.address] == mac {
				delete(p.byAddress, e.address)
			}
			delete(p.entries, mac)
			return
		}
	}
}

func (p *Presence) macAt(address netip.Addr) string {
	if mac, ok := p.byAddress[address]; ok {
		return mac
	}
	return p.assigned[address]
}

func (p *Presence) client(mac string, address netip.Addr) Client {
	c := Client{MAC: mac, Address: address, Port: p.port}
	c.Boot, c.Name = BootOf(p.Table(), mac)
	if m := p.Table().Machines[mac]; m != nil {
		c.Waits = m.Waits
	}
	if e := p.entries[mac]; e != nil {
		c.Firmware, c.Architecture = e.firmware, e.architecture
		if e.port != "" {
			c.Port = e.port
		}
	}
	return c
}

// same reports whether two boots are one: the same generation of the same machine, or both strangers'.
func same(a, b *netboot.Boot) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Machine == b.Machine && a.Generation == b.Generation && a.Kernel == b.Kernel && a.Initrd == b.Initrd && a.Agent == b.Agent
}
