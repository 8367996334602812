// Package apiservertest is a site without machines for tests: a real API server over TLS and a Unix socket, on a store the test
// chooses, with a leader and agents that do what the test tells them.
//
// It must never be linked into the program. Start with New.
package apiservertest

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/enrollment"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/tracing"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Site is a running server and the levers behind it.
type Site struct {
	// Dir is the state directory: token, agent-token, server.sock.
	Dir string
	// Addr is HOST:PORT of the HTTPS API.
	Addr   string
	Repo   *state.Repo
	Cache  *state.Cache
	Leader *state.Leader
	Live   *Live
	Logs   *Logs
	Server *apiserver.Server
	// Explainer, Tunnels, Homes and Certifier stand for the planner, the agents and the certificate authority.
	Explainer *Explainer
	Tunnels   *Tunnels
	Homes     *Homes
	Hosts     *Hosts
	Networks  *Networks
	Consoles  *Consoles
	Images    *Images
	// MemberFiles are the files of paused members.
	MemberFiles *Images
	// Nodes gives nodes their certificates.
	Nodes *enrollment.Registrar

	t    testing.TB
	pin  trust.Pin
	now  func() time.Time
	stop func()
	// nodes are those that NodeTLS has enrolled.
	nodes map[string]*tls.Config
}

// patience ends a test that hangs.
const patience = 30 * time.Second

// New starts a site on st; it ends with the test. change may alter the server's configuration.
func New(t testing.TB, st store.Store, change func(*apiserver.Config)) *Site {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &Site{Dir: shortDir(t), Repo: state.New(st), Live: newLive(), Logs: newLogs(), t: t, now: time.Now, nodes: map[string]*tls.Config{}}
	must(t, s.Repo.CheckVersion(ctx))
	cache, err := s.Repo.OpenCache(ctx)
	must(t, err)
	s.Cache = cache
	lead, err := st.Campaign(ctx, "test")
	must(t, err)
	s.Leader = s.Repo.AsLeader(lead)
	authority, err := trust.Open(s.Dir, "127.0.0.1")
	must(t, err)
	now := func() time.Time { return s.now() }
	s.Explainer, s.Tunnels, s.pin = &Explainer{cache: cache}, &Tunnels{}, authority.Pin()
	s.Homes, s.Hosts, s.Consoles, s.Images = &Homes{}, &Hosts{found: api.HostCheck{Findings: []api.HostFinding{}}}, &Consoles{}, &Images{}
	s.Networks, s.MemberFiles = &Networks{}, &Images{}
	s.Nodes = &enrollment.Registrar{Authority: authority, Writer: s.Repo, Reader: cache, Now: now}
	traces := tracing.NewBook()
	tracer, err := tracing.Open(ctx, "test", func(s tracing.Span) { traces.Add(tracing.Placed{Span: s}) })
	must(t, err)
	go traces.Follow(ctx, cache, tracer, now)
	cfg := apiserver.Config{
		Writer: s.Repo, Reader: cache, Live: s.Live, Logs: s.Logs, Log: slog.New(slog.DiscardHandler),
		Tokens: tenancy.NewTokens(authority.Tokens, cache, now), Pin: s.pin, Nodes: s.Nodes,
		Explainer: s.Explainer, Tunnels: s.Tunnels, Homes: s.Homes, Hosts: s.Hosts, Networks: s.Networks, Certifier: Certifier{now},
		Provisioning: Provisioning(8), Sealer: Sealer{}, Consoles: s.Consoles, Images: s.Images, MemberFiles: s.MemberFiles, Recipes: Recipes{}, Compatible: compatible, Traces: traces, Pool: placement.DefaultPool,
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.Now != nil {
		s.now, s.Live.now = cfg.Now, cfg.Now
	}
	s.Server = apiserver.New(cfg)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s.Addr = tcp.Addr().String()
	local, err := apiserver.ListenUnix(s.Socket())
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Server.Serve(ctx, []net.Listener{tcp}, authority.ServerTLS(), local) }()
	s.stop = func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		served <- nil
	}
	t.Cleanup(s.Stop)
	s.waitReady()
	return s
}

// shortDir is a directory whose path leaves room for a socket's name (108 bytes).
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "nm")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Stop ends the server; again is no error.
func (s *Site) Stop() { s.stop() }

// Socket is the path of the Unix socket.
func (s *Site) Socket() string { return filepath.Join(s.Dir, config.SocketName) }

// TokenFile is the path of the administrator's token file.
func (s *Site) TokenFile() string { return filepath.Join(s.Dir, config.TokenName) }

// Client returns a client over TLS with the user's token.
func (s *Site) Client() *client.Client {
	s.t.Helper()
	token, err := trust.ReadToken(s.TokenFile())
	must(s.t, err)
	c, err := client.New(client.Options{Addr: s.Addr, Bearer: token.Bearer(), TLS: trust.ClientTLS(token.Pin, "127.0.0.1")})
	must(s.t, err)
	return c
}

// Token makes a token and returns its line, as a token file holds it.
func (s *Site) Token(user, project string, role api.Role) string {
	s.t.Helper()
	return s.TokenWith(api.TokenInfo{User: user, Project: project, Role: role})
}

// TokenWith makes a token with an end or limits, and returns its line.
func (s *Site) TokenWith(t api.TokenInfo) string {
	s.t.Helper()
	token := trust.NewToken(s.pin)
	t.ID, t.SHA256, t.CreatedAt = token.ID(), token.SHA256(), s.now().UTC()
	rev, err := s.Repo.CreateToken(context.Background(), t)
	must(s.t, err)
	s.reach(rev)
	return token.Line()
}

// ClientOf returns a client over TLS with a token's line.
func (s *Site) ClientOf(line string) *client.Client {
	s.t.Helper()
	token, err := trust.ParseToken(line)
	must(s.t, err)
	c, err := client.New(client.Options{Addr: s.Addr, Bearer: token.Bearer(), TLS: trust.ClientTLS(token.Pin, "127.0.0.1")})
	must(s.t, err)
	return c
}

// ClientAs returns a client over TLS with a new token.
func (s *Site) ClientAs(user, project string, role api.Role) *client.Client {
	s.t.Helper()
	return s.ClientOf(s.Token(user, project, role))
}

// Project makes a project.
func (s *Site) Project(name string, quota api.Quota) {
	s.t.Helper()
	rev, err := s.Repo.CreateProject(context.Background(), api.Project{Name: name, Quota: quota, Shares: 1, CreatedAt: s.now().UTC()})
	must(s.t, err)
	s.reach(rev)
}

// LocalClient returns a client over the Unix socket.
func (s *Site) LocalClient() *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Addr: "unix:" + s.Socket()})
	must(s.t, err)
	return c
}

func (s *Site) waitReady() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		err := s.LocalClient().Ready(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			s.t.Fatalf("the server did not become ready: %v", err)
		}
	}
}

// AddNode adds a node with so many cores that offers containers and the environment local, and connects it.
func (s *Site) AddNode(name string, cores int) {
	s.t.Helper()
	node := api.NodeRecord{
		Name: name, Labels: map[string]string{"rack": "r1"},
		Capacity: api.NodeCapacity{MemoryBytes: 8 << 30, NUMANodes: []api.NUMANode{{ID: 0, MemoryBytes: 8 << 30}}},
		Stacks: []api.StackCheck{
			{Stack: api.StackContainer, OK: true},
			{Stack: api.StackVM, Problems: []string{"/dev/kvm is missing; enable virtualization in the firmware"}},
		},
		Environments: []api.EnvironmentOnNode{{
			Name: "local", Description: "The node's own system, read-only.", Stacks: []api.Stack{api.StackContainer}, OK: true,
			Digest: "sha256:5fde0000000000000000",
		}},
		AgentVersion: "test", FirstSeenAt: s.now().UTC(),
	}
	s.addNode(node, cores)
}

// AddNodeUnder adds a node of one core whose underlay has an MTU; 0: its agent does not report one.
func (s *Site) AddNodeUnder(name string, mtu int) {
	s.t.Helper()
	s.addNode(api.NodeRecord{Name: name, Underlay: "198.18.0.1", UnderlayMTU: mtu, AgentVersion: "test", FirstSeenAt: s.now().UTC()}, 1)
}

// AddServingNode adds a node that serves volumes to whole machines.
func (s *Site) AddServingNode(name string) {
	s.t.Helper()
	s.addNode(api.NodeRecord{
		Name: name, Underlay: "198.18.0.1", Trunk: &api.Trunk{Interface: "eth1", MTU: 1500}, VolumeSharing: &api.VolumeSharing{Machines: true},
		Stacks: []api.StackCheck{{Stack: api.StackMetal, OK: true}}, Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackMetal}, OK: true}}, AgentVersion: "test", FirstSeenAt: s.now().UTC(),
	}, 1)
}

// reach waits until the server's view holds a revision.
func (s *Site) reach(revision int64) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := s.Cache.WaitRevision(ctx, revision)
	must(s.t, err)
}

// await waits until a cluster is stored.
func (s *Site) await(name string) *state.Cluster {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		v := s.Cache.View()
		if c := v.Cluster(name); c != nil {
			return c
		}
		if _, err := s.Cache.Wait(ctx, v.Revision); err != nil {
			s.t.Fatalf("cluster %q never came", name)
		}
	}
}

// Place waits for a cluster (by its full name) and commits a placement of it: the members in turn over the nodes, one core each, then the
// spares; phase starting.
func (s *Site) Place(name string) {
	s.t.Helper()
	c := s.await(name)
	var batch state.Batch
	nodes := slices.Collect(s.Cache.View().Agents())
	rank := 0
	refs, own := s.networks(c)
	joined, joinedRefs := s.joined(c)
	further := append(own[1:len(own):len(own)], joined...)
	hold := func(g api.Group, member string, spare bool) {
		n := len(batch.Assignments)
		a := api.Assignment{
			ID: c.UID() + "." + member + ".1", ClusterUID: c.UID(), Cluster: name, Generation: 1, Group: g.Name, Member: member,
			Rank: rank, Node: nodes[n%len(nodes)].Name, Slots: []int{n / len(nodes)}, CPUs: []int{n / len(nodes)}, NUMANodes: []int{0},
			Memory: []api.MemoryClaim{{Bytes: int64(g.Memory)}}, ReserveBytes: resource.Reserve(&g), DiskBytes: int64(g.Disk), Stack: g.Stack, Whole: g.Stack == api.StackMetal, Display: g.Display, CPUModel: g.CPUModel, Environment: g.Environment, TakenAt: s.now().UTC(), Spare: spare,
			CleanBy: api.ByAgents(nodes[n%len(nodes)].Name), Ports: []api.PortClaim{{Network: c.UID(), Kind: api.PortVeth, Address: netip.AddrFrom4([4]byte{10, 64, 16, byte(10 + n)}), MAC: fmt.Sprintf("02:6e:00:01:00:%02x", 10+n)}},
		}
		if img := s.Cache.View().ImageOf(g.Environment); img != nil {
			a.EnvironmentDigest = img.Digest
		}
		for i, network := range further {
			if on, named := g.Network(network.OwnName()); named {
				a.Ports = append(a.Ports, api.PortClaim{Network: network.UID, Kind: api.PortVeth, Address: netip.AddrFrom4([4]byte{10, 64, byte(32 + 16*i), byte(10 + n)}), MAC: fmt.Sprintf("02:6e:00:%02x:00:%02x", 2+i, 10+n), SecurityGroups: on.SecurityGroups, Quality: on.Quality})
			}
		}
		if spare {
			a.Rank, a.Ports = lifecycle.NoRank, nil
		} else {
			rank++
		}
		batch.Assignments = append(batch.Assignments, a)
	}
	for _, g := range c.Intent.Spec.Groups {
		for i := range g.Size {
			hold(g, manifest.MemberName(g.Name, i), false)
		}
	}
	for _, g := range c.Intent.Spec.Groups {
		for i := range g.Spares {
			hold(g, manifest.SpareName(g.Name, i), true)
		}
	}
	now := s.now().UTC()
	rec := api.ClusterRecord{
		Name: name, UID: c.UID(), Generation: 1, Phase: api.ClusterStarting, ChangedAt: now, PlacedAt: &now,
		Networks: refs, Joined: joinedRefs,
	}
	rev, err := s.Leader.Commit(context.Background(), c, state.Write{Record: rec, Add: []state.Batch{batch}, Networks: own})
	must(s.t, err)
	s.reach(rev)
	s.Event(name, "Placed", fmt.Sprintf("%d members on %d nodes", rank, min(rank, len(nodes))))
}

// ChangeRecord commits a change of a cluster's record.
func (s *Site) ChangeRecord(name string, change func(*api.ClusterRecord)) {
	s.t.Helper()
	c := s.await(name)
	rec := *c.Record
	change(&rec)
	rev, err := s.Leader.Commit(context.Background(), c, state.Write{Record: rec})
	must(s.t, err)
	s.reach(rev)
}

// SetPhase commits a phase of a cluster, without a placement when it has none.
func (s *Site) SetPhase(name string, phase api.ClusterPhase, message string) {
	s.t.Helper()
	c := s.await(name)
	rec := api.ClusterRecord{Name: name, UID: c.UID(), Generation: 1}
	if c.Record != nil {
		rec = *c.Record
	}
	rec.Phase, rec.Message, rec.ChangedAt = phase, message, s.now().UTC()
	if phase == api.ClusterReady && rec.ReadyAt == nil {
		rec.ReadyAt = &rec.ChangedAt
	}
	rev, err := s.Leader.Commit(context.Background(), c, state.Write{Record: rec})
	must(s.t, err)
	s.reach(rev)
}

// MakeReady reports all members of a placed cluster ready and commits that the cluster is.
func (s *Site) MakeReady(name string) {
	s.t.Helper()
	for a := range s.await(name).Held() {
		s.Live.SetMember(a.Node, a.ID, api.MemberReady, "")
	}
	s.SetPhase(name, api.ClusterReady, "")
	s.Event(name, "Ready", "every member is ready")
}

// Release makes all members of a cluster releasing, phase deleting.
func (s *Site) Release(name string) {
	s.t.Helper()
	c := s.await(name)
	rec := api.ClusterRecord{Name: name, UID: c.UID()}
	if c.Record != nil {
		rec = *c.Record
	}
	rec.Phase, rec.Message, rec.Generation, rec.ChangedAt = api.ClusterDeleting, "", rec.Generation+1, s.now().UTC()
	rec.Chunks = append([]api.ChunkRef{}, rec.Chunks...)
	for i := range rec.Chunks {
		rec.Chunks[i].Releasing = true
	}
	rev, err := s.Leader.Commit(context.Background(), c, state.Write{Record: rec})
	must(s.t, err)
	s.reach(rev)
}

// Forget confirms all members clean and removes the cluster.
func (s *Site) Forget(name string) {
	s.t.Helper()
	c := s.await(name)
	rec := *c.Record
	rec.Chunks = nil
	rev, err := s.Leader.Commit(context.Background(), c, state.Write{Record: rec})
	must(s.t, err)
	s.reach(rev)
	rev, err = s.Leader.Commit(context.Background(), s.await(name), state.Write{Forget: true})
	must(s.t, err)
	s.reach(rev)
}

// Quarantine gives up the cleaning of all members of a cluster, and removes it.
func (s *Site) Quarantine(name string) {
	s.t.Helper()
	c := s.await(name)
	rec := *c.Record
	rec.Chunks = nil
	var quarantined []api.Quarantine
	for a := range c.All() {
		quarantined = append(quarantined, api.Quarantine{Assignment: *a, Reason: "not cleaned in time", Since: s.now().UTC()})
	}
	rev, err := s.Leader.Commit(context.Background(), c, state.Write{Record: rec, Quarantines: quarantined})
	must(s.t, err)
	s.reach(rev)
	rev, err = s.Leader.Commit(context.Background(), s.await(name), state.Write{Forget: true})
	must(s.t, err)
	s.reach(rev)
}

// AwaitDelete waits until a user asked for a cluster to be deleted.
func (s *Site) AwaitDelete(name string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		v := s.Cache.View()
		if c := v.Cluster(name); c != nil && c.Intent.DeleteRequestedAt != nil {
			return
		}
		if _, err := s.Cache.Wait(ctx, v.Revision); err != nil {
			s.t.Fatalf("nobody asked for cluster %q to be deleted", name)
		}
	}
}

// AwaitJob waits for a job that satisfies a condition.
func (s *Site) AwaitJob(ok func(api.Job) bool) api.Job {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		v := s.Cache.View()
		for _, j := range v.Jobs {
			if ok(*j) {
				return *j
			}
		}
		if _, err := s.Cache.Wait(ctx, v.Revision); err != nil {
			s.t.Fatal("the job awaited never came")
		}
	}
}

// EndJob stores the end of a job. A negative code: it has none.
func (s *Site) EndJob(id string, phase api.JobPhase, code int, message string) {
	s.t.Helper()
	_, rev, err := s.Repo.UpdateJob(context.Background(), id, func(j *api.Job) error {
		now := s.now().UTC()
		j.Phase, j.Message, j.LogBytes, j.StartedAt, j.EndedAt = phase, message, s.Logs.size(id), &now, &now
		if code >= 0 {
			j.ExitCode = &code
		}
		return nil
	})
	must(s.t, err)
	s.reach(rev)
}

// ChangeJob stores a change of a job.
func (s *Site) ChangeJob(id string, change func(*api.Job)) {
	s.t.Helper()
	_, rev, err := s.Repo.UpdateJob(context.Background(), id, func(j *api.Job) error { change(j); return nil })
	must(s.t, err)
	s.reach(rev)
}

// Manifest writes a file of the test and returns its path.
func (s *Site) Manifest(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), name)
	must(s.t, os.WriteFile(path, []byte(strings.TrimLeft(text, "\n")), 0o600))
	return path
}
