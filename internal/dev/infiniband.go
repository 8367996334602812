package dev

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/opensm"
	"github.com/nearmetal/nearmetal/internal/ibsim"
	"github.com/nearmetal/nearmetal/internal/server"
)

const (
	// infiniBandCell is the cell of the simulated fabric.
	infiniBandCell = "ib0"
	// infiniBandKeys are the partition keys that its networks can have.
	infiniBandKeys = "0x100-0x1ff"
	// managerPriority is that of its subnet manager.
	managerPriority = 10
)

// simulated is a simulated InfiniBand fabric: each node has one port of a switch, and one more host has the subnet manager.
type simulated struct {
	fabric     *ibsim.Fabric
	partitions string
}

// simulate starts the fabric.
func simulate(ctx context.Context, stateDir string, nodes int) (*simulated, error) {
	s := &simulated{partitions: filepath.Join(stateDir, "infiniband", infiniBandCell, "partitions.conf")}
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

// end ends OpenSM, and the fabric after it.
func (s *simulated) end(ctx context.Context) error {
	return errors.Join(opensm.Stop(ctx, s.partitions), s.fabric.Close())
}

// settings are the fabric's for the server; of no fabric, none.
func (s *simulated) settings() map[string]server.InfiniBand {
	if s == nil {
		return nil
	}
	host := s.fabric.Hosts[len(s.fabric.Hosts)-1]
	manager := infiniband.Manager{GUID: host.PortGUID(), Priority: managerPriority}
	return map[string]server.InfiniBand{infiniBandCell: {
		Settings: infiniband.Settings{
			Mode: infiniband.Supervise, Directory: filepath.Dir(s.partitions), Partitions: s.partitions,
			Manager: &manager, Managers: []infiniband.Manager{manager},
		},
		Run: func(ctx context.Context, program string, args ...string) *exec.Cmd {
			return s.fabric.Command(ctx, host.Name, program, args...)
		},
	}}
}

// keys are the partition keys of the site, as its --pkey-pool.
func (s *simulated) keys() string {
	if s == nil {
		return ""
	}
	return infiniBandKeys
}

// port returns the --fabric-port of the agent of a node, counted from 0; "": it has none.
func (s *simulated) port(node int) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("ib0=%s/%s", infiniBandCell, s.fabric.Hosts[node].PortGUID())
}
