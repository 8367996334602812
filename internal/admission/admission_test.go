package admission

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

const gib = 1 << 30

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// testNode is a node that offers containers and environment "local".
func testNode(name string, cores int, memoryGiB int64) api.NodeRecord {
	rec := api.NodeRecord{
		Name:         name,
		Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}},
	}
	rec.Capacity.MemoryBytes = memoryGiB * gib
	for i := range cores {
		rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: i, CPU: i})
	}
	return rec
}

func testGroup(name string, size, cores int, memoryGiB int64) api.Group {
	return api.Group{
		Name: name, Size: size, Shape: api.Shape{Cores: cores, Memory: api.Bytes(memoryGiB * gib)},
		Stack: api.StackContainer, Environment: "local",
	}
}
