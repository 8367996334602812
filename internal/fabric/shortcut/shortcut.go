// Package shortcut hands frames from one member to another of the same network on the same node, past the bridge between them.
//
// A program of the kernel (eBPF) at the node's end of each port looks at every frame that the member sends. A frame that the rules
// of the bridge would pass, and whose destination is another port here, goes straight into that member's network namespace. All
// others take the way through the bridge and its rules, as if there were no program. So the program must never pass a frame
// that the rules refuse: it repeats their pins and never extends them.
//
// It must never decide which ports have a shortcut: that is in the plan. Start reading at Table; the program is in program.go.
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

// State is what the kernel has of a port's shortcut.
type State struct {
	Pins Pins
	// Broken: the shortcut is not whole, or belongs to another process; its pins are not known.
	Broken bool
}

// Table holds the shortcuts of a node. All its methods belong in the node's network namespace; several goroutines may call them at once.
//
// The program stays with a port's link, and the maps with the program, so shortcuts outlive the process that opened them. Another
// process neither reads nor extends them: it reports them as broken, and opens its own.
type Table struct {
	program *ebpf.Program
	id      int // the kernel's for the program, 0 for none
	// ports holds the pins of each port by link index.
	ports *ebpf.Map
	// places holds the link index of each port by address. The kernel removes the entry of a link with the link (DEVMAP_HASH), so
	// that no frame follows an index to a link that has it later.
	places *ebpf.Map

	mu   sync.Mutex
	open map[string]entry // by link name
}

// entry is what this process wrote about a link.
type entry struct {
	index uint32
	pins  Pins
}

// maxPorts bounds the maps; a bridge takes 1,024 ports.
const maxPorts = 1 << 14

// portValue is a value of the map ports; program.go reads its fields.
type portValue struct {
	Address [4]byte
	Network uint32
	MAC     [6]byte
	_       [2]byte
}

// New returns a table without a program: it reports the shortcuts of other processes, and shuts them.
func New() *Table { return &Table{open: map[string]entry{}} }

// Load loads the program, which Open needs; again is no error. It fails on a kernel that lacks what the program needs: the helper
// bpf_redirect_peer came with Linux 5.10.
func (t *Table) Load() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.program != nil {
		return nil
	}
	ports, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "nm_ports", Type: ebpf.Hash, KeySize: 4, ValueSize: 16, MaxEntries: maxPorts, Flags: unix.BPF_F_NO_PREALLOC,
	})
	if err != nil {
		return fmt.Errorf("making the map of ports: %w", err)
	}
	places, err := ebpf.NewMap(&ebpf.MapSpec{Name: "nm_places", Type: ebpf.DevMapHash, KeySize: 4, ValueSize: 4, MaxEntries: maxPorts})
	if err != nil {
		return errors.Join(fmt.Errorf("making the map of places: %w", err), ports.Close())
	}
	program, id, err := load(program(ports, places))
	if err != nil {
		return errors.Join(err, places.Close(), ports.Close())
	}
	t.program, t.id, t.ports, t.places = program, id, ports, places
	return nil
}

func load(instructions asm.Instructions) (*ebpf.Program, int, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "nm_shortcut", Type: ebpf.SchedCLS, Instructions: instructions, License: "Apache-2.0"})
	if err != nil {
		return nil, 0, fmt.Errorf("loading the program: %w", err)
	}
	info, err := program.Info()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("reading the program's ID: %w", err), program.Close())
	}
	id, _ := info.ID()
	return program, int(id), nil
}

// Close lets go of the program and its maps; the shortcuts that are open stay.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.program.Close(), t.ports.Close(), t.places.Close()) // nil ones close without an error
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
	if err := t.attach(link); err != nil {
		return err
	}
	if err := t.places.Put(value.Address, index); err != nil {
		return fmt.Errorf("adding the place of %s: %w", name, err)
	}
	return nil
}

// Shut ends the shortcut of a link: frames of the port and to it take the way through the bridge. Shutting what is not open is no error.
func (t *Table) Shut(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, open := t.open[name]; open {
		return t.forget(name) // without its pins the program passes nothing; it goes with the link
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
		if _, open := states[name]; id != t.id && (open || id != 0) {
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
