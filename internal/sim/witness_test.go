package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// witness is the state, with a look at each commit at the moment that it becomes true. Now and then the answer to one is lost, and the server
// that asked with it.
type witness struct {
	*memory.Store
	w *world

	mu     sync.Mutex
	mirror *mirror
	random *rand.Rand
	// leaders are the leaderships that there were, by term; dead are the candidates whose server is gone, doubtful when the outcome of a commit
	// was last unknown, elected when the present leader was elected.
	leaders           map[int64]*leadership
	dead              map[string]bool
	unaware           map[string]bool
	elected, doubtful time.Time
	term              int64
	leads             string
	moment            time.Time
	silent            time.Time        // until when it answers no leader
	written           map[string]int   // how often a key was written
	late              map[string]int64 // the term whose commit of a record is under way yet, by key
	atOnce            int
	// landed are changes of clusters' phases that are looked at when all has come to rest.
	landed []landed
}

// landed is a record that has become true, and the phase before it.
type landed struct {
	record api.ClusterRecord
	from   api.ClusterPhase
	intent *api.ClusterIntent
	all    []held
}

// leadership is one that its holder may not know the end of.
type leadership struct {
	store.Leadership
	s         *witness
	candidate string
	done      chan struct{}
}

func (l *leadership) Done() <-chan struct{} { return l.done }

// Resign does nothing for a server that has crashed: its lease runs out by itself.
func (l *leadership) Resign(ctx context.Context) error {
	l.s.mu.Lock()
	dead := l.s.dead[l.candidate] || l.s.unaware[l.candidate]
	l.s.mu.Unlock()
	if dead {
		return nil
	}
	return l.Leadership.Resign(ctx)
}

func newWitness(w *world) *witness {
	return &witness{
		Store: memory.New(), w: w, random: source(w.cfg.Seed, "commits"), leaders: map[int64]*leadership{}, dead: map[string]bool{},
		unaware: map[string]bool{}, written: map[string]int{}, late: map[string]int64{}, mirror: newMirror(w),
	}
}

// Campaign blocks until candidate leads. One that does not know of its end was cut off from the store, and can't campaign.
func (s *witness) Campaign(ctx context.Context, candidate string) (store.Leadership, error) {
	for s.isUnaware(candidate) {
		if !pause(ctx, time.Second) {
			return nil, ctx.Err()
		}
	}
	inner, err := s.Store.Campaign(ctx, candidate)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	l := &leadership{Leadership: inner, s: s, candidate: candidate, done: make(chan struct{})}
	s.elected, s.term, s.leads, s.leaders[inner.Term()] = time.Now(), inner.Term(), candidate, l
	s.mu.Unlock()
	go func() {
		select {
		case <-inner.Done():
		case <-s.w.ctx.Done():
		}
		for s.isUnaware(candidate) {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.w.ctx.Done():
			}
			if s.w.ctx.Err() != nil {
				break
			}
		}
		close(l.done)
	}()
	s.w.inbox.post("", func() { s.w.elected(inner.Term(), candidate) })
	return l, nil
}

func (s *witness) isUnaware(candidate string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unaware[candidate] && !s.dead[candidate]
}

// deposeSecretly ends a leadership without its holder's hearing of it.
func (s *witness) deposeSecretly(candidate string) {
	s.mu.Lock()
	s.unaware[candidate] = true
	s.mu.Unlock()
	s.Depose()
}

// aware lets a candidate hear of the end of its leaderships.
func (s *witness) aware(candidate string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unaware[candidate] = false
}

// crashed notes that a candidate's server is gone.
func (s *witness) crashed(candidate string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead[candidate] = true
}

// leaderSince is when the present leader was elected.
func (s *witness) leaderSince() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elected
}

// lastCommit is when the newest commit became true.
func (s *witness) lastCommit() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moment
}

// leader is the server that leads indeed, nil when none does.
func (s *witness) leader() *server {
	s.mu.Lock()
	leads := s.leads
	s.mu.Unlock()
	if up := s.w.up(); up.alive() && up.candidate == leads {
		return up
	}
	return nil
}

// errLost is what a caller hears of a commit whose outcome it does not learn.
var errLost = errors.New("the answer of the store was lost")

// Commit is that of the store, as seen by one who may not learn of the outcome.
func (s *witness) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	term := int64(0)
	for _, c := range conds {
		if c.Leader {
			term = c.Revision
		}
	}
	c := commit{s: s, term: term, at: s.timeOf(term), conds: conds, ops: ops}
	c.tamper()
	if term == 0 {
		return c.land(ctx)
	}
	return s.byLeader(ctx, c)
}

// byLeader is a commit of a leader: one whose server may crash before or after it, and whose outcome may stay unknown.
func (s *witness) byLeader(ctx context.Context, c commit) (int64, error) {
	w, server := s.w, s.serverOf(c.term)
	if s.answersAgain() {
		s.doubt()
		return 0, errLost
	}
	fate := s.fate(c.ops)
	chunks := strings.HasPrefix(c.ops[0].Key, prefixChunk) && !c.ops[0].Delete
	switch {
	case s.isLate(c): // it goes the same way, and gets no further
		s.doubt()
		w.trace("this was not committed, as an earlier commit is under way yet: %s", c)
		return 0, errLost
	case chunks && fate.crash && w.may(CrashBetweenWrites):
		_, _ = c.land(ctx)
		w.crash(server, fate.away)
		return 0, errLost
	case chunks:
		return c.land(ctx)
	case fate.unknown && w.may(CommitUnknown):
		s.doubt()
		switch fate.kind {
		case 0: // it was
			if _, err := c.land(ctx); err == nil {
				w.trace("it is not known whether this was committed (it was): %s", c)
			}
		case 1: // it will be, if it still can
			w.trace("it is not known whether this was committed (it will be, if it still can): %s", c)
			s.setLate(c, c.term)
			w.inbox.post("", func() {
				if waited, _ := s.placed(c.ops); waited != "" {
					w.rival(waited)
				}
				w.after(fate.late, func() {
					s.setLate(c, 0)
					_, err := c.land(w.ctx)
					w.trace("late commit, %v: %s", err, c)
				})
			})
		default:
			w.trace("it is not known whether this was committed (it was not): %s", c)
		}
		return 0, errLost
	case fate.crash && w.may(CrashBetweenWrites):
		_, _ = c.land(ctx) // committed, but the caller never learns it
		w.crash(server, fate.away)
		return 0, errLost
	}
	return c.land(ctx)
}

// fate is what befalls a commit. It is drawn by what is written, for commits of different machines go together in any order.
type fate struct {
	unknown, crash bool
	kind           int
	late, away     time.Duration
}

func (s *witness) fate(ops []store.Op) fate {
	h := fnv.New64a()
	s.mu.Lock()
	s.written[ops[0].Key]++
	_, _ = fmt.Fprintf(h, "%s %d", ops[0].Key, s.written[ops[0].Key])
	s.mu.Unlock()
	r := rand.New(rand.NewPCG(s.w.cfg.Seed, h.Sum64()))
	// What a cluster was given first is in doubt more often, and more often late: its numbers and its room may be others' before it is known.
	often, kind := 120, r.IntN(3)
	switch waited, places := s.placed(ops); {
	case waited != "":
		often, kind = 4, min(kind, 1)
	case places:
		often = 20
	}
	return fate{
		unknown: r.IntN(often) == 0, crash: r.IntN(200) == 0, kind: kind,
		late: span(r, 10*time.Millisecond, 10*time.Second), away: span(r, 100*time.Millisecond, 3*time.Second),
	}
}

// placed reports whether a commit gives clusters their first places, and names one of them that has waited in the queue.
func (s *witness) placed(ops []store.Op) (waited string, places bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range ops {
		if !strings.HasPrefix(op.Key, prefixNetwork) || op.Delete {
			continue
		}
		places = true
		n := decodeOp[api.Network](s.w, op)
		if r := s.mirror.clusters[n.Cluster].record; r != nil && r.Phase == api.ClusterQueued {
			waited = n.Cluster
		}
	}
	return waited, places
}

// setLate notes that a commit of clusters' records is under way in a term; 0: no longer.
func (s *witness) setLate(c commit, term int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range c.ops {
		name, ok := strings.CutPrefix(op.Key, prefixRecord)
		if in := s.mirror.clusters[name].intent; ok && in != nil {
			s.late[op.Key], s.late[prefixChunk+in.UID+"/"] = term, term
		}
	}
}

// isLate reports whether an earlier commit of the same leader about one of the same clusters is under way yet.
func (s *witness) isLate(c commit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(c.ops, func(op store.Op) bool {
		key := op.Key
		if strings.HasPrefix(key, prefixChunk) {
			key = key[:strings.LastIndexByte(key, '/')+1]
		}
		return s.late[key] == c.term && !op.Delete
	})
}

// may reports whether a kind may happen now, and counts it.
func (w *world) may(k Kind) bool {
	if w.isCalm() || !w.cfg.Kinds.Has(k) {
		return false
	}
	w.happened(k.String())
	return true
}

func (s *witness) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubtful = time.Now()
}

// inDoubt reports whether the leader has yet to try again what it does not know the outcome of.
func (s *witness) inDoubt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.doubtful) < 15*time.Second
}

// serverOf is the server that leads or led in a term.
func (s *witness) serverOf(term int64) *server {
	s.mu.Lock()
	l := s.leaders[term]
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	s.w.servers.mu.Lock()
	defer s.w.servers.mu.Unlock()
	all := append(append([]*server{s.w.servers.present}, s.w.servers.unaware...), s.w.servers.ended...)
	for _, one := range all {
		if one != nil && one.candidate == l.candidate {
			return one
		}
	}
	return nil
}

// timeOf is the time of the leader of a term.
func (s *witness) timeOf(term int64) time.Time {
	if server := s.serverOf(term); server != nil {
		return server.decidesAt()
	}
	return time.Time{}
}

// commit is one that may become true.
type commit struct {
	s     *witness
	term  int64
	at    time.Time // by the leader's clock, when it was decided
	conds []store.Cond
	ops   []store.Op
}

func (c commit) String() string {
	var keys []string
	for _, op := range c.ops {
		key := op.Key
		if op.Delete || op.DeletePrefix {
			key = "-" + key
		}
		keys = append(keys, key)
	}
	return strings.Join(keys, " ")
}

// land makes a commit true, if it can be, and looks at what it says.
func (c commit) land(ctx context.Context) (int64, error) {
	s, w := c.s, c.s.w
	s.mu.Lock()
	defer s.mu.Unlock()
	revision, err := s.Store.Commit(ctx, c.conds, c.ops)
	switch {
	case err == nil:
	case errors.Is(err, store.ErrNotLeader):
		w.count(func(st *Stats) { st.Rejected++ })
		return revision, err
	case errors.Is(err, store.ErrConflict) && c.term != 0:
		w.happened("conflict")
		return revision, err
	default:
		return revision, err
	}
	if c.term != 0 {
		w.count(func(st *Stats) { st.Commits++ })
	}
	if now := time.Now(); now.After(s.moment) {
		s.moment, s.atOnce = now, 0
	}
	if s.atOnce++; s.atOnce > mostAtOnce {
		w.fail("rest", "the leader goes round in circles: %d commits at one moment, last %s", s.atOnce, c)
	}
	s.mirror.apply(c, revision)
	return revision, nil
}

func (w *world) count(add func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	add(&w.stats)
}

// elected notes a new leader.
func (w *world) elected(term int64, candidate string) {
	w.count(func(s *Stats) { s.Elections++ })
	w.checks.disturbed.Add(1)
	w.trace("%s leads in term %d", candidate, term)
	w.checkGarbage(term)
}

// decodeOp reads what a write holds.
func decodeOp[T any](w *world, op store.Op) *T {
	v := new(T)
	if err := json.Unmarshal(op.Value, v); err != nil {
		w.fail("must", "what is written at %s can't be read: %v", op.Key, err)
	}
	return v
}

var tablesOf = struct {
	clusters lifecycle.Machine[api.ClusterPhase]
	members  lifecycle.Machine[api.MemberPhase]
	nodes    lifecycle.Machine[api.NodePhase]
	machines lifecycle.Machine[api.MachinePhase]
	jobs     lifecycle.Machine[api.JobPhase]
	builds   lifecycle.Machine[api.BuildPhase]
}{lifecycle.Clusters(), lifecycle.Members(), lifecycle.Nodes(), lifecycle.Machines(), lifecycle.Jobs(), lifecycle.Builds()}
