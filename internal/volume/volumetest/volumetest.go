// Package volumetest is the suite that every implementation of volume.Pool passes, the fake one included.
//
// It tests the contract: the promises of Apply, Observe, Purge and Close to the agent. Where volumes are real directories, it looks into them as
// a member does. A suite must never look inside an implementation. Start with Run.
package volumetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// What the suite works with: small volumes on a pool that has room for at least eight of them, and for fewer than sixteen.
const (
	CapacityBytes = 8 * SizeBytes
	SizeBytes     = api.MinVolumeBytes
	MaxFiles      = SizeBytes / api.VolumeBytesPerFile
)

// Harness makes what the suite works on.
type Harness struct {
	// New returns a pool on the disk of a node (a number), which begins with nothing. It is called again with the same node when an agent starts
	// anew; the pool that it had may still be open then, as after a crash. It closes the pool after the test.
	New func(t *testing.T, node int) volume.Pool
	// Hold makes a volume, attached to a cluster, hold a file of so many bytes.
	Hold func(t *testing.T, node int, p volume.Pool, uid, clusterUID string, bytes int64)
	// Files: volumes are directories. Rows that look into them need it.
	Files bool
	// GrowsDetached: on this host, a volume grows only while it is attached to nothing.
	GrowsDetached bool
	// Left returns what the host holds in memory for the volumes of a node: mounts and devices. Nil for a pool that needs none.
	Left func(t *testing.T, node int) []string
}

// Volume returns what is wanted of the volume with a number: a small one, attached nowhere.
func Volume(number int) volume.Volume {
	return volume.Volume{UID: fmt.Sprintf("vol-%d", number), Generation: 1, SizeBytes: SizeBytes, MaxFiles: MaxFiles}
}

// Attachment returns one to the cluster with a number, which has IDs of its own on the host.
func Attachment(number int) volume.Attachment {
	return volume.Attachment{
		ClusterUID: fmt.Sprintf("cluster-%d", number), UserIDs: api.IDRange{First: uint32(1_000_000 + 65536*number), Count: 65536},
	}
}

// rig is one row's pool.
type rig struct {
	Harness
	volume.Pool
	node int
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	rows := []struct {
		name string
		test func(t *testing.T, r *rig)
	}{
		{"a volume is made once, and applying it again changes nothing", makes},
		{"a volume grows, attached and detached", grows},
		{"a volume shrinks while it is detached, and never below what it holds", shrinks},
		{"a volume that was there before is not made again", lost},
		{"snapshots come and go", snapshots},
		{"a volume goes back to a snapshot once, while it is detached", restores},
		{"a volume begins as a snapshot of another, and outlives it", clones},
		{"attachments come, change and go", attaches},
		{"an older decision about a volume is refused", stale},
		{"a purged volume is gone, and an attached one is not purged", purges},
		{"a full pool refuses volumes, growth and snapshots, and keeps what it has", full},
		{"a new process finds what is there", survives},
		{"a closed pool holds nothing in memory, and its volumes stay", closes},
		{"volumes may be changed at once", parallel},
		{"names that are no names are refused", names},
		{"a context that has ended ends every call", cancelled},
		{"a member's user can write to a new volume, which is empty", writable},
		{"two clusters with IDs of their own see the same owners", owners},
		{"a cluster that may only read can't write", readOnly},
		{"a full volume refuses bytes, and goes on", fullOfBytes},
		{"a volume with all its files refuses another", fullOfFiles},
		{"a volume holds again what a snapshot held", contents},
		{"an archive of a volume makes another that holds the same", archives},
		{"a volume is used and changed while an archive of it is written", archivesInUse},
		{"of an archive that is not whole nothing is made", archivesCut},
		{"a volume that waits for an archive is made of nothing else", archivesOnly},
		{"a volume that can't hold what an archive has is not made", archivesTooLarge},
		{"an archive of a snapshot has what that held", archivesOfSnapshots},
	}
	for node, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			row.test(t, &rig{Harness: h, Pool: h.New(t, node), node: node})
		})
	}
}

// apply brings a volume to what is wanted.
func (r *rig) apply(t *testing.T, v volume.Volume) {
	t.Helper()
	if err := r.Apply(t.Context(), v); err != nil {
		t.Fatalf("applying %+v: %v", v, err)
	}
}

// refused checks that a volume is not brought to what is wanted, for a reason.
func (r *rig) refused(t *testing.T, v volume.Volume, want error) {
	t.Helper()
	if err := r.Apply(t.Context(), v); !errors.Is(err, want) {
		t.Fatalf("applying %+v: got error %v, want %v", v, err, want)
	}
}

// state returns a volume as it is found, nil when it is not.
func (r *rig) state(t *testing.T, uid string) *volume.State {
	t.Helper()
	all, err := r.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].UID == uid {
			return &all[i]
		}
	}
	return nil
}

// ready returns the state of a volume that must be there, whole.
func (r *rig) ready(t *testing.T, uid string) volume.State {
	t.Helper()
	s := r.state(t, uid)
	if s == nil || !s.Ready {
		t.Fatalf("volume %s is not ready: %+v", uid, s)
	}
	return *s
}

func snapshotsOf(s volume.State) (uids []string) {
	for _, snapshot := range s.Snapshots {
		uids = append(uids, snapshot.UID)
	}
	slices.Sort(uids)
	return uids
}

// hold attaches a volume to cluster 1 for as long as it takes to make it hold a file.
func (r *rig) hold(t *testing.T, v volume.Volume, bytes int64) {
	t.Helper()
	v.Attachments = []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	r.Hold(t, r.node, r.Pool, v.UID, v.Attachments[0].ClusterUID, bytes)
	v.Attachments = nil
	r.apply(t, v)
}

func makes(t *testing.T, r *rig) {
	if all, err := r.Observe(t.Context()); err != nil || len(all) > 0 {
		t.Fatalf("a new pool has %+v, %v", all, err)
	}
	before := r.Describe(t.Context())
	if before.Kind == "" || before.CapacityBytes < CapacityBytes || before.HeldBytes != 0 || len(before.Problems) > 0 {
		t.Fatalf("a new pool is %+v", before)
	}
	v := Volume(1)
	r.apply(t, v)
	first := r.ready(t, v.UID)
	if first.Generation != 1 || first.SizeBytes != SizeBytes || first.MaxFiles < MaxFiles || first.MaxFiles > 2*MaxFiles || first.UsedFiles != 0 ||
		first.UsedBytes > SizeBytes/16 || len(first.Snapshots)+len(first.Attached) > 0 || first.Restored != 0 || first.Problem != "" {
		t.Errorf("the new volume is %+v", first)
	}
	after := r.Describe(t.Context())
	if after.HeldBytes != SizeBytes {
		t.Errorf("the pool with a volume is %+v, was %+v", after, before)
	}
	r.apply(t, v)
	if again := r.ready(t, v.UID); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("applied again it is %+v, was %+v", again, first)
	}
	v.Generation = 7
	r.apply(t, v)
	if s := r.ready(t, v.UID); s.Generation != 7 {
		t.Errorf("of a newer generation it is %+v", s)
	}
}

func lost(t *testing.T, r *rig) {
	v := Volume(1)
	v.Made = true
	r.refused(t, v, volume.ErrLost)
	if s := r.state(t, v.UID); s != nil && s.Ready {
		t.Errorf("a volume that is lost is %+v", *s)
	}
	v.Made = false
	r.apply(t, v)
	v.Made = true
	r.apply(t, v)
	r.ready(t, v.UID)
}

func grows(t *testing.T, r *rig) {
	v := Volume(1)
	v.Attachments = []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	r.Hold(t, r.node, r.Pool, v.UID, v.Attachments[0].ClusterUID, SizeBytes/4)
	v.SizeBytes, v.MaxFiles = 2*SizeBytes, 2*MaxFiles
	if r.GrowsDetached {
		r.refused(t, v, volume.ErrInUse)
		detached := v
		detached.Attachments = nil
		r.apply(t, detached)
	}
	r.apply(t, v)
	s := r.ready(t, v.UID)
	if s.SizeBytes != 2*SizeBytes || s.MaxFiles < 2*MaxFiles*15/16 || s.UsedBytes < SizeBytes/4 || len(s.Attached) != 1 {
		t.Errorf("it has grown to %+v", s)
	}
	r.Hold(t, r.node, r.Pool, v.UID, v.Attachments[0].ClusterUID, SizeBytes*3/2)
	v.Attachments, v.SizeBytes = nil, 3*SizeBytes
	r.apply(t, v)
	if s := r.ready(t, v.UID); s.SizeBytes != 3*SizeBytes || s.UsedBytes < SizeBytes*3/2 {
		t.Errorf("detached, it has grown to %+v", s)
	}
}

func shrinks(t *testing.T, r *rig) {
	v := Volume(1)
	v.SizeBytes, v.MaxFiles = 2*SizeBytes, 2*MaxFiles
	r.hold(t, v, SizeBytes/2)
	large := v
	v.SizeBytes, v.MaxFiles = SizeBytes, MaxFiles
	v.Attachments = []volume.Attachment{Attachment(1)}
	large.Attachments = v.Attachments
	r.apply(t, large)
	r.refused(t, v, volume.ErrInUse)
	v.Attachments = nil
	r.apply(t, v)
	if s := r.ready(t, v.UID); s.SizeBytes != SizeBytes || s.UsedBytes < SizeBytes/2 {
		t.Errorf("it has shrunk to %+v", s)
	}
	if d := r.Describe(t.Context()); d.HeldBytes != SizeBytes {
		t.Errorf("the pool with the shrunk volume is %+v", d)
	}
	// What can be done is done all the same.
	v.SizeBytes, v.Attachments = SizeBytes/4, large.Attachments
	r.refused(t, v, volume.ErrTooSmall)
	if s := r.ready(t, v.UID); s.SizeBytes != SizeBytes || s.UsedBytes < SizeBytes/2 || len(s.Attached) != 1 {
		t.Errorf("after the refusal it is %+v", s)
	}
}

func snapshots(t *testing.T, r *rig) {
	v := Volume(1)
	r.hold(t, v, SizeBytes/2)
	held := r.Describe(t.Context()).HeldBytes
	v.Attachments, v.Snapshots = []volume.Attachment{Attachment(1)}, []string{"snap-a", "snap-b"}
	r.apply(t, v)
	s := r.ready(t, v.UID)
	if !slices.Equal(snapshotsOf(s), v.Snapshots) {
		t.Fatalf("with two snapshots it is %+v", s)
	}
	sum := held
	for _, snapshot := range s.Snapshots {
		if snapshot.HeldBytes < SizeBytes/2 || snapshot.HeldBytes > SizeBytes {
			t.Errorf("a snapshot of a volume that holds %d bytes is %+v", SizeBytes/2, snapshot)
		}
		sum += snapshot.HeldBytes
	}
	if d := r.Describe(t.Context()); d.HeldBytes != sum {
		t.Errorf("the pool is %+v, want %d bytes held", d, sum)
	}
	v.Snapshots = []string{"snap-b", "snap-c"}
	r.apply(t, v)
	if got := snapshotsOf(r.ready(t, v.UID)); !slices.Equal(got, v.Snapshots) {
		t.Errorf("got snapshots %q, want %q", got, v.Snapshots)
	}
	v.Snapshots = nil
	r.apply(t, v)
	if d := r.Describe(t.Context()); d.HeldBytes != held {
		t.Errorf("without snapshots the pool is %+v, want %d bytes held", d, held)
	}
}

func restores(t *testing.T, r *rig) {
	v := Volume(1)
	v.Snapshots = []string{"snap-a"}
	r.apply(t, v)
	r.hold(t, v, SizeBytes/2)
	v.Attachments = []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	v.Restore = &api.VolumeRestoreIntent{SnapshotUID: "snap-a", Number: 1}
	r.refused(t, v, volume.ErrInUse)
	if s := r.ready(t, v.UID); s.Restored != 0 || s.UsedBytes < SizeBytes/2 {
		t.Errorf("attached, it went back to %+v", s)
	}
	v.Attachments = nil
	r.apply(t, v)
	s := r.ready(t, v.UID)
	if s.Restored != 1 || s.UsedBytes >= SizeBytes/2 || s.UsedFiles != 0 || !slices.Equal(snapshotsOf(s), v.Snapshots) {
		t.Errorf("it went back to %+v", s)
	}
	r.hold(t, v, SizeBytes/4)
	if s := r.ready(t, v.UID); s.UsedBytes < SizeBytes/4 {
		t.Errorf("it went back twice, to %+v", s)
	}
	v.Restore = &api.VolumeRestoreIntent{SnapshotUID: "snap-z", Number: 2}
	if err := r.Apply(t.Context(), v); err == nil {
		t.Error("it went back to a snapshot that does not exist")
	}
}

func clones(t *testing.T, r *rig) {
	v := Volume(1)
	r.hold(t, v, SizeBytes/2)
	v.Snapshots = []string{"snap-a"}
	r.apply(t, v)
	clone := Volume(2)
	clone.Origin = &api.VolumeOrigin{VolumeUID: v.UID, SnapshotUID: "snap-b"}
	if err := r.Apply(t.Context(), clone); err == nil {
		t.Fatal("a volume began as a snapshot that does not exist")
	}
	if s := r.state(t, clone.UID); s != nil && s.Ready {
		t.Fatalf("a volume that could not be made is %+v", s)
	}
	clone.Origin.SnapshotUID, clone.SizeBytes, clone.MaxFiles = "snap-a", 2*SizeBytes, 2*MaxFiles
	r.apply(t, clone)
	if s := r.ready(t, clone.UID); s.UsedBytes < SizeBytes/2 || s.UsedFiles != 1 || s.SizeBytes != 2*SizeBytes || len(s.Snapshots) > 0 {
		t.Errorf("the clone is %+v", s)
	}
	// Both are attached at once: a file system with the identity of another could not be.
	v.Attachments, clone.Attachments = []volume.Attachment{Attachment(1)}, []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	r.apply(t, clone)
	v.Attachments = nil
	r.apply(t, v)
	if err := r.Purge(t.Context(), v.UID, v.Generation); err != nil {
		t.Fatal(err)
	}
	clone.Generation = 2
	r.apply(t, clone)
	if s := r.ready(t, clone.UID); s.UsedBytes < SizeBytes/2 || len(s.Attached) != 1 {
		t.Errorf("without its origin the clone is %+v", s)
	}
}

func attaches(t *testing.T, r *rig) {
	v := Volume(1)
	one, two := Attachment(1), Attachment(2)
	two.ReadOnly = true
	for _, wanted := range [][]volume.Attachment{{one}, {one, two}, {one, two}, {two}, {Attachment(2)}, nil, {one}} {
		v.Attachments = wanted
		r.apply(t, v)
		var want []string
		for _, a := range wanted {
			want = append(want, a.ClusterUID)
		}
		if s := r.ready(t, v.UID); !slices.Equal(s.Attached, want) {
			t.Errorf("with attachments %v it is attached to %q", wanted, s.Attached)
		}
	}
	if r.Dir(v.UID, one.ClusterUID) == r.Dir(v.UID, two.ClusterUID) {
		t.Error("two clusters have it at one path")
	}
}

func stale(t *testing.T, r *rig) {
	v := Volume(1)
	v.Generation = 5
	r.apply(t, v)
	v.Generation, v.Attachments = 4, []volume.Attachment{Attachment(1)}
	r.refused(t, v, volume.ErrStale)
	if s := r.ready(t, v.UID); len(s.Attached) > 0 || s.Generation != 5 {
		t.Errorf("an older decision made it %+v", s)
	}
	if err := r.Purge(t.Context(), v.UID, 4); !errors.Is(err, volume.ErrStale) {
		t.Errorf("purging by an older decision: got %v, want ErrStale", err)
	}
	r.ready(t, v.UID)
}

func purges(t *testing.T, r *rig) {
	v := Volume(1)
	r.hold(t, v, SizeBytes/4)
	v.Snapshots, v.Attachments = []string{"snap-a"}, []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	if err := r.Purge(t.Context(), v.UID, 1); !errors.Is(err, volume.ErrInUse) {
		t.Fatalf("purging an attached volume: got %v, want ErrInUse", err)
	}
	r.ready(t, v.UID)
	v.Attachments = nil
	r.apply(t, v)
	for range 2 { // it may be repeated
		if err := r.Purge(t.Context(), v.UID, 2); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.state(t, v.UID); s != nil {
		t.Errorf("purged, it is %+v", s)
	}
	if d := r.Describe(t.Context()); d.HeldBytes != 0 {
		t.Errorf("the pool without volumes is %+v", d)
	}
	v = Volume(2)
	v.Attachments = []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	v.Attachments, v.Purge = nil, true
	r.apply(t, v)
	if s := r.state(t, v.UID); s != nil {
		t.Errorf("applied with a purge, it is %+v", s)
	}
}

func full(t *testing.T, r *rig) {
	v := Volume(1)
	v.SizeBytes = 2 * r.Describe(t.Context()).CapacityBytes // what was just removed may not be given back yet
	r.refused(t, v, volume.ErrFull)
	if s := r.state(t, v.UID); s != nil && s.Ready {
		t.Fatalf("a volume larger than the pool is %+v", s)
	}
	v = Volume(2)
	v.Attachments = []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	r.Hold(t, r.node, r.Pool, v.UID, v.Attachments[0].ClusterUID, SizeBytes/2)
	d := r.Describe(t.Context())
	filler := Volume(3)
	filler.SizeBytes = d.CapacityBytes - d.HeldBytes - SizeBytes/4
	r.apply(t, filler)
	larger := v
	larger.SizeBytes += SizeBytes
	if r.GrowsDetached {
		larger.Attachments = nil
	}
	r.refused(t, larger, volume.ErrFull)
	r.apply(t, v)
	v.Snapshots = []string{"snap-a"}
	r.refused(t, v, volume.ErrFull)
	if s := r.ready(t, v.UID); len(s.Snapshots) > 0 || s.SizeBytes != SizeBytes || len(s.Attached) != 1 {
		t.Errorf("after the refusals it is %+v", s)
	}
	if err := r.Purge(t.Context(), filler.UID, 1); err != nil {
		t.Fatal(err)
	}
	r.apply(t, v)
	// What the snapshot shares is on the disk once, and its volume may rewrite it: that room is not given to another.
	d = r.Describe(t.Context())
	filler.SizeBytes = d.CapacityBytes - d.HeldBytes + SizeBytes/4
	r.refused(t, filler, volume.ErrFull)
}
