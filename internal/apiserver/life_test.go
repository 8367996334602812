package apiserver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// t0 is when the clock of a test stands still.
var t0 = time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)

// ready starts a site with a ready cluster of three members in each of two groups, and a clock that the test moves.
func ready(t *testing.T, req api.ClusterRequest) (*apiservertest.Site, *client.Client, *time.Time) {
	t.Helper()
	now := t0
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Now = func() time.Time { return now } })
	for _, node := range []string{"n1", "n2", "n3", "n4"} {
		s.AddNode(node, 8)
	}
	c := s.Client()
	if _, err := c.CreateCluster(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	s.Place(req.Name)
	s.MakeReady(req.Name)
	return s, c, &now
}

// shape is a cluster's members in few words.
func shape(c api.Cluster) string {
	var parts []string
	for _, m := range c.Status.Members {
		parts = append(parts, fmt.Sprintf("%s %s %d", m.Name, m.Phase, m.Rank))
	}
	return strings.Join(parts, ", ")
}

func TestScalingShowsWhatWaitsAndKeepsWhatRuns(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2, Spares: 1})
	cl, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 3})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := shape(cl), "c1-0 ready 0, c1-1 ready 1, c1-2 waiting -1, c1-spare-0 spare -1"; got != want {
		t.Errorf("members %q, want %q", got, want)
	}
	if cl.Status.ReadyMembers != 2 || cl.Status.TotalMembers != 3 || cl.Spec.Groups[0].Size != 3 {
		t.Errorf("%d of %d ready, size %d; want 2 of 3", cl.Status.ReadyMembers, cl.Status.TotalMembers, cl.Spec.Groups[0].Size)
	}
	if asked := s.Explainer.Asked(); len(asked) != 1 || asked[0].Spec.Groups[0].Size != 3 {
		t.Errorf("the planner was asked about %+v, want the cluster with three members", asked)
	}
	in := s.Cache.Cluster("c1").Intent
	if in.ScaledAt == nil || !in.ScaledAt.Equal(t0) {
		t.Errorf("scaled at %v, want %v", in.ScaledAt, t0)
	}
	revision := s.Cache.Cluster("c1").Revision
	if _, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 3}); err != nil || s.Cache.Cluster("c1").Revision != revision {
		t.Errorf("the same size again: %v, revision %d; want no error and no write", err, s.Cache.Cluster("c1").Revision-revision)
	}
	if cl, err = c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 2}); err != nil || cl.Status.TotalMembers != 2 {
		t.Errorf("back: %v, %s", err, shape(cl))
	}
}

func TestLostMembersAreShownUntilTheyAreReplaced(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 3})
	s.ChangeRecord("c1", func(rec *api.ClusterRecord) {
		rec.Phase = api.ClusterDegraded
		rec.Lost = []api.LostMember{{Group: "c1", Member: "c1-9", Rank: 1, Node: "n9", Reason: "its node is down", Attempt: 2, Since: t0}}
	})
	cl, err := c.Cluster(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	lost := cl.Status.Members[2] // by rank
	if lost.Name != "c1-9" || lost.Phase != api.MemberLost || lost.Message != "its node is down" || lost.Node != "n9" || lost.Attempt != 2 ||
		cl.Status.TotalMembers != 4 {
		t.Errorf("lost member %+v of %d", lost, cl.Status.TotalMembers)
	}
}

func TestScalingIsRefusedWithoutChange(t *testing.T) {
	tests := []struct {
		name       string
		prepare    func(s *apiservertest.Site)
		cluster    string
		req        api.ScaleRequest
		code, text string
	}{
		{"size 0", nil, "c1", api.ScaleRequest{}, "invalid_request", "size: is missing"},
		{"rank 0", nil, "c1", api.ScaleRequest{Remove: []string{"c1-0"}}, "invalid_request", "rank 0"},
		{"no such cluster", nil, "c2", api.ScaleRequest{Size: 2}, "cluster_not_found", `"c2"`},
		{"no room", func(s *apiservertest.Site) {
			s.Explainer.SetNoRoom(&apiservertest.NoRoom{Reason: "2 cores are missing"})
		}, "c1", api.ScaleRequest{Size: 4}, "no_room", "2 cores are missing"},
		{"more than the quota", func(s *apiservertest.Site) { quota(s, api.Quota{Cores: 3}) }, "c1", api.ScaleRequest{Size: 4, Queue: true}, "over_quota", "quota is 3"},
		{"paused", func(s *apiservertest.Site) { s.SetPhase("c1", api.ClusterPaused, "") }, "c1", api.ScaleRequest{Size: 4}, "wrong_phase", "resume it first"},
		{"refused", func(s *apiservertest.Site) { s.SetPhase("c1", api.ClusterRefused, "") }, "c1", api.ScaleRequest{Size: 4}, "wrong_phase", "was refused"},
		{"failed", func(s *apiservertest.Site) { s.SetPhase("c1", api.ClusterFailed, "") }, "c1", api.ScaleRequest{Size: 4}, "wrong_phase", "has failed"},
		{"deleting", func(s *apiservertest.Site) {
			_, _, _ = s.Repo.RequestDelete(t.Context(), "c1", t0)
		}, "c1", api.ScaleRequest{Size: 4}, "wrong_phase", "being deleted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 3})
			if tt.prepare != nil {
				tt.prepare(s)
			}
			_, err := c.ScaleCluster(t.Context(), tt.cluster, tt.req)
			if !client.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %s with %q", err, tt.code, tt.text)
			}
			in, err := s.Repo.Intent(t.Context(), "c1")
			if err != nil || in.Spec.Groups[0].Size != 3 || in.Removed != nil || in.ScaledAt != nil {
				t.Errorf("the intent changed: %+v, %v", in, err)
			}
		})
	}
}

// quota sets the quota of the default project.
func quota(s *apiservertest.Site, q api.Quota) {
	_, _ = s.LocalClient().UpdateProject(contextOf(s), api.Project{Name: "default", Quota: q, Shares: 1})
}

func TestAScaleUpWithoutRoomMayWait(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 3})
	s.Explainer.SetNoRoom(&apiservertest.NoRoom{Reason: "no"})
	quota(s, api.Quota{Members: 4, Clusters: 1})
	if cl, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 4, Queue: true}); err != nil || cl.Status.TotalMembers != 4 {
		t.Errorf("with queue: %v, %s", err, shape(cl))
	}
	s.Explainer.SetNoRoom(&apiservertest.NoRoom{Reason: `the scale-up of cluster "c1" can't be placed: it is too large`, Never: true})
	quota(s, api.Quota{})
	_, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 5, Queue: true})
	if !client.HasCode(err, "no_room") || strings.Contains(err.Error(), "wait") ||
		!strings.Contains(err.Error(), `cluster "c1" can't grow: the scale-up can't be placed: it is too large`) {
		t.Errorf("what will never have room: %v, want a refusal without the advice to wait", err)
	}
	s.Explainer.SetNoRoom(errors.New("the plan failed"))
	if _, err = c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 5}); !client.HasCode(err, "internal_error") {
		t.Errorf("a plan that failed: %v", err)
	}
	if cl, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 1}); err != nil {
		t.Errorf("shrinking needs no room: %v, %s", err, shape(cl))
	}
}

func TestPausingIsIdempotentAndResumingNeedsAPause(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1"})
	if _, err := c.ResumeCluster(t.Context(), "c1"); !client.HasCode(err, "wrong_phase") || !strings.Contains(err.Error(), "is not paused, it is ready") {
		t.Errorf("resume of what runs: %v", err)
	}
	for range 2 {
		if cl, err := c.PauseCluster(t.Context(), "c1"); err != nil || !cl.Status.Paused {
			t.Errorf("pause: %v, paused %v", err, cl.Status.Paused)
		}
	}
	if _, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}}); !client.HasCode(err, "cluster_not_ready") {
		t.Errorf("a job on a cluster asked to pause: %v", err)
	}
	s.SetPhase("c1", api.ClusterPaused, "")
	if cl, err := c.ResumeCluster(t.Context(), "c1"); err != nil || cl.Status.Paused {
		t.Errorf("resume: %v", err)
	}
	if cl, err := c.ResumeCluster(t.Context(), "c1"); err != nil || cl.Status.Paused {
		t.Errorf("resume again while it wakes: %v", err)
	}
	s.SetPhase("c1", api.ClusterReady, "")
	if _, err := c.ResumeCluster(t.Context(), "c1"); !client.HasCode(err, "wrong_phase") {
		t.Errorf("resume once it is awake: %v", err)
	}
	for _, phase := range []api.ClusterPhase{api.ClusterStarting, api.ClusterFailed, api.ClusterRefused, api.ClusterQueued} {
		s.SetPhase("c1", phase, "")
		if _, err := c.PauseCluster(t.Context(), "c1"); !client.HasCode(err, "wrong_phase") || !strings.Contains(err.Error(), string(phase)) {
			t.Errorf("pause while %s: %v", phase, err)
		}
	}
}

func TestAClusterThatCouldNotBeSavedTakesRequestsLikeARunningOne(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1"})
	onStack(t, s, api.StackVM)
	cl, err := c.SaveCluster(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.RebootCluster(t.Context(), "c1", api.RebootRequest{}); !client.HasCode(err, "wrong_phase") {
		t.Errorf("a reboot of a cluster asked to be saved: %v", err)
	}
	in, _, err := s.Repo.UpdateIntent(t.Context(), "c1", cl.UID, func(*api.ClusterIntent) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	s.ChangeRecord("c1", func(r *api.ClusterRecord) {
		r.GaveUp = &api.GaveUp{AskedAt: *in.SaveAskedAt, Reason: "a machine gave a processor back; reboot the member first"}
	})
	if _, err := c.RebootCluster(t.Context(), "c1", api.RebootRequest{}); err != nil {
		t.Errorf("a reboot: %v", err)
	}
	if _, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 1}); err != nil {
		t.Errorf("a scale: %v", err)
	}
	if _, err := c.PauseCluster(t.Context(), "c1"); err != nil {
		t.Errorf("a pause: %v", err)
	}
}

func TestSavingIsIdempotentAndRestoringNeedsASave(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1"})
	if _, err := c.SaveCluster(t.Context(), "c1"); !client.HasCode(err, "cant_save") || !strings.Contains(err.Error(), `has stack "container"`) {
		t.Errorf("save of containers: %v", err)
	}
	// The nodes here carry no virtual machines.
	onStack(t, s, api.StackVM)
	if _, err := c.RestoreCluster(t.Context(), "c1"); !client.HasCode(err, "wrong_phase") || !strings.Contains(err.Error(), "is not saved, it is ready") {
		t.Errorf("restore of what runs: %v", err)
	}
	for range 2 {
		if cl, err := c.SaveCluster(t.Context(), "c1"); err != nil || !cl.Status.Saved {
			t.Errorf("save: %v, saved %v", err, cl.Status.Saved)
		}
	}
	for what, err := range map[string]error{
		"a pause": func() error { _, err := c.PauseCluster(t.Context(), "c1"); return err }(),
		"a scale": func() error { _, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 2}); return err }(),
	} {
		if !client.HasCode(err, "wrong_phase") || !strings.Contains(err.Error(), "nearmetal cluster restore c1") {
			t.Errorf("%s of a cluster asked to be saved: %v", what, err)
		}
	}
	if _, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}}); !client.HasCode(err, "cluster_not_ready") {
		t.Errorf("a job on a cluster asked to be saved: %v", err)
	}
	s.SetPhase("c1", api.ClusterSaved, "")
	if _, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}}); !client.HasCode(err, "cluster_not_ready") {
		t.Errorf("a job on a saved cluster: %v", err)
	}
	for range 2 {
		if cl, err := c.RestoreCluster(t.Context(), "c1"); err != nil || cl.Status.Saved {
			t.Errorf("restore: %v", err)
		}
	}
	s.SetPhase("c1", api.ClusterReady, "")
	for _, phase := range []api.ClusterPhase{
		api.ClusterStarting, api.ClusterFailed, api.ClusterRefused, api.ClusterQueued, api.ClusterDegraded, api.ClusterScaling, api.ClusterPaused, api.ClusterResuming,
	} {
		s.SetPhase("c1", phase, "")
		if _, err := c.SaveCluster(t.Context(), "c1"); !client.HasCode(err, "wrong_phase") || !strings.Contains(err.Error(), string(phase)) {
			t.Errorf("save while %s: %v", phase, err)
		}
	}
}

func TestATimeLimitCanOnlyBeMadeLonger(t *testing.T) {
	hour := api.Duration(time.Hour)
	s, c, now := ready(t, api.ClusterRequest{Name: "c1", TimeLimit: 2 * hour})
	cl, err := c.Cluster(t.Context(), "c1")
	if err != nil || cl.Status.ExpiresAt == nil || !cl.Status.ExpiresAt.Equal(t0.Add(2*time.Hour)) {
		t.Fatalf("expires at %v, %v", cl.Status.ExpiresAt, err)
	}
	*now = t0.Add(3 * time.Hour)
	for _, tt := range []struct {
		limit      api.Duration
		code, text string
	}{
		{0, "invalid_request", "too short"},
		{-hour, "invalid_request", ""},
		{hour, "cant_extend", "can only be made longer"},
		{2 * hour, "cant_extend", "is 2h already"},
		{2*hour + 1, "cant_extend", "placed 3h ago"},
		{90000 * hour, "invalid_request", "too long"},
	} {
		if _, err := c.ExtendCluster(t.Context(), "c1", tt.limit); !client.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("extend to %s: %v, want %s with %q", tt.limit, err, tt.code, tt.text)
		}
	}
	if cl, err = c.ExtendCluster(t.Context(), "c1", 4*hour); err != nil || !cl.Status.ExpiresAt.Equal(t0.Add(4*time.Hour)) {
		t.Errorf("extended: %v until %v", err, cl.Status.ExpiresAt)
	}
	member := s.ClientAs("ann", "default", api.RoleMember)
	s.Explainer.SetWaiting(
		api.Waiting{Cluster: "c9", Kind: "heal", Members: 1},
		api.Waiting{Cluster: "c2", Kind: "create", Members: 7, Position: 1, Since: t0},
	)
	if _, err := member.ExtendCluster(t.Context(), "c1", 5*hour); !client.HasCode(err, "cant_extend") || !strings.Contains(err.Error(), `cluster "c2"`) {
		t.Errorf("while others wait: %v", err)
	}
	if _, err := c.ExtendCluster(t.Context(), "c1", 5*hour); err != nil {
		t.Errorf("an administrator, while others wait: %v", err)
	}
	s.Explainer.SetWaiting()
	if _, err := member.ExtendCluster(t.Context(), "c1", 6*hour); err != nil {
		t.Errorf("when nobody waits: %v", err)
	}
	s.ChangeRecord("c1", func(rec *api.ClusterRecord) { rec.ExpiredAt = now })
	if _, err := c.ExtendCluster(t.Context(), "c1", 9*hour); !client.HasCode(err, "cant_extend") || !strings.Contains(err.Error(), "has passed") {
		t.Errorf("after its end: %v", err)
	}
	if _, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"true"}}); !client.HasCode(err, "cluster_not_ready") ||
		!strings.Contains(err.Error(), "has passed") {
		t.Errorf("a job after its end: %v", err)
	}
}

func TestLabelsAreSetAndRemoved(t *testing.T) {
	_, c, _ := ready(t, api.ClusterRequest{Name: "c1", Labels: map[string]string{"a": "1", "b": "2"}})
	cl, err := c.LabelCluster(t.Context(), "c1", map[string]string{"b": "", "c": "3", "none": ""})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "1", "c": "3"}, cl.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	for text, labels := range map[string]map[string]string{"is missing": {}, "is not a label key": {"-x": "1"}, "is not a label value": {"x": "a b"}} {
		if _, err := c.LabelCluster(t.Context(), "c1", labels); !client.HasCode(err, "invalid_request") || !strings.Contains(err.Error(), text) {
			t.Errorf("labels %v: %v, want %q", labels, err, text)
		}
	}
	many := map[string]string{}
	for i := range 63 {
		many[fmt.Sprint("k", i)] = "v"
	}
	if _, err := c.LabelCluster(t.Context(), "c1", many); !client.HasCode(err, "invalid_request") || !strings.Contains(err.Error(), "65 in all") {
		t.Errorf("too many in all: %v", err)
	}
}

func TestAPriorityAboveZeroIsForAdministrators(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	member := s.ClientAs("ann", "default", api.RoleMember)
	if _, err := member.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Priority: 1}); !client.HasCode(err, "forbidden") {
		t.Errorf("a member's priority 1: %v", err)
	}
	if _, err := member.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Priority: -1}); err != nil {
		t.Errorf("a member's priority -1: %v", err)
	}
	if _, err := member.ApplyCluster(t.Context(), "c1", api.ClusterRequest{Name: "c1", Priority: 2}, false); !client.HasCode(err, "forbidden") {
		t.Errorf("a member's apply of priority 2: %v", err)
	}
	if _, err := s.Client().ApplyCluster(t.Context(), "c1", api.ClusterRequest{Name: "c1", Priority: 2}, false); err != nil {
		t.Errorf("an administrator's priority 2: %v", err)
	}
	if _, err := member.ApplyCluster(t.Context(), "c1", api.ClusterRequest{Name: "c1", Priority: 2, Labels: map[string]string{"a": "b"}}, false); err != nil {
		t.Errorf("a member's apply that leaves the priority: %v", err)
	}
}

func TestJobsRunOnTheReadyPartOfAGrowingCluster(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2, Spares: 1})
	if _, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}, Ranks: 3}); !client.HasCode(err, "too_many_ranks") {
		t.Errorf("a spare is no place for a rank: %v", err)
	}
	s.SetPhase("c1", api.ClusterScaling, "")
	if _, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}, Ranks: 2}); err != nil {
		t.Errorf("while it grows: %v", err)
	}
	for a := range s.Cache.Cluster("c1").Held() {
		if a.Rank == 1 {
			s.Live.SetMember(a.Node, a.ID, api.MemberStarting, "")
		}
	}
	if _, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}, Ranks: 2}); !client.HasCode(err, "too_many_ranks") {
		t.Errorf("a member that is not ready yet is no place for a rank: %v", err)
	}
}

func TestTheQueueIsShownAndExplained(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1"})
	s.Project("fluids", api.Quota{})
	fluids := s.ClientAs("bea", "fluids", api.RoleViewer)
	if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c2", Project: "fluids", Queue: true}); err != nil {
		t.Fatal(err)
	}
	s.Explainer.SetWaiting(
		api.Waiting{Cluster: "c1", Project: "default", User: "admin", Kind: "scale", Members: 2, Position: 1, Reason: "4 cores are missing", Since: t0},
		api.Waiting{Cluster: "fluids.c2", Project: "fluids", User: "bea", Kind: "create", Members: 1, Position: 2, Reason: "behind c1", Since: t0},
	)
	all, err := c.Queue(t.Context())
	if err != nil || len(all) != 2 || all[0].Cluster != "c1" || all[1].Cluster != "fluids.c2" || all[1].User != "bea" {
		t.Errorf("an administrator's queue: %+v, %v", all, err)
	}
	own, err := fluids.Queue(t.Context())
	if err != nil || len(own) != 2 || own[0].Cluster != "" || own[0].User != "" || own[0].Project != "" || own[0].Position != 1 || own[0].Members != 2 ||
		own[1].Cluster != "c2" || strings.Contains(own[0].Reason, "cores") {
		t.Errorf("a project's queue: %+v, %v; want the other's request without what it is", own, err)
	}
	e, err := fluids.Explain(t.Context(), "c2")
	if err != nil || e.Cluster != "c2" || len(e.Waiting) != 1 || e.Waiting[0].Cluster != "c2" {
		t.Errorf("explain: %+v, %v", e, err)
	}
	if _, err := fluids.Explain(t.Context(), "default.c1"); !client.HasCode(err, "cluster_not_found") {
		t.Errorf("another project's: %v", err)
	}
}

func TestAScaleUpBeyondWhatIsLeftOfTheQuotaMayWait(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 3})
	create(t, c, "c2")
	s.Place("c2")
	quota(s, api.Quota{Members: 5})
	_, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 4})
	if !client.HasCode(err, "over_quota") || !strings.Contains(err.Error(), "uses 5 of its quota of 5") || !strings.Contains(err.Error(), "let it wait") {
		t.Errorf("without queue: %v", err)
	}
	if _, err := c.ScaleCluster(t.Context(), "c1", api.ScaleRequest{Size: 4, Queue: true}); err != nil {
		t.Errorf("with queue: %v", err)
	}
}
