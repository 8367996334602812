// Package agent is the node agent: it converges one node on the state that the leader requests, and reports its observations.
//
// The agent is level-triggered: each message that it receives is the whole desired state, and each message that it sends is the whole
// observed state. Package lifecycle plans the steps of a member, and a driver carries them out. The agent adds the order (networks
// before ports) and the deadlines. The agent must never decide placement, nor obey a leader of an older term than it has seen. Killing
// the agent ends no member: a new agent finds the members by looking at the host. One goroutine, loop, owns all state; start there.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
	"github.com/nearmetal/nearmetal/internal/tracing"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Config is the configuration of an agent.
type Config struct {
	// Node is the record of this node's offer. The agent adds the results of the checks of its drivers and environments.
	Node api.NodeRecord
	// StateDir is this node's own directory.
	StateDir string
	// HomeDir holds the shared homes of clusters; on several machines it must be a file system they share.
	HomeDir string
	// Server is "https://HOST:PORT", Client speaks HTTP/2 to it in the node's name.
	Server string
	Client *http.Client
	// Renewed tells the agent to open its stream again, on a connection that shows another certificate; nil: never.
	Renewed <-chan struct{}
	// Refused does what can be done about the server's refusal of this node; nil: nothing.
	Refused func(ctx context.Context, refused *agentstream.Refusal) error
	// Site identifies the server's site. It stays when the CA is replaced.
	Site string

	Drivers []driver.Driver
	Fabric  fabric.Fabric
	// Responder answers DHCP and DNS on the node's networks; nil: nothing does.
	Responder Responder
	// Volumes keeps the volumes of the node; nil: it has none.
	Volumes volume.Pool
	// UnlimitedIO is what limits of I/O with volumes do not bound on this node, and why (api.VolumePool).
	UnlimitedIO string
	// Sharer carries volumes from and to other nodes; nil: they don't cross.
	Sharer volume.Sharer
	// Listen makes the link that a member's own agent connects to, given the member's control directory; nil: a Unix socket in there,
	// agent.sock.
	Listen func(dir string, m driver.Member) (memberlink.Endpoint, error)
	// Images holds the node's built environments; nil: it has none. ImagesChanged signals a change of its status.
	Images        Images
	ImagesChanged <-chan struct{}
	// Layers mounts layers of Images for members; nil: members have none here.
	Layers Layers
	// Datasets keeps the node's replicas of datasets; nil: it has none. DatasetsChanged signals a change of its states.
	Datasets        Datasets
	DatasetsChanged <-chan struct{}
	// Caches keeps the node's caches of datasets; nil: it has none. CachesChanged signals a change of their states.
	Caches        Caches
	CachesChanged <-chan struct{}
	// CacheRoom are the bounds of Caches; nil: they are not known, and nothing is placed for the sake of a cache here.
	CacheRoom *dataset.CacheRoom
	// Conditions allows members to have network conditions, for which this process forwards their packets.
	Conditions bool
	// PeerURL is the URL at which other nodes find the images held here; empty: they are not served.
	PeerURL string
	// Builder builds environments; nil: the node offers no builds. Blobs is where they go.
	Builder Builder
	// BuildSources is the folder below which recipes' files are read; empty: they can name none.
	BuildSources string
	Blobs        Blobs
	// PowerOff asks for this machine's power to go; nil: nothing here may.
	PowerOff func(ctx context.Context) error
	// Inspect returns which environments can run here. It is called for each connection, unless the call for an earlier one has not returned.
	Inspect func(ctx context.Context) []api.EnvironmentOnNode
	// Underlay reads what the link of the data network carries now; nil: not known. A change is reported on a new stream.
	Underlay func(ctx context.Context) (fabric.Underlay, error)
	// Adapters reads what the node offers of its adapters, and what is to be said of them; nil: it has none for members. A change is reported on a
	// new stream.
	Adapters func(ctx context.Context) ([]api.Device, []api.Adapter, error)
	// GPUs reads the node's GPUs; nil: it gives none to members. A change is reported on a new stream.
	GPUs func(ctx context.Context) gpu.Found
	// Loads are how busy the node's GPUs are by what their driver says, by ID; nil: it is not known. RoundTrips measures how far it is to other nodes, as far
	// as they answer; nil: this agent can't.
	Loads      func() map[string]float64
	RoundTrips func(ctx context.Context, peers []netip.Addr) (map[netip.Addr]time.Duration, error)
	// Faults reads the errors that the hardware has counted; nil: they are not reported. It may take long with a disk that hangs.
	Faults func(ctx context.Context) api.HardwareFaults
	// Energy reads what the node consumes; nil: it is not reported.
	Energy Energy
	// NoVLANs is why the kernel carries no VLANs, "" if it does.
	NoVLANs string
	// CheckHost reports what the host lacks now; nil: this agent can't. It is called once at a time.
	CheckHost func(ctx context.Context) ([]api.HostFinding, error)
	Log       *slog.Logger
	// Clock paces attempts and patience; nil: the real one. Deadlines of operations are always real.
	Clock Clock
	// Silence bounds the time without a message from the server. After it, the stream ends and the desired state counts as unknown.
	// 0: the time for which a server waits for a silent agent.
	Silence time.Duration
}

// Clock tells the time, and how long to sleep until a time.
type Clock interface {
	Now() time.Time
	Until(at time.Time) time.Duration
}

type realClock struct{}

func (realClock) Now() time.Time                   { return time.Now() }
func (realClock) Until(at time.Time) time.Duration { return time.Until(at) }

// Deadlines of the operations of one member, and the pace of what repeats.
const (
	startDeadline  = 60 * time.Second
	updateDeadline = 20 * time.Second
	stopDeadline   = 60 * time.Second
	cleanDeadline  = 60 * time.Second
	pauseDeadline  = 30 * time.Second
	saveDeadline   = 10 * time.Minute
	lookDeadline   = 20 * time.Second
	lookPause      = 2 * time.Second
	applyDeadline  = 30 * time.Second
	auditEvery     = 30 * time.Second
	probeEvery     = 5 * time.Second
	reconnectMin   = 100 * time.Millisecond
	reconnectMax   = 3 * time.Second
)

// Agent is a node agent.
type Agent struct {
	cfg Config
	// id is made at each start.
	id      string
	drivers map[api.Stack]driver.Driver
	// checking is held while the host is checked.
	checking sync.Mutex
	// events carries closures to loop, the only goroutine that touches what follows.
	events chan func()
	// slots bounds how many members are worked on at once.
	slots chan struct{}
	// carries bounds how many members are fetched from other nodes at once.
	carries chan struct{}
	// networkChecks bounds the checks of networks under way.
	networkChecks chan struct{}

	// measures are what was measured last of GPUs that the node hands out.
	measures measures
	// opening belongs to the goroutine that keeps the stream.
	opening opening
	// hearing reports whether desired is still what the leader wants; tunnels bounds how many there are at once.
	hearing *hearing
	tunnels chan struct{}

	term     int64
	desired  *agentstream.Desired
	members  map[string]*memberState
	readings readings
	networks networks
	names    names
	outbox   outbox
	tracer   *tracing.Tracer
	wake     *time.Timer
	nextWake time.Duration
	drift    []string
	auditing bool
	probing  bool
	// examining: drivers are being asked which members hang.
	examining bool
	builds    map[string]*buildState
	volumes   volumes
	sharings  sharings
	power     powerOff
	// layersKept are the paths of layers that were not taken away last; layersKnown: they were.
	layersKept  []string
	layersKnown bool
	// work is what the agent waits for when it ends: fetches and builds.
	work sync.WaitGroup
	// stored is how much of a job's output the server has told to have, by job.
	stored map[string]storedLog
}

// Run runs the agent until ctx ends; members go on running.
func Run(ctx context.Context, cfg Config) error {
	term, err := loadTerm(cfg.StateDir, cfg.Site)
	if err != nil {
		return err
	}
	a := &Agent{
		cfg: cfg, id: uuid.NewString(), term: term, drivers: map[api.Stack]driver.Driver{},
		events: make(chan func(), 64), slots: make(chan struct{}, 4*runtime.NumCPU()),
		carries: make(chan struct{}, maxCarries), networkChecks: make(chan struct{}, maxNetworkChecks),
		members: map[string]*memberState{}, readings: readings{}, outbox: outbox{changed: make(chan struct{}, 1)},
		builds: map[string]*buildState{}, volumes: volumes{states: map[string]*volumeState{}}, sharings: sharings{states: map[string]*sharingState{}}, opening: newOpening(),
		wake: time.NewTimer(time.Hour), stored: map[string]storedLog{},
	}
	if a.cfg.Clock == nil {
		a.cfg.Clock = realClock{}
	}
	a.hearing = &hearing{clock: a.cfg.Clock, patience: cmp.Or(cfg.Silence, lifecycle.DefaultDeathTimer), last: a.cfg.Clock.Now()}
	a.tunnels = make(chan struct{}, maxTunnels)
	for _, d := range cfg.Drivers {
		a.drivers[d.Stack()] = d
		a.cfg.Node.Stacks = append(a.cfg.Node.Stacks, d.Check(ctx))
	}
	if a.tracer, err = tracing.Open(ctx, "nearmetal-agent", a.outbox.trace); err != nil {
		return err
	}
	defer a.closeTracer(ctx)
	a.networks.apply = a.applyNetworks
	if err := a.recover(ctx); err != nil {
		return err
	}
	if err := a.recoverBuilds(ctx); err != nil {
		return err
	}
	if a.cfg.Builder != nil {
		check := a.cfg.Builder.Check(ctx)
		a.cfg.Node.Builder = &check
	}
	if a.cfg.Images != nil {
		a.work.Go(func() { a.cfg.Images.Run(ctx) })
	}
	if a.cfg.Datasets != nil {
		a.work.Go(func() { a.cfg.Datasets.Run(ctx) })
	}
	if a.cfg.Caches != nil {
		a.work.Go(func() { a.cfg.Caches.Run(ctx) })
	}
	go a.connect(ctx)
	a.loop(ctx)
	a.closeDoors()
	a.work.Wait()
	return a.shutdown()
}

// loop owns all state: it runs the closures that arrive, then converges and reports.
func (a *Agent) loop(ctx context.Context) {
	audit, probe := time.NewTicker(auditEvery), time.NewTicker(probeEvery)
	defer audit.Stop()
	defer probe.Stop()
	for {
		a.converge(ctx)
		a.report()
		select {
		case <-ctx.Done():
			return
		case event := <-a.events:
			event()
			a.drain()
		case <-a.wake.C:
		case <-a.cfg.ImagesChanged:
		case <-a.cfg.DatasetsChanged:
		case <-a.cfg.CachesChanged:
		case <-audit.C:
			a.audit(ctx)
			a.lookAtVolumes(ctx, a.cfg.Clock.Now())
			a.lookAtSharings(ctx, a.cfg.Clock.Now())
		case <-probe.C:
			a.probe(ctx)
			a.examine(ctx)
			a.lookAtDisks(ctx)
		}
	}
}

// drain runs the closures that wait already, so that a burst costs one round of converging.
func (a *Agent) drain() {
	for {
		select {
		case event := <-a.events:
			event()
		default:
			return
		}
	}
}

// post hands a closure to loop, or drops it when the agent ends.
func (a *Agent) post(ctx context.Context, event func()) {
	select {
	case a.events <- event:
	case <-ctx.Done():
	}
}

// hear obeys a desired state that was heard under this number, see hearing.
func (a *Agent) hear(ctx context.Context, d *agentstream.Desired, number int64) error {
	if err := a.obey(ctx, d); err != nil {
		return err
	}
	if a.desired == d {
		a.hearing.obeyed(number)
	}
	return nil
}

// obey takes a desired state unless it comes from an older leader or is older than the present one. An error says that the order
// must be heard again.
func (a *Agent) obey(ctx context.Context, d *agentstream.Desired) error {
	if d.Term < a.term || (a.desired != nil && d.Term == a.desired.Term && d.Revision < a.desired.Revision) {
		a.cfg.Log.WarnContext(ctx, "an outdated order was ignored",
			"term", d.Term, "revision", d.Revision, "newest_term", a.term)
		return nil
	}
	if d.Term > a.term {
		if err := saveTerm(a.cfg.StateDir, a.cfg.Site, d.Term); err != nil {
			// Obeying without having written the term down could let an older leader in after a restart.
			return fmt.Errorf("the leader's term can't be stored, so its orders wait: %w", err)
		}
		a.term = d.Term
	}
	a.desired = d
	a.setWanted(ctx, d)
	a.wantVolumes(d)
	a.wantSharings(d)
	a.wantImages(d)
	a.wantDatasets(ctx, d)
	a.wantBuilds(ctx, d)
	return nil
}

// audit looks for what changed behind the agent's back: networks that drifted are applied again.
func (a *Agent) audit(ctx context.Context) {
	if a.desired == nil || a.networks.busy || a.auditing {
		return
	}
	a.auditing = true
	applied := a.networks.count
	go func() {
		bounded, cancel := context.WithTimeout(ctx, applyDeadline)
		defer cancel()
		found, err := a.cfg.Fabric.Audit(bounded)
		a.post(ctx, func() {
			a.auditing = false
			if err != nil {
				a.cfg.Log.WarnContext(ctx, "the networks can't be audited", "error", err)
				return
			}
			if a.networks.count != applied {
				return // what was found is half of what was, half of what is applied since
			}
			a.drift = nil // not reused: the last report may be being sent
			for _, d := range found {
				a.drift = append(a.drift, fmt.Sprintf("network %d: %s: want %s, got %s", d.Network, d.Object, d.Want, d.Got))
			}
			if len(found) > 0 {
				a.cfg.Log.WarnContext(ctx, "the networks drifted; applying them again", "drift", a.drift)
				a.networks.force = true
			}
		})
	}()
}

// shutdown closes the sockets of members; the members go on.
func (a *Agent) shutdown() error {
	var errs []error
	for _, m := range a.members {
		if m.control != nil {
			errs = append(errs, m.control.Close())
		}
	}
	return errors.Join(errs...)
}
