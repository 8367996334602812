package lastuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// counted is a Writer that counts what is stored and fails on demand.
type counted struct {
	*state.Repo
	stored int
	err    error
}

func (c *counted) NoteTokenUses(ctx context.Context, uses []state.TokenUse) error {
	if c.err != nil {
		return c.err
	}
	c.stored += len(uses)
	return c.Repo.NoteTokenUses(ctx, uses)
}

// world is a site with stored tokens.
type world struct {
	*testing.T
	cache    *state.Cache
	writer   *counted
	now      time.Time
	full     error
	recorder *Recorder
}

func newWorld(t *testing.T, tokens ...api.TokenInfo) *world {
	w := &world{T: t, writer: &counted{Repo: state.New(memory.New())}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	var err error
	if w.cache, err = w.writer.OpenCache(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, token := range tokens {
		revision, err := w.writer.CreateToken(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		w.reach(revision)
	}
	w.recorder = w.start()
	return w
}

// start returns what notes uses at a server that has just started.
func (w *world) start() *Recorder {
	return New(Config{
		Writer: w.writer, Viewer: w.cache, Room: func() error { return w.full }, Now: func() time.Time { return w.now },
		Log: slog.New(slog.DiscardHandler),
	})
}

func (w *world) reach(revision int64) {
	w.Helper()
	if _, err := w.cache.WaitRevision(w.Context(), revision); err != nil {
		w.Fatal(err)
	}
}

// store stores what was noted, and brings the view up to it by another write.
func (w *world) store() {
	w.Helper()
	if err := w.recorder.Store(w.Context()); err != nil {
		w.Fatal(err)
	}
	revision, err := w.writer.AppendEvents(w.Context(), api.Event{Cluster: "c", Time: w.now})
	if err != nil {
		w.Fatal(err)
	}
	w.reach(revision)
}

func (w *world) expect(when string, used time.Time, from string, stored int) {
	w.Helper()
	token := w.cache.View().Token("a")
	if token.LastUsedAt == nil && !used.IsZero() || token.LastUsedAt != nil && !token.LastUsedAt.Equal(used) || token.LastUsedFrom != from {
		w.Errorf("%s: used %v from %q, want %v from %q", when, token.LastUsedAt, token.LastUsedFrom, used, from)
	}
	if w.writer.stored != stored {
		w.Errorf("%s: %d uses were stored, want %d", when, w.writer.stored, stored)
	}
}

func TestTheLastUseIsStoredOnceInTenMinutes(t *testing.T) {
	w := newWorld(t, api.TokenInfo{ID: "a", Role: api.RoleMember})
	first := w.now
	for range 100 {
		w.recorder.Used("a", "10.0.0.1")
	}
	w.store()
	w.expect("after the first requests", first, "10.0.0.1", 1)
	w.now = first.Add(Every - time.Second)
	w.recorder.Used("a", "10.0.0.2")
	w.store()
	w.expect("soon after", first, "10.0.0.1", 1)
	w.recorder = w.start()
	w.recorder.Used("a", "10.0.0.2")
	w.store()
	w.expect("after a restart", first, "10.0.0.1", 1)
	w.now = first.Add(Every)
	w.recorder.Used("a", "10.0.0.2")
	w.store()
	w.expect("ten minutes after", w.now, "10.0.0.2", 2)
}

func TestAUseThatCanNotBeStoredIsStoredLater(t *testing.T) {
	w := newWorld(t, api.TokenInfo{ID: "a", Role: api.RoleMember})
	used := w.now
	w.recorder.Used("a", "10.0.0.1")
	w.full = errors.New("the disk is full")
	w.store()
	w.expect("while the disk is full", time.Time{}, "", 0)
	w.full = nil
	fails := func() {
		t.Helper()
		w.writer.err = errors.New("the store is away")
		if err := w.recorder.Store(t.Context()); !errors.Is(err, w.writer.err) {
			t.Errorf("got %v, want the error of the store", err)
		}
		w.writer.err = nil
	}
	fails()
	w.store()
	w.expect("when the store is back", used, "10.0.0.1", 1)
	w.now = used.Add(Every)
	w.recorder.Used("a", "10.0.0.2")
	fails()
	w.now = w.now.Add(time.Minute)
	w.recorder.Used("a", "10.0.0.3")
	w.store()
	w.expect("after a newer use", w.now, "10.0.0.3", 2)
}

func TestUsesOfAgentsAndOfTokensThatAreNotStoredAreLeftOut(t *testing.T) {
	w := newWorld(t, api.TokenInfo{ID: "a", Role: api.RoleAgent})
	for _, id := range []string{"a", "", "of-a-file"} {
		w.recorder.Used(id, "10.0.0.1")
	}
	w.store()
	w.expect("after them", time.Time{}, "", 0)
}

func TestTheUsesInMemoryAreBounded(t *testing.T) {
	w := newWorld(t)
	for i := range pendingUses + 10 {
		w.recorder.keep(state.TokenUse{ID: fmt.Sprint(i), At: w.now})
	}
	if len(w.recorder.pending) != pendingUses {
		t.Errorf("%d uses are in memory, want %d", len(w.recorder.pending), pendingUses)
	}
}

func TestWhatIsNotedIsStoredAtTheEnd(t *testing.T) {
	w := newWorld(t, api.TokenInfo{ID: "a", Role: api.RoleMember})
	w.recorder.Used("a", "socket")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.recorder.Run(ctx)
	w.store()
	w.expect("after the end", w.now, "socket", 1)
}
