package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	driverfake "github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/fake"
)

// withVolumes is an agent of node n1 over a disk.
func withVolumes(t *testing.T, disk *fake.Disk) *Agent {
	t.Helper()
	a := newTestAgent(t)
	a.cfg.Node.Name, a.cfg.Volumes = "n1", disk.Pool()
	a.volumes.states = map[string]*volumeState{}
	return a
}

// settleVolumes converges volumes until nothing is under way.
func settleVolumes(t *testing.T, a *Agent) {
	t.Helper()
	for range 100 {
		a.convergeVolumes(t.Context(), a.cfg.Clock.Now())
		busy := a.volumes.looking
		for _, s := range a.volumes.states {
			busy = busy || s.busy
		}
		if !busy {
			return
		}
		(<-a.events)()
	}
	t.Fatal("something is always under way for volumes")
}

const volumeUID = "0123456789abcdef"

var clusterIDs = api.IDRange{First: 1 << 20, Count: 65536}

// wantedVolume is a volume, attached for these clusters.
func wantedVolume(clusters ...string) volume.Volume {
	v := volume.Volume{UID: volumeUID, Generation: 1, SizeBytes: 1 << 30, MaxFiles: 1 << 16}
	for _, c := range clusters {
		v.Attachments = append(v.Attachments, volume.Attachment{ClusterUID: c, UserIDs: clusterIDs})
	}
	return v
}

// claiming is a member of cluster u1 that has the volume at a path.
func claiming(t *testing.T, a *Agent, path string) *memberState {
	t.Helper()
	m := startable(t, a, leaving{})
	m.want.Assignment.ClusterUID = "u1"
	m.want.Assignment.Volumes = []api.VolumeClaim{{UID: volumeUID, Name: "data", Path: path, Node: "n1"}}
	m.assigned, m.state = &m.want.Assignment, driver.StateAbsent
	a.placeVolumes(m.want)
	return m
}

func TestAMemberStartsOnceItsVolumeIsAttached(t *testing.T) {
	disk := fake.NewDisk(1 << 40)
	disk.Fail(volumeUID, errors.New("the disk is slow today"))
	a := withVolumes(t, disk)
	m := claiming(t, a, "/volumes/data")
	for _, step := range []struct {
		do      func()
		message string
	}{
		{func() {}, `volume "data" is not known on this node yet`},
		{func() { a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}}) }, `volume "data" is being made`},
		{func() { settleVolumes(t, a) }, `volume "data" can't be attached: the disk is slow today`},
	} {
		step.do()
		a.start(t.Context(), m)
		if m.busy || m.message != step.message || m.attempts.Count != 0 {
			t.Fatalf("busy %t after %d attempts with %q; want it to wait with %q", m.busy, m.attempts.Count, m.message, step.message)
		}
	}
	disk.Fail(volumeUID, nil)
	a.volumes.states[volumeUID].attempts.NextTry = a.cfg.Clock.Now() // the pause is over
	settleVolumes(t, a)
	a.start(t.Context(), m)
	if !m.busy {
		t.Fatalf("it waits still: %q", m.message)
	}
	if want := []driver.Mount{{Source: a.cfg.Volumes.Dir(volumeUID, "u1"), Path: "/volumes/data"}}; !slices.Equal(m.want.Mounts, want) {
		t.Errorf("mounts: got %+v, want %+v", m.want.Mounts, want)
	}
	(<-a.events)() // how the start went
}

func TestAVolumeOfAnotherNodeIsNotReached(t *testing.T) {
	a := withVolumes(t, fake.NewDisk(1<<40))
	m := claiming(t, a, "/volumes/data")
	m.want.Assignment.Volumes[0].Node = "n2"
	a.start(t.Context(), m)
	if want := `volume "data" lies on node n2, and this node can't reach it`; m.busy || m.message != want {
		t.Errorf("busy %t, message %q; want it to wait with %q", m.busy, m.message, want)
	}
}

func TestNothingIsDetachedFromUnderAMember(t *testing.T) {
	for _, named := range []bool{true, false} {
		disk := fake.NewDisk(1 << 40)
		a := withVolumes(t, disk)
		m := claiming(t, a, "/volumes/data")
		m.state, m.assigned.UserIDs = driver.StateRunning, clusterIDs
		a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1", "u2")}})
		settleVolumes(t, a)
		var less []volume.Volume
		if named {
			less = append(less, wantedVolume())
		}
		m.want = nil // the leader names neither
		a.wantVolumes(&agentstream.Desired{Volumes: less})
		settleVolumes(t, a)
		if got := disk.Attached(volumeUID); len(got) != 1 || got["u1"].UserIDs != clusterIDs {
			t.Errorf("volume named %t, a member of u1 runs: attached %+v, want u1 only", named, got)
		}
		if seen, _ := a.observedVolumes(); len(seen) != 1 || !strings.Contains(seen[0].Problem, "it stays attached for cluster u1") {
			t.Errorf("volume named %t: it reports %+v, want the reason", named, seen)
		}
		m.state, m.cleaned = driver.StateAbsent, true
		settleVolumes(t, a)
		if got := disk.Attached(volumeUID); len(got) != 0 {
			t.Errorf("volume named %t, the member is clean: attached %+v, want nothing", named, got)
		}
		if seen, _ := a.observedVolumes(); len(seen) != 1 || seen[0].Problem != "" {
			t.Errorf("volume named %t: it reports %+v, want no problem", named, seen)
		}
	}
}

func TestAnAgentThatStartsAgainTouchesNoAttachmentOfItsMembers(t *testing.T) {
	disk := fake.NewDisk(1 << 40)
	before := withVolumes(t, disk)
	before.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}})
	settleVolumes(t, before)
	a := withVolumes(t, disk)
	m := claiming(t, a, "/volumes/data")
	m.state, m.assigned.UserIDs = driver.StateRunning, clusterIDs
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume()}})
	settleVolumes(t, a)
	for _, call := range disk.Calls() {
		if strings.HasPrefix(call, "detach") {
			t.Errorf("it called %q", call)
		}
	}
}

func TestAPurgedVolumeIsReportedUntilItIsNoLongerNamed(t *testing.T) {
	disk := fake.NewDisk(1 << 40)
	a := withVolumes(t, disk)
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}})
	settleVolumes(t, a)
	if seen, purged := a.observedVolumes(); len(seen) != 1 || !seen[0].Ready || len(purged) != 0 {
		t.Fatalf("it reports %+v and %v as purged; want the volume", seen, purged)
	}
	purge := wantedVolume()
	purge.Purge, purge.Generation = true, 2
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume()}})
	settleVolumes(t, a)
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{purge}})
	settleVolumes(t, a)
	if seen, purged := a.observedVolumes(); len(seen) != 0 || !slices.Equal(purged, []string{volumeUID}) {
		t.Errorf("it reports %+v and %v as purged; want it purged", seen, purged)
	}
	a.wantVolumes(&agentstream.Desired{})
	settleVolumes(t, a)
	if seen, purged := a.observedVolumes(); len(seen) != 0 || len(purged) != 0 || len(a.volumes.states) != 0 {
		t.Errorf("it reports %+v and %v as purged; want nothing", seen, purged)
	}
}

func TestAHomeThatIsAVolumeStaysWhenItsClusterGoes(t *testing.T) {
	a := withVolumes(t, fake.NewDisk(1<<40))
	m := claiming(t, a, "/home")
	if m.want.HomeDir != a.cfg.Volumes.Dir(volumeUID, "u1") || len(m.want.Mounts) > 0 {
		t.Fatalf("home %s and mounts %+v; want the volume as home alone", m.want.HomeDir, m.want.Mounts)
	}
	m.want.HomeDir = filepath.Join(a.cfg.StateDir, "attached")
	if err := os.MkdirAll(m.want.HomeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.want.Release, m.want.ReleaseHome = true, true
	a.clean(t.Context(), m)
	(<-a.events)()
	if _, err := os.Stat(m.want.HomeDir); err != nil || !m.cleaned {
		t.Errorf("cleaned %t, and the home: %v; want it kept", m.cleaned, err)
	}
}

func TestANodeWithoutAPoolReportsWhy(t *testing.T) {
	a := newTestAgent(t)
	a.volumes.states = map[string]*volumeState{}
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume()}})
	settleVolumes(t, a)
	if seen, _ := a.observedVolumes(); len(seen) != 1 || !strings.Contains(seen[0].Problem, "keeps no volumes") {
		t.Errorf("it reports %+v, want the reason", seen)
	}
}

func TestAVolumeIsMountedOnceItsNodeHasAttachedIt(t *testing.T) {
	a := withVolumes(t, fake.NewDisk(1<<40))
	m := claiming(t, a, "/volumes/data")
	host := driverfake.NewHost()
	m.driver = driverfake.New(host, &drivertest.Ports{})
	if err := m.driver.Start(t.Context(), driver.Member{Assignment: api.Assignment{ID: m.id}}); err != nil {
		t.Fatal(err)
	}
	m.state, m.want.Assignment.VolumesNumber = driver.StateRunning, 1
	now := a.cfg.Clock.Now()
	if !a.mountsWanted(m, now) {
		t.Fatal("it is to have other volumes, and the agent does not see that")
	}
	a.changeMounts(t.Context(), m)
	if want := `volume "data" is not known on this node yet`; m.busy || m.mounts.problem != want || m.mounts.attempts.Count != 0 {
		t.Fatalf("busy %t, %q; want it to wait with %q", m.busy, m.mounts.problem, want)
	}
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume("u1")}})
	settleVolumes(t, a)
	a.changeMounts(t.Context(), m)
	(<-a.events)()
	if has, _ := host.Member(m.id); m.mounts.number != 1 || m.mounts.problem != "" || !slices.Equal(has.Mounts, m.want.Mounts) || len(has.Mounts) != 1 {
		t.Fatalf("it has %+v mounted, of number %d: %s", has.Mounts, m.mounts.number, m.mounts.problem)
	}

	// What can't be unmounted is tried again after a pause, and keeps nothing else from being done.
	host.HoldOpen(m.id, "/volumes/data", true)
	next := m.want.Assignment
	next.Volumes, next.VolumesNumber = []api.VolumeClaim{next.Volumes[0]}, 2
	next.Volumes[0].Detaching = true
	m.mountsChanged(&driver.Member{Assignment: next})
	m.want.Assignment = next
	a.placeVolumes(m.want)
	a.changeMounts(t.Context(), m)
	(<-a.events)()
	if m.mounts.number != 1 || !strings.Contains(m.mounts.problem, "files of /volumes/data are still open") || m.attempts.Count != 0 {
		t.Errorf("number %d, %q after %d attempts at the member", m.mounts.number, m.mounts.problem, m.attempts.Count)
	}
	if a.mountsWanted(m, now) || !a.mountsWanted(m, m.mounts.attempts.NextTry) {
		t.Errorf("it is tried again at %s, want it after a pause", m.mounts.attempts.NextTry)
	}
}

// A mount stays until it is taken away. The process that serves a block volume may end.
func TestWhatServesABlockVolumeIsStartedAgain(t *testing.T) {
	disk := fake.NewDisk(1 << 40)
	a := withVolumes(t, disk)
	v := wantedVolume("u1")
	v.Block, v.MaxFiles = true, 0
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{v}})
	settleVolumes(t, a)
	if len(disk.Attached(volumeUID)) != 1 {
		t.Fatal("it is not attached")
	}
	before := len(disk.Calls())
	a.lookAtVolumes(t.Context(), a.cfg.Clock.Now())
	settleVolumes(t, a)
	if calls := disk.Calls()[before:]; len(calls) > 0 {
		t.Errorf("what is there is changed: %q", calls)
	}
	disk.Reboot()
	a.lookAtDisks(t.Context())
	settleVolumes(t, a)
	if len(disk.Attached(volumeUID)) != 1 {
		t.Error("it is not attached any more")
	}
	a.volumes.states[volumeUID].applied.Block = false
	if a.lookAtDisks(t.Context()); a.volumes.looking {
		t.Error("a node without disks looks at its volumes for them")
	}
}

func TestABlockVolumeIsADiskOfItsMember(t *testing.T) {
	a := withVolumes(t, fake.NewDisk(1<<40))
	m := claiming(t, a, "/volumes/data")
	m.want.Assignment.Volumes[0].Block, m.want.Assignment.Volumes[0].ReadOnly = true, true
	a.placeVolumes(m.want)
	if want := []driver.Disk{{Name: "data", Path: "/volumes/data", Socket: a.cfg.Volumes.Socket(volumeUID, "u1"), ReadOnly: true}}; !slices.Equal(m.want.Disks, want) || len(m.want.Mounts) > 0 {
		t.Errorf("disks %+v and mounts %+v; want %+v", m.want.Disks, m.want.Mounts, want)
	}
}

// What serves it takes the latest client, and a machine that loses its disk connects again.
func TestAMachineBeginsOnceNoOtherHereHasItsBlockVolume(t *testing.T) {
	a := withVolumes(t, fake.NewDisk(1<<40))
	v := wantedVolume("u1")
	v.Block, v.MaxFiles = true, 0
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{v}})
	settleVolumes(t, a)
	m := claiming(t, a, "/volumes/data")
	m.want.Assignment.Volumes[0].Block = true
	gone := &memberState{id: "u1.w-0.0", state: driver.StateRunning, assigned: &api.Assignment{ID: "u1.w-0.0", ClusterUID: "u1", Volumes: m.want.Assignment.Volumes}}
	a.members[gone.id] = gone
	for name, c := range map[string]struct {
		set   func()
		waits bool
	}{
		"it runs":                           {func() {}, true},
		"it is being worked on":             {func() { gone.state, gone.busy = driver.StateAbsent, true }, true},
		"it has ended":                      {func() { gone.state = driver.StateExited }, false},
		"it is of another cluster":          {func() { gone.assigned.ClusterUID = "u2" }, true},
		"it is what the machine goes on as": {func() { gone.busy, m.want.Assignment.From = true, gone.id }, false},
		"it has another volume":             {func() { gone.assigned.Volumes = []api.VolumeClaim{{UID: "other", Block: true}} }, false},
		"it has a file system":              {func() { gone.assigned.Volumes = []api.VolumeClaim{{UID: volumeUID}} }, false},
		"it has none that is known":         {func() { gone.assigned = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			gone.state, gone.busy, m.want.Assignment.From = driver.StateRunning, false, ""
			gone.assigned = &api.Assignment{ID: gone.id, ClusterUID: "u1", Volumes: m.want.Assignment.Volumes}
			c.set()
			if why := a.unattached(m); strings.Contains(why, "another machine, u1.w-0.0") != c.waits || !c.waits && why != "" {
				t.Errorf("it waits: %q", why)
			}
		})
	}
}

func TestABlockVolumeThatTheLeaderNoLongerNamesIsDetached(t *testing.T) {
	disk := fake.NewDisk(1 << 40)
	a := withVolumes(t, disk)
	v := wantedVolume("u1")
	v.Block, v.MaxFiles = true, 0
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{v}})
	settleVolumes(t, a)
	a.wantVolumes(&agentstream.Desired{})
	next := a.nextOfVolume(volumeUID, a.volumes.states[volumeUID])
	if next == nil || !next.Block || next.Check() != nil || len(next.Attachments) != 0 {
		t.Fatalf("the pool is asked for %+v: %v", next, next.Check())
	}
}
