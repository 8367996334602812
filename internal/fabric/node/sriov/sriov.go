// Package sriov hands out the virtual functions and whole ports of a node's adapters (SR-IOV, PCI Express Base Specification 5.0, chapter 9).
//
// It implements fabric.Functions. Manager decides by a ledger of owners that is on disk before anything is written to an adapter, and Host is the
// kernel: its sysfs and netlink, or a model of them. It believes nothing: each write is read back within a deadline, and an adapter whose kernel
// driver does not answer is quarantined. It must never change a function for a caller that does not own it, and never keep a network interface's
// name, which changes with each bind. Start with Manager.Assign.
package sriov

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Config is the configuration of a Manager.
type Config struct {
	Host Host
	// Dir is where owners are kept: below the agent's state directory, so that they outlast the agent and the node's power.
	Dir string
	// VirtualPorts reports whether the subnet manager that an InfiniBand adapter is connected to has virtualization. Without it, the virtual ports
	// of mlx5 adapters stay down. nil: none has.
	VirtualPorts func(pf string) bool
	// Answer bounds one call of the kernel, and Settle how long a change may take to be read back; 0: 10 seconds each.
	Answer, Settle time.Duration
	Log            *slog.Logger
}

const (
	defaultAnswer = 10 * time.Second
	defaultSettle = 10 * time.Second
	pollPause     = 20 * time.Millisecond
)

// Manager hands out functions. Its calls may come at the same time; those for one adapter wait for each other.
type Manager struct {
	cfg    Config
	ledger *ledger
	boot   string
	mu     sync.Mutex
	// busy holds a token for each adapter that is worked on.
	busy map[string]chan struct{}
}

var _ fabric.Functions = (*Manager)(nil)

// Open reads the owners in cfg.Dir.
func Open(cfg Config) (*Manager, error) {
	cfg.Answer, cfg.Settle = cmp.Or(cfg.Answer, defaultAnswer), cmp.Or(cfg.Settle, defaultSettle)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	boot, err := cfg.Host.ReadFile(bootIDFile)
	if err != nil {
		return nil, fmt.Errorf("read which boot this is: %w", err)
	}
	l, err := openLedger(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &Manager{cfg: cfg, ledger: l, boot: boot, busy: map[string]chan struct{}{}}, nil
}

// lock waits until nothing else works on an adapter.
func (m *Manager) lock(ctx context.Context, pf string) (unlock func(), err error) {
	m.mu.Lock()
	token := m.busy[pf]
	if token == nil {
		token = make(chan struct{}, 1)
		m.busy[pf] = token
	}
	m.mu.Unlock()
	select {
	case token <- struct{}{}:
		return func() { <-token }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("adapter %s is being worked on: %w", pf, ctx.Err())
	}
}

// QuarantinedError reports an adapter that is left alone.
type QuarantinedError struct {
	PF string
	// Step is what did not end in time.
	Step string
}

func (e *QuarantinedError) Error() string {
	return fmt.Sprintf("adapter %s is quarantined: %s did not end in time; reboot the node, or replace the adapter", e.PF, e.Step)
}

// Is makes errors.Is find fabric.ErrFunctionQuarantined.
func (e *QuarantinedError) Is(target error) bool { return target == fabric.ErrFunctionQuarantined }

// quarantined returns the error of an adapter that is quarantined in this boot.
func (m *Manager) quarantined(pf string) error {
	if q, there := m.ledger.quarantine(pf); there && q.Boot == m.boot {
		return &QuarantinedError{PF: pf, Step: q.Step}
	}
	return nil
}

// call makes one call to the kernel. A call that does not return can't be ended: it may still do what it was to do at any time. So its adapter is
// quarantined, and nobody else gets it.
func (m *Manager) call(pf, step string, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	patience := time.NewTimer(m.cfg.Answer)
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
	}
	m.cfg.Log.Error("an adapter does not answer, and is quarantined", "adapter", pf, "step", step)
	stored := m.ledger.setQuarantine(pf, quarantine{Step: step, Boot: m.boot})
	return errors.Join(&QuarantinedError{PF: pf, Step: step}, stored)
}

// UnsettledError reports a change that was made, and is not read back.
type UnsettledError struct{ What, Want, Got string }

func (e *UnsettledError) Error() string {
	return fmt.Sprintf("%s was changed, but reads back as %s, not %s", e.What, orNone(e.Got), orNone(e.Want))
}

func orNone(text string) string { return cmp.Or(text, "none") }

// settle reads until it gets what is wanted. Errors in between count as not yet: interfaces are renamed and devices come back late.
func (m *Manager) settle(ctx context.Context, what, want string, read func() (string, error)) error {
	deadline := time.NewTimer(m.cfg.Settle)
	defer deadline.Stop()
	for {
		got, err := read()
		if err == nil && got == want {
			return nil
		}
		if errors.Is(err, fabric.ErrFunctionQuarantined) {
			return err
		}
		again := time.NewTimer(pollPause)
		select {
		case <-again.C:
		case <-deadline.C:
			again.Stop()
			if err != nil {
				return fmt.Errorf("%s was changed, but can't be read back: %w", what, err)
			}
			return &UnsettledError{What: what, Want: want, Got: got}
		case <-ctx.Done():
			again.Stop()
			return fmt.Errorf("%s is changed and not read back: %w", what, ctx.Err())
		}
	}
}

// Quarantines returns the adapters that are quarantined in this boot, with the step that did not end.
func (m *Manager) Quarantines() []QuarantinedError {
	var all []QuarantinedError
	for pf, q := range m.ledger.quarantines() {
		if q.Boot == m.boot {
			all = append(all, QuarantinedError{PF: pf, Step: q.Step})
		}
	}
	slices.SortFunc(all, func(a, b QuarantinedError) int { return cmp.Compare(a.PF, b.PF) })
	return all
}

// Holding is a function that has an owner.
type Holding struct {
	Function fabric.Function
	Owner    fabric.FunctionOwner
	Settings fabric.FunctionSettings
	// Releasing: its release has begun. Problem is why it has not ended.
	Releasing bool
	Problem   string
}

// Holdings returns what has an owner, sorted.
func (m *Manager) Holdings() []Holding {
	var all []Holding
	for _, r := range m.ledger.all() {
		if r.Owner != nil {
			all = append(all, Holding{
				Function: r.function(), Owner: *r.Owner, Settings: r.Settings, Releasing: r.Releasing, Problem: r.Problem,
			})
		}
	}
	return all
}
