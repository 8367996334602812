package fake

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Crossing is what the kernel of a node has of volumes that cross, as it outlives agents.
type Crossing struct {
	mu       sync.Mutex
	states   map[string]volume.SharingState
	failures []error
	calls    []string
}

// NewCrossing returns that of a node which has none.
func NewCrossing() *Crossing { return &Crossing{states: map[string]volume.SharingState{}} }

// Fail makes the next Apply or End return an error, before it has done anything. Several are returned one after another.
func (c *Crossing) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err)
}

// Calls are what was asked for, such as "Apply c1".
func (c *Crossing) Calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// Boot forgets all, as the start of the host does.
func (c *Crossing) Boot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.states)
}

// Put makes this what is there of a cluster.
func (c *Crossing) Put(s volume.SharingState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states[s.ClusterUID] = s
}

// State is what is there of a cluster.
func (c *Crossing) State(cluster string) (volume.SharingState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.states[cluster]
	return s, ok
}

// Sharer returns a volume.Sharer on it, as a starting agent opens it.
func (c *Crossing) Sharer() *Sharer { return &Sharer{crossing: c} }

// Sharer is a volume.Sharer in memory.
type Sharer struct{ crossing *Crossing }

// Describe implements volume.Sharer.
func (s *Sharer) Describe(context.Context) api.VolumeSharing { return api.VolumeSharing{Blocks: true} }

// Dir implements volume.Sharer.
func (s *Sharer) Dir(uid, clusterUID string) string {
	return path.Join("/fake/reached", clusterUID, uid)
}

// Socket implements volume.Sharer.
func (s *Sharer) Socket(uid, clusterUID string) string {
	return path.Join("/fake/disks-elsewhere", clusterUID, uid, "disk.sock")
}

func (c *Crossing) asked(ctx context.Context, what, cluster string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.calls = append(c.calls, what+" "+cluster)
	if len(c.failures) > 0 {
		err := c.failures[0]
		c.failures = c.failures[1:]
		return fmt.Errorf("%s: %w", cluster, err)
	}
	return nil
}

// Apply implements volume.Sharer.
func (s *Sharer) Apply(ctx context.Context, want volume.Sharing) error {
	c := s.crossing
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.asked(ctx, "Apply", want.ClusterUID); err != nil {
		return err
	}
	was := c.states[want.ClusterUID]
	now := volume.SharingState{ClusterUID: want.ClusterUID}
	for _, share := range want.Serves {
		now.Serves = append(now.Serves, share.UID)
	}
	if len(now.Serves) > 0 {
		now.Clients = slices.SortedFunc(slices.Values(slices.Concat(want.Clients, want.Machines)), netip.Addr.Compare)
	}
	for _, r := range want.Reaches {
		if r.Server.IsValid() || slices.Contains(was.Reaches, r.UID) {
			now.Reaches = append(now.Reaches, r.UID)
		}
	}
	c.states[want.ClusterUID] = now
	return nil
}

// Observe implements volume.Sharer.
func (s *Sharer) Observe(ctx context.Context) ([]volume.SharingState, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := s.crossing
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []volume.SharingState
	for _, state := range c.states {
		all = append(all, state)
	}
	return all, nil
}

// End implements volume.Sharer.
func (s *Sharer) End(ctx context.Context, cluster string) error {
	c := s.crossing
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.asked(ctx, "End", cluster); err != nil {
		return err
	}
	delete(c.states, cluster)
	return nil
}
