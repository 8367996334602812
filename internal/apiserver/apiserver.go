// Package apiserver is the HTTP API: it authenticates, validates and records what users intend, and shows what is, as answers
// and as watch streams.
//
// It writes what people want only: intents, jobs, projects, tokens, drains. It calls no driver, holds no state of its own but the recent history of watches, and must
// never decide where or whether a cluster runs. Start with New, then operations.go (the list of operations) and join.go (how
// intent, record and observations become what users see), authorize.go (who may do what).
package apiserver

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// Writer records what users and operators want. *state.Repo is one. Revisions are for Reader.WaitRevision.
type Writer interface {
	CreateCluster(ctx context.Context, in api.ClusterIntent) (int64, error)
	CreateClusterWithHome(ctx context.Context, in api.ClusterIntent, home api.VolumeIntent, check func(others []api.VolumeIntent) error) (int64, error)
	UpdateIntent(ctx context.Context, name, uid string, change func(*api.ClusterIntent) error) (api.ClusterIntent, int64, error)
	RequestDelete(ctx context.Context, name string, at time.Time) (api.ClusterIntent, int64, error)
	CreateJob(ctx context.Context, job api.Job) (int64, error)
	UpdateJob(ctx context.Context, id string, change func(*api.Job) error) (api.Job, int64, error)

	SetDrain(ctx context.Context, node, reason, by string, at time.Time) (api.NodeControl, int64, error)
	Undrain(ctx context.Context, node string) (int64, error)
	ChangeControl(ctx context.Context, node string, change func(api.NodeControl) (*api.NodeControl, error)) (api.NodeControl, int64, error)
	TrustBuilder(ctx context.Context, node, by string, at time.Time) (int64, error)
	DistrustBuilder(ctx context.Context, node string) (int64, error)
	ForgetNode(ctx context.Context, view *state.View, name string) (int64, error)
	ApproveNode(ctx context.Context, node, by string, at time.Time) (api.NodeIdentity, int64, error)
	RevokeNode(ctx context.Context, node string) (int64, error)

	CreateProject(ctx context.Context, p api.Project) (int64, error)
	UpdateProject(ctx context.Context, name string, change func(*api.Project) error) (api.Project, int64, error)
	DeleteProject(ctx context.Context, name string) (int64, error)
	PutShape(ctx context.Context, shape api.NamedShape) (int64, error)
	DeleteShape(ctx context.Context, name string) (int64, error)
	CreateNetwork(ctx context.Context, in api.NetworkIntent) (int64, error)
	RequestNetworkDelete(ctx context.Context, name string, at time.Time) (int64, error)
	ChangeNetworkRecords(ctx context.Context, name string, change func([]api.NetworkRecord) ([]api.NetworkRecord, error)) (api.NetworkIntent, int64, error)
	CreateSecurityGroup(ctx context.Context, g api.SecurityGroup) (int64, error)
	ChangeSecurityGroup(ctx context.Context, name string, at time.Time, change func(rules []string) ([]string, error)) (api.SecurityGroup, int64, error)
	DeleteSecurityGroup(ctx context.Context, name string) (int64, error)
	CreateDataset(ctx context.Context, d api.Dataset) (int64, error)
	ChangeDataset(ctx context.Context, name, uid string, change func(*api.Dataset) error) (api.Dataset, int64, error)
	DeleteDataset(ctx context.Context, name string) (int64, error)
	CreateVolume(ctx context.Context, in api.VolumeIntent, check func(others []api.VolumeIntent) error) (int64, error)
	ChangeVolume(ctx context.Context, name, uid string, change state.VolumeChange) (api.VolumeIntent, int64, error)
	RequestVolumeDelete(ctx context.Context, name, uid string, at time.Time, purge func(*api.VolumeIntent) time.Time) (api.VolumeIntent, int64, error)
	GiveUpImport(ctx context.Context, name, uid string, at time.Time) (api.VolumeIntent, int64, error)
	UndeleteVolume(ctx context.Context, name, uid string) (api.VolumeIntent, int64, error)
	AllocateAddress(ctx context.Context, a api.FloatingAddress, check func(held []api.FloatingAddress) error) (int64, error)
	ChangeAddress(ctx context.Context, address netip.Addr, change func(a *api.FloatingAddress, others []api.FloatingAddress) error) (api.FloatingAddress, int64, error)
	ReleaseAddress(ctx context.Context, address netip.Addr, check func(*api.FloatingAddress) error) (int64, error)
	CreateToken(ctx context.Context, t api.TokenInfo) (int64, error)
	DeleteToken(ctx context.Context, project, id string) (int64, error)

	MachineWriter
}

// Reader is the stored state in memory, kept current. *state.Cache is one.
type Reader interface {
	View() *state.View
	// EventLog returns the first and the last event that is kept of a cluster, or of a machine by state.NodeLog; 0: there is none.
	EventLog(log string) (first, last int64)
	// Events reads events of a log after one of them, the oldest first, and not more than limit.
	Events(ctx context.Context, log string, after int64, limit int) ([]api.Event, error)
	// UsageInput returns the input of totals of use, as of one revision.
	UsageInput(ctx context.Context, now time.Time) usage.Input
	// EnergyUsed is what each project used in api.EnergyWindow, in joules, if the quota of any bounds that.
	EnergyUsed(ctx context.Context, now time.Time) (map[string]int64, error)
	WaitRevision(ctx context.Context, revision int64) (int64, error)
}

// Verifier finds the principal of a bearer token. *tenancy.Tokens implements it.
type Verifier interface {
	Verify(bearer string) (tenancy.Principal, bool)
}

// Uses notes uses of tokens, and again and again while a stream lasts. It returns at once. *lastuse.Recorder implements it.
type Uses interface {
	Used(id, from string)
}

// MemberUses is what members used of late. *monitor.Monitor implements it.
type MemberUses interface {
	// UsesOf returns what a node's agent has said of an assignment's use, the oldest first.
	UsesOf(node, assignmentID string) []api.UsePoint
}

// Energy is the leader's account of energy. *energy.Book implements it; that of a server which does not lead is empty.
type Energy interface {
	// Records are those that may not be stored yet, or not all of them.
	Records() []api.EnergyRecord
	// Node is what a node consumes now.
	Node(name string) (api.NodeEnergy, bool)
	// Member is the power of a member in the last minutes, the oldest first.
	Member(node, assignmentID string) []energy.MemberPower
}

// unnoted are uses that nobody notes.
type unnoted struct{}

func (unnoted) Used(string, string) {}

// Config is the configuration of a Server.
type Config struct {
	Writer Writer
	Reader Reader
	Live   Live
	Logs   Logs
	Tokens Verifier
	// Uses notes which tokens are used; nil: nobody does.
	Uses Uses
	// Nodes gives nodes their certificates; nil: no node is let in.
	Nodes Nodes
	// Pin is of the site's CA; tokens made here carry it.
	Pin       trust.Pin
	Explainer Explainer
	Certifier Certifier
	// ClusterKeys returns marks (changedfiles.Marks) of the keys that a member has from the site; nil: there are none.
	ClusterKeys func(intent api.ClusterIntent, a api.Assignment) ([][]byte, error)
	// MaxSavedBytes is how much the files may hold that are saved of a member; 0: changedfiles.DefaultMaxBytes.
	MaxSavedBytes int64
	Tunnels       Tunnels
	Homes         Homes
	Hosts         Hosts
	Networks      Networks
	// Fabrics are the site's cells as this server has read them.
	Fabrics situation.Fabrics
	// Pool is where subnets of networks come from.
	Pool placement.Pool
	// Pool6 is where their IPv6 subnets come from.
	Pool6 placement.Pool6
	// PKeys are the partition keys that networks on InfiniBand can have.
	PKeys api.PKeyPool
	// VLANs are the VLAN IDs that networks can have. Encrypted: all that nodes exchange goes through WireGuard, which carries no VLANs.
	VLANs     api.VLANPool
	Encrypted bool
	// UserHomes gives clusters that ask for no home that of their user.
	UserHomes bool
	// FloatingPool is where floating addresses come from.
	FloatingPool floating.Pool
	// Offers are the stacks and environments that the site carries for all its machines.
	Offers offer.Site
	// Provisioning, Sealer, Consoles, Images and Recipes stand behind machines and environments, Compatible tells which go together; nil: the
	// site has no such thing, and the operations say so.
	Provisioning Provisioning
	Sealer       Sealer
	Consoles     Consoles
	Images       Images
	// MemberFiles stores the files of members that are paused; nil: such members can't be paused.
	MemberFiles MemberFiles
	Recipes     Recipes
	Compatible  Compatible
	// AgentStream handles POST /agent/v5/stream, the agents' full-duplex HTTP/2 stream, AgentTunnel POST /agent/v1/tunnel/ID, theirs for
	// tunnels to members, and AgentCarry POST /agent/v1/carry/TARGET/ID, theirs for what another node has of a member; nil: there is none.
	AgentStream http.Handler
	AgentTunnel http.Handler
	AgentCarry  http.Handler
	// Traces are the traces of recent clusters; nil: none are kept, and the operation does not exist.
	Traces Traces
	// MemberUses is what members used of late; nil: nobody measures.
	MemberUses MemberUses
	// Energy is the account of energy; nil: only what is stored is known.
	Energy Energy
	// Sensors returns what was read last of the sensors of a machine, by its UID, nil for nothing; nil: no machine's are read.
	Sensors func(uid string) *api.MachineSensors
	// Audit is the audit log; nil: there is none.
	Audit Audit
	// Room returns why nothing more can be stored that makes the state grow; nil error or nil function: everything is stored. Deletes and
	// reads never ask.
	Room func() error
	// Ready returns the reason why the server can't serve yet; nil error or nil function: it can.
	Ready func() error
	Log   *slog.Logger
	// Now is the clock for what is stored; nil: time.Now.
	Now func() time.Time
	// RequestTimeout bounds a request that is no stream, its body included; 0: 30 s.
	RequestTimeout time.Duration
	// KeepAlive is the interval at which an idle stream sends a comment; 0: 15 s.
	KeepAlive time.Duration
}

// Server is the API. Make it with New.
type Server struct {
	cfg Config
	mux *http.ServeMux
	api huma.API
	hub *hub
	// access is who may call what, by the mux's pattern; what is not in it nobody may.
	access map[string]Access
	// queries are the query parameters of each documented pattern; every other query is refused.
	queries map[string][]*huma.Param
	// stopping is closed when the server shuts down; streams end then.
	stopping chan struct{}
	stopOnce sync.Once
	agents   nodeStreams
	// inFlight counts the requests being answered.
	inFlight  atomic.Int64
	strangers strangers
	// reporting has whoever is making a report of use.
	reporting chan struct{}
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
	if cfg.Uses == nil {
		cfg.Uses = unnoted{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg: cfg, mux: http.NewServeMux(), hub: newHub(cfg.Reader, cfg.Live), access: map[string]Access{}, stopping: make(chan struct{}), reporting: make(chan struct{}, 1),
	}
	s.api = humago.New(s.mux, apiConfig(s))
	s.register()
	return s
}

// Run keeps the watches current until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var watching sync.WaitGroup
	watching.Go(func() { s.watchIdentities(ctx) })
	s.hub.run(ctx)
	watching.Wait()
}

// Handler serves requests from the network: every one but those of health and documentation needs a bearer token.
func (s *Server) Handler() http.Handler { return s.handler(s.authenticate) }

// LocalHandler serves requests from the Unix socket: who can open it is the owner, and needs no token. Who sends one is who it says: an
// owner who tries a viewer's token must not delete with it.
func (s *Server) LocalHandler() http.Handler {
	return s.handler(func(next http.Handler) http.Handler {
		byToken := s.authenticate(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				byToken.ServeHTTP(w, r)
				return
			}
			entryOf(r.Context()).is(tenancy.Principal{Role: api.RoleAdmin})
			owner := session{principal: tenancy.Principal{Role: api.RoleAdmin}, valid: func() bool { return true }}
			next.ServeHTTP(w, r.WithContext(withSession(r.Context(), owner)))
		})
	})
}

// administrator is what who asks by the Unix socket, or by the token of the server's directory, is called.
const administrator = "admin"

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
