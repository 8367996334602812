package server

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/opensm"
	"github.com/nearmetal/nearmetal/internal/ibsim"
)

const (
	// infiniBandCell is the cell of the simulated fabric.
	infiniBandCell = "ib0"
	// infiniBandKeys are the partition keys that its networks can have.
	infiniBandKeys = "0x100-0x1ff"
	// managerPriority is that of its subnet manager.
	managerPriority = 10
)

// Simulated is a simulated InfiniBand fabric for development: each node has one port of a switch, and one more host has the subnet manager.
type Simulated struct {
	fabric     *ibsim.Fabric
	partitions string
}

// Simulate starts a fabric for so many nodes. End ends it.
func Simulate(ctx context.Context, stateDir string, nodes int) (*Simulated, error) {
	s := &Simulated{partitions: filepath.Join(stateDir, "infiniband", infiniBandCell, "partitions.conf")}
	// An OpenSM that a killed dev left is on a fabric that has ended.
	if err := opensm.Stop(ctx, s.partitions); err != nil {
		return nil, err
	}
	var err error
	if s.fabric, err = ibsim.Start(ctx, "", ibsim.OneSwitch(nodes+1)); err != nil {
		return nil, fmt.Errorf("--infiniband: %w", err)
	}
	return s, nil
}

// End ends OpenSM, and the fabric after it.
func (s *Simulated) End(ctx context.Context) error {
	return errors.Join(opensm.Stop(ctx, s.partitions), s.fabric.Close())
}

// Settings are those of Config.InfiniBand; of no fabric, none.
func (s *Simulated) Settings() map[string]InfiniBand {
	if s == nil {
		return nil
	}
	host := s.fabric.Hosts[len(s.fabric.Hosts)-1]
	manager := infiniband.Manager{GUID: host.PortGUID(), Priority: managerPriority}
	return map[string]InfiniBand{infiniBandCell: {
		Settings: infiniband.Settings{
			Mode: infiniband.Supervise, Directory: filepath.Dir(s.partitions), Partitions: s.partitions,
			Manager: &manager, Managers: []infiniband.Manager{manager},
		},
		Run: func(ctx context.Context, program string, args ...string) *exec.Cmd {
			return s.fabric.Command(ctx, host.Name, program, args...)
		},
	}}
}

// Keys are the partition keys of the site, as its --pkey-pool.
func (s *Simulated) Keys() string {
	if s == nil {
		return ""
	}
	return infiniBandKeys
}

// Port returns the --fabric-port of the agent of a node, counted from 0; "": it has none.
func (s *Simulated) Port(node int) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("ib0=%s/%s", infiniBandCell, s.fabric.Hosts[node].PortGUID())
}
