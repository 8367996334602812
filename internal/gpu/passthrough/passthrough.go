// Package passthrough gives whole GPUs to virtual machines, as PCI devices by VFIO, and takes them back.
//
// A GPU comes to its owner without anything of the node's or of an earlier owner's, and goes back in the same way: its functions are taken from their
// drivers, it is reset, its memory is overwritten and read back. A GPU of which that can't be shown is in quarantine: nobody gets it. The package keeps
// on disk who has which GPU before it touches one, so that a new agent goes on. It must never reset a GPU that a machine has open, and never decide who
// gets one. Start with Manager.Take. What is done is planned in plan.go, from what card.go reads.
package passthrough

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// Config is the configuration of a Manager.
type Config struct {
	Host Host
	// Dir is where owners are kept: below the agent's state directory, so that they outlast the agent and the node's power.
	Dir string
	// Clearing is how memory is cleared; empty: ClearingProven.
	Clearing Clearing
	// Answer bounds one call of the kernel, Clear the clearing of one window, and Settle how long a change may take to be read back; 0: 90 seconds, 10
	// minutes and 10 seconds. The kernel waits for a minute for a function that was reset.
	Answer, Clear, Settle time.Duration
	Log                   *slog.Logger
}

// Manager gives GPUs to owners, which are assignments.
type Manager struct {
	cfg    Config
	ledger *ledger
	// working is held while a GPU is changed.
	working sync.Mutex
	hung    hung
}

// hung are the GPUs for which a call to the kernel did not return: it may still do what it was to do. A new agent may find it ended.
type hung struct {
	mu    sync.Mutex
	steps map[string]string
}

var (
	// ErrHeld reports that another assignment has a GPU.
	ErrHeld = errors.New("another member has it")
	// ErrQuarantined reports that nobody may have a GPU.
	ErrQuarantined = errors.New("it is in quarantine")
	// errUnproven reports that a GPU may still hold what an owner left.
	errUnproven = errors.New("what is in its memory is not known")
)

// Open reads the owners in cfg.Dir.
func Open(cfg Config) (*Manager, error) {
	cfg.Answer, cfg.Settle, cfg.Clear = cmp.Or(cfg.Answer, 90*time.Second), cmp.Or(cfg.Settle, 10*time.Second), cmp.Or(cfg.Clear, 10*time.Minute)
	cfg.Clearing = cmp.Or(cfg.Clearing, ClearingProven)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l, err := openLedger(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &Manager{cfg: cfg, ledger: l, hung: hung{steps: map[string]string{}}}, nil
}

// Cards returns the GPUs on the node's PCI bus.
func (m *Manager) Cards() ([]Card, error) { return ReadCards(m.cfg.Host) }

// Away returns the GPUs that machines have, and those in quarantine, as they were known while the node had them. Each of the latter has its reason as a
// problem.
func (m *Manager) Away() []api.NodeGPU {
	var all []api.NodeGPU
	for _, pci := range m.ledger.addresses() {
		r, there := m.ledger.get(pci)
		if !there {
			continue
		}
		if r.Quarantine != "" {
			r.GPU.Problems = append(r.GPU.Problems, "it is in quarantine: "+r.Quarantine)
		}
		all = append(all, r.GPU)
	}
	return all
}

// Group is a GPU that is ready for a machine.
type Group struct {
	// IOMMU is its IOMMU group, Functions the PCI addresses of what the machine gets.
	IOMMU     string
	Functions []string
}

// Take makes a GPU an assignment's: nobody else's driver has it, and it holds nothing of anybody. It is idempotent. On an error the GPU is in quarantine
// or as it was, and Give removes what is left.
func (m *Manager) Take(ctx context.Context, owner string, gpu api.NodeGPU) (Group, error) {
	m.working.Lock()
	defer m.working.Unlock()
	card, err := m.card(gpu.PCI)
	if err != nil {
		return Group{}, err
	}
	r, known := m.ledger.get(gpu.PCI)
	switch {
	case r.Quarantine != "":
		return Group{}, fmt.Errorf("%w: %s", ErrQuarantined, r.Quarantine)
	case r.Owner != "" && r.Owner != owner:
		return Group{}, fmt.Errorf("%w (assignment %s)", ErrHeld, r.Owner)
	}
	if problem := card.Problem(); problem != "" {
		return Group{}, errors.New(problem)
	}
	if err := m.unused(card); err != nil {
		return Group{}, err
	}
	if !known {
		r = record{GPU: gpu, Functions: card.Functions, Resets: card.Resets}
	}
	r.Owner = owner
	if err := m.ledger.put(gpu.PCI, r); err != nil {
		return Group{}, err
	}
	failpoint.Hit("passthrough.after-owner")
	if err := m.carryOut(ctx, card, planTake(card, r, m.cfg.Clearing)); err != nil {
		return Group{}, errors.Join(err, m.quarantine(ctx, gpu.PCI, r, err))
	}
	failpoint.Hit("passthrough.after-take")
	g := Group{IOMMU: card.Group}
	for _, f := range card.Functions {
		g.Functions = append(g.Functions, f.PCI)
	}
	return g, nil
}

// card reads a GPU by its address.
func (m *Manager) card(pci string) (Card, error) {
	cards, err := m.Cards()
	if err != nil {
		return Card{}, err
	}
	for _, c := range cards {
		if c.PCI == pci {
			return c, nil
		}
	}
	return Card{}, fmt.Errorf("the node has no GPU at %q any more", pci)
}

// unused reports who uses a GPU. Its driver would wait for them, and never return.
func (m *Manager) unused(c Card) error {
	for _, f := range c.Functions {
		if f.Driver == vfioPCI {
			used, err := m.cfg.Host.GroupInUse(c.Group)
			if err != nil {
				return err
			}
			if used {
				return fmt.Errorf("a machine still has it (IOMMU group %s)", c.Group)
			}
		}
	}
	if users := m.cfg.Host.Users(m.nodes(c)); len(users) > 0 {
		return fmt.Errorf("programs of the node use it: %s; end them", strings.Join(users, ", "))
	}
	return nil
}

// nodes are the device nodes of a GPU, by its driver of the host's: the kernel's graphics (Direct Rendering Manager), or NVIDIA's.
func (m *Manager) nodes(c Card) []string {
	var nodes []string
	drm, _ := m.cfg.Host.Glob(pciDevices + c.PCI + "/drm/*")
	for _, name := range drm {
		nodes = append(nodes, "/dev/dri/"+path.Base(name))
	}
	text, err := m.cfg.Host.ReadFile("/proc/driver/nvidia/gpus/" + c.PCI + "/information")
	if err != nil {
		return nodes
	}
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "Device Minor" {
			nodes = append(nodes, "/dev/nvidia"+strings.TrimSpace(value))
		}
	}
	return nodes
}

// Give takes back all GPUs of an assignment. It is idempotent, and an assignment without any has none left. A GPU that can't be emptied is in quarantine
// then, and no longer the assignment's. An error says that a machine still has one.
func (m *Manager) Give(ctx context.Context, owner string) error {
	m.working.Lock()
	defer m.working.Unlock()
	var errs []error
	for _, pci := range m.ledger.addresses() {
		if r, there := m.ledger.get(pci); there && r.Owner == owner {
			errs = append(errs, m.give(ctx, pci, r))
		}
	}
	return errors.Join(errs...)
}

// give takes back one GPU, whoever had it.
func (m *Manager) give(ctx context.Context, pci string, r record) error {
	card, err := m.card(pci)
	if err != nil { // it was pulled out; what comes into the slot is another
		m.cfg.Log.WarnContext(ctx, "a GPU is gone from the node while a machine had it", "gpu", r.GPU.ID, "pci", pci)
		return m.ledger.drop(pci)
	}
	if err := m.unused(card); err != nil {
		return fmt.Errorf("GPU %s: %w", r.GPU.ID, err)
	}
	if err := m.carryOut(ctx, card, planGive(card, r, m.cfg.Clearing)); err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.Owner = ""
		return m.quarantine(ctx, pci, r, err)
	}
	failpoint.Hit("passthrough.after-give")
	return m.ledger.drop(pci)
}

// quarantine puts a GPU into quarantine, unless there was only no time left for it.
func (m *Manager) quarantine(ctx context.Context, pci string, r record, why error) error {
	if ctx.Err() != nil {
		return nil
	}
	r.Quarantine = why.Error()
	m.cfg.Log.ErrorContext(ctx, "a GPU is in quarantine: it goes to nobody until the agent starts again and can empty it", "gpu", r.GPU.ID, "pci", pci, "error", why)
	return m.ledger.put(pci, r)
}

// Retry empties GPUs in quarantine that nobody has. One that can be emptied now is the node's again.
func (m *Manager) Retry(ctx context.Context) {
	m.working.Lock()
	defer m.working.Unlock()
	for _, pci := range m.ledger.addresses() {
		if r, there := m.ledger.get(pci); there && r.Quarantine != "" && r.Owner == "" {
			if err := m.give(ctx, pci, r); err != nil {
				m.cfg.Log.WarnContext(ctx, "a GPU stays in quarantine", "gpu", r.GPU.ID, "error", err)
			}
		}
	}
}
