package state_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

const (
	mac1 = "52:54:00:00:00:01"
	mac2 = "52:54:00:00:00:02"
)

func machine(name string, macs ...string) api.MachineIntent {
	return api.MachineIntent{
		Name: name, UID: "uid-" + name, CreatedAt: now, By: "admin",
		Spec: api.MachineSpec{MACs: macs, Power: api.PowerControl{Kind: api.PowerManual}},
	}
}

func (w *world) machine(name string) *state.Machine { return w.cache.View().Machine(name) }

// enrolled is a world with machine n1.
func enrolled(t *testing.T, s store.Store) *world {
	w := newWorld(t, s)
	w.reach(w.repo.CreateMachine(t.Context(), machine("n1", mac1)))
	return w
}

func record(name string, index int, phase api.MachinePhase) api.MachineRecord {
	return api.MachineRecord{Name: name, UID: "uid-" + name, Index: index, Phase: phase, Power: api.PowerUnknown, ChangedAt: now}
}

func TestMACsHaveOneSpelling(t *testing.T) {
	for text, want := range map[string]string{
		"52:54:00:AB:cd:01": "52:54:00:ab:cd:01", "52-54-00-ab-cd-01": "52:54:00:ab:cd:01", "5254.00ab.cd01": "52:54:00:ab:cd:01",
		"52:54:00:ab:cd": "", "02:00:5e:10:00:00:00:01": "", "": "", "n1": "",
	} {
		got, err := state.NormalMAC(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("NormalMAC(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestOfManyMachinesWithOneMACExactlyOneIsMade(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		repo := state.New(s)
		const tries = 6
		errs := make(chan error, tries)
		for i := range tries {
			go func() {
				_, err := repo.CreateMachine(ctx, machine(fmt.Sprint("n", i), fmt.Sprintf("52:54:00:00:01:%02x", i), mac1))
				errs <- err
			}()
		}
		won := 0
		for range tries {
			var duplicate *state.DuplicateMACError
			switch err := <-errs; {
			case err == nil:
				won++
			case !errors.As(err, &duplicate) || duplicate.MAC != mac1 || !strings.HasPrefix(duplicate.Machine, "n"):
				t.Errorf("a lost enrolment: %v, want a DuplicateMACError", err)
			}
		}
		equal(t, won, 1)
	})
}

func TestAMachinesNameIsItsAloneAndNoNodes(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		w.reach(w.repo.PutNode(t.Context(), api.NodeRecord{Name: "n2"}))
		for _, name := range []string{"n1", "n2"} {
			if _, err := w.repo.CreateMachine(t.Context(), machine(name, mac2)); !errors.Is(err, state.ErrExists) {
				t.Errorf("a second %s: %v, want ErrExists", name, err)
			}
		}
	})
}

func TestACandidateBecomesAMachineWithItsHardware(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		leases := w.repo.LeaseStore(w.cache)
		lease := api.Lease{MAC: mac1, Address: netip.MustParseAddr("10.9.0.200"), ExpiresAt: now}
		must(t, leases.Keep(ctx, lease))
		equal(t, leases.All(), []api.Lease{lease})
		hardware := &api.Hardware{Product: "Board", MemoryBytes: 1 << 30}
		w.reach(w.repo.UpsertCandidate(ctx, mac1, func(c *api.Candidate) { c.FirstSeenAt, c.LastSeenAt = now, now }))
		w.reach(w.repo.UpsertCandidate(ctx, mac1, func(c *api.Candidate) { c.Hardware = hardware }))
		equal(t, *w.cache.View().Candidate(mac1), api.Candidate{MAC: mac1, Hardware: hardware, FirstSeenAt: now, LastSeenAt: now})

		w.reach(w.repo.CreateMachine(ctx, machine("n1", mac2, mac1)))
		equal(t, *w.machine("n1").Hardware, *hardware)
		equal(t, w.machine("n1").Record, nil)
		equal(t, len(w.cache.View().Candidates)+len(leases.All()), 0)
		if _, err := w.repo.UpsertCandidate(ctx, mac1, func(*api.Candidate) {}); !errors.Is(err, state.ErrExists) {
			t.Errorf("a machine becomes a candidate: %v, want ErrExists", err)
		}
	})
}

func TestOfTwoPowerRequestsAtOnceOneWinsAndTheOtherIsTold(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		errs := make(chan error, 2)
		for _, action := range []api.PowerAction{api.PowerActionOn, api.PowerActionOff} {
			go func() {
				_, err := w.repo.RequestPower(t.Context(), []state.PowerAsk{
					{Name: "n1", UID: "uid-n1", Request: api.PowerRequest{Action: action, By: "alice", At: now}},
				})
				errs <- err
			}()
		}
		lost := errors.Join(<-errs, <-errs)
		var conflict *state.PowerConflictError
		if !errors.As(lost, &conflict) || conflict.Machine != "n1" || conflict.Request.Number != 1 {
			t.Fatalf("the requests gave %v, want one PowerConflictError with the other's number", lost)
		}
		if !strings.Contains(lost.Error(), string(conflict.Request.Action)) || !strings.Contains(lost.Error(), "alice") {
			t.Errorf("%q does not tell what won", lost)
		}
	})
}

func TestPowerRequestsOfSeveralMachinesAreStoredTogetherOrNotAtAll(t *testing.T) {
	w := enrolled(t, openMemory(t))
	ctx := t.Context()
	w.reach(w.repo.CreateMachine(ctx, machine("n2", mac2)))
	on := api.PowerRequest{Action: api.PowerActionOn, Environment: "e"}
	ask := []state.PowerAsk{{Name: "n1", UID: "uid-n1", Request: on}, {Name: "n2", UID: "uid-n2", After: 7, Request: on}}
	if _, err := w.repo.RequestPower(ctx, ask); err == nil {
		t.Error("a request after one that there never was is taken")
	}
	equal(t, w.machine("n1").PowerPending(), nil)
	ask[1].After = 0
	w.reach(w.repo.RequestPower(ctx, ask))
	equal(t, w.machine("n2").PowerPending().Number, int64(1))

	rec := record("n2", 0, api.MachineBooting)
	rec.DoneRequest = 1
	w.reach(w.leader.CommitMachine(ctx, w.machine("n2"), state.MachineWrite{Record: rec}))
	equal(t, w.machine("n2").PowerPending(), nil)

	_, rev, err := w.repo.RequestMachineRemoval(ctx, "n2", false, now)
	w.reach(rev, err)
	ask[1].After = 1
	if _, err := w.repo.RequestPower(ctx, ask[1:]); !errors.Is(err, state.ErrRemoving) {
		t.Errorf("power of a machine that is being removed: %v, want ErrRemoving", err)
	}
}

func TestAMachinesRecordIsGuardedByWhatItWasDecidedOn(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		ctx := t.Context()
		base := w.machine("n1")
		_, rev, err := w.repo.UpdateMachineIntent(ctx, "n1", "uid-n1", func(in *api.MachineIntent) error { in.Inspect++; return nil })
		w.reach(rev, err)
		if _, err := w.leader.CommitMachine(ctx, base, state.MachineWrite{Record: record("n1", 0, api.MachineInspecting)}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a commit decided before a request: %v, want ErrConflict", err)
		}
		w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{
			Record: record("n1", 0, api.MachineInspecting), Hardware: &api.Hardware{Serial: "S"},
		}))
		equal(t, w.machine("n1").Record.Phase, api.MachineInspecting)
		equal(t, w.machine("n1").Hardware.Serial, "S")

		must(t, w.won.Resign(ctx))
		if _, err := w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{Record: record("n1", 0, api.MachineOff)}); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("a commit of a deposed leader: %v, want ErrNotLeader", err)
		}
	})
}

func TestNoTwoMachinesShareAPlaceInTheRange(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		ctx := t.Context()
		w.reach(w.repo.CreateMachine(ctx, machine("n2", mac2)))
		w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{Record: record("n1", 3, api.MachineEnrolled)}))
		if _, err := w.leader.CommitMachine(ctx, w.machine("n2"), state.MachineWrite{Record: record("n2", 3, api.MachineEnrolled)}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a second machine at index 3: %v, want ErrConflict", err)
		}
		w.reach(w.leader.ForgetMachine(ctx, w.machine("n1")))
		w.reach(w.leader.CommitMachine(ctx, w.machine("n2"), state.MachineWrite{Record: record("n2", 3, api.MachineEnrolled)}))
	})
}

func TestAForgottenMachineLeavesNothingButEvents(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		ctx := t.Context()
		w.reach(w.repo.AppendEvents(ctx, api.Event{Node: "n1", Time: now, Reason: "Enrolled"}, api.Event{Cluster: "c1", Time: now}))
		equal(t, len(eventsOf(t, w.cache, state.NodeLog("n1"))), 1)
		w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{
			Record: record("n1", 0, api.MachineOff), Hardware: &api.Hardware{Serial: "S"},
		}))
		n, err := w.leader.PruneEvents(ctx, w.cache, now.Add(time.Hour))
		must(t, err)
		equal(t, n, 0) // the machine is there

		w.reach(w.leader.ForgetMachine(ctx, w.machine("n1")))
		equal(t, len(w.cache.View().Nodes), 0)
		n, err = w.leader.PruneEvents(ctx, w.cache, now.Add(time.Hour))
		must(t, err)
		equal(t, n, 1)
		for _, prefix := range []string{"machine", "mac/", "hardware/", "events/@", "event/@"} {
			snap, err := w.store.List(ctx, prefix)
			must(t, err)
			if len(snap.Entries) != 0 {
				t.Errorf("left behind: %s", snap.Entries[0].Key)
			}
		}
		w.reach(w.repo.CreateMachine(ctx, machine("n1", mac1))) // name and MAC are free again
	})
}

func TestAnEnrolmentTokenIsUsedAsOftenAsItSays(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		w.reach(w.repo.PutNode(ctx, api.NodeRecord{Name: "rack2"}))
		w.reach(w.repo.CreateEnrollToken(ctx, api.EnrollmentToken{
			ID: "t1", Secret: "never stored", Hash: []byte{1}, Prefix: "rack", Uses: 3, ExpiresAt: now.Add(time.Hour),
		}))
		equal(t, w.cache.View().EnrollToken("t1").Secret, "")
		view := w.cache.View()
		type result struct {
			name string
			err  error
		}
		results := make(chan result)
		for i := range 5 {
			go func() {
				in := machine("", fmt.Sprintf("52:54:00:00:02:%02x", i))
				in.UID = fmt.Sprint("uid-", i)
				name, _, err := w.leader.TakeCandidate(ctx, view, "t1", now, in)
				results <- result{name, err}
			}()
		}
		names := map[string]bool{}
		for range 5 {
			switch r := <-results; {
			case r.err == nil:
				names[r.name] = true
			case !errors.Is(r.err, state.ErrNotFound):
				t.Errorf("a use too many: %v, want ErrNotFound, for it went with its last use", r.err)
			}
		}
		equal(t, names, map[string]bool{"rack1": true, "rack3": true, "rack4": true})

		w.reach(w.repo.CreateEnrollToken(ctx, api.EnrollmentToken{ID: "t2", Prefix: "x", Uses: 1, ExpiresAt: now}))
		if _, _, err := w.leader.TakeCandidate(ctx, view, "t2", now.Add(time.Second), machine("", mac1)); !errors.Is(err, state.ErrTokenSpent) {
			t.Errorf("a token past its end: %v, want ErrTokenSpent", err)
		}
	})
}

func TestUsesOfAnEnrolmentTokenAtTheSameMomentAllCount(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		w.reach(w.repo.CreateEnrollToken(ctx, api.EnrollmentToken{ID: "t1", Prefix: "x", Uses: 2, ExpiresAt: now}))
		errs := make(chan error)
		const tries = 8
		for i := range tries {
			go func() { // names and MACs of their own: nothing but the token keeps them apart
				_, _, err := w.leader.TakeCandidate(ctx, w.cache.View(), "t1", now, machine(fmt.Sprint("m", i), fmt.Sprintf("52:54:00:00:03:%02x", i)))
				errs <- err
			}()
		}
		won := 0
		for range tries {
			if <-errs == nil {
				won++
			}
		}
		equal(t, won, 2)
	})
}

func image(name string, n int) api.Image {
	digest := fmt.Sprintf("sha256:%064x", n)
	return api.Image{
		Digest: digest, Environment: name, BuiltAt: now,
		BuiltBy: []api.BuiltBy{{Node: "node-0", Digest: digest, At: now}, {Node: "node-1", Digest: digest, At: now}},
	}
}

func TestABuildItsImageAndItsNameBecomeTrueTogether(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		build := api.Build{ID: "b1", Environment: "e", Phase: api.BuildRunning, Attempt: 1}
		w.reach(w.repo.CreateBuild(ctx, build))
		if _, err := w.repo.CreateBuild(ctx, build); !errors.Is(err, state.ErrExists) {
			t.Errorf("a second build of that ID: %v", err)
		}
		equal(t, state.BuildRunID(&build), "build.b1.1")
		img := image("e", 1)
		build.Phase, build.Digest = api.BuildSucceeded, img.Digest
		env := api.EnvironmentRecord{Name: "e", Digest: img.Digest, Recipe: "name: e", UpdatedAt: now}
		w.reach(w.leader.FinishBuild(ctx, build, img, env))
		v := w.cache.View()
		equal(t, *v.ImageOf("e"), img)
		equal(t, *v.Build("b1"), build)
		if _, err := w.leader.FinishBuild(ctx, build, img, env); !errors.Is(err, store.ErrConflict) {
			t.Errorf("the end of a build that has ended: %v, want ErrConflict", err)
		}
		if _, err := w.repo.SetEnvironment(ctx, api.EnvironmentRecord{Name: "f", Digest: image("f", 9).Digest}); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a name for an image that is not there: %v, want ErrNotFound", err)
		}
	})
}

func TestABuildForAProjectReplacesNoEnvironment(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		build := api.Build{ID: "b1", Environment: "e", Project: "default", Phase: api.BuildRunning}
		w.reach(w.repo.CreateBuild(ctx, build))
		img := image("e", 1)
		build.Phase, build.Digest = api.BuildSucceeded, img.Digest
		env := api.EnvironmentRecord{Name: "e", Digest: img.Digest, Project: "default", UpdatedAt: now}
		w.reach(w.leader.FinishBuild(ctx, build, img, env))
		equal(t, *w.cache.View().Environment("e"), env)
		build.ID, build.Phase = "b2", api.BuildRunning
		w.reach(w.repo.CreateBuild(ctx, build))
		build.Phase = api.BuildSucceeded
		if _, err := w.leader.FinishBuild(ctx, build, img, env); !errors.Is(err, store.ErrConflict) {
			t.Errorf("in the place of another: %v, want ErrConflict", err)
		}
	})
}

func TestTheImageBelowChangedFilesIsNotDeleted(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	img := image("e", 1)
	w.reach(w.repo.PutImage(ctx, img))
	build := api.Build{ID: "b1", Environment: "saved", Project: "default", Phase: api.BuildPending, Bases: map[string]string{"e": img.Digest}}
	w.reach(w.repo.CreateBuild(ctx, build))
	if _, err := w.repo.DeleteImage(ctx, w.cache.View(), img.Digest); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "build b1") {
		t.Errorf("while the build waits: %v", err)
	}
	_, revision, err := w.repo.UpdateBuild(ctx, "b1", func(b *api.Build) error { b.Phase = api.BuildFailed; return nil })
	w.reach(revision, err)
	if _, err := w.repo.DeleteImage(ctx, w.cache.View(), img.Digest); err != nil {
		t.Errorf("after the build: %v", err)
	}
}

func TestWhatIsUsedIsNotDeleted(t *testing.T) {
	w := enrolled(t, openMemory(t))
	ctx := t.Context()
	img := image("e", 1)
	w.reach(w.repo.PutImage(ctx, img))
	w.reach(w.repo.SetEnvironment(ctx, api.EnvironmentRecord{Name: "e", Digest: img.Digest}))
	refused := func(because string) {
		t.Helper()
		_, err := w.repo.DeleteEnvironment(ctx, w.cache.View(), "e")
		if !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), because) {
			t.Errorf("delete: %v, want ErrInUse by %q", err, because)
		}
	}
	if _, err := w.repo.DeleteImage(ctx, w.cache.View(), img.Digest); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "environment e") {
		t.Errorf("delete of an image with a name: %v", err)
	}

	w.reach(w.repo.RequestPower(ctx, []state.PowerAsk{{Name: "n1", UID: "uid-n1", Request: api.PowerRequest{Action: api.PowerActionOn, Environment: "e"}}}))
	refused("power request of machine n1")
	rec := record("n1", 0, api.MachineReady)
	rec.DoneRequest, rec.Boot = 1, &api.Boot{Environment: "e", Digest: img.Digest}
	w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{Record: rec}))
	refused("machine n1")
	rec.Phase = api.MachineOff
	w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{Record: rec}))

	as := assignments("c1", 2, 1)
	for i := range as {
		as[i].EnvironmentDigest = img.Digest
	}
	w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: w.generation(1, api.ClusterReady), Add: []state.Batch{{Assignments: as}}}))
	refused("cluster c1")
	gone := *w.c1().Record
	gone.Generation, gone.Chunks = 2, nil
	w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: gone}))

	w.reach(w.repo.DeleteEnvironment(ctx, w.cache.View(), "e"))
	equal(t, len(w.cache.View().Images), 0)
}

func TestAnImageThatIsGivenANameAtTheSameMomentIsNotRemoved(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		img := image("e", 1)
		w.reach(w.repo.PutImage(ctx, img))
		stale := w.cache.View()
		// A build of the same recipe ends with this image between the look and the removal.
		w.store.fail = func(ops []store.Op) error {
			if !ops[0].Delete {
				return nil
			}
			w.store.fail = nil
			_, err := w.repo.SetEnvironment(ctx, api.EnvironmentRecord{Name: "e", Digest: img.Digest})
			return err
		}
		n, err := w.leader.PruneImages(ctx, stale, now.Add(time.Hour))
		must(t, err)
		equal(t, n, 0)
		if _, err := w.repo.DeleteImage(ctx, stale, img.Digest); !errors.Is(err, state.ErrInUse) {
			t.Errorf("delete by an old view: %v, want ErrInUse", err)
		}
	})
}

func TestStrangersAreForgottenInTime(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	for mac, seen := range map[string]time.Time{mac1: now, mac2: now.Add(time.Hour)} {
		w.reach(w.repo.UpsertCandidate(ctx, mac, func(c *api.Candidate) { c.LastSeenAt = seen }))
		must(t, w.repo.LeaseStore(w.cache).Keep(ctx, api.Lease{MAC: mac, ExpiresAt: seen}))
	}
	n, err := w.leader.PruneStrangers(ctx, w.cache.View(), now.Add(time.Minute))
	must(t, err)
	equal(t, n, 2)
}

func TestImagesThatNothingUsesGoInTime(t *testing.T) {
	w := enrolled(t, openMemory(t))
	ctx := t.Context()
	for i := range 3 {
		w.reach(w.repo.PutImage(ctx, image("e", i)))
	}
	w.reach(w.repo.SetEnvironment(ctx, api.EnvironmentRecord{Name: "e", Digest: image("e", 2).Digest}))
	rec := record("n1", 0, api.MachineReady)
	rec.Boot = &api.Boot{Environment: "e", Digest: image("e", 1).Digest}
	w.reach(w.leader.CommitMachine(ctx, w.machine("n1"), state.MachineWrite{Record: rec}))
	n, err := w.leader.PruneImages(ctx, w.cache.View(), now)
	must(t, err)
	equal(t, n, 0)
	n, err = w.leader.PruneImages(ctx, w.cache.View(), now.Add(time.Second))
	must(t, err)
	equal(t, n, 1)
}
