// Package cycle lets users of a site have clusters of whole machines again and again: created, injured, healed and deleted. Site and protocols are real,
// machines and BMCs are simulated (testbed/fleet).
//
// It watches whether that leaves anything behind or becomes slower. It knows the site by its API only. Start with Run.
package cycle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// Config says how machines are used.
type Config struct {
	Client   *client.Client
	Machines *Machines
	// Count is how many machines there are, named m0, m1 and so on. Each user has clusters of Size, and a fifth of all machines are spare.
	Count, Size int
	Environment string
	// Lasts is how long users begin again. What has begun then is finished.
	Lasts time.Duration
	// Lives is how many clusters each user has, one after the other; 0: Lasts decides.
	Lives int
	// Settled is how many goroutines more than at rest before may be there at rest after: those that work now and then; 0: 20.
	Settled int
	// Rest is how long everything may take to be at rest in the end; 0: 5 minutes.
	Rest time.Duration
	// Sample measures the server, every Every and at rest, before and after.
	Sample func(ctx context.Context) (Sample, error)
	Every  time.Duration
}

// Sample is what the server takes at one moment.
type Sample struct {
	At time.Time
	// Memory is resident, in bytes, of which Mapped are pages of files; Heap is what the last garbage collection found in use; CPU is the processor time since its start, in seconds; Store is what its store has on disk, in bytes.
	Memory, Store, Mapped, Heap int64
	CPU                         float64
	Goroutines                  int
	// On counts the machines that are on.
	On int
}

// Life is one cluster's: how long each part took in seconds, at since the beginning of all.
type Life struct {
	At                   time.Duration
	Ready, Healed, Freed float64
}

// Result is what came out.
type Result struct {
	Before, After Sample // at rest
	Samples       []Sample
	Lives         []Life
	// Members and Cleanings count boots, Failed those that came to nothing by themselves.
	Members, Cleanings, Failed int64
	FirstFailure               error
	// Left tells what is still there at the end, though all clusters are gone.
	Left []string
}

// user has one cluster after the other.
type user struct {
	*run
	number int
}

// run is a Run that goes on.
type run struct {
	Config
	began time.Time

	mu       sync.Mutex
	clusters map[string]api.Cluster
	failure  error
	result   Result
}

// Run lets users begin again and again, and waits until everything is at rest.
func Run(ctx context.Context, cfg Config) (Result, error) {
	r := &run{Config: cfg, began: time.Now(), clusters: map[string]api.Cluster{}}
	var err error
	if r.result.Before, err = r.Sample(ctx); err != nil {
		return r.result, err
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	var watchers, users sync.WaitGroup
	watchers.Go(func() { r.watch(work) })
	watchers.Go(func() { r.sample(work) })
	for i := range max(cfg.Count/5*4/cfg.Size, 1) {
		users.Go(func() { r.note(user{r, i}.live(work)) })
	}
	users.Wait()
	stop()
	watchers.Wait()
	r.result.Members, r.result.Cleanings, r.result.Failed = cfg.Machines.members.Load(), cfg.Machines.cleanings.Load(), cfg.Machines.failed.Load()
	if first := cfg.Machines.first.Load(); first != nil {
		r.result.FirstFailure = *first
	}
	if r.failure != nil {
		return r.result, r.failure
	}
	if r.result.Left, err = r.rest(ctx); err != nil {
		return r.result, err
	}
	return r.result, r.settle(ctx)
}

// settle waits until the server has as many goroutines as before: connections of machines that are off go after a while.
func (r *run) settle(ctx context.Context) (err error) {
	patience := cmp.Or(r.Rest, 5*time.Minute)
	for began := time.Now(); ; {
		r.Machines.hangUp()
		if r.result.After, err = r.Sample(ctx); err != nil {
			return err
		}
		more := r.result.After.Goroutines - r.result.Before.Goroutines
		switch {
		case more <= cmp.Or(r.Settled, 20):
			return nil
		case time.Since(began) > patience:
			r.result.Left = append(r.result.Left, fmt.Sprintf("%d goroutines more than before", more))
			return nil
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (r *run) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		r.failure = err
	}
}

// over reports whether a user who has had so many clusters begins no other.
func (r *run) over(lives int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Lives > 0 {
		return r.failure != nil || lives == r.Lives
	}
	return r.failure != nil || time.Since(r.began) > r.Lasts
}

// watch lists all clusters, for everybody.
func (r *run) watch(ctx context.Context) {
	for ctx.Err() == nil {
		all, err := r.Client.Clusters(ctx)
		if err == nil {
			now := map[string]api.Cluster{}
			for _, c := range all {
				now[c.Name] = c
			}
			r.mu.Lock()
			r.clusters = now
			r.mu.Unlock()
		} else if ctx.Err() == nil {
			r.note(err)
		}
		_ = pause(ctx, time.Second)
	}
}

func (r *run) sample(ctx context.Context) {
	for pause(ctx, r.Every) == nil {
		s, err := r.Sample(ctx)
		if ctx.Err() != nil {
			return
		}
		r.note(err)
		s.On = r.Machines.bmcs.On()
		r.result.Samples = append(r.result.Samples, s)
	}
}

// until waits until a cluster is as it should be; false: it is gone.
func (r *run) until(ctx context.Context, name string, what string, is func(c api.Cluster, there bool) bool) error {
	const patience = 20 * time.Minute // a boot without progress has failed after half of it
	for began := time.Now(); ; {
		r.mu.Lock()
		c, there := r.clusters[name]
		failure := r.failure
		r.mu.Unlock()
		switch {
		case is(c, there):
			return nil
		case failure != nil:
			return failure
		case there && (c.Status.Phase == api.ClusterFailed || c.Status.Phase == api.ClusterRefused):
			return fmt.Errorf("cluster %s is %s: %s", name, c.Status.Phase, c.Status.Message)
		case time.Since(began) > patience:
			return fmt.Errorf("cluster %s is not %s within %s: it is %s: %s%s", name, what, patience, c.Status.Phase, c.Status.Message, r.machinesOf(ctx, c))
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// machinesOf tells what the machines of a cluster do, for whoever has to find out why it does not go on.
func (r *run) machinesOf(ctx context.Context, c api.Cluster) (text string) {
	nodes, err := r.Client.Nodes(ctx)
	if err != nil {
		return "; " + err.Error()
	}
	for _, n := range nodes {
		if n.Machine == nil {
			continue
		}
		record := n.Machine.Record
		member := slices.IndexFunc(c.Status.Members, func(m api.MemberStatus) bool { return m.Node == n.Name })
		if member < 0 && (record.Tenant == nil || record.Tenant.Cluster != c.Name) {
			continue
		}
		text += fmt.Sprintf("\nmachine %s is %s (%s), generation %d, attempt %d: %s", n.Name, record.Phase, record.Power, record.Generation, record.Attempt, record.Message)
		if record.Tenant != nil {
			text += fmt.Sprintf("; its tenant is %s", record.Tenant.Assignment)
		}
		if member >= 0 {
			m := c.Status.Members[member]
			text += fmt.Sprintf("; member %s is %s: %s", m.Name, m.Phase, m.Message)
		}
	}
	return text
}

// live is one user.
func (u user) live(ctx context.Context) error {
	for n := 0; !u.over(n); n++ {
		name := fmt.Sprintf("c%d-%d", u.number, n)
		life, err := u.cluster(ctx, name)
		if err != nil {
			return fmt.Errorf("cluster %s: %w", name, err)
		}
		u.mu.Lock()
		u.result.Lives = append(u.result.Lives, life)
		u.mu.Unlock()
	}
	return nil
}

// cluster is the life of one cluster: created, injured, healed, deleted.
func (u user) cluster(ctx context.Context, name string) (l Life, err error) {
	l.At = time.Since(u.began)
	timed := func(into *float64, what string, is func(c api.Cluster, there bool) bool) error {
		start := time.Now()
		err := u.until(ctx, name, what, is)
		*into = time.Since(start).Seconds()
		return err
	}
	ready := func(c api.Cluster, there bool) bool { return there && c.Status.Phase == api.ClusterReady }
	if _, err := u.Client.CreateCluster(ctx, api.ClusterRequest{
		Name: name, Stack: api.StackMetal, Environment: u.Environment, Size: u.Size, Queue: true,
	}); err != nil {
		return l, err
	}
	if err := timed(&l.Ready, "ready", ready); err != nil {
		return l, err
	}
	u.mu.Lock()
	before := u.clusters[name].Status
	dies := before.Members[0]
	u.mu.Unlock()
	i, err := strconv.Atoi(strings.TrimPrefix(dies.Node, "m"))
	if err != nil {
		return l, fmt.Errorf("member %s is on %q, which is no simulated machine", dies.Name, dies.Node)
	}
	u.Machines.Fail(i)
	if err := timed(&l.Healed, "healed", func(c api.Cluster, there bool) bool {
		// Where few machines are spare, it may be the same one, cleaned.
		return ready(c, there) && c.Status.Generation > before.Generation && slices.ContainsFunc(c.Status.Members, func(m api.MemberStatus) bool {
			return m.Name == dies.Name && m.Rank == dies.Rank && m.Phase == api.MemberReady
		})
	}); err != nil {
		return l, err
	}
	if _, err := u.Client.DeleteCluster(ctx, name); err != nil {
		return l, err
	}
	return l, timed(&l.Freed, "gone", func(_ api.Cluster, there bool) bool { return !there })
}

// rest waits until all machines are off and nobody's, and tells what stays.
func (r *run) rest(ctx context.Context) (left []string, err error) {
	patience := cmp.Or(r.Rest, 5*time.Minute)
	for began := time.Now(); ; {
		if left, err = r.left(ctx); err != nil || len(left) == 0 || time.Since(began) > patience {
			return left, err
		}
		if err := pause(ctx, time.Second); err != nil {
			return left, err
		}
	}
}

// left tells what is there that should not be when nobody has a cluster.
func (r *run) left(ctx context.Context) (left []string, err error) {
	nodes, err := r.Client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Machine == nil {
			continue
		}
		if record := n.Machine.Record; record.Phase != api.MachineOff || record.Tenant != nil || record.Quarantine != nil {
			left = append(left, fmt.Sprintf("machine %s is %s: %s", n.Name, record.Phase, record.Message))
		}
	}
	clusters, err := r.Client.Clusters(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		left = append(left, fmt.Sprintf("cluster %s is %s", c.Name, c.Status.Phase))
	}
	networks, err := r.Client.Networks(ctx)
	for _, n := range networks {
		left = append(left, fmt.Sprintf("network %s is there", n.Name))
	}
	return left, err
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
