package bootagent

import (
	"context"
	"net"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// following are the interfaces that the host takes away and brings back, such as virtual functions, which no machine takes along, and those that have
// a standby for that time.
type following struct {
	mu         sync.Mutex
	interfaces []guestlink.Interface
}

// follow sets up such interfaces each time that they come.
func (a *Agent) follow(all []guestlink.Interface) {
	a.following.mu.Lock()
	defer a.following.mu.Unlock()
	a.following.interfaces = slices.DeleteFunc(slices.Clone(all), func(i guestlink.Interface) bool { return !i.Comes && !i.Standby })
}

// arrived sets up a new interface of this name, if it is one that is followed.
func (a *Agent) arrived(name string) {
	a.following.mu.Lock()
	defer a.following.mu.Unlock()
	if len(a.following.interfaces) == 0 {
		return
	}
	nic, err := net.InterfaceByName(name)
	if err != nil {
		return // gone again, or renamed by who found it first
	}
	i := slices.IndexFunc(a.following.interfaces, func(i guestlink.Interface) bool { return i.IsOf(nic.HardwareAddr) })
	if i < 0 {
		return
	}
	if a.following.interfaces[i].Standby {
		go a.joined(a.following.interfaces[i], name)
		return
	}
	if err := configureInterface(context.Background(), a.following.interfaces[i]); err != nil {
		a.log.Warn("a network interface that came back can't be set up", "interface", a.following.interfaces[i].Name, "error", err)
		return
	}
	a.log.Info("network interface set up", "interface", a.following.interfaces[i].Name)
}

// isMissing reports whether the machine has no NIC of an interface, or none but its standby.
func isMissing(i guestlink.Interface) bool {
	if i.Standby {
		return !hasPrimary(classNet, i.MAC)
	}
	all, err := net.Interfaces()
	return err == nil && !slices.ContainsFunc(all, func(nic net.Interface) bool { return i.IsOf(nic.HardwareAddr) })
}
