package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/api"
	fabricsite "github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/keys"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/opensm"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/smp"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/ufm"
)

// InfiniBand is one InfiniBand fabric of a site.
type InfiniBand struct {
	infiniband.Settings
	// Run makes commands that see the fabric; nil: this machine's own.
	Run smp.Runner
}

// infiniBands reads the settings of fabrics, by cell, from their files.
func infiniBands(files map[string]string, stateDir string) (map[string]InfiniBand, error) {
	all := map[string]InfiniBand{}
	for cell, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--infiniband %s=%s: %w", cell, file, err)
		}
		settings, err := infiniband.Parse(text, filepath.Join(stateDir, "infiniband", cell))
		if err != nil {
			return nil, fmt.Errorf("--infiniband %s=%s: %w", cell, file, err)
		}
		all[cell] = InfiniBand{Settings: settings}
	}
	return all, nil
}

// openInfiniBand makes the executors of the site's InfiniBand fabrics, beside those that are given.
func (s *Server) openInfiniBand() error {
	fabrics, err := infiniBands(s.cfg.InfiniBandFiles, s.cfg.StateDir)
	if err != nil {
		return err
	}
	for cell, fabric := range s.cfg.InfiniBand {
		fabrics[cell] = fabric
	}
	for cell, fabric := range fabrics {
		if s.cfg.Fabrics[cell] != nil {
			return fmt.Errorf("cell %s has two fabrics", cell)
		}
		protection, err := keysOf(fabric.Settings)
		if err != nil {
			return fmt.Errorf("the InfiniBand fabric of cell %s: %w", cell, err)
		}
		executor, err := executorOf(fabric, protection, s.cfg.Log.With("fabric", cell))
		if errors.Is(err, smp.ErrMissing) {
			return err
		}
		if err != nil {
			return fmt.Errorf("the InfiniBand fabric of cell %s: %w", cell, err)
		}
		if s.cfg.Fabrics == nil {
			s.cfg.Fabrics = map[string]fabricsite.Site{}
		}
		s.cfg.Fabrics[cell] = executor
		if fabric.Mode == infiniband.Supervise {
			s.supervisors = append(s.supervisors, supervisorOf(fabric, protection, s.cfg.Log.With("fabric", cell)))
		}
	}
	return nil
}

// executorOf makes the executor of the fabric's backend.
func executorOf(fabric InfiniBand, protection keys.Keys, log *slog.Logger) (fabricsite.Site, error) {
	if fabric.Backend == infiniband.BackendUFM {
		return ufmOf(fabric.Directory, *fabric.UFM, fabric.Keys == infiniband.KeysDeclared)
	}
	return opensm.New(opensm.Config{
		Dir: fabric.Directory, Partitions: fabric.Partitions, Operator: fabric.Operator, Managers: managersOf(fabric.Settings),
		Run: fabric.Run, Adapter: fabric.Adapter, Port: fabric.Port, Keys: protection, Log: log,
	})
}

func ufmOf(dir string, settings infiniband.UFM, guarded bool) (fabricsite.Site, error) {
	text, err := os.ReadFile(settings.Credentials)
	if err != nil {
		return nil, fmt.Errorf("credentials for UFM: %w", err)
	}
	credentials, err := ufm.ParseCredentials(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", settings.Credentials, err)
	}
	pool, err := api.ParsePKeyPool(settings.Keys)
	if err != nil {
		return nil, err
	}
	return ufm.New(ufm.Config{
		Dir: dir, URL: settings.URL, CA: settings.CA, ServerName: settings.ServerName, Credentials: credentials, First: pool.First, Last: pool.Last, Guarded: guarded,
	})
}

// keysOf returns the keys that protect a fabric; the zero value: nothing does, or UFM.
func keysOf(settings infiniband.Settings) (keys.Keys, error) {
	switch settings.Keys {
	case "", infiniband.KeysDeclared:
		return keys.Keys{}, nil
	case infiniband.KeysManaged:
		return opensm.ManagedKeys(settings.Directory)
	default:
		return keys.Load(settings.Keys)
	}
}

func managersOf(settings infiniband.Settings) []opensm.Manager {
	var all []opensm.Manager
	for _, m := range settings.Managers {
		all = append(all, opensm.Manager(m))
	}
	return all
}

func supervisorOf(fabric InfiniBand, protection keys.Keys, log *slog.Logger) opensm.Supervisor {
	return opensm.Supervisor{
		Manager: opensm.Manager(*fabric.Manager), Partitions: fabric.Partitions, Options: fabric.Options, LogDir: filepath.Join(fabric.Directory, "opensm"),
		Keys: protection, Run: fabric.Run, Log: log,
	}
}

// superviseManagers keeps the site's subnet managers on this machine running until ctx ends.
func (s *Server) superviseManagers(ctx context.Context, start func(func() error)) {
	for _, v := range s.supervisors {
		start(func() error { v.Keep(ctx); return nil })
	}
}
