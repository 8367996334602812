package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// feedSite is a site of which a feed reports.
type feedSite struct {
	*many
	hub *hub
	cur *feedCursor
}

func newFeedSite(t *testing.T, clusters int) *feedSite {
	t.Helper()
	m := makeMany(t, clusters)
	h := newHub(m.cache, m.live)
	h.take(m.cache.View())
	cur, _ := h.feed.now()
	return &feedSite{m, h, cur}
}

// reported is what the feed reports since the last call: TYPE KIND NAME.
func (s *feedSite) reported(t *testing.T) []string {
	t.Helper()
	s.hub.take(s.cache.View())
	fresh, _, whole := s.cur.next()
	if !whole {
		t.Fatal("the cursor lost its place")
	}
	of := selection{principal: tenancy.Principal{Role: api.RoleAdmin}}
	var lines []string
	for _, n := range fresh {
		c := of.change(n)
		lines = append(lines, fmt.Sprintf("%s %s %s", c.Type, c.Kind, c.Name))
	}
	return lines
}

func TestEveryKindOfObjectIsReportedFromItsFirstToItsLastChange(t *testing.T) {
	s := newFeedSite(t, 1)
	ctx, reach := t.Context(), s.reach(t)
	image := api.Image{Digest: "sha256:" + strings.Repeat("1", 64)}
	for _, node := range []string{"n1", "n2"} {
		image.BuiltBy = append(image.BuiltBy, api.BuiltBy{Node: node, Digest: image.Digest})
	}
	in := api.ClusterIntent{Name: "c1", UID: "u1", Project: "default", CreatedAt: time.Unix(1, 0)}
	seen := map[string]bool{}
	step := func(change func(), want ...string) {
		t.Helper()
		change()
		got := s.reported(t)
		if !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
		for _, line := range want {
			seen[line[:strings.LastIndex(line, " ")]] = true
		}
	}
	step(func() {})
	step(func() { reach(s.repo.CreateCluster(ctx, in)) }, "put cluster c1")
	step(func() {
		reach(s.leader.Commit(ctx, s.cache.Cluster("c1"), state.Write{
			Record: api.ClusterRecord{Name: "c1", UID: "u1", Phase: api.ClusterStarting}, Networks: []api.Network{{UID: "u1", Name: "c1", ClusterUID: "u1"}},
		}))
	}, "put cluster c1", "put network u1")
	step(func() { reach(s.leader.RemoveNetworks(ctx, "u1")) }, "delete network u1")
	step(func() {
		reach(s.repo.CreateJob(ctx, api.Job{ID: "j1", Cluster: "c1", ClusterUID: "u1"}))
	}, "put job j1")
	step(func() {
		_, rev, err := s.repo.UpdateJob(ctx, "j1", func(j *api.Job) error { j.Phase = api.JobRunning; return nil })
		reach(rev, err)
	}, "put job j1")
	step(func() {
		if err := s.leader.DeleteJobs(ctx, []string{"j1"}); err != nil {
			t.Fatal(err)
		}
		reach(s.leader.Commit(ctx, s.cache.Cluster("c1"), state.Write{Forget: true}))
	}, "delete cluster c1", "delete job j1")
	step(func() { reach(s.repo.PutNode(ctx, api.NodeRecord{Name: "n1"})) }, "put node n1")
	step(func() {
		_, rev, err := s.repo.SetDrain(ctx, "n1", "", "", time.Unix(1, 0))
		reach(rev, err)
	}, "put node n1")
	step(func() { reach(s.repo.ForgetNode(ctx, s.cache.View(), "n1")) }, "delete node n1")
	step(func() { reach(s.repo.CreateMachine(ctx, api.MachineIntent{Name: "m1", UID: "um1"})) }, "put node m1")
	step(func() { reach(s.leader.ForgetMachine(ctx, s.cache.View().Machine("m1"))) }, "delete node m1")
	step(func() { reach(s.repo.CreateBuild(ctx, api.Build{ID: "b1", Environment: "e"})) }, "put build b1")
	step(func() {
		reach(s.leader.FinishBuild(ctx, api.Build{ID: "b1", Phase: api.BuildSucceeded}, image, api.EnvironmentRecord{Name: "e", Digest: image.Digest}))
	}, "put environment e", "put build b1")
	step(func() { reach(s.repo.DeleteEnvironment(ctx, s.cache.View(), "e")) }, "delete environment e")
	step(func() { reach(s.repo.DeleteBuild(ctx, "b1")) }, "delete build b1")
	step(func() { reach(s.repo.CreateProject(ctx, api.Project{Name: "p1"})) }, "put project p1")
	step(func() { reach(s.repo.DeleteProject(ctx, "p1")) }, "delete project p1")
	step(func() { reach(s.repo.CreateSecurityGroup(ctx, api.SecurityGroup{Name: "web", UID: "ug"})) }, "put security-group ug")
	step(func() { reach(s.repo.DeleteSecurityGroup(ctx, "web")) }, "delete security-group ug")
	step(func() { reach(s.repo.CreateDataset(ctx, api.Dataset{Name: "events", UID: "ud"})) }, "put dataset ud")
	step(func() { reach(s.repo.DeleteDataset(ctx, "events")) }, "delete dataset ud")
	step(func() {
		reach(s.repo.CreateVolume(ctx, api.VolumeIntent{Name: "data", UID: "uv"}, func([]api.VolumeIntent) error { return nil }))
	}, "put volume uv")
	step(func() { reach(s.leader.ForgetVolume(ctx, s.cache.View().Volume("uv"), nil)) }, "delete volume uv")
	step(func() {
		reach(s.repo.AllocateAddress(ctx, api.FloatingAddress{Address: netip.MustParseAddr("192.0.2.1")}, func([]api.FloatingAddress) error { return nil }))
	}, "put address 192.0.2.1")
	step(func() {
		reach(s.repo.ReleaseAddress(ctx, netip.MustParseAddr("192.0.2.1"), func(*api.FloatingAddress) error { return nil }))
	}, "delete address 192.0.2.1")
	step(func() { reach(s.repo.PutShape(ctx, api.NamedShape{Name: "m4"})) }, "put shape m4")
	step(func() { reach(s.repo.DeleteShape(ctx, "m4")) }, "delete shape m4")
	step(func() { reach(s.repo.CreateToken(ctx, api.TokenInfo{ID: "t1"})) }, "put token t1")
	step(func() { reach(s.repo.DeleteToken(ctx, "", "t1")) }, "delete token t1")
	const mac = "52:54:00:00:00:01"
	step(func() { reach(s.repo.UpsertCandidate(ctx, mac, func(*api.Candidate) {})) }, "put candidate "+mac)
	step(func() { reach(s.repo.DeleteCandidate(ctx, mac)) }, "delete candidate "+mac)
	step(func() { reach(s.repo.CreateEnrollToken(ctx, api.EnrollmentToken{ID: "e1"})) }, "put enroll-token e1")
	step(func() { reach(s.repo.DeleteEnrollToken(ctx, "e1")) }, "delete enroll-token e1")
	for _, kind := range api.Kinds() {
		if !seen["put "+string(kind)] || !seen["delete "+string(kind)] {
			t.Errorf("objects of kind %s are not reported from first to last", kind)
		}
	}
}

func TestANodeIsReportedWhenItsAgentSaysSomethingElseOrFallsSilent(t *testing.T) {
	m := makeMany(t, 0)
	m.reach(t)(m.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
	view := m.cache.View()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(m.cache, m.live)
		m.live.changed = make(chan struct{})
		h.take(view)
		cur, _ := h.feed.now()
		expect := func(what string, want int) {
			t.Helper()
			h.take(view)
			if fresh, _, _ := cur.next(); len(fresh) != want {
				t.Errorf("%s: reported %+v, want %d changes", what, fresh, want)
			}
		}
		m.live.say("n1", "a1", api.MemberReady)
		expect("a word about a member of another kind", 0)
		m.live.mu.Lock()
		m.live.down["n1"] = true
		m.live.mu.Unlock()
		expect("silence that nobody reported yet", 0)
		<-time.After(sweepInterval)
		expect("silence that the clock shows", 1)
		<-time.After(sweepInterval)
		expect("silence that goes on", 0)
		m.live.mu.Lock()
		m.live.down["n1"] = false
		m.live.mu.Unlock()
		m.live.say("n1", "a1", api.MemberReady)
		expect("an agent that is back", 1)
	})
}

func TestTheFeedIsBoundedAndAWatchThatFallsBehindLosesItsPlace(t *testing.T) {
	f := newFeed()
	f.add(5, []note{{kind: api.KindNode, name: "before the feed"}})
	slow, revision := f.now()
	last, _ := f.now()
	if revision != 5 {
		t.Errorf("the feed begins at revision %d, want 5", revision)
	}
	for i := range int64(3 * feedKept) {
		f.add(6+i, []note{{kind: api.KindNode, name: "n1"}})
		if len(f.history) > feedKept+feedKept/4 {
			t.Fatalf("after %d changes %d are kept, want at most %d", i+1, len(f.history), feedKept+feedKept/4)
		}
		if _, _, whole := last.next(); !whole {
			t.Fatalf("a watch that reads everything lost its place at change %d", i+1)
		}
	}
	if _, _, whole := slow.next(); whole {
		t.Error("a watch whose changes were dropped went on")
	}
	newest := f.revision
	for what, revision := range map[string]int64{"a dropped change": 6, "before the feed": 4, "the future": newest + 1} {
		if _, ok := f.resume(revision); ok {
			t.Errorf("resumed after %s, revision %d", what, revision)
		}
	}
	resumed, ok := f.resume(newest - 9)
	if !ok {
		t.Fatal("not resumed where everything is kept")
	}
	fresh, _, whole := resumed.next()
	if !whole || len(fresh) != 10 || fresh[0].revision != newest-9 {
		t.Errorf("resumed with %d changes (whole %t), want the 10 from revision %d on", len(fresh), whole, newest-9)
	}
}

// slowWriter is a client that takes so many bytes, and then nothing.
type slowWriter struct {
	header http.Header
	// stuck waits until a deadline, once it takes no more.
	stuck func(deadline time.Time)

	mu       sync.Mutex
	takes    int
	text     strings.Builder
	deadline time.Time
}

func (w *slowWriter) Header() http.Header { return w.header }
func (w *slowWriter) WriteHeader(int)     {}
func (w *slowWriter) FlushError() error   { return nil }

func (w *slowWriter) SetWriteDeadline(at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = at
	return nil
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.takes -= len(p); w.takes < 0 {
		w.stuck(w.deadline)
		return 0, os.ErrDeadlineExceeded
	}
	return w.text.Write(p)
}

func (w *slowWriter) written() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// watchBySlowWriter begins a watch of everything, in the bubble of synctest, whose client takes so many bytes. ended is closed when it is over.
func watchBySlowWriter(ctx context.Context, t *testing.T, m *many, view *state.View, takes int,
	stuck func(time.Time),
) (s *Server, w *slowWriter, ended chan struct{}) {
	t.Helper()
	s = New(Config{Reader: m.cache, Live: m.live})
	s.hub.take(view)
	w, ended = &slowWriter{header: http.Header{}, takes: takes, stuck: stuck}, make(chan struct{})
	ctx = withSession(ctx, session{tenancy.Principal{Role: api.RoleAdmin}, func() bool { return true }})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/v1/changes", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		s.watchChanges(w, r)
		close(ended)
	}()
	synctest.Wait()
	return s, w, ended
}

func TestAClientThatDoesNotReadIsDisconnected(t *testing.T) {
	m := makeMany(t, 1)
	view := m.cache.View()
	synctest.Test(t, func(t *testing.T) {
		s, w, ended := watchBySlowWriter(t.Context(), t, m, view, 100, func(deadline time.Time) { <-time.After(time.Until(deadline)) })
		if !strings.Contains(w.written(), "event: sync") {
			t.Fatalf("the watch began with %q", w.written())
		}
		begun := time.Now()
		s.hub.feed.add(view.Revision, []note{{kind: api.KindNode, name: "n1"}})
		<-ended
		if took := time.Since(begun); took != writeTimeout {
			t.Errorf("the watch ended after %s, want %s", took, writeTimeout)
		}
	})
}

func TestAWatchThatFellBehindEndsInsteadOfSkippingChanges(t *testing.T) {
	m := makeMany(t, 1)
	view := m.cache.View()
	synctest.Test(t, func(t *testing.T) {
		s, w, ended := watchBySlowWriter(t.Context(), t, m, view, 1<<20, nil)
		// All of it at once, so that the watch sees nothing in between.
		s.hub.feed.add(view.Revision, make([]note, 2*feedKept))
		<-ended
		if strings.Contains(w.written(), "event: put") {
			t.Error("changes were reported although others before them were dropped")
		}
	})
}

func TestAnIdleWatchSendsHeartbeats(t *testing.T) {
	m := makeMany(t, 1)
	view := m.cache.View()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, w, ended := watchBySlowWriter(ctx, t, m, view, 1<<20, nil)
		<-time.After(31 * time.Second)
		synctest.Wait()
		if beats := strings.Count(w.written(), "\n: keep-alive\n"); beats != 2 {
			t.Errorf("%d heartbeats in 31 s, want one each 15 s: %q", beats, w.written())
		}
		cancel()
		<-ended
	})
}
