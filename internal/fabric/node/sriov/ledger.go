package sriov

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// record is what is known about one function.
type record struct {
	PF   string `json:"pf"`
	Part string `json:"part,omitempty"`
	// Owner holds it; nil: it is free.
	Owner    *fabric.FunctionOwner   `json:"owner,omitempty"`
	Settings fabric.FunctionSettings `json:"settings"`
	// Releasing: a release has begun, and Problem is why it has not ended.
	Releasing bool   `json:"releasing,omitempty"`
	Problem   string `json:"problem,omitempty"`
	// Clean: nothing was written to it since its defaults were read back.
	Clean bool `json:"clean"`
	// Released are owners that it had, the latest last: their orders may still come, late.
	Released []fabric.FunctionOwner `json:"released,omitempty"`
	// VFs is the number of virtual functions that a whole port had when it was assigned.
	VFs int `json:"vfs,omitempty"`
}

// maxReleased bounds the owners that a function remembers.
const maxReleased = 64

func (r record) function() fabric.Function {
	f := fabric.Function{Kind: api.PortVF, Device: r.PF, Part: r.Part}
	if r.Part == "" {
		f.Kind = api.PortPF
	}
	return f
}

func (r record) key() string {
	if r.Part == "" {
		return r.PF
	}
	return r.PF + "-" + r.Part
}

func keyOf(f fabric.Function) string { return record{PF: f.Device, Part: f.Part}.key() }

// quarantine is why an adapter is left alone, in one boot: the next one ends what hangs.
type quarantine struct {
	Step string `json:"step"`
	Boot string `json:"boot"`
}

// ledger keeps the owners of functions in a folder: one file for each function, and one for each quarantined adapter.
type ledger struct {
	dir string

	mu      sync.Mutex
	records map[string]record
	held    map[string]quarantine
	syncs   int // of files and folders, since it was opened
}

const (
	recordEnd     = ".function"
	quarantineEnd = ".quarantine"
)

func openLedger(dir string) (*ledger, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the owners of functions can't be kept: %w", err)
	}
	l := &ledger{dir: dir, records: map[string]record{}, held: map[string]quarantine{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the owners of functions can't be read: %w", err)
	}
	for _, e := range entries {
		if name, is := strings.CutSuffix(e.Name(), recordEnd); is {
			var r record
			if err := l.load(e.Name(), &r); err != nil {
				return nil, err
			}
			l.records[name] = r
		}
		if name, is := strings.CutSuffix(e.Name(), quarantineEnd); is {
			var q quarantine
			if err := l.load(e.Name(), &q); err != nil {
				return nil, err
			}
			l.held[name] = q
		}
	}
	return l, nil
}

func (l *ledger) load(name string, into any) error {
	path := filepath.Join(l.dir, name)
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s, which says who owns a function, can't be read: %w; if no member of this node has functions, remove it", path, err)
	}
	return nil
}

// store replaces a file at once, and returns when it outlasts the node's power.
func (l *ledger) store(name string, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := durablefile.Write(filepath.Join(l.dir, name), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("the owner of a function can't be kept: %w", err)
	}
	l.syncs += 2 // the file, and the folder with its name
	return nil
}

// get returns what is known about a function. Nothing was ever proved about one without a record: it is free, and not clean.
func (l *ledger) get(f fabric.Function) record {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, there := l.records[keyOf(f)]; there {
		r.Released = slices.Clone(r.Released)
		return r
	}
	return record{PF: f.Device, Part: f.Part}
}

func (l *ledger) put(r record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.putLocked(r)
}

func (l *ledger) putLocked(r record) error {
	if err := l.store(r.key()+recordEnd, r); err != nil {
		return err
	}
	l.records[r.key()] = r
	return nil
}

// claim writes an owner down unless another function has the same identity.
func (l *ledger) claim(r record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, other := range l.records {
		if other.key() == r.key() || other.Owner == nil {
			continue
		}
		if s := r.Settings; s.MAC != "" && s.MAC == other.Settings.MAC || s.GUID != "" && s.GUID == other.Settings.GUID {
			return fmt.Errorf("%w: %s already has the address %s, for assignment %s",
				fabric.ErrFunctionHeld, other.function(), cmp.Or(s.GUID, s.MAC), other.Owner.Assignment)
		}
	}
	return l.putLocked(r)
}

// all returns the records in the order of their functions.
func (l *ledger) all() []record {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]record, 0, len(l.records))
	for _, r := range l.records {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b record) int {
		x, _ := a.function().Index()
		y, _ := b.function().Index()
		return cmp.Or(cmp.Compare(a.PF, b.PF), cmp.Compare(x, y))
	})
	return all
}

// of returns the records of an adapter that have an owner.
func (l *ledger) of(pf string) []record {
	return slices.DeleteFunc(l.all(), func(r record) bool { return r.PF != pf || r.Owner == nil })
}

// adapters returns those of which a function has or had an owner, sorted.
func (l *ledger) adapters() []string {
	var all []string
	for _, r := range l.all() {
		all = append(all, r.PF)
	}
	return slices.Compact(all)
}

func (l *ledger) quarantine(pf string) (quarantine, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q, there := l.held[pf]
	return q, there
}

func (l *ledger) quarantines() map[string]quarantine {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]quarantine{}
	for pf, q := range l.held {
		all[pf] = q
	}
	return all
}

// setQuarantine takes effect at once, also where it can't be stored.
func (l *ledger) setQuarantine(pf string, q quarantine) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[pf] = q
	return l.store(pf+quarantineEnd, q)
}

// admit reports why an owner's order can't be carried out on a function; nil if it can.
func (r record) admit(owner fabric.FunctionOwner) error {
	switch {
	case r.hasReleased(owner):
		return fmt.Errorf("%w: assignment %s has released %s", fabric.ErrFunctionOutdated, owner.Assignment, r.function())
	case r.Owner == nil:
		return nil
	case r.Owner.Assignment != owner.Assignment:
		return fmt.Errorf("%w: assignment %s has %s", fabric.ErrFunctionHeld, r.Owner.Assignment, r.function())
	case owner.Generation < r.Owner.Generation:
		return fmt.Errorf("%w: generation %d of assignment %s, after generation %d",
			fabric.ErrFunctionOutdated, owner.Generation, owner.Assignment, r.Owner.Generation)
	case r.Releasing:
		return fmt.Errorf("%w: assignment %s is releasing %s", fabric.ErrFunctionOutdated, owner.Assignment, r.function())
	}
	return nil
}

// own reports why an owner that must hold the function does not.
func (r record) own(owner fabric.FunctionOwner) error {
	if r.Owner == nil {
		return fmt.Errorf("%w: %s is not assigned to %s", fabric.ErrFunctionOutdated, r.function(), owner.Assignment)
	}
	return r.admit(owner)
}

// heldBy reports whether the function is an assignment's, in whatever generation.
func (r record) heldBy(owner fabric.FunctionOwner) bool {
	return r.Owner != nil && r.Owner.Assignment == owner.Assignment
}

// hasReleased reports whether an owner has released the function, in this generation or a later one.
func (r record) hasReleased(owner fabric.FunctionOwner) bool {
	return slices.ContainsFunc(r.Released, func(old fabric.FunctionOwner) bool {
		return old.Assignment == owner.Assignment && owner.Generation <= old.Generation
	})
}

// isOutdated reports whether an assignment has released the function, in whatever generation.
func (r record) isOutdated(assignment string) bool {
	return slices.ContainsFunc(r.Released, func(old fabric.FunctionOwner) bool { return old.Assignment == assignment })
}

// released adds one of those that have released the function.
func (r record) released(owner fabric.FunctionOwner) record {
	all := append(slices.Clone(r.Released), owner)
	r.Released = all[max(0, len(all)-maxReleased):]
	return r
}

// release makes the function free.
func (r record) release(clean bool) record {
	r = r.released(*r.Owner)
	r.Owner, r.Settings, r.Releasing, r.Problem, r.Clean, r.VFs = nil, fabric.FunctionSettings{}, false, "", clean, 0
	return r
}
