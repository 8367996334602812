// Package shortcut hands frames from one member to another of the same network, past the bridges between them.
//
// A kernel program (eBPF) at the node's end of each port looks at every frame that the member sends. The program acts on frames that the
// rules of the bridge would pass. If the destination is another port on this node, the frame goes straight into that member's network
// namespace. If the destination is known to be on another node, the frame goes straight over the underlay, or else into the network's
// tunnel. Two more programs, at the underlay and at the end of tunnels, hand the frame to the member there. All other frames pass
// through the bridge and its rules, as if there were no program. So the programs must never pass a frame that the rules refuse: they
// repeat the rules' pins and peers, and never extend them.
//
// The package must never decide which links have a shortcut: the plan decides that. Start with Table. The programs are in program.go,
// tunnel_program.go and underlay_program.go.
package shortcut

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pins are what a port's frames must bear, and the network that they stay in.
type Pins struct {
	Network int
	Address netip.Addr
	MAC     string
}

// State is the kernel's state of a port's shortcut.
type State struct {
	Pins Pins
	// Broken: the shortcut is not whole, or belongs to another process; its pins are not known.
	Broken bool
}

// Table holds the shortcuts of a node. All its methods belong in the node's network namespace; several goroutines may call them at once.
//
// The programs stay with their links, and the maps with the programs, so shortcuts outlive the process that opened them. Another
// process neither reads nor extends them: it reports them as broken, and opens its own.
type Table struct {
	maps
	fromPorts, fromTunnels, fromUnderlay loaded

	mu      sync.Mutex
	open    map[string]entry       // by link name
	tunnels map[string]tunnelEntry // by link name
}

// loaded is a program in the kernel, and the kernel's ID of it, 0 for none.
type loaded struct {
	program *ebpf.Program
	id      int
}

// maps are what the programs look into. The kernel removes the entry of a link with the link from those that lead to links (DEVMAP_HASH), so
// that no frame follows an index to a link that has it later.
type maps struct {
	ports   *ebpf.Map // the pins of each port by link index
	places  *ebpf.Map // the link index of each port by address
	mouths  *ebpf.Map // the network of each tunnel by link index
	exits   *ebpf.Map // the link index of each tunnel by network
	remotes *ebpf.Map // the network, the MAC address and the peer of each member on another node by address
	// peers holds what is agreed with each peer of a network, by address and network, and underlays the link index by this node's address.
	peers, underlays *ebpf.Map
}

// entry is what this process wrote about a link.
type entry struct {
	index uint32
	pins  Pins
}

// These bound the maps; a bridge takes 1,024 ports. A node that needs more has no shortcuts.
const (
	maxPorts   = 1 << 14
	maxPeers   = 1 << 16
	maxRemotes = 1 << 18
)

// portValue is a value of the map ports; program.go reads its fields.
type portValue struct {
	Address [4]byte
	Network uint32
	MAC     [6]byte
	_       [2]byte
}

// New returns a table without a program: it reports the shortcuts of other processes, and shuts them.
func New() *Table { return &Table{open: map[string]entry{}, tunnels: map[string]tunnelEntry{}} }

// Load loads the programs, which Open and OpenTunnel need; again is no error. It fails on a kernel that lacks what they need: the helper
// bpf_redirect_peer came with Linux 5.10.
func (t *Table) Load() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fromPorts.program != nil {
		return nil
	}
	made, err := newMaps()
	if err != nil {
		return err
	}
	fromPorts, err := load("nm_shortcut", portProgram(made))
	if err != nil {
		return errors.Join(err, made.close())
	}
	fromTunnels, err := load("nm_tunnel", tunnelProgram(made))
	if err != nil {
		return errors.Join(err, fromPorts.program.Close(), made.close())
	}
	fromUnderlay, err := load("nm_underlay", underlayProgram(made))
	if err != nil {
		return errors.Join(err, fromTunnels.program.Close(), fromPorts.program.Close(), made.close())
	}
	t.maps, t.fromPorts, t.fromTunnels, t.fromUnderlay = made, fromPorts, fromTunnels, fromUnderlay
	return nil
}

func newMaps() (maps, error) {
	var m maps
	for _, table := range []struct {
		at   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&m.ports, ebpf.MapSpec{Name: "nm_ports", Type: ebpf.Hash, ValueSize: 16, MaxEntries: maxPorts, Flags: unix.BPF_F_NO_PREALLOC}},
		{&m.places, ebpf.MapSpec{Name: "nm_places", Type: ebpf.DevMapHash, ValueSize: 4, MaxEntries: maxPorts}},
		{&m.mouths, ebpf.MapSpec{Name: "nm_mouths", Type: ebpf.Hash, ValueSize: 8, MaxEntries: maxPorts, Flags: unix.BPF_F_NO_PREALLOC}},
		{&m.exits, ebpf.MapSpec{Name: "nm_exits", Type: ebpf.DevMapHash, ValueSize: 4, MaxEntries: maxPorts}},
		{&m.remotes, ebpf.MapSpec{Name: "nm_remotes", Type: ebpf.Hash, ValueSize: 20, MaxEntries: maxRemotes, Flags: unix.BPF_F_NO_PREALLOC}},
		{&m.peers, ebpf.MapSpec{Name: "nm_peers", Type: ebpf.Hash, KeySize: 8, ValueSize: 12, MaxEntries: maxPeers, Flags: unix.BPF_F_NO_PREALLOC}},
		{&m.underlays, ebpf.MapSpec{Name: "nm_underlays", Type: ebpf.DevMapHash, ValueSize: 4, MaxEntries: 16}},
	} {
		table.spec.KeySize = max(table.spec.KeySize, 4)
		made, err := ebpf.NewMap(&table.spec)
		if err != nil {
			return maps{}, errors.Join(fmt.Errorf("making the map %s: %w", table.spec.Name, err), m.close())
		}
		*table.at = made
	}
	return m, nil
}

// close closes the maps; nil ones close without an error.
func (m maps) close() error {
	return errors.Join(m.ports.Close(), m.places.Close(), m.mouths.Close(), m.exits.Close(), m.remotes.Close(),
		m.peers.Close(), m.underlays.Close())
}

func load(name string, instructions asm.Instructions) (loaded, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, Instructions: instructions, License: "Apache-2.0"})
	if err != nil {
		return loaded{}, fmt.Errorf("loading the program %s: %w", name, err)
	}
	info, err := program.Info()
	if err != nil {
		return loaded{}, errors.Join(fmt.Errorf("reading the ID of the program %s: %w", name, err), program.Close())
	}
	id, _ := info.ID()
	return loaded{program, int(id)}, nil
}

// Close lets go of the programs and their maps; the shortcuts that are open stay.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.fromPorts.program.Close(), t.fromTunnels.program.Close(), t.fromUnderlay.program.Close(), t.maps.close()) // nil ones close without an error
}

// Open opens the shortcut of the port with this link, which is on its bridge and leads into another network namespace. The rules that pin
// the port must be in force, and the program loaded.
func (t *Table) Open(name string, pins Pins) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	value, err := pins.value()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.forget(name); err != nil {
		return err
	}
	index := uint32(link.Attrs().Index)
	if err := t.ports.Put(index, value); err != nil {
		return fmt.Errorf("adding the pins of %s: %w", name, err)
	}
	t.open[name] = entry{index: index, pins: pins}
	if err := learn(link, value.MAC[:]); err != nil {
		return err
	}
	if err := attach(link, t.fromPorts.program); err != nil {
		return err
	}
	if err := t.places.Put(value.Address, index); err != nil {
		return fmt.Errorf("adding the place of %s: %w", name, err)
	}
	return nil
}

// Shut ends the shortcut of a link, a port's or a tunnel's: its frames and those to it take the way through the bridge. Shutting what is not open is no error.
func (t *Table) Shut(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, open := t.open[name]; open {
		return t.forget(name) // without its pins the program passes nothing; it goes with the link
	}
	if _, open := t.tunnels[name]; open {
		return t.forgetTunnel(name)
	}
	return detach(name)
}

// ShutAll shuts what this process opened.
func (t *Table) ShutAll() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for name := range t.open {
		errs = append(errs, t.forget(name))
	}
	for name := range t.tunnels {
		errs = append(errs, t.forgetTunnel(name))
	}
	return errors.Join(errs...)
}

// forget removes the entries of a link, the place first, so that nothing leads to a link without pins.
func (t *Table) forget(name string) error {
	e, open := t.open[name]
	if !open {
		return nil
	}
	address := e.pins.Address.As4()
	var index uint32
	err := t.places.Lookup(address, &index)
	if err == nil && index == e.index {
		err = t.places.Delete(address)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing the place of %s: %w", name, err)
	}
	if err := t.ports.Delete(e.index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing the pins of %s: %w", name, err)
	}
	delete(t.open, name)
	return nil
}

// Read returns the shortcuts of these links, given as index by name, and of links that are gone but were not shut, by name.
func (t *Table) Read(links map[string]int) (map[string]State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	states := map[string]State{}
	for name, e := range t.open {
		states[name] = State{Pins: e.pins, Broken: !t.whole(e) || links[name] != int(e.index)}
	}
	for name, index := range links {
		id, err := attached(index)
		if err != nil {
			return nil, fmt.Errorf("reading the program of %s: %w", name, err)
		}
		if _, open := states[name]; id != t.fromPorts.id && (open || id != 0) {
			states[name] = State{Broken: true}
		}
	}
	return states, nil
}

// whole reports whether the maps hold what this process wrote.
func (t *Table) whole(e entry) bool {
	want, err := e.pins.value()
	if err != nil {
		return false
	}
	var got portValue
	var index uint32
	return t.ports.Lookup(e.index, &got) == nil && got == want &&
		t.places.Lookup(want.Address, &index) == nil && index == e.index
}

// value returns the pins as the program reads them.
func (p Pins) value() (portValue, error) {
	mac, err := net.ParseMAC(p.MAC)
	if err != nil || len(mac) != 6 || !p.Address.Is4() {
		return portValue{}, fmt.Errorf("a shortcut needs an Ethernet and an IPv4 address, not %q and %v", p.MAC, p.Address)
	}
	return portValue{Address: p.Address.As4(), Network: uint32(p.Network), MAC: [6]byte(mac)}, nil
}
