// Package lastuse notes when the tokens of a site were last used, and from where.
//
// A use costs its request nothing but a look at memory: it is stored in the background, together with others, and at most once in Every for each
// token. A store that is away, or a full disk, delays that. The package must never make a request wait or fail, and never bring back a token
// that was revoked. Start with Recorder.
package lastuse

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Every is how exact the stored time of a token's last use is.
const Every = 10 * time.Minute

const (
	// storeEvery is how long uses are gathered before they are stored.
	storeEvery = time.Minute
	// storeTimeout bounds one attempt to store them.
	storeTimeout = 10 * time.Second
	// pendingUses bounds how many tokens have a use in memory that is not stored yet, of some 200 bytes each. Those of others are noted later.
	pendingUses = 10_000
)

// Writer stores uses of tokens. *state.Repo is one.
type Writer interface {
	NoteTokenUses(ctx context.Context, uses []state.TokenUse) error
}

// Viewer is the stored state in memory. *state.Cache is one.
type Viewer interface {
	View() *state.View
}

// Config is what a Recorder needs.
type Config struct {
	Writer Writer
	Viewer Viewer
	// Room returns why nothing can be stored now; nil: there is room.
	Room func() error
	Now  func() time.Time
	Log  *slog.Logger
}

// Recorder notes uses of tokens. It may be used from many goroutines.
type Recorder struct {
	cfg Config

	mu      sync.Mutex
	pending map[string]state.TokenUse // by ID
}

// New returns a Recorder. Run must be running for uses to be stored.
func New(cfg Config) *Recorder {
	return &Recorder{cfg: cfg, pending: map[string]state.TokenUse{}}
}

// Used notes that a token is used now by a request from an address. Tokens that are not stored, and those of agents, are left out.
func (r *Recorder) Used(id, from string) {
	token := r.cfg.Viewer.View().Token(id)
	if token == nil || token.Role == api.RoleAgent {
		return
	}
	use := state.TokenUse{ID: id, At: r.cfg.Now().UTC(), From: from}
	if token.LastUsedAt != nil && use.At.Sub(*token.LastUsedAt) < Every {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(use)
}

// keep holds a use until it is stored; the lock is held.
func (r *Recorder) keep(use state.TokenUse) {
	old, known := r.pending[use.ID]
	if known && !use.At.After(old.At) || !known && len(r.pending) >= pendingUses {
		return
	}
	r.pending[use.ID] = use
}

// Run stores uses until ctx ends, and what is left then.
func (r *Recorder) Run(ctx context.Context) {
	tick := time.NewTicker(storeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.storeLogged(context.WithoutCancel(ctx))
			return
		}
		r.storeLogged(ctx)
	}
}

func (r *Recorder) storeLogged(ctx context.Context) {
	if err := r.Store(ctx); err != nil && ctx.Err() == nil {
		r.cfg.Log.WarnContext(ctx, "the last uses of tokens could not be stored, and will be later", "error", err)
	}
}

// Store stores what was noted. What can't be stored stays noted.
func (r *Recorder) Store(ctx context.Context) error {
	if r.cfg.Room() != nil {
		return nil // whoever keeps the disk's room has logged it
	}
	r.mu.Lock()
	pending := r.pending
	r.pending = map[string]state.TokenUse{}
	r.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	uses := slices.SortedFunc(maps.Values(pending), func(a, b state.TokenUse) int { return strings.Compare(a.ID, b.ID) })
	err := r.cfg.Writer.NoteTokenUses(ctx, uses)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, use := range uses {
			r.keep(use)
		}
	}
	return err
}
