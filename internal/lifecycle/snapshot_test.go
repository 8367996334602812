package lifecycle

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

// snapshot asks for snapshot s.
func (l *life) snapshot() {
	l.Intent.Snapshots = append(l.Intent.Snapshots, api.SnapshotIntent{Name: "s", AskedAt: t0})
}

// keep adds the assignments that keep the states of both members in snapshot s, a2 and a3.
func (l *life) keep(saved bool) {
	for _, m := range l.Assignments[:2] {
		a := l.add(m.Member, m.Node, NoRank)
		a.Saved, a.DiskBytes = saved, 1000
		a.Snapshot = &api.SnapshotClaim{Name: "s", AskedAt: t0, Of: m.ID, Ports: m.Ports}
	}
}

// noted notes how the request for snapshot s ended.
func (l *life) noted(failed string) {
	r := api.SnapshotRecord{Name: "s", AskedAt: t0, Failed: failed}
	if failed == "" {
		r.MadeAt = &t0
	}
	l.Record.Snapshots = append(l.Record.Snapshots, r)
}

// made is a cluster with snapshot s.
func (l *life) made() {
	l.snapshot()
	l.noted("")
	l.keep(true)
	l.seeAll(api.MemberReady)
	l.written("a2", "a3")
}

// written is the word of nodes that states are on their disks.
func (l *life) written(ids ...string) {
	for _, id := range ids {
		l.Observed[id] = Observation{Phase: api.MemberSaved, StateBytes: 700, Since: t0}
	}
}

// addressed gives a state the address that its member had.
func (l *life) addressed(id, address string) {
	for _, a := range l.Assignments {
		if a.ID == id {
			a.Snapshot.Ports = []api.PortClaim{{Network: "net", Address: netip.MustParseAddr(address)}}
		}
	}
}

// back asks for snapshot s to be restored.
func (l *life) back() { l.Intent.SnapshotRestore = &api.SnapshotIntent{Name: "s", AskedAt: t0} }

// verified is the word of a node on a state; empty: it passed.
func (l *life) verified(id, failure string) {
	o := l.Observed[id]
	o.Verified, o.Failure = t0.UTC().Format(time.RFC3339Nano), failure
	l.Observed[id] = o
}

func TestHowASnapshotIsMade(t *testing.T) {
	const ready, paused = api.MemberReady, api.MemberPaused
	given := func(l *life) {
		l.snapshot()
		l.keep(false)
		l.seeAll(paused)
	}
	checkSteps(t, []step{
		{
			"a ready cluster is frozen for its snapshot", api.ClusterReady, func(l *life) { l.snapshot(); l.seeAll(ready) },
			[]string{"SetPhase snapshotting: freezing 2 members for snapshot s", "Emit SnapshotBegun: freezing 2 members for snapshot s||"},
		},
		{
			"a paused cluster is, too", api.ClusterPaused, func(l *life) { l.snapshot(); l.Intent.Paused = true; l.seeAll(paused) },
			[]string{"SetPhase snapshotting: freezing 2 members for snapshot s", "Emit SnapshotBegun: freezing 2 members for snapshot s||"},
		},
		{
			"no state is written while a member is awake", api.ClusterSnapshotting,
			func(l *life) { l.snapshot(); l.see("a0", paused, ""); l.see("a1", ready, ""); l.Now = t0 },
			[]string{"WakeAt 1m0s"},
		},
		{
			"a member that stays awake ends the snapshot at the deadline", api.ClusterSnapshotting,
			func(l *life) { l.snapshot(); l.see("a0", paused, ""); l.see("a1", ready, "") },
			[]string{
				"NoteSnapshot{Snapshot:{Name:s AskedAt:2030-01-01 00:00:00 +0000 UTC} Bytes:map[] Failed:not done within 1m0s: c-1 on n2 is ready}",
				"SetPhase resuming: snapshot s was not made: not done within 1m0s: c-1 on n2 is ready",
				"Emit SnapshotFailed: snapshot s was not made: not done within 1m0s: c-1 on n2 is ready||",
			},
		},
		{
			"states are written once all stand still", api.ClusterSnapshotting, func(l *life) { l.snapshot(); l.seeAll(paused) },
			[]string{"HoldSnapshot{Snapshot:{Name:s AskedAt:2030-01-01 00:00:00 +0000 UTC}}", "SetPhase snapshotting: writing 2 members into snapshot s"},
		},
		{
			"members stand still until the last state is written", api.ClusterSnapshotting, func(l *life) { given(l); l.written("a2") },
			[]string{"WakeAt 15m0s"},
		},
		{
			"with the last state the snapshot is true, and members go on", api.ClusterSnapshotting, func(l *life) { given(l); l.written("a2", "a3") },
			[]string{
				"NoteSnapshot{Snapshot:{Name:s AskedAt:2030-01-01 00:00:00 +0000 UTC} Bytes:map[a2:700 a3:700] Failed:}",
				"SetPhase resuming: snapshot s has the state of 2 members", "Emit SnapshotMade: snapshot s has the state of 2 members||",
			},
		},
		{
			"a cluster that its user paused stays paused", api.ClusterSnapshotting,
			func(l *life) { given(l); l.Intent.Paused = true; l.written("a2", "a3") },
			[]string{
				"NoteSnapshot{Snapshot:{Name:s AskedAt:2030-01-01 00:00:00 +0000 UTC} Bytes:map[a2:700 a3:700] Failed:}",
				"SetPhase paused: snapshot s has the state of 2 members", "Emit SnapshotMade: snapshot s has the state of 2 members||",
			},
		},
		{
			"a state that can't be written ends the snapshot", api.ClusterSnapshotting,
			func(l *life) { given(l); l.written("a2"); l.see("a3", api.MemberFailed, "the disk is full") },
			[]string{
				"NoteSnapshot{Snapshot:{Name:s AskedAt:2030-01-01 00:00:00 +0000 UTC} Bytes:map[] Failed:c-1 on n2: the disk is full}",
				"SetPhase resuming: snapshot s was not made: c-1 on n2: the disk is full",
				"Emit SnapshotFailed: snapshot s was not made: c-1 on n2: the disk is full||",
			},
		},
		{
			"a member that is lost ends the snapshot", api.ClusterSnapshotting, func(l *life) { given(l); l.node("n2", api.NodeDown) },
			[]string{
				"Lose [a1]: node n2 is down", "Emit MemberLost: c-1 on n2 is lost (node n2 is down)|c-1|n2",
				"NoteSnapshot{Snapshot:{Name:s AskedAt:2030-01-01 00:00:00 +0000 UTC} Bytes:map[] Failed:c-1 on n2 is lost (node n2 is down)}",
				"SetPhase resuming: snapshot s was not made: c-1 on n2 is lost (node n2 is down)",
				"Emit SnapshotFailed: snapshot s was not made: c-1 on n2 is lost (node n2 is down)||",
			},
		},
		{
			"the states of a snapshot that failed are released", api.ClusterResuming,
			func(l *life) { given(l); l.noted("the disk is full"); l.Now = t0 },
			[]string{"Release [a2 a3]: the snapshot is deleted", "WakeAt 1m0s"},
		},
		{
			"a snapshot that is deleted meanwhile lets members go on, and its states go", api.ClusterSnapshotting,
			func(l *life) { given(l); l.Intent.Snapshots = nil },
			[]string{"Release [a2 a3]: the snapshot is deleted", "SetPhase resuming: the snapshot was deleted before it was complete"},
		},
		{
			"a snapshot is kept while it is wanted", api.ClusterReady, func(l *life) { l.made() }, []string{},
		},
		{
			"a deleted snapshot is released and forgotten, and members are left alone", api.ClusterReady,
			func(l *life) { l.made(); l.Intent.Snapshots = nil },
			[]string{"Release [a2 a3]: the snapshot is deleted", "ForgetSnapshots{Names:[s]}"},
		},
		{
			"another snapshot of the same name is not taken for the one that was deleted", api.ClusterReady,
			func(l *life) { l.made(); l.Intent.Snapshots[0].AskedAt = t0.Add(time.Second) },
			[]string{
				"Release [a2 a3]: the snapshot is deleted", "SetPhase snapshotting: freezing 2 members for snapshot s",
				"Emit SnapshotBegun: freezing 2 members for snapshot s||",
			},
		},
	})
}

func TestHowASnapshotIsRestored(t *testing.T) {
	refused := func(reason string) []string {
		return []string{
			"RefuseSnapshotRestore{Snapshot:{Name:s AskedAt:2030-01-01 00:00:00 +0000 UTC} Reason:" + reason + "}",
			"Emit RestoreFailed: snapshot s was not restored: " + reason + "||",
		}
	}
	restored := []string{
		"RestoreSnapshot{Snapshot:{Name:s AskedAt:2030-01-01 00:00:00 +0000 UTC}}", "SetPhase restoring: restoring 2 members from snapshot s",
		"Emit Restoring: restoring 2 members from snapshot s||",
	}
	checkSteps(t, []step{
		{
			"the cluster runs on while its states are verified", api.ClusterReady, func(l *life) { l.made(); l.back(); l.verified("a2", "") },
			[]string{"WakeAt 15m0s"},
		},
		{
			"members go back once all states passed", api.ClusterReady, func(l *life) { l.made(); l.back(); l.verified("a2", ""); l.verified("a3", "") }, restored,
		},
		{
			"paused members go back, too", api.ClusterPaused, func(l *life) {
				l.made()
				l.back()
				l.Intent.Paused = true
				l.see("a0", api.MemberPaused, "")
				l.see("a1", api.MemberPaused, "")
				l.verified("a2", "")
				l.verified("a3", "")
			}, restored,
		},
		{
			"one state that did not pass changes nothing", api.ClusterReady,
			func(l *life) { l.made(); l.back(); l.verified("a2", ""); l.verified("a3", "it is damaged") },
			refused("c-1 on n2: it is damaged"),
		},
		{
			"the verification of an earlier request counts for nothing", api.ClusterReady, func(l *life) {
				l.made()
				l.back()
				l.verified("a2", "")
				l.verified("a3", "it is damaged")
				l.Intent.SnapshotRestore.AskedAt = t0.Add(time.Second)
			}, []string{"WakeAt 15m1s"},
		},
		{
			"a verification has a deadline", api.ClusterReady,
			func(l *life) { l.made(); l.back(); l.verified("a2", ""); l.Now = t0.Add(15 * time.Minute) },
			refused("not verified within 15m0s: the state of c-1 on n2"),
		},
		{
			"a state that is gone changes nothing", api.ClusterReady, func(l *life) {
				l.made()
				l.back()
				l.see("a3", api.MemberFailed, "its saved memory is no longer on its node")
			}, refused("c-1 on n2: its saved memory is no longer on its node"),
		},
		{
			"a member that is not in the snapshot is named", api.ClusterReady, func(l *life) {
				l.made()
				l.back()
				l.size(3)
				l.add("c-2", "n3", 2)
				l.see("a4", api.MemberReady, "")
			}, refused("member c-2 is not in the snapshot; remove it with nearmetal cluster scale --remove c-2"),
		},
		{
			"a size that differs is named", api.ClusterReady, func(l *life) {
				l.made()
				l.back()
				l.Intent.Spec.Groups[0].Memory = 1 << 30
			}, refused("member c-0 had 0 cores and 0 in the snapshot, and has 0 cores and 1GiB now; resize it back"),
		},
		{
			"an address that another member has by now is named", api.ClusterReady, func(l *life) {
				l.made()
				l.addressed("a3", "10.64.0.9")
				l.back()
				l.add("c-2", "n3", 2).Ports = []api.PortClaim{{Network: "net", Address: netip.MustParseAddr("10.64.0.9")}}
				l.release("a4")
			}, append([]string{"WakeAt 10m0s"}, refused("member c-1 had address 10.64.0.9 in the snapshot, which member c-2 has now")...),
		},
		{
			"it waits until what an earlier restore left is gone, which has the member's address", api.ClusterReady, func(l *life) {
				l.made()
				l.addressed("a3", "10.64.0.9")
				l.back()
				l.Assignments[1].Ports = l.Assignments[3].Snapshot.Ports
				l.add("c-1", "n2", 1).Ports = l.Assignments[3].Snapshot.Ports
				l.release("a4")
				l.verified("a2", "")
				l.verified("a3", "")
			}, []string{"WakeAt 10m0s", "WakeAt 15m0s"},
		},
		{
			"a request that has ended is not taken up again", api.ClusterReady, func(l *life) {
				l.made()
				l.back()
				l.Record.SnapshotRestore = &api.SnapshotRestoreRecord{Name: "s", AskedAt: t0}
				l.verified("a2", "")
				l.verified("a3", "")
			}, []string{},
		},
	})
}

func TestAMemberThatGoesBackIsRestoredOnceItsStateIsLaidDownAndItsLastLifeIsClean(t *testing.T) {
	given := func(l *life) {
		l.made()
		l.Assignments[0].Saved, l.Assignments[0].Resumes = true, "a2"
		l.Assignments[1].Saved, l.Assignments[1].Resumes = true, "a3"
	}
	checkSteps(t, []step{
		{
			"a state that is still being laid down is waited for", api.ClusterRestoring, func(l *life) {
				given(l)
				l.see("a0", api.MemberSaved, "")
				l.see("a1", api.MemberPreparing, "")
			}, []string{},
		},
		{
			"then room is asked for, for all together", api.ClusterRestoring, func(l *life) {
				given(l)
				l.see("a0", api.MemberSaved, "")
				l.see("a1", api.MemberSaved, "")
			}, []string{"Need restore c-0@-1(from a0, on n1) c-1@-1(from a1, on n2)"},
		},
		{
			"a snapshot that is deleted is kept for the member that has not its state yet", api.ClusterRestoring, func(l *life) {
				given(l)
				l.Intent.Snapshots = nil
				l.see("a0", api.MemberSaved, "")
				l.see("a1", api.MemberPreparing, "")
			}, []string{"Release [a2]: the snapshot is deleted", "ForgetSnapshots{Names:[s]}"},
		},
	})
}

func TestWhatANodeDoesAboutTheStateOfASnapshot(t *testing.T) {
	wanted := func(change func(*DesiredMember)) *DesiredMember {
		d := &DesiredMember{Generation: 1, Snapshot: true}
		change(d)
		return d
	}
	none := func(*DesiredMember) {}
	for _, tt := range []struct {
		name string
		in   MemberInput
		want []string
	}{
		{"a state is written", MemberInput{Desired: wanted(none), Host: HostAbsent}, []string{"Report preparing", "TakeSnapshot{}"}},
		{"half a state is removed first", MemberInput{Desired: wanted(none), Host: HostPrepared}, []string{"Report preparing", "Clean{}"}},
		{
			"a state that could not be written is not tried again",
			MemberInput{Desired: wanted(none), Host: HostAbsent, Attempts: Attempts{Count: 1, LastError: "the disk is full"}},
			[]string{"Report failed: the disk is full"},
		},
		{"a written state is left alone", MemberInput{Desired: wanted(none), Host: HostSaved}, []string{"Report saved"}},
		{
			"a complete snapshot is never written again",
			MemberInput{Desired: wanted(func(d *DesiredMember) { d.Save = true }), Host: HostAbsent},
			[]string{"Report failed: its saved memory is no longer on its node"},
		},
		{
			"a state is verified on request",
			MemberInput{Desired: wanted(func(d *DesiredMember) { d.Save, d.Verify = true, true }), Host: HostSaved},
			[]string{"Report saved", "VerifySnapshot{}"},
		},
		{
			"an older snapshot is no outdated member", MemberInput{Desired: wanted(none), Host: HostSaved, NewestGeneration: 5}, []string{"Report saved"},
		},
		{
			"a saved member begins with its state in the snapshot",
			MemberInput{Desired: &DesiredMember{Generation: 1, Save: true, LayDown: true}, Host: HostAbsent},
			[]string{"Report preparing", "LayDown{}"},
		},
		{
			"half a laid down state is removed first",
			MemberInput{Desired: &DesiredMember{Generation: 1, Save: true, LayDown: true}, Host: HostPrepared},
			[]string{"Report preparing", "Clean{}"},
		},
		{
			"a member with its state is saved like any other",
			MemberInput{Desired: &DesiredMember{Generation: 1, Save: true, LayDown: true}, Host: HostSaved},
			[]string{"Report saved"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Current, tt.in.Now = true, t0
			if diff := cmp.Diff(tt.want, sketch(PlanMember(tt.in))); diff != "" {
				t.Errorf("operations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAJobThatBeganAfterTheSnapshotIsLostWithItsRestore(t *testing.T) {
	at := func(d time.Duration) *time.Time { when := t0.Add(d); return &when }
	for name, tt := range map[string]struct {
		began   *time.Time
		requeue bool
		want    api.JobPhase
	}{
		"a job that ran at the snapshot goes on": {began: at(-time.Minute), want: api.JobRunning},
		"a job from between is lost":             {began: at(time.Minute), want: api.JobLost},
		"a job from between may run again":       {began: at(time.Minute), requeue: true, want: api.JobPending},
		"a job from after the restore goes on":   {began: at(3 * time.Minute), want: api.JobRunning},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(api.ClusterRestoring)
			l.Record.SnapshotRestore = &api.SnapshotRestoreRecord{Name: "s", MadeAt: t0, DecidedAt: t0.Add(2 * time.Minute)}
			job := api.Job{ID: "j", Phase: api.JobRunning, MemberID: "a0", DispatchedAt: tt.began, StartedAt: tt.began}
			job.Requeue = tt.requeue
			if got := PlanJob(JobInput{Job: job, Cluster: &l.ClusterInput, Now: t0.Add(4 * time.Minute)}).Next; got.Phase != tt.want {
				t.Errorf("the job is %s (%s), want %s", got.Phase, got.Message, tt.want)
			}
		})
	}
}
