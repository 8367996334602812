package metal

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// witness is the state, with a look at each commit about machines at the moment that it becomes true. Now and then the answer to one is lost.
type witness struct {
	*memory.Store
	w *world

	mu      sync.Mutex
	random  *rand.Rand
	records map[string]api.MachineRecord // by name
	changed map[string]time.Time         // when their phase changed last
	elected time.Time
}

func newWitness(w *world) *witness {
	return &witness{Store: memory.New(), w: w, random: w.random("commits"), records: map[string]api.MachineRecord{}, changed: map[string]time.Time{}}
}

const prefixRecord = "machinerecord/"

// errLost is what a leader hears of a commit that came true without its hearing so.
var errLost = errors.New("the answer of the store was lost")

func (s *witness) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revision, err := s.Store.Commit(ctx, conds, ops)
	if err != nil {
		return revision, err
	}
	machines := false
	for _, op := range ops {
		name, ok := strings.CutPrefix(op.Key, prefixRecord)
		if !ok {
			continue
		}
		machines = true
		before, known := s.records[name]
		if op.Delete {
			delete(s.records, name)
			s.w.checkGone(before)
			continue
		}
		var record api.MachineRecord
		if err := json.Unmarshal(op.Value, &record); err != nil {
			s.w.t.Errorf("the record of %s: %v", name, err)
		}
		s.records[name] = record
		if before.Phase != record.Phase {
			s.changed[name] = time.Now()
		}
		s.w.checkRecord(before, record, known)
	}
	if machines {
		s.w.seen.add("commits")
		if s.random.IntN(60) == 0 && !s.w.isCalm() {
			s.w.seen.add("answers of the store lost")
			return 0, errLost
		}
	}
	return revision, nil
}

// record is what is stored of a machine now.
func (s *witness) record(name string) (api.MachineRecord, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[name]
	return r, ok
}

// since is how long a machine has been in its phase.
func (s *witness) since(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.changed[name])
}

// box is the machine of that name.
func (w *world) box(name string) *box {
	for _, b := range w.boxes {
		if b.name == name {
			return b
		}
	}
	return nil
}

// really is a machine as it is.
type really struct {
	running
	on, idle, unplugged, byItself                    bool
	changed, touched, ailed, lied, unheard, enrolled time.Time
}

func (b *box) really() really {
	on := b.machine.State() == api.PowerOn
	b.mu.Lock()
	defer b.mu.Unlock()
	return really{
		running: b.runs, on: on, idle: b.idle, unplugged: b.unplugged, byItself: b.byItself, changed: b.changed, touched: b.touched, ailed: b.ailed, lied: b.lied, unheard: b.unheard, enrolled: b.enrolled,
	}
}

// leaderSince is when the present leader was elected.
func (s *witness) leaderSince() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elected
}

func (s *witness) Campaign(ctx context.Context, candidate string) (store.Leadership, error) {
	l, err := s.Store.Campaign(ctx, candidate)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elected = time.Now()
	return l, err
}
