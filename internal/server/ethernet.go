package server

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	fabricsite "github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/linuxbridge"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/openvswitch"
)

// ethernets reads the settings of switches, by cell, from their files.
func ethernets(files map[string]string, stateDir string) (map[string]ethernet.Settings, error) {
	all := map[string]ethernet.Settings{}
	for cell, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--ethernet %s=%s: %w", cell, file, err)
		}
		settings, err := ethernet.Parse(text, filepath.Join(stateDir, "ethernet", cell))
		if err != nil {
			return nil, fmt.Errorf("--ethernet %s=%s: %w", cell, file, err)
		}
		all[cell] = settings
	}
	return all, nil
}

// openEthernet makes the executors of the site's switches, beside those that are given. A site without --vlan-pool has the VLANs that all its switches
// leave to it.
func (s *Server) openEthernet() error {
	fabrics, err := ethernets(s.cfg.EthernetFiles, s.cfg.StateDir)
	if err != nil {
		return err
	}
	pool := s.vlans
	for _, cell := range slices.Sorted(maps.Keys(fabrics)) {
		settings := fabrics[cell]
		switch {
		case s.cfg.Fabrics[cell] != nil:
			return fmt.Errorf("cell %s has two fabrics", cell)
		case cell == api.EthernetCell:
			return fmt.Errorf("--ethernet %s: cell %s is that of the links between nodes, whether switches are managed or not; choose another name", cell, cell)
		}
		own := settings.Pool()
		if pool == (api.VLANPool{}) {
			pool = own
		}
		if pool = (api.VLANPool{First: max(pool.First, own.First), Last: min(pool.Last, own.Last)}); pool.First > pool.Last {
			return fmt.Errorf("--ethernet %s: its vlans, %s, have none in common with --vlan-pool and the switches of other cells; a network needs one VLAN everywhere", cell, own)
		}
		executor, err := switchesOf(settings)
		if err != nil {
			return fmt.Errorf("the switches of cell %s: %w", cell, err)
		}
		if s.cfg.Fabrics == nil {
			s.cfg.Fabrics = map[string]fabricsite.Site{}
		}
		s.cfg.Fabrics[cell] = executor
	}
	if s.vlans == (api.VLANPool{}) {
		s.vlans = pool
	}
	return nil
}

// switchesOf makes the executor of the switches of one cell.
func switchesOf(settings ethernet.Settings) (fabricsite.Site, error) {
	controls := map[string]ethernet.Switch{}
	for _, sw := range settings.Switches {
		if settings.Backend == ethernet.BackendOpenVSwitch {
			controls[sw.Name] = openvswitch.New(sw)
			continue
		}
		control, err := linuxbridge.New(linuxbridge.Config{SwitchSettings: sw, Dir: filepath.Join(settings.Directory, sw.Name), Pool: settings.Pool()})
		if err != nil {
			return nil, err
		}
		controls[sw.Name] = control
	}
	return ethernet.New(settings, controls)
}
