// Package controller is the leader's loop. It reads the stored state and the agents' reports, plans, commits, and hands each node its
// desired state.
//
// Pure packages (lifecycle, placement) make the decisions. The controller only collects their inputs and carries out their operations.
// The election guards every commit. The controller keeps no state that can't be rebuilt: a new leader starts from the store. It must
// never call a driver or touch a node. Start with pass.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Agents is what the controller knows of the node agents, and how it reaches them; internal/monitor provides it.
type Agents interface {
	situation.Heard
	situation.HeardVolumes
	// Sharings are what a node's agent last said of volumes that cross from and to the node; heard as for Volumes.
	Sharings(node string) (states []volume.SharingState, heard bool)
	// Job is the last report from a node's agent about a run of a job.
	Job(node, runID string) (agentstream.JobObserved, bool)
	LogBytes(jobID string) int64
	ForgetJob(node, runID string)
	DropLog(jobID string) error
	SetDesired(node string, desired agentstream.Desired)
	// Touch notes that there is news of a node that its agent did not tell.
	Touch(node string)
	Changed() <-chan struct{}
	// ChangedNodes returns the nodes of which there is news after a serial number, and the number that this is current to; after 0 come all.
	// Phases that change by the clock alone are not among them.
	ChangedNodes(after uint64) ([]string, uint64)
	// NextDeath is when the clock alone changes a node's phase next; zero: never.
	NextDeath() time.Time
	// Connected reports whether a node's agent is connected and heard of, and when it was heard last.
	Connected(node string) (bool, time.Time)
	// PowerOffProblem is why a node can't power itself off though it was told to.
	PowerOffProblem(node string) string
	// Faults are the errors that a node's hardware has counted, as its connected agent says; false: it has not said.
	Faults(node string) (api.HardwareFaults, bool)
	// Measure asks a node's agent about the GPUs that it hands out, and how far it is to these peers.
	Measure(ctx context.Context, node string, peers []netip.Addr) (agentstream.Measured, error)
	// Builds are the last reports from connected nodes about builds, by node.
	Builds() map[string][]agentstream.BuildObserved
	// Datasets are the last reports from connected nodes about datasets.
	Datasets() []plan.Node
	// Holders are the nodes that hold an image, and those that fetch it, with the URLs they serve it at.
	Holders(digest image.Digest) (whole, fetching map[string]string)
}

// Config is the configuration of a controller.
type Config struct {
	// Candidate names this server in the election; it must be unique among live servers.
	Candidate string
	Repo      *state.Repo
	Cache     *state.Cache
	Agents    Agents
	// Secrets are the site's, which keys of clusters are derived from.
	Secrets trust.Secrets
	// Nameservers are given to clusters with egress.
	Nameservers []netip.Addr
	Pool        placement.Pool
	// Pool6 is where IPv6 subnets of networks come from.
	Pool6 placement.Pool6
	// Unseal opens the credentials of datasets' sources; nil: those that ask for one can't be fetched.
	Unseal func(uid string, sealed []byte) ([]byte, error)
	// FloatingPool is where floating addresses come from. Connections is how many tracked connections a project may have on a node; 0 is the default.
	FloatingPool []netip.Prefix
	// VLANs are the VLAN IDs that networks can have, PKeys the partition keys.
	VLANs       api.VLANPool
	PKeys       api.PKeyPool
	Connections int
	// Open are the private ranges that members with egress reach.
	Open []netip.Prefix
	// EncryptUnderlay: frames between nodes go through WireGuard only, and nodes without it carry no networks that need other nodes.
	EncryptUnderlay bool
	// DrainOn are the findings for which nodes are drained.
	DrainOn   []api.DrainCause
	Deadlines lifecycle.Deadlines
	// Images are the site's built environments; Provisioning is nil for a site without machines of its own.
	Images       Images
	Provisioning *Provisioning
	// Energy keeps account of energy; nil: nobody does.
	Energy *Energy
	// MemberFiles are the files of paused members; nil: the site keeps none.
	MemberFiles MemberFiles
	// Offers is what the site carries for all its machines; metal members need a driver, and there is none yet. Its fabrics are those here.
	Offers  offer.Site
	Fabrics situation.Fabrics
	Now     func() time.Time
	// Clock is the server's, which each leadership sets; nil: nobody else asks for the time.
	Clock *SiteClock
	Log   *slog.Logger
}

// Run campaigns and leads, again and again, until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	for ctx.Err() == nil {
		leadership, err := cfg.Repo.Store().Campaign(ctx, cfg.Candidate)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return fmt.Errorf("campaign for leadership: %w", err)
		}
		cfg.Log.InfoContext(ctx, "leading", "term", leadership.Term())
		// The view may be behind the election. The leader's time begins after all that was decided before.
		if _, err = cfg.Cache.WaitRevision(ctx, leadership.Term()); err == nil {
			err = newLeader(cfg, leadership).lead(ctx)
		}
		if ctx.Err() != nil {
			resign, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			return errors.Join(ctx.Err(), leadership.Resign(resign))
		}
		cfg.Log.WarnContext(ctx, "no longer leading", "error", err)
	}
	return ctx.Err()
}

// leader is one leadership.
type leader struct {
	cfg     Config
	log     *slog.Logger
	writer  *state.Leader
	since   time.Time
	clock   clock
	desired *desiredStates
	// room is what is free, kept current from pass to pass; answered is what admission was asked last, answeredAt when, by the machine's
	// clock.
	room       situation.Room
	answered   planned
	answeredAt time.Time
	resting    map[string]resting // by cluster UID
	// heardTo is the news of agents that resting clusters know of, nodes what the last pass held nodes to be.
	heardTo uint64
	nodes   map[string]lifecycle.NodeState
	// networksSeen are the lists in which no network was over.
	networksSeen [4]any
	offered      offered
	// pruned is when nothing was left to be pruned last.
	pruned time.Time
	// packed is when no log of events was left to be packed last.
	packed time.Time
	// usagePruned is when all usage records had been looked through last, usageSeen the key that the present look has come to, "" when there is none.
	usagePruned time.Time
	usageSeen   string
	// wakeAt is when to look again, by the machine's clock.
	wakeAt time.Time
	// committed is the newest revision this leader wrote, its election at first: a pass never plans on less. On an older view, room
	// that the leader before gave away would look free.
	committed int64
	// provisioner is that of this leadership, nil for a site without machines.
	provisioner Provisioner
	// machineAt is the machine, by its place in the view, that the next pass begins with.
	machineAt int
	endings   map[string]ending    // of runs that have ended, whose output is still arriving
	starts    map[string]time.Time // of runs that are heard to run, until that is stored
	// remembered is what tellMachines need not work out again.
	remembered remembered
	recipes    recipes
	// readBack is signalled when a fabric was read back otherwise than before. fabricsTold: each was told its networks under this leadership.
	readBack    chan struct{}
	fabricsTold bool
	// isolated are the provisioning ports of machines that tenants have, by fabric, as of what is in isolatedSeen.
	isolated     map[string][]site.Port
	isolatedSeen [4]any
	// alarms are the events of alarms that have begun and not ended, by fabric and alarm; a fabric that is not there is to be read.
	alarms map[string]map[string]api.Event
	// tight are the caches that were found too small, and told of.
	tight map[tightCache]bool
}

func newLeader(cfg Config, leadership store.Leadership) *leader {
	newest := cfg.Cache.View().NewestTime()
	clock := newClock(cfg.Now, newest)
	if cfg.Clock != nil {
		clock = cfg.Clock.lead(newest)
	}
	return &leader{
		cfg: cfg, log: cfg.Log.With("term", leadership.Term()), writer: cfg.Repo.AsLeader(leadership),
		since: clock.floor, clock: clock, desired: newDesiredStates(cfg), room: situation.Room{Offers: cfg.Offers, Fabrics: cfg.Fabrics, Encrypted: cfg.EncryptUnderlay},
		resting: map[string]resting{}, endings: map[string]ending{}, starts: map[string]time.Time{}, committed: leadership.Term(), remembered: newRemembered(), recipes: recipes{},
		readBack: make(chan struct{}, 1), alarms: map[string]map[string]api.Event{},
	}
}

// retryPause is after how long a pass that failed is repeated (the store does not answer, the disk is full). leastPause is the pause after it that
// no news shortens: what it wrote before it failed is news, and would be written again and again.
const (
	retryPause = time.Second
	leastPause = 100 * time.Millisecond
)

// lead makes pass after pass until the leadership is lost or ctx ends.
func (l *leader) lead(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.writer.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	defer l.provision(ctx)()
	defer l.keepFabrics(ctx)()
	var measured sync.WaitGroup
	measured.Go(func() { l.keepEnergy(ctx) })
	measured.Go(func() { l.keepDataFigures(ctx) })
	measured.Go(func() { l.keepMeasures(ctx) })
	defer measured.Wait()
	defer cancel()
	if n, err := l.writer.CollectGarbage(ctx); err != nil {
		l.log.WarnContext(ctx, "can't yet remove unfinished assignments of an earlier leader", "error", err)
	} else if n > 0 {
		l.log.InfoContext(ctx, "removed unfinished assignments of an earlier leader", "chunks", n)
	}
	for {
		changed := l.cfg.Agents.Changed()
		revision, err := l.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return store.ErrNotLeader
		case errors.Is(err, store.ErrNotLeader) || errors.Is(err, errDoubt):
			return err
		case err != nil:
			l.log.ErrorContext(ctx, "a pass of the controller failed; retrying", "error", err)
			l.soonerRaw(l.cfg.Now().Add(retryPause))
			select {
			case <-ctx.Done():
			case <-time.After(leastPause):
			}
		}
		l.wait(ctx, revision, changed)
	}
}

// wait returns when the state, what agents say, or the clock calls for another pass.
func (l *leader) wait(ctx context.Context, revision int64, changed <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stored := make(chan struct{})
	go func() {
		if _, err := l.cfg.Cache.Wait(ctx, revision); err == nil {
			close(stored)
		}
	}()
	pause := time.Hour
	if !l.wakeAt.IsZero() {
		pause = max(0, l.wakeAt.Sub(l.cfg.Now()))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var powered, heard, measured <-chan struct{} // nil, and never ready, at a site without machines
	if l.provisioner != nil {
		powered, heard = l.provisioner.Changed(), l.cfg.Provisioning.Heard.Changed()
		if l.cfg.Provisioning.Sensors != nil {
			measured = l.cfg.Provisioning.Sensors.Changed()
		}
	}
	select {
	case <-ctx.Done():
	case <-stored:
	case <-changed:
	case <-powered:
	case <-heard:
	case <-measured:
	case <-l.readBack:
		l.touchFabrics()
	case <-timer.C:
	}
}

// sooner moves the next pass to a time of the leader's clock, if it is not earlier already.
func (l *leader) sooner(at time.Time) {
	if !at.IsZero() {
		l.soonerRaw(l.clock.started.Add(at.Sub(l.clock.floor)))
	}
}

// soonerRaw moves the next pass to a time of the machine's clock.
func (l *leader) soonerRaw(at time.Time) {
	if !at.IsZero() && (l.wakeAt.IsZero() || at.Before(l.wakeAt)) {
		l.wakeAt = at
	}
}

// pass plans everything once on one view and makes it true. It returns the revision of the view.
func (l *leader) pass(ctx context.Context) (int64, error) {
	if _, err := l.cfg.Cache.WaitRevision(ctx, l.committed); err != nil {
		return 0, err
	}
	l.wakeAt = time.Time{}
	l.soonerRaw(l.cfg.Agents.NextDeath())
	view := l.cfg.Cache.View()
	// Nodes are told first what is true already: what they say of it is judged by that.
	told, errs := l.tell(view)
	errs = append(errs, l.tellMachines(view)...)
	// News that comes from here on is that of the next pass, though this one may see some of it.
	news, heardTo := l.cfg.Agents.ChangedNodes(l.heardTo)
	l.tellFabrics(view)
	p := l.newPass(view)
	p.stir(told, news)
	l.heardTo = heardTo
	errs = append(errs, p.newNetworks(ctx), p.machines(ctx), p.bmcLogs(ctx), p.faults(ctx), p.drains(ctx), p.clusters(ctx), p.admit(ctx), p.builds(ctx), p.quarantines(ctx), p.networks(ctx), p.volumes(ctx), p.nodeSpans(ctx), p.jobs(ctx), p.fabricAlarms(ctx), p.tightCaches(ctx), p.prune(ctx))
	return view.Revision, errors.Join(errs...)
}

// tell hands every node its desired state as far as it changed, and returns those nodes: which files members should have depends on it.
func (l *leader) tell(view *state.View) (told []string, errs []error) {
	changed, failed := l.desired.update(l.writer.Term(), l.clock.at(l.cfg.Now()), view)
	l.sooner(l.desired.goodUntil)
	for name, err := range failed {
		errs = append(errs, fmt.Errorf("cluster %q can't be sent to its nodes: %w", name, err))
	}
	for node, desired := range changed {
		l.cfg.Agents.SetDesired(node, desired)
		told = append(told, node)
	}
	// A node without members must be told so too: its agent cleans what it finds only once it has heard from the leader.
	for n := range view.Agents() {
		if l.desired.first(n.Name) {
			l.cfg.Agents.SetDesired(n.Name, l.desired.assemble(n.Name, l.writer.Term(), view.Revision))
			told = append(told, n.Name)
		}
	}
	return told, errs
}
