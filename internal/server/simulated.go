package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/opensm"
	"github.com/nearmetal/nearmetal/internal/ibsim"
)

const (
	// infiniBandCell is the cell of the simulated fabric.
	infiniBandCell = "ib0"
	// infiniBandKeys are the partition keys that its networks can have.
	infiniBandKeys = "0x100-0x1ff"
	// managerHost is the host of its subnet manager, managerPriority the priority of that.
	managerHost     = "manager"
	managerPriority = 10
)

// simulated is a simulated InfiniBand fabric for development: each node has one port of a switch, and one more host has the subnet manager.
type simulated struct {
	fabric     *ibsim.Fabric
	partitions string
}

// simulate starts a fabric for so many nodes. The state directory is locked by this process: an OpenSM that still reads its partitions was left by
// a killed one, and is on a fabric that has ended.
func simulate(ctx context.Context, stateDir string, nodes int) (*simulated, error) {
	s := &simulated{partitions: filepath.Join(stateDir, "infiniband", infiniBandCell, "partitions.conf")}
	if err := opensm.Stop(ctx, s.partitions); err != nil {
		return nil, err
	}
	dir := filepath.Join(stateDir, "infiniband", "simulation")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	topology := ibsim.OneSwitch(nodes + 1)
	topology.Hosts[nodes].Name = managerHost
	var err error
	if s.fabric, err = ibsim.Start(ctx, dir, topology); err != nil {
		return nil, fmt.Errorf("--infiniband: %w", err)
	}
	return s, nil
}

// end ends OpenSM, and the fabric after it.
func (s *simulated) end(ctx context.Context) error {
	return errors.Join(opensm.Stop(ctx, s.partitions), s.fabric.Close())
}

func (s *simulated) settings() InfiniBand {
	host, _ := s.fabric.Host(managerHost)
	manager := infiniband.Manager{GUID: host.PortGUID(), Priority: managerPriority}
	return InfiniBand{
		Settings: infiniband.Settings{
			Mode: infiniband.Supervise, Directory: filepath.Dir(s.partitions), Partitions: s.partitions,
			Manager: &manager, Managers: []infiniband.Manager{manager},
		},
		Run: func(ctx context.Context, program string, args ...string) *exec.Cmd {
			cmd := s.fabric.Command(ctx, host.Name, program, args...)
			if program == opensm.Program { // it has no fabric without this process
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
			}
			return cmd
		},
	}
}

// openSimulated starts the simulated fabric, if there is to be one, and makes it one of the site's.
func (s *Server) openSimulated() error {
	if s.cfg.SimulatedNodes == 0 {
		return nil
	}
	var err error
	if s.simulated, err = simulate(context.Background(), s.cfg.StateDir, s.cfg.SimulatedNodes); err != nil {
		return err
	}
	all := map[string]InfiniBand{infiniBandCell: s.simulated.settings()}
	maps.Copy(all, s.cfg.InfiniBand)
	s.cfg.InfiniBand, s.cfg.PKeyPool = all, cmp.Or(s.cfg.PKeyPool, infiniBandKeys)
	return nil
}

// SimulatedPort returns where the port of a node, counted from 0, is on the simulated fabric, as CELL/GUID; "": there is no such fabric.
func (s *Server) SimulatedPort(node int) string {
	if s.simulated == nil {
		return ""
	}
	return infiniBandCell + "/" + s.simulated.fabric.Hosts[node].PortGUID()
}
