package apiservertest

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
)

// AddVMNode adds a node that offers virtual machines, and the environment debian for them.
func (s *Site) AddVMNode(name string, cores int) {
	s.t.Helper()
	s.addNode(api.NodeRecord{
		Name: name, Capacity: api.NodeCapacity{MemoryBytes: 8 << 30, NUMANodes: []api.NUMANode{{ID: 0, MemoryBytes: 8 << 30}}},
		Stacks:       []api.StackCheck{{Stack: api.StackVM, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "debian", Stacks: []api.Stack{api.StackVM}, OK: true, Digest: "sha256:5fde0000000000000000"}},
		AgentVersion: "test", FirstSeenAt: s.now().UTC(),
	}, cores)
}

func (s *Site) addNode(node api.NodeRecord, cores int) {
	s.t.Helper()
	name := node.Name
	for i := range cores {
		node.Capacity.Cores = append(node.Capacity.Cores, api.Core{Slot: i, CPU: i})
	}
	rev, err := s.Repo.PutNode(context.Background(), node)
	must(s.t, err)
	s.Live.SetNode(name, api.NodeReady, "")
	s.reach(rev)
}

// OfferDisk lets a node offer so much disk for members.
func (s *Site) OfferDisk(name string, bytes int64) {
	s.t.Helper()
	node := *s.Cache.View().Agent(name)
	node.Capacity.DiskBytes = bytes
	rev, err := s.Repo.PutNode(context.Background(), node)
	must(s.t, err)
	s.reach(rev)
}
