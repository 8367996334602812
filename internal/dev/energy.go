package dev

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/energy/standin"
)

// energySource is where the agents read the energy of processors (--rapl-tree), and what keeps that counting.
type energySource struct {
	dir  string
	made *standin.Tree // nil: it is not made up
}

// energyTree returns where the agents read. Several nodes are one machine, whose counters can't be told apart: they read them only where somebody
// asked for that.
func energyTree(opts config.Dev) (energySource, error) {
	switch {
	case opts.RAPLTree == "" && opts.Nodes > 1:
		return energySource{dir: config.RAPLOff}, nil
	case opts.RAPLTree != config.RAPLStandIn:
		return energySource{dir: opts.RAPLTree}, nil
	}
	s := energySource{dir: filepath.Join(opts.StateDir, "powercap")}
	var err error
	if s.made, err = standin.New(s.dir, 0); err != nil {
		return energySource{}, fmt.Errorf("make the stand-in for energy counters: %w", err)
	}
	return s, nil
}

// run counts until ctx ends.
func (s energySource) run(ctx context.Context, log *slog.Logger) {
	if s.made == nil {
		return
	}
	if err := s.made.Run(ctx); err != nil {
		log.WarnContext(ctx, "energy is no longer counted", "error", err)
	}
}
