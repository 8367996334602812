package server

import (
	"net/netip"
	"sync"

	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/service"
)

// tables hands the newest table to network boot, whether it serves already or begins to serve later.
type tables struct {
	mu     sync.Mutex
	newest *netboot.Table
	serves *service.Service
}

// set is called by the leader.
func (t *tables) set(table netboot.Table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.newest = &table
	if t.serves != nil {
		t.serves.SetTable(&table)
	}
}

// serve makes s what serves now; nil: nothing does.
func (t *tables) serve(s *service.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serves = s
	if s != nil && t.newest != nil {
		s.SetTable(t.newest)
	}
}

// boot is what a machine boots now, by the newest table; nil: nothing.
func (t *tables) boot(mac string) *netboot.Boot {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.newest == nil || t.newest.Machines[mac] == nil {
		return nil
	}
	return t.newest.Machines[mac].Boot
}

// at tells who is at an address of the provisioning network.
func (t *tables) at(address netip.Addr) (mac, port string, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.serves == nil {
		return "", "", false
	}
	c, ok := t.serves.At(address)
	return c.MAC, c.Port, ok && c.Port != ""
}
