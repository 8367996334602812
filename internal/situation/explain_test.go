package situation

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestWhatAClusterWaitsForIsExplained(t *testing.T) {
	now := time.Unix(0, 0)
	for _, tt := range []struct {
		name    string
		message string
		waiting []api.Waiting
		want    string
	}{
		{
			"for room", "waits for room (cores); 'explain' shows what it waits for",
			[]api.Waiting{{Kind: "create", Members: 1, Position: 2, Reason: "1 core is needed, 0 are free"}},
			"It waits in the queue. Its 1 member waits at position 2 in the queue: 1 core is needed, 0 are free.",
		},
		{
			"for a number of the site, which only the leader's record tells", "nodes have room, but all VLANs of the site's pool (100-100) are in use", nil,
			"It waits in the queue: nodes have room, but all VLANs of the site's pool (100-100) are in use.",
		},
		{"for what nobody has noted yet", "", nil, "It waits in the queue."},
	} {
		c := &state.Cluster{Record: &api.ClusterRecord{Phase: api.ClusterQueued, Message: tt.message}}
		if got := explain(c, api.Explanation{Phase: api.ClusterQueued, Waiting: tt.waiting}, now); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestCachesThatAreTooSmallAreNamed(t *testing.T) {
	got := smallCaches([]api.DatasetCache{{Dataset: "far", Node: "n1", TooSmall: true, AgainBytes: 5 << 20}, {Dataset: "near", Node: "n1", AgainBytes: 1}})
	if want := ` The cache of dataset "far" on node n1 is too small for what is read through it: it has fetched 5 MiB again that had made room.`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
