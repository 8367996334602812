package state_test

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// storedState holds what the store holds after writeEveryKind: a line for each key, with its value. A difference to it is a new format of the
// stored state, which needs a new state.Format.
const storedState = "testdata/state.txt"

var updateState = flag.Bool("update", false, "write "+storedState+" instead of comparing")

// writeEveryKind writes at least one object under every prefix, by the methods that the product writes by.
func writeEveryKind(w *world) {
	ctx := w.Context()
	w.reach(w.repo.CreateProject(ctx, api.Project{
		Name: "physics", Description: "a & b < c", Shares: 2, CreatedAt: now, Quota: api.Quota{Devices: map[string]int64{"gpu/slices": 14}},
	}))
	sim := intent("physics.sim")
	sim.Project, sim.User, sim.Labels = "physics", "eve", map[string]string{"run": "7"}
	sim.Spec = api.ClusterSpec{Groups: []api.Group{{
		Name: "sim", Size: 2, Shape: api.Shape{Cores: 4, Memory: 1 << 29}, Stack: api.StackContainer, Environment: "local",
	}}, TimeLimit: api.Duration(time.Hour)}
	w.reach(w.repo.CreateCluster(ctx, sim))
	w.reach(w.repo.CreateDataset(ctx, datasetOf("physics", "events")))
	reader := sim
	reader.Name, reader.UID, reader.Labels = "physics.reader", "uid-physics.reader", nil
	reader.Spec.Groups = []api.Group{{Name: "r", Size: 1, Shape: api.Shape{Cores: 1, Memory: 1 << 29}, Stack: api.StackContainer, Environment: "local", Datasets: []string{"events"}}}
	w.reach(w.repo.CreateCluster(ctx, reader))
	as := w.first(70) // two chunks
	as[64].Devices = []api.DeviceClaim{{Class: "gpu", Device: "gpu0", Way: "half", Takes: map[string]int64{"slices": 3}}}
	ended := span(api.SpanAllocated, now, now.Add(time.Minute))
	ended.Devices = map[string]int64{"gpu/slices": 3}
	storage := api.Network{
		UID: "uid-c1.storage", Name: "c1:storage", Cluster: "c1", ClusterUID: "uid-c1", Technology: api.TechnologyVXLAN, Index: 7,
		Prefix: netip.MustParsePrefix("10.64.112.0/20"), Gateway: netip.MustParseAddr("10.64.112.1"),
	}
	later := now.Add(time.Minute)
	rec := w.generation(2, api.ClusterDegraded)
	rec.UsageSeq, rec.Message, rec.Chunks = 1, "member c1-69 was lost", w.c1().Record.Chunks[:1]
	rec.Lost = []api.LostMember{{Member: "c1-69", Reason: "its node is down", Since: later}}
	w.reach(w.leader.Commit(ctx, w.c1(), state.Write{
		Record: rec, Add: []state.Batch{{Assignments: as[64:69]}, {Assignments: as[69:], Releasing: true, ReleasedAt: &later}},
		Networks:    []api.Network{storage},
		Quarantines: []api.Quarantine{{Assignment: as[69], Reason: "can't be cleaned", Since: later}},
		Usage:       usageRecord(1, ended),
	}))
	w.reach(w.repo.CreateJob(ctx, api.Job{
		ID: "j1", Cluster: "c1", ClusterUID: "uid-c1", JobRequest: api.JobRequest{Command: []string{"mpirun", "<&>"}, Ranks: 2},
		Phase: api.JobPending, CreatedAt: now,
	}))
	w.reach(w.repo.AppendEvents(ctx, api.Event{Cluster: "c1", Message: "placed", Time: now}, api.Event{Node: "n1", Message: "booted", Time: later}))
	w.reach(w.repo.AppendEvents(ctx, api.Event{Cluster: "c0", Message: "placed", Time: now}, api.Event{Cluster: "c0", Message: "gone", Time: now}))
	packs(w, later)
	w.reach(w.repo.CreateToken(ctx, api.TokenInfo{
		ID: "t1", User: "eve", Project: "physics", Role: api.RoleViewer, SHA256: "12", CreatedAt: now, ExpiresAt: &later,
		Limits: api.Limits{Verbs: []api.Verb{api.VerbRead}, Clusters: []string{"ci-*"}},
	}))
	must(w, w.repo.NoteTokenUses(ctx, []state.TokenUse{{ID: "t1", At: now, From: "10.0.0.7"}}))
	w.reach(w.repo.PutShape(ctx, api.NamedShape{Name: "m4", ShapeSettings: api.ShapeSettings{Description: "for CFD", Cores: 4, Memory: 8 << 30}, UpdatedAt: now}))
	lab := api.NetworkIntent{Name: "lab", UID: "uid-lab", Project: "default", User: "eve", Prefix: netip.MustParsePrefix("10.64.128.0/24"), CreatedAt: now}
	w.reach(w.repo.CreateNetwork(ctx, lab))
	w.reach(w.leader.PutNetworks(ctx, api.Network{
		UID: lab.UID, Name: "project/lab", Project: "default", Technology: api.TechnologyVXLAN, Index: 8, Prefix: lab.Prefix, Gateway: netip.MustParseAddr("10.64.128.1"),
	}))
	w.reach(w.repo.CreateSecurityGroup(ctx, securityGroup("default", "web", "in tcp 80 from 0.0.0.0/0", "in any from group web")))
	w.reach(w.repo.AllocateAddress(ctx, floatingAddress("default", "192.0.2.1"), atMost(1)))
	w.reachChange(w.repo.ChangeAddress(ctx, netip.MustParseAddr("192.0.2.1"), leadTo("c1-0")))
	w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "data"), anyVolume))
	w.placed("volume-data", "n1")
	on := onNetworks("on", "project/lab")
	on.Spec.Volumes = []api.VolumeAttachment{{Name: "data", Path: "/data"}}
	on.Spec.Groups[0].Networks[0].SecurityGroups = []string{"web"}
	w.reach(w.repo.CreateCluster(ctx, on))
	w.reach(w.leader.Commit(ctx, w.cache.Cluster("on"), state.Write{
		Record: api.ClusterRecord{Name: "on", UID: on.UID, Phase: api.ClusterStarting, Joined: []api.NetworkRef{{UID: lab.UID, Name: "project/lab", Prefix: lab.Prefix}}, ChangedAt: now},
		Joins:  []state.NetworkJoin{w.cache.View().NetworkJoin(lab.UID)},
	}))
	writeNodes(w)
	writeMachines(w)
}

// writeNodes writes nodes that joined by themselves, and what can be built and run on them.
func writeNodes(w *world) {
	ctx := w.Context()
	w.reach(w.repo.PutNode(ctx, api.NodeRecord{
		Name: "node-0", Underlay: "10.1.0.1", FirstSeenAt: now,
		Stacks: []api.StackCheck{{Stack: api.StackContainer, Problems: []string{"crun is missing"}}},
	}))
	_, rev, err := w.repo.SetDrain(ctx, "node-0", "a fan is loud", "admin", now)
	w.reach(rev, err)
	w.reach(w.repo.TrustBuilder(ctx, "node-0", "admin", now))
	w.reach(w.leader.CommitFaults(ctx, w.cache.View().Node("node-0"), api.FaultRecord{
		Node: "node-0", HardwareFaults: api.HardwareFaults{Boot: "b", Memory: []api.MemoryFaults{{Controller: "mc0", Corrected: 2}}, Disks: []api.DiskFaults{{Name: "sda", Serial: "s", Failing: "its SMART status predicts its failure"}}}, ToldAt: now,
	}, []api.Event{{Time: now, Node: "node-0", Reason: api.ReasonHardwareFault, Message: "disk sda fails"}}))
	w.reach(w.leader.PutMeasures(ctx, api.NodeMeasures{
		Node: "node-0", Loads: map[string]api.GPULoad{"gpu0": {Busy: 0.5, At: now}}, RoundTrips: map[string]api.RoundTrip{"node-1": {Seconds: 2e-5, At: now}},
		Served: map[string]api.GPUService{"c1-0.1-d1": {Calls: 3, Waits: 2, BusySeconds: 1.5, WaitSeconds: 1e-5}},
	}))
	w.reach(w.leader.CommitNodeSpan(ctx, nil, &api.NodeSpan{Node: "node-0", Cores: 8, MemoryBytes: 1 << 33, Devices: map[string]int64{"gpu/slices": 7}, From: now}, time.Time{}))
	w.reach(w.leader.CommitNodeSpan(ctx, w.cache.View().NodeSpan("node-0"), &api.NodeSpan{Node: "node-0", Cores: 8, MemoryBytes: 1 << 33, Down: true, From: now.Add(time.Hour)}, time.Time{}))
	w.reach(w.leader.PutEnergy(ctx, []api.EnergyRecord{{
		Node: "node-0", Hour: now.Truncate(time.Hour), From: now, To: now.Add(time.Minute), Counter: api.EnergyAmount{MeasuredMicrojoules: 6}, Idle: api.EnergyAmount{MeasuredMicrojoules: 1},
		Unattributed: api.EnergyAmount{MeasuredMicrojoules: 2}, Shares: []api.EnergyShare{{ClusterUID: "uid-c1", Cluster: "c1", User: "eve", Job: "j1", EnergyAmount: api.EnergyAmount{MeasuredMicrojoules: 3}, MemberNanoseconds: 4}},
		KnownNanoseconds: 5, UnknownNanoseconds: 7, Mark: &api.EnergySample{Run: "r", ElapsedNanoseconds: 8, CPUs: 2, Members: map[string]int64{"c1-0.1": 9}},
	}}))
	w.reach(w.leader.PutDataFigures(ctx, state.DataFigures{
		Paths: []api.DataPaths{{Node: "node-0", Paths: []api.DataPath{{From: "root://far:1094", BytesPerSecond: 1e7, RateAt: &now, Transfers: 2, RoundTripSeconds: 0.05, RoundTripAt: &now}}}},
		Outcomes: []api.DataOutcomes{{
			UID: "uid-events", Newest: []api.DataOutcome{{Node: "node-0", Choice: "copy", Groups: []string{"reader/r"}, Bytes: 9, PredictedSeconds: 2, Seconds: 3, Ratio: 1.5, At: now}},
			Errors: []api.DataErrors{{Choice: "copy", Count: 1, PredictedSeconds: 2, Seconds: 3, MedianRatio: 1.5}},
		}},
	}))
	build := api.Build{ID: "b1", Environment: "e", Phase: api.BuildRunning, CreatedAt: now, Message: "copies packages"}
	w.reach(w.repo.CreateBuild(ctx, build))
	build.Phase, build.Digest, build.Verify, build.Built = api.BuildSucceeded, image("e", 1).Digest, true, image("e", 1).BuiltBy
	env := api.EnvironmentRecord{Name: "e", Digest: build.Digest, Recipe: "name: e", UpdatedAt: now}
	w.reach(w.leader.FinishBuild(ctx, build, image("e", 1), env))
}

// writeMachines writes machines, and those that are none yet.
func writeMachines(w *world) {
	ctx := w.Context()
	for _, mac := range []string{mac1, mac2} {
		w.reach(w.repo.UpsertCandidate(ctx, mac, func(c *api.Candidate) {
			c.LastSeenAt, c.Hardware = now, &api.Hardware{Architecture: "x86_64", MemoryBytes: 1 << 34}
		}))
	}
	must(w, w.repo.LeaseStore(w.cache).Keep(ctx, api.Lease{MAC: mac2, Address: netip.MustParseAddr("10.99.0.7"), ExpiresAt: now}))
	w.reach(w.repo.CreateEnrollToken(ctx, api.EnrollmentToken{ID: "e1", Prefix: "n", Uses: 2, Hash: []byte("34"), ExpiresAt: now.Add(time.Hour)}))
	_, rev, err := w.leader.TakeCandidate(ctx, w.cache.View(), "e1", now, machine("n1", mac1))
	w.reach(rev, err)
	w.boots(3)
	w.reach(w.leader.CommitMachineLog(ctx, w.machine("n1"), api.BMCLogMark{Log: "sel", IDs: []string{"0007"}, At: now, Erased: 5}, []api.Event{
		{Time: now, Node: "n1", Reason: api.ReasonBMCLog, Message: "BMC log: fan Fan 1: below its lower critical threshold"},
	}))
	redemption := state.Redemption{UID: "uid-n1", Machine: "n1", Generation: 3, NonceSHA256: "n", At: now}
	w.reach(w.repo.RedeemBoot(ctx, redemption, &api.NodeIdentity{Node: "n1", ID: "i1", Key: "56", Boot: 3, EnrolledAt: now, EnrolledBy: "its boot", ApprovedAt: &now, ApprovedBy: "its boot", RenewedAt: now, EndsAt: now.Add(time.Hour)}))
	w.reach(w.repo.RequestPower(ctx, []state.PowerAsk{{Name: "n1", UID: "uid-n1", Request: api.PowerRequest{Action: api.PowerActionOff, By: "admin"}}}))
}

// dump is the content of a store: a line for each key.
func dump(t testing.TB, s store.Store) []byte {
	snap, err := s.List(t.Context(), "")
	must(t, err)
	var text bytes.Buffer
	for _, e := range snap.Entries {
		text.WriteString(e.Key + " " + string(e.Value) + "\n")
	}
	return text.Bytes()
}

func TestKeysAndValuesOnDiskStayAsTheyAre(t *testing.T) {
	s := openMemory(t)
	writeEveryKind(newWorld(t, s))
	got := dump(t, s)
	if *updateState {
		must(t, os.WriteFile(storedState, got, 0o644))
	}
	want, err := os.ReadFile(storedState)
	must(t, err)
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("the stored state has another format, -want +got:\n%s", diff)
	}
}

func TestStateWrittenBeforeIsReadAsItWas(t *testing.T) {
	s, old := openMemory(t), openMemory(t)
	w := newWorld(t, s)
	writeEveryKind(w)
	text, err := os.ReadFile(storedState)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if key == store.ElectionKey {
			_, err := old.Campaign(t.Context(), value)
			must(t, err)
			continue
		}
		_, err := old.Commit(t.Context(), nil, []store.Op{{Key: key, Value: []byte(value)}})
		must(t, err)
	}
	repo := state.New(old)
	must(t, repo.CheckVersion(t.Context()))
	cache, err := repo.OpenCache(t.Context())
	must(t, err)
	want, got := w.cache.View(), cache.View()
	equal(t, len(got.Nodes), len(want.Nodes))
	equal(t, got.Jobs, want.Jobs)
	equal(t, got.Quarantines, want.Quarantines)
	equal(t, got.NodeSpans, want.NodeSpans)
	equal(t, recorded(t, cache), recorded(t, w.cache))
	equal(t, usage.Decay(now, got.Past, got.Open()), usage.Decay(now, want.Past, want.Open()))
	equal(t, got.Projects, want.Projects)
	equal(t, got.Shapes, want.Shapes)
	equal(t, got.SecurityGroups, want.SecurityGroups)
	equal(t, got.Addresses, want.Addresses)
	equal(t, len(got.Volumes), len(want.Volumes))
	for i, v := range want.Volumes {
		equal(t, got.Volumes[i].Intent, v.Intent)
		equal(t, got.Volumes[i].Record, v.Record)
	}
	equal(t, got.Tokens, want.Tokens)
	equal(t, got.Candidates, want.Candidates)
	equal(t, got.Leases, want.Leases)
	equal(t, got.EnrollTokens, want.EnrollTokens)
	equal(t, got.Builds, want.Builds)
	equal(t, got.Images, want.Images)
	equal(t, got.Environments, want.Environments)
	equal(t, got.Leader, want.Leader)
	equal(t, found(got), found(want))
	equal(t, eventsOf(t, cache, "c1"), eventsOf(t, w.cache, "c1"))
	for i, n := range want.Nodes {
		equal(t, got.Nodes[i].Name, n.Name)
		equal(t, got.Nodes[i].Agent, n.Agent)
		equal(t, got.Nodes[i].Control, n.Control)
		if n.Machine == nil {
			equal(t, got.Nodes[i].Machine, nil)
			continue
		}
		equal(t, got.Nodes[i].Machine.Intent, n.Machine.Intent)
		equal(t, got.Nodes[i].Machine.Record, n.Machine.Record)
		equal(t, got.Nodes[i].Machine.Hardware, n.Machine.Hardware)
	}
	for i, c := range want.Clusters {
		equal(t, got.Clusters[i].Intent, c.Intent)
		equal(t, got.Clusters[i].Record, c.Record)
		equal(t, slices.Collect(got.Clusters[i].Held()), slices.Collect(c.Held()))
	}
}
