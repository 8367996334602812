package tenancy

import (
	"time"

	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Verifier tells whose a bearer token is. *trust.Tokens is one, for the token files of a server.
type Verifier interface {
	Verify(bearer string) (trust.Principal, bool)
}

// Viewer is the stored state in memory. *state.Cache is one.
type Viewer interface {
	View() *state.View
}

// Tokens knows all tokens of a site: those of the server's token files, and the stored ones. A stored token is revoked with the view that
// no longer has it. It may be used from many goroutines.
type Tokens struct {
	files Verifier
	state Viewer
	now   func() time.Time
}

// NewTokens returns a verifier over a server's token files and the stored tokens.
func NewTokens(files Verifier, state Viewer, now func() time.Time) *Tokens {
	return &Tokens{files: files, state: state, now: now}
}

// Verify returns who sent a bearer token, and false for one that is not known. For one that has ended it returns whose it was, and false.
func (t *Tokens) Verify(bearer string) (Principal, bool) {
	if p, ok := t.files.Verify(bearer); ok {
		return p, true
	}
	token, err := trust.ParseBearer(bearer)
	if err != nil {
		return Principal{}, false
	}
	// The hash of an unknown token is compared too: the time taken does not tell which IDs exist.
	hash := ""
	stored := t.state.View().Token(token.ID())
	if stored != nil {
		hash = stored.SHA256
	}
	if !token.Is(hash) || stored == nil {
		return Principal{}, false
	}
	p := Principal{Role: stored.Role, User: stored.User, Project: stored.Project, TokenID: stored.ID, Limits: stored.Limits}
	if stored.ExpiresAt != nil {
		p.Ends = *stored.ExpiresAt
	}
	return p, p.Ends.IsZero() || t.now().Before(p.Ends)
}
