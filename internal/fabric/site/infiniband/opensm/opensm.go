// Package opensm makes networks on an InfiniBand fabric whose subnet manager is OpenSM: it writes the file of partitions, has OpenSM read it, and
// reads the tables of the fabric's ports back.
//
// Each content of the file has a marker: a partition key of which only the subnet manager's own port is a member. OpenSM carries out one file after
// the other, so what is read after a marker was seen can't be changed by an earlier file any more. A port is in a network when its adapter and the
// switch port before it both say so. It must never take what it wrote for what is there. Start with New.
package opensm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/keys"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/smp"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Config is what a Site needs.
type Config struct {
	// Dir is the folder of the executor's own files, which it makes. Where several servers may lead, they share it, and Partitions.
	Dir string
	// Partitions is the path of the file that OpenSM reads, absolute. It is written whole.
	Partitions string
	// Operator is the path of a file with the operator's own partitions, which is only read; "": there are none.
	Operator string
	// Managers are the subnet managers that the fabric should have; others are reported. Empty: any.
	Managers []Manager
	// Run makes commands that see the fabric; nil: exec.CommandContext.
	Run smp.Runner
	// Adapter and Port are by which the fabric is read, such as mlx5_0 and 1; "": the first port that is active.
	Adapter string
	Port    int
	// Keys protect the fabric's subnet management; the zero value: nothing does. Its ports are read by them.
	Keys keys.Keys
	// Reload makes OpenSM read its file again; nil: SIGHUP.
	Reload func(ctx context.Context, partitions string) error
	Log    *slog.Logger
}

// Manager is a subnet manager.
type Manager struct {
	// GUID is that of its port, 16 hexadecimal digits.
	GUID string
	// Priority is 0 to 15; the highest becomes master.
	Priority int
}

// reloadPause is the time that OpenSM has to carry out a file before the next signal.
const reloadPause = 5 * time.Second

// Site is an executor. It implements site.Site.
type Site struct {
	cfg    Config
	reader smp.Reader
	// diagnostics is the file by which programs of infiniband-diags have the M_Key; "": there is none.
	diagnostics string

	// rooms are the sizes of the ports' tables by place, as they were discovered last. They have a lock of their own: Check does not wait for the fabric.
	roomsLock sync.Mutex
	rooms     map[string]int

	mu       sync.Mutex
	written  record // of this executor's newest Apply; zero before
	operator string // the operator's partitions, as they were written then
	reloaded time.Time
	patience time.Duration // how long an observation waits for a file to be carried out
	inForce  lifecycle.Epoch
	seen     int // the marker that was last seen
	fabric   fabric
	report   Report
}

var (
	_ site.Site    = (*Site)(nil)
	_ site.Checker = (*Site)(nil)
)

// New makes an executor on a fabric. It starts nothing.
func New(cfg Config) (*Site, error) {
	if !filepath.IsAbs(cfg.Partitions) {
		return nil, fmt.Errorf("the path of the file of partitions, %q, is not absolute", cfg.Partitions)
	}
	if cfg.Operator != "" && same(cfg.Operator, cfg.Partitions) {
		return nil, fmt.Errorf("%s can't be both the file that OpenSM reads and the operator's own; move the operator's partitions to another file", cfg.Partitions)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the fabric's files can't be made: %w", err)
	}
	program, err := smp.Install(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.Run == nil {
		cfg.Run = command
	}
	if cfg.Reload == nil {
		cfg.Reload = Reload
	}
	s := &Site{cfg: cfg, patience: sweepTime, fabric: fabric{changed: map[string]bool{}}, reader: smp.Reader{Program: program, Run: cfg.Run, Adapter: cfg.Adapter, Port: cfg.Port, Key: cfg.Keys.Management}}
	if cfg.Keys != (keys.Keys{}) {
		s.diagnostics = filepath.Join(cfg.Dir, keys.DiagnosticsName)
		return s, durablefile.Write(s.diagnostics, []byte(cfg.Keys.Diagnostics()), 0o600)
	}
	return s, nil
}

// Apply writes the file of partitions and has OpenSM read it. While no OpenSM runs, the file is written all the same, and the error says so: it
// takes effect when one starts.
func (s *Site) Apply(ctx context.Context, epoch lifecycle.Epoch, networks []site.Network) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	unlock, err := lock(s.cfg.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	operator, definitions, err := s.check(networks)
	if err != nil {
		return err
	}
	s.fabric.operator = partitions.Keys(definitions)
	had, err := loadRecord(s.cfg.Dir)
	if err != nil {
		return err
	}
	if err := had.Epoch.Accept(epoch); err != nil {
		return fmt.Errorf("%w: %w", site.ErrStale, err)
	}
	changed, err := s.write(had, epoch, networks, operator)
	if err != nil {
		return err
	}
	if !changed && (s.seen == s.written.Marker || time.Since(s.reloaded) < reloadPause) {
		return nil
	}
	s.reloaded = time.Now()
	if err := s.cfg.Reload(ctx, s.cfg.Partitions); err != nil {
		return fmt.Errorf("the change is queued in the file of partitions: %w; it takes effect when OpenSM runs", err)
	}
	return nil
}

// Check implements site.Checker: a network can't have a key of the operator's, nor a port be in more partitions than its table has room for. While a
// table is not read, it counts as one of 128 entries.
func (s *Site) Check(networks []site.Network) error {
	_, _, err := s.check(networks)
	return err
}

// check returns the operator's file, verbatim and as it is read, or what is wrong with it or with the networks.
func (s *Site) check(networks []site.Network) (operator string, definitions []partitions.Definition, err error) {
	if err := errors.Join(site.Validate(networks), partitions.Check(networks)); err != nil {
		return "", nil, err
	}
	if s.cfg.Operator != "" {
		data, err := os.ReadFile(s.cfg.Operator)
		if err != nil {
			return "", nil, fmt.Errorf("the operator's partitions can't be read: %w; nothing was changed", err)
		}
		operator = string(data)
	}
	definitions, err = partitions.Parse(operator)
	if err != nil {
		return "", nil, fmt.Errorf("the operator's partitions, %s: %w; nothing was changed", s.cfg.Operator, err)
	}
	if err := partitions.Clash(networks, definitions); err != nil {
		return "", nil, fmt.Errorf("%s: %w", s.cfg.Operator, err)
	}
	s.roomsLock.Lock()
	rooms := s.rooms
	s.roomsLock.Unlock()
	// Any port may come to be the subnet manager's, which is in the marker's partition.
	return operator, definitions, partitions.Room(networks, definitions, 1, rooms)
}

// write makes the epoch durable, and then the file, unless that has the networks already. It reports whether the file was written.
func (s *Site) write(had record, epoch lifecycle.Epoch, networks []site.Network, operator string) (bool, error) {
	present, err := os.ReadFile(s.cfg.Partitions)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil && had.Marker == 0 && !partitions.Ours(string(present)) {
		return false, fmt.Errorf("%s was not written by Nearmetal and would be lost; move it to another file, and name that as the operator's partitions", s.cfg.Partitions)
	}
	compose := func(r record) (string, error) {
		return partitions.Compose(partitions.Content{Networks: r.Networks, Marker: r.Marker, Operator: operator, OperatorPath: s.cfg.Operator})
	}
	now := had
	now.Epoch = epoch
	s.fabric.want(networks)
	if had.Marker != 0 && reflect.DeepEqual(normal(had.Networks), normal(networks)) {
		text, err := compose(now)
		if err != nil {
			return false, err
		}
		if text == string(present) {
			s.written, s.operator = now, operator
			return false, now.store(s.cfg.Dir)
		}
		s.noteDrift(string(present), operator)
	}
	if now, err = now.next(s.seen); err != nil {
		return false, err
	}
	now.Networks = normal(networks)
	now = now.withPlaces(s.fabric.free)
	text, err := compose(now)
	if err != nil {
		return false, err
	}
	if err := now.store(s.cfg.Dir); err != nil {
		return false, err
	}
	s.written, s.operator = now, operator
	return true, durablefile.Write(s.cfg.Partitions, []byte(text), 0o644)
}

// noteDrift records that the file is not as it was written. The operator's own changes to the operator's file are none.
func (s *Site) noteDrift(present, operator string) {
	if s.written.Marker != 0 && s.operator != operator {
		s.cfg.Log.Info("the operator's partitions have changed; they are taken over", "file", s.cfg.Operator)
	} else {
		s.report.Drifts++
		s.report.LastDrift = time.Now()
		s.cfg.Log.Warn("the file of partitions was changed by others; it is restored", "file", s.cfg.Partitions, "bytes", len(present))
	}
}

// Observe reads the tables of the fabric's ports.
func (s *Site) Observe(ctx context.Context) (site.Observation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return site.Observation{}, err
	}
	if err := s.awaitMarker(ctx); err != nil {
		return site.Observation{}, err
	}
	if s.seen != 0 && s.seen == s.written.Marker {
		s.inForce = s.written.Epoch
	}
	had, err := loadRecord(s.cfg.Dir)
	if err != nil {
		return site.Observation{}, err
	}
	if err := s.read(ctx); err != nil {
		return site.Observation{}, err
	}
	return s.fabric.observation(s.inForce, had.Places), nil
}

// normal returns networks with all lists in order, and without empty ones.
func normal(networks []site.Network) []site.Network {
	all := []site.Network{}
	for _, n := range networks {
		n.Ports = slices.SortedFunc(slices.Values(n.Ports), func(a, b site.Port) int { return cmp.Compare(a.At, b.At) })
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b site.Network) int { return cmp.Compare(a.Number, b.Number) })
	return all
}
