package apiservertest

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// AddPool adds a node of one core with so many bytes for volumes.
func (s *Site) AddPool(name string, bytes int64) {
	s.t.Helper()
	s.addNode(api.NodeRecord{
		Name: name, Underlay: "198.18.0.1", AgentVersion: "test", FirstSeenAt: s.now().UTC(), VolumePool: &api.VolumePool{Kind: "xfs", CapacityBytes: bytes},
	}, 1)
}

// PlaceVolume writes the record of a volume of a project, and lets its node report it, whole, as holding so many bytes.
func (s *Site) PlaceVolume(full, node string, used int64, snapshots ...volume.SnapshotState) {
	s.t.Helper()
	v := s.placed(full, node, true)
	s.Live.SetVolumes(node, volume.State{UID: v.UID(), Ready: true, SizeBytes: v.Intent.SizeBytes, UsedBytes: used, UsedFiles: 3, Snapshots: snapshots})
}

// AwaitBackup writes the record of a volume that is made of a backup, and lets its node report how far that is.
func (s *Site) AwaitBackup(full, node string, i volume.ImportState) {
	s.t.Helper()
	v := s.placed(full, node, false)
	s.Live.SetVolumes(node, volume.State{UID: v.UID(), Import: &i})
}

// placed writes the record of a volume, and whether it was made.
func (s *Site) placed(full, node string, made bool) *state.Volume {
	s.t.Helper()
	v := s.Cache.View().VolumeNamed(full)
	if v == nil {
		s.t.Fatalf("volume %s is not stored", full)
	}
	rec := api.VolumeRecord{UID: v.UID(), Name: v.Name(), Node: node, SizeBytes: v.Intent.SizeBytes, Generation: 1, Made: made}
	if v.Record != nil {
		rec.Generation = v.Record.Generation + 1
	}
	revision, err := s.Leader.CommitVolume(context.Background(), v, rec, nil)
	must(s.t, err)
	s.reach(revision)
	return v
}
