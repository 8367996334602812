package situation

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// history makes a stored state change at random, as a leader would change it.
type history struct {
	t      *testing.T
	random *rand.Rand
	repo   *state.Repo
	cache  *state.Cache
	leader *state.Leader
	slots  map[string]bool // NODE/SLOT in use
	made   int
	now    time.Time
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), repo: state.New(memory.New()), slots: map[string]bool{},
		now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	var err error
	if h.cache, err = h.repo.OpenCache(t.Context()); err != nil {
		t.Fatal(err)
	}
	leadership, err := h.repo.Store().Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	h.leader = h.repo.AsLeader(leadership)
	return h
}

func (h *history) done(revision int64, err error) {
	h.t.Helper()
	if err == nil {
		_, err = h.cache.WaitRevision(h.t.Context(), revision)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

const (
	nodes = 4
	slots = 4
)

func (h *history) node() {
	record := api.NodeRecord{Name: fmt.Sprintf("n%d", h.random.IntN(nodes)), Capacity: api.NodeCapacity{MemoryBytes: 8 << 30}}
	for slot := range slots {
		record.Capacity.Cores = append(record.Capacity.Cores, api.Core{Slot: slot, CPU: slot})
	}
	record.AgentVersion = fmt.Sprint(h.random.IntN(3))
	h.done(h.repo.PutNode(h.t.Context(), record))
}

// machine enrols a machine, inspects it, or forgets it.
func (h *history) machine() {
	name := fmt.Sprintf("m%d", h.random.IntN(2))
	switch m := h.cache.View().Machine(name); {
	case m == nil:
		h.done(h.repo.CreateMachine(h.t.Context(), api.MachineIntent{
			Name: name, UID: fmt.Sprint("u", h.made), Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:0" + name[1:]}},
		}))
		h.made++
	case h.random.IntN(3) == 0:
		h.done(h.leader.ForgetMachine(h.t.Context(), m))
	default:
		index := int(name[1] - '0')
		h.done(h.leader.CommitMachine(h.t.Context(), m, state.MachineWrite{
			Record:   api.MachineRecord{Name: name, UID: m.UID(), Index: index, Phase: api.MachineOff, Power: api.PowerOff},
			Hardware: &api.Hardware{CPU: api.CPU{Threads: 1 + h.random.IntN(4)}, MemoryBytes: 8 << 30},
		}))
	}
}

// take makes a cluster of what is free, or adds to one.
func (h *history) take() {
	var free []api.Assignment
	for n := range h.cache.View().Agents() {
		for slot := range slots {
			if !h.slots[fmt.Sprint(n.Name, "/", slot)] && h.random.IntN(3) == 0 {
				free = append(free, api.Assignment{Node: n.Name, Slots: []int{slot}, Memory: []api.MemoryClaim{{Bytes: 64 << 20}}})
			}
		}
	}
	if len(free) == 0 {
		return
	}
	c, record := h.cluster()
	record.Generation++
	for i := range free {
		h.made++
		free[i].ID = fmt.Sprintf("%s.m%d.%d", c.UID(), h.made, record.Generation)
		h.slots[fmt.Sprint(free[i].Node, "/", free[i].Slots[0])] = true
	}
	h.done(h.leader.Commit(h.t.Context(), c, state.Write{Record: record, Add: []state.Batch{{Assignments: free}}}))
}

// cluster is one of two clusters, made when it is missing.
func (h *history) cluster() (*state.Cluster, api.ClusterRecord) {
	name := string(rune('a' + h.random.IntN(2)))
	if h.cache.View().Cluster(name) == nil {
		h.made++
		h.done(h.repo.CreateCluster(h.t.Context(), api.ClusterIntent{Name: name, UID: fmt.Sprintf("u%d", h.made)}))
	}
	c := h.cache.View().Cluster(name)
	if c.Record == nil {
		return c, api.ClusterRecord{Name: name, UID: c.UID()}
	}
	record := *c.Record
	record.Chunks, record.Clean = slices.Clone(record.Chunks), slices.Clone(record.Clean)
	return c, record
}

// give gives the slots of an assignment back.
func (h *history) give(a *api.Assignment) {
	for _, slot := range a.Slots {
		delete(h.slots, fmt.Sprint(a.Node, "/", slot))
	}
}

// shelve cuts down what a cluster holds, as that of saved members is.
func (h *history) shelve() {
	c, record := h.cluster()
	var cut []api.Assignment
	for a := range c.Held() {
		h.give(a)
		saved := *a
		saved.Slots, saved.Memory, saved.Saved = nil, nil, true
		cut = append(cut, saved)
	}
	if len(cut) == 0 {
		return
	}
	record.Chunks = slices.DeleteFunc(record.Chunks, func(ref api.ChunkRef) bool { return !ref.Releasing })
	h.done(h.leader.Commit(h.t.Context(), c, state.Write{Record: record, Add: []state.Batch{{Assignments: cut}}}))
}

// resize gives members one slot more, where their node has one, or one less.
func (h *history) resize() {
	c, record := h.cluster()
	var sized []api.Assignment
	for a := range c.Held() {
		size := a.Held()
		size.Slots = slices.Clone(size.Slots)
		key := fmt.Sprint(a.Node, "/", h.random.IntN(slots))
		switch slot := int(key[len(key)-1] - '0'); {
		case a.Saved || len(size.Slots) == 0:
		case !h.slots[key]:
			h.slots[key] = true
			size.Slots = append(size.Slots, slot)
		case len(size.Slots) > 1:
			delete(h.slots, fmt.Sprint(a.Node, "/", size.Slots[0]))
			size.Slots = size.Slots[1:]
		}
		sized = append(sized, a.Sized(size))
	}
	if len(sized) == 0 {
		return
	}
	record.Chunks = slices.DeleteFunc(record.Chunks, func(ref api.ChunkRef) bool { return !ref.Releasing })
	h.done(h.leader.Commit(h.t.Context(), c, state.Write{Record: record, Add: []state.Batch{{Assignments: sized}}}))
}

// release turns a chunk to releasing.
func (h *history) release() {
	c, record := h.cluster()
	if len(record.Chunks) == 0 {
		return
	}
	record.Chunks[h.random.IntN(len(record.Chunks))].Releasing = true
	h.done(h.leader.Commit(h.t.Context(), c, state.Write{Record: record}))
}

// clean confirms releasing assignments clean, or passes them into quarantine, and forgets a cluster that has nothing left.
func (h *history) clean() {
	c, record := h.cluster()
	w := state.Write{}
	left := 0
	for a := range c.All() {
		left++
		_ = a
	}
	for a := range c.Releasing() {
		switch h.random.IntN(3) {
		case 0:
			record.Clean = append(record.Clean, a.ID)
			h.give(a)
		case 1:
			record.Clean = append(record.Clean, a.ID)
			w.Quarantines = append(w.Quarantines, api.Quarantine{Assignment: *a, Since: h.now})
		}
	}
	if w.Record = record; left == 0 && c.Record != nil {
		w = state.Write{Forget: true}
	}
	h.done(h.leader.Commit(h.t.Context(), c, w))
}

func (h *history) unquarantine() {
	for _, q := range h.cache.View().Quarantines {
		h.give(&q.Assignment)
		h.done(h.leader.Unquarantine(h.t.Context(), q.Assignment.ID))
		return
	}
}

func TestTheRoomThatFollowsChangesIsTheRoomBuiltAnew(t *testing.T) {
	for seed := range uint64(60) {
		h := newHistory(t, seed)
		follows := Room{Offers: offer.Site{Metal: true}}
		followed := 0
		for step := range 80 {
			[]func(){h.node, h.take, h.take, h.release, h.clean, h.clean, h.unquarantine, h.machine, h.shelve, h.resize}[h.random.IntN(10)]()
			if h.random.IntN(3) > 0 {
				continue // several changes come together
			}
			view := h.cache.View()
			available := func(node string) placement.Availability {
				if (step/10+len(node)+int(node[1]))%3 == 0 {
					return placement.Down
				}
				return placement.Schedulable
			}
			if follows.free != nil {
				if err := follows.follow(view, available); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, step, err)
				}
				follows.last = view
				followed++
			}
			got, err := follows.Update(view, available)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			anew := Room{Offers: offer.Site{Metal: true}}
			want, err := anew.Update(view, available)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if !slices.Equal(got.Nodes(), want.Nodes()) {
				t.Fatalf("seed %d, step %d: the nodes are %v, want %v", seed, step, got.Nodes(), want.Nodes())
			}
			for _, n := range view.Nodes {
				g, _ := got.Usage(n.Name)
				w, _ := want.Usage(n.Name)
				if !reflect.DeepEqual(g, w) || follows.available[n.Name] != anew.available[n.Name] {
					t.Fatalf("seed %d, step %d, node %s:\n got  %+v %s\n want %+v %s", seed, step, n.Name,
						g, follows.available[n.Name], w, anew.available[n.Name])
				}
			}
		}
		if followed == 0 {
			t.Errorf("seed %d followed nothing", seed)
		}
	}
}

// A machine that keeps volumes is given to no member whole: its disks are erased afterwards.
func TestAMachineWithVolumesIsGivenToNobodyWhole(t *testing.T) {
	h := newHistory(t, 1)
	h.machine()
	h.machine()
	h.machine()
	name := ""
	for _, m := range h.cache.View().Nodes {
		if m.Hardware() != nil {
			name = m.Name
		}
	}
	if name == "" {
		t.Fatal("no machine was inspected")
	}
	r := Room{Offers: offer.Site{Metal: true}}
	metal := func() bool {
		view := h.cache.View()
		if _, err := r.Update(view, func(string) placement.Availability { return placement.Schedulable }); err != nil {
			t.Fatal(err)
		}
		group := api.Group{Name: "m", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackMetal, Environment: "none", NodeSelector: map[string]string{}}
		_, refusal := placement.Place(r.free, placement.Request{Cluster: "c", Groups: []api.Group{group}})
		if refusal == nil {
			t.Fatal("an environment that no node has was placed")
		}
		return refusal.Constraint != placement.ConstraintStack
	}
	if !metal() {
		t.Fatal("the machine offers no stack metal")
	}
	h.done(h.repo.CreateVolume(t.Context(), api.VolumeIntent{Name: "v", UID: "uid-v", SizeBytes: 1 << 20, MaxFiles: 100, CreatedAt: h.now}, func([]api.VolumeIntent) error { return nil }))
	h.done(h.leader.CommitVolume(t.Context(), h.cache.View().Volume("uid-v"), api.VolumeRecord{UID: "uid-v", Name: "v", Node: name, Generation: 1}, nil))
	if got := r.followVolumes(h.cache.View()); !got[name] {
		t.Errorf("a volume was made on %s, and %v are looked at", name, got)
	}
	if metal() {
		t.Error("the machine is offered whole though it keeps a volume")
	}
	h.done(h.leader.CommitVolume(t.Context(), h.cache.View().Volume("uid-v"), api.VolumeRecord{UID: "uid-v", Name: "v", Node: name, Generation: 2, Purging: true}, nil))
	if metal() {
		t.Error("the machine is offered whole while its volume is being purged")
	}
	h.done(h.leader.ForgetVolume(t.Context(), h.cache.View().Volume("uid-v"), nil))
	if got := r.followVolumes(h.cache.View()); !got[name] {
		t.Errorf("the volume is gone, and %v are looked at", got)
	}
	if !metal() {
		t.Error("the machine is not offered whole though it keeps none any more")
	}
}
