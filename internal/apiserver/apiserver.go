// Package apiserver is the HTTP API: it authenticates, validates and records what users intend, and shows what is, as answers
// and as watch streams.
//
// It writes intents and jobs only. It calls no driver, holds no state of its own but the recent history of watches, and must
// never decide where or whether a cluster runs. Start with New, then operations.go (the list of operations) and join.go (how
// intent, record and observations become what users see).
package apiserver

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Writer records intent. *state.Repo is one. Revisions are for Reader.WaitRevision.
type Writer interface {
	CreateCluster(ctx context.Context, in api.ClusterIntent) (int64, error)
	RequestDelete(ctx context.Context, name string, at time.Time) (api.ClusterIntent, int64, error)
	CreateJob(ctx context.Context, job api.Job) (int64, error)
	UpdateJob(ctx context.Context, id string, change func(*api.Job) error) (api.Job, int64, error)
}

// Reader is the stored state in memory, kept current. *state.Cache is one.
type Reader interface {
	View() *state.View
	Events(cluster string, after int64) []api.Event
	WaitRevision(ctx context.Context, revision int64) (int64, error)
}

// Verifier tells whose a bearer token is. *trust.Tokens is one.
type Verifier interface {
	Verify(bearer string) (trust.Principal, bool)
}

// Config is what a Server needs.
type Config struct {
	Writer Writer
	Reader Reader
	Live   Live
	Logs   Logs
	Tokens Verifier
	// AgentStream handles POST /agent/v1/stream, the agents' full-duplex HTTP/2 stream; nil: there is none.
	AgentStream http.Handler
	// Ready tells why the server can't serve yet; nil error or nil function: it can.
	Ready func() error
	Log   *slog.Logger
	// Now is the clock for what is stored; nil: time.Now.
	Now func() time.Time
	// RequestTimeout bounds a request that is no stream, its body included; 0: 30 s.
	RequestTimeout time.Duration
	// KeepAlive is how often an idle stream sends a comment; 0: 15 s.
	KeepAlive time.Duration
}

// Server is the API. Make it with New.
type Server struct {
	cfg Config
	mux *http.ServeMux
	api huma.API
	hub *hub
	// stopping is closed when the server shuts down; streams end then.
	stopping chan struct{}
	stopOnce sync.Once
	// inFlight counts the requests being answered.
	inFlight atomic.Int64
}

// New returns a Server. Run must be running while it serves.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = 30 * time.Second
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = 15 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, mux: http.NewServeMux(), hub: newHub(cfg.Reader, cfg.Live), stopping: make(chan struct{})}
	s.api = humago.New(s.mux, apiConfig(s))
	s.register()
	return s
}

// Run keeps the watches current until ctx ends.
func (s *Server) Run(ctx context.Context) { s.hub.run(ctx) }

// Handler serves requests from the network: every one but those of health and documentation needs a bearer token.
func (s *Server) Handler() http.Handler { return s.handler(s.authenticate) }

// LocalHandler serves requests from the Unix socket: who can open it is the owner, and needs no token.
func (s *Server) LocalHandler() http.Handler {
	return s.handler(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			owner := session{principal: trust.Principal{Role: trust.RoleUser}, valid: func() bool { return true }}
			next.ServeHTTP(w, r.WithContext(withSession(r.Context(), owner)))
		})
	})
}

// handler is what all requests pass, from the outside in.
func (s *Server) handler(identify func(http.Handler) http.Handler) http.Handler {
	return s.logged(identify(http.HandlerFunc(s.route)))
}

// stop ends all streams.
func (s *Server) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// newID makes an ID at random: lower-case letters and digits, 5 bits each.
func newID(letters int) string {
	b := make([]byte, (letters*5+7)/8)
	rand.Read(b) // never fails (crypto/rand)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b))[:letters]
}
