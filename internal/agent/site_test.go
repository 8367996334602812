package agent_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/agent/agenttest"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/internal/volume"
	volumefake "github.com/nearmetal/nearmetal/internal/volume/fake"
)

// site is a control plane in this process, with the real controller, monitor, streams and agents; only the members and networks
// are pretended.
type site struct {
	t     *testing.T
	store store.Store
	repo  *state.Repo
	cache *state.Cache
	agent *monitor.Monitor
	http  *httptest.Server
	// deathTimer is how long a silent node is waited for.
	deathTimer time.Duration
	clock      agent.Clock // of the agents of nodes made from now on; nil: the real one
	// carried finds what an agent may fetch from another node.
	carried func(agentstream.CarryRequest) (monitor.Carried, error)
}

// fast is a clock that runs a hundred times as fast as the real one.
type fast struct{ began time.Time }

func (c fast) Now() time.Time                   { return c.began.Add(100 * time.Since(c.began)) }
func (c fast) Until(at time.Time) time.Duration { return at.Sub(c.Now()) / 100 }

// newSite is one where no node dies because this machine is busy.
func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteWith(t, 5*time.Minute)
}

func newSiteWith(t *testing.T, deathTimer time.Duration) *site {
	t.Helper()
	s := newUnledSite(t, deathTimer)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = controller.Run(ctx, controller.Config{
			Candidate: "test", Repo: s.repo, Cache: s.cache, Agents: s.agent, Secrets: trust.Secrets{{Key: []byte(strings.Repeat("s", 32))}},
			Pool: placement.DefaultPool, Deadlines: lifecycle.DefaultDeadlines(), Now: time.Now, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return s
}

// newUnledSite is one whose leader is the test.
func newUnledSite(t *testing.T, deathTimer time.Duration) *site {
	t.Helper()
	s := &site{t: t, store: memory.New(), deathTimer: deathTimer}
	s.repo = state.New(s.store)
	log := slog.New(slog.NewTextHandler(testWriter{t}, nil))
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	if s.cache, err = s.repo.OpenCache(ctx); err != nil {
		t.Fatal(err)
	}
	s.agent = monitor.New(monitor.Config{
		LogDir: t.TempDir(), DeathTimer: deathTimer, Now: time.Now, Log: log,
		Register: func(ctx context.Context, n api.NodeRecord) error { _, err := s.repo.PutNode(ctx, n); return err },
	})
	mux := http.NewServeMux()
	mux.Handle(agentstream.Path, agentstream.Handler(s.agent.Serve))
	mux.Handle(agentstream.TunnelPath, s.agent.ServeTunnel())
	s.carried = func(r agentstream.CarryRequest) (monitor.Carried, error) {
		return situation.CarriedFor(s.cache.View(), r)
	}
	mux.Handle(agentstream.CarryPath, s.agent.ServeCarry(func(r agentstream.CarryRequest) (monitor.Carried, error) { return s.carried(r) }))
	s.http = httptest.NewUnstartedServer(agenttest.Identified(mux))
	s.http.EnableHTTP2 = true
	s.http.StartTLS()
	t.Cleanup(func() {
		cancel()
		s.http.CloseClientConnections()
		s.http.Close()
		_ = s.store.Close()
	})
	return s
}

// testWriter shows the log of a test that fails.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// node is a pretended machine; its agent can be ended and started again.
type node struct {
	site   *site
	name   string
	host   *fake.Host
	fabric *fabricfake.Fabric
	dir    string
	stop   func()
	// stack is what it carries, containers unless it says otherwise.
	stack api.Stack
	// Hooks that fail a driver's calls, and one that is called for every session; set them while the agent is away.
	update, observe func() error
	session         func()
	// responder gets the networks to answer on; nil: nothing answers.
	responder agent.Responder
	// wrap changes the driver of the agents that are started from now on.
	wrap func(driver.Driver) driver.Driver
	// volumes is where it keeps volumes; nil: it keeps none.
	volumes *volumefake.Disk
	// conditions: its agents make network conditions.
	conditions bool
}

// node is a machine that is registered: a cluster that is too large for the nodes that are is refused for good.
func (s *site) node(name string, cores int) *node {
	s.t.Helper()
	n := s.newNode(name)
	n.start(cores)
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	for view := s.cache.View(); view.Node(name) == nil; view = s.cache.View() {
		if _, err := s.cache.Wait(ctx, view.Revision); err != nil {
			s.t.Fatalf("node %s is not registered: %v", name, err)
		}
	}
	return n
}

// newNode is a machine whose agent has not been started.
func (s *site) newNode(name string) *node {
	dir, err := os.MkdirTemp("", "nm") // t.TempDir is too long for the path of a Unix socket
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{site: s, name: name, host: fake.NewHost(), fabric: &fabricfake.Fabric{}, dir: dir, stop: func() {}, session: func() {}}
	s.t.Cleanup(func() { n.stop() })
	return n
}

// restart ends the agent and starts it again.
func (n *node) restart(cores int) {
	n.stop()
	n.startAnew(cores)
}

// startAnew starts an agent that was ended, and returns when all that is known of the node is what the new one says.
func (n *node) startAnew(cores int) {
	n.site.awaitReported(n.name, false)
	n.start(cores)
	n.site.awaitReported(n.name, true)
}

func (n *node) start(cores int) {
	record := api.NodeRecord{Name: n.name, Underlay: "198.18.0." + strings.TrimPrefix(n.name, "n"), Capacity: api.NodeCapacity{MemoryBytes: 8 << 30}}
	for slot := range cores {
		record.Capacity.Cores = append(record.Capacity.Cores, api.Core{Slot: slot, CPU: slot})
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var members driver.Driver = &talkative{Driver: agenttest.Speaking(n.site.t.Context(), fake.New(n.host, n.fabric)), node: n}
	stack := cmp.Or(n.stack, api.StackContainer)
	if stack == api.StackVM {
		members = agenttest.SpeakingVM(n.site.t.Context(), fake.NewVM(n.host, n.fabric))
	}
	if n.wrap != nil {
		members = n.wrap(members)
	}
	clock, silence := n.site.clock, n.site.deathTimer
	if clock != nil {
		silence = time.Hour // by a clock that runs fast
	}
	var pool volume.Pool
	if n.volumes != nil {
		pool = n.volumes.Pool()
	}
	go func() {
		defer close(ended)
		err := agent.Run(ctx, agent.Config{
			Node: record, StateDir: n.dir, HomeDir: filepath.Join(n.dir, "home"), Server: n.site.http.URL,
			Client: agenttest.Client(n.name, n.site.http.Client()), Drivers: []driver.Driver{members}, Fabric: n.fabric,
			Clock: clock, Silence: silence, Responder: n.responder, Volumes: pool, Conditions: n.conditions,
			Inspect: func(context.Context) []api.EnvironmentOnNode {
				n.session()
				return []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{stack}, OK: true}}
			},
			Log: slog.New(slog.NewTextHandler(testWriter{n.site.t}, nil)),
		})
		if err != nil && !errors.Is(err, context.Canceled) { // it may be ended while it starts
			n.site.t.Errorf("agent of %s: %v", n.name, err)
		}
	}()
	n.stop = sync.OnceFunc(func() { cancel(); <-ended })
}

// talkative is the fake driver with members that speak, and hooks.
type talkative struct {
	*agenttest.Driver
	node *node
}

func (d *talkative) Update(ctx context.Context, m driver.Member) error {
	if d.node.update != nil {
		if err := d.node.update(); err != nil {
			return err
		}
	}
	return d.Driver.Update(ctx, m)
}

func (d *talkative) Observe(ctx context.Context) ([]driver.Observation, error) {
	if d.node.observe != nil {
		if err := d.node.observe(); err != nil {
			return nil, err
		}
	}
	return d.Driver.Observe(ctx)
}

// within waits for an event, and not for ever.
func within(t *testing.T, what string, event <-chan struct{}) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(20 * time.Second):
		t.Fatalf("not %s within 20 s", what)
	}
}

func (s *site) create(name string, size, cores int) {
	s.t.Helper()
	s.createOn(api.StackContainer, name, size, cores)
}

func (s *site) createOn(stack api.Stack, name string, size, cores int) {
	s.t.Helper()
	_, err := s.repo.CreateCluster(s.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, CreatedAt: time.Now(), Spec: api.ClusterSpec{Groups: []api.Group{{
			Name: name, Size: size, Shape: api.Shape{Cores: cores, Memory: 64 << 20}, Stack: stack, Environment: "local",
		}}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) delete(name string) {
	s.t.Helper()
	if _, _, err := s.repo.RequestDelete(s.t.Context(), name, time.Now()); err != nil {
		s.t.Fatal(err)
	}
}

// await waits until the cluster is as asked, looking again at every change of the state.
func (s *site) await(name, what string, ok func(*state.Cluster) bool) *state.Cluster {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	for {
		view := s.cache.View()
		c := view.Cluster(name)
		if ok(c) {
			return c
		}
		if _, err := s.cache.Wait(ctx, view.Revision); err != nil {
			s.t.Fatalf("cluster %q is not %s; it is %s", name, what, describe(c))
		}
	}
}

func (s *site) awaitPhase(name string, phase api.ClusterPhase) *state.Cluster {
	s.t.Helper()
	return s.await(name, string(phase), func(c *state.Cluster) bool { return c != nil && c.Record != nil && c.Record.Phase == phase })
}

// awaitReports waits until agents have reported what makes ok true. state describes the reports for a failure.
func (s *site) awaitReports(ok func() bool, state func() string) {
	s.t.Helper()
	patience := time.After(20 * time.Second)
	for {
		changed := s.agent.Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-patience:
			s.t.Fatal(state())
		}
	}
}

// awaitState waits until an agent reports of a member what makes ok true.
func (s *site) awaitState(id, what string, ok func(monitor.MemberState) bool) {
	s.t.Helper()
	var state monitor.MemberState
	s.awaitReports(func() bool {
		known := false
		for _, n := range s.cache.View().Nodes {
			if !known {
				state, known = s.agent.MemberState(n.Name, id)
			}
		}
		return known && ok(state)
	}, func() string { return fmt.Sprintf("member %s is not %s; it is %+v", id, what, state) })
}

func (s *site) awaitReported(node string, want bool) {
	s.t.Helper()
	s.awaitReports(func() bool { return s.agent.Reported(node) == want },
		func() string { return fmt.Sprintf("node %s has reported: %t, want %t", node, !want, want) })
}

func (s *site) awaitMember(id string, phase api.MemberPhase) {
	s.t.Helper()
	s.awaitState(id, string(phase), func(m monitor.MemberState) bool { return m.Phase == phase })
}

func (s *site) awaitGone(name string) {
	s.t.Helper()
	s.await(name, "gone", func(c *state.Cluster) bool { return c == nil })
}

func describe(c *state.Cluster) string {
	if c == nil {
		return "gone"
	}
	if c.Record == nil {
		return "pending"
	}
	return fmt.Sprintf("%s: %s", c.Record.Phase, c.Record.Message)
}

// ends deletes a cluster, the last one, and checks that nothing of it is left.
func (s *site) ends(name string, nodes ...*node) {
	s.t.Helper()
	s.delete(name)
	s.awaitGone(name)
	s.nothingLeft(nodes...)
}

// nothingLeft checks what must not outlive a cluster: members, networks, ports, stored assignments.
func (s *site) nothingLeft(nodes ...*node) {
	s.t.Helper()
	for _, n := range nodes {
		if ids := n.host.IDs(); len(ids) > 0 {
			s.t.Errorf("node %s: members left: %v", n.name, ids)
		}
		if ports := n.fabric.Attached(); len(ports) > 0 {
			s.t.Errorf("node %s: ports left: %v", n.name, ports)
		}
		if networks := n.fabric.Networks(); len(networks) > 0 {
			s.t.Errorf("node %s: networks left: %v", n.name, networks)
		}
	}
	entries, err := s.store.List(s.t.Context(), "")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries.Entries {
		for _, kind := range []string{"chunk", "record", "intent", "quarantine"} {
			if strings.HasPrefix(e.Key, kind) {
				s.t.Errorf("stored: %s is left", e.Key)
			}
		}
	}
}
