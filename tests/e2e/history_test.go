package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// What clients do with a cluster name.
const (
	doCreate = "create"
	doDelete = "delete"
	doScale  = "scale"
	doGet    = "get"
)

// request is one call, result what it answered. size is that of the cluster, as asked for and as told.
type request struct {
	do, name string
	size     int
}

type result struct {
	// code is "" for success, else the problem's code; unheard means that no answer came.
	code     string
	uid      string
	deleting bool
	size     int
}

const unheard = "no answer"

// cell is what a name stands for: nothing (uid ""), a cluster, or one that is being deleted. anonymous is a cluster whose
// create was not answered; the first who sees it learns its UID.
type cell struct {
	uid      string
	deleting bool
	size     int
}

const anonymous = "?"

// names is the model: create wins where nothing is, delete marks, scale changes the size of what is not marked, get sees; a marked
// cluster goes away by itself, later.
var names = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := map[string][]porcupine.Operation{}
		for _, op := range history {
			name := op.Input.(request).name
			byName[name] = append(byName[name], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{cell{}} },
	Step: func(state, input, output any) []any {
		now := []cell{state.(cell)}
		if now[0].deleting {
			now = append(now, cell{})
		}
		var next []any
		for _, c := range now {
			for _, n := range step(c, input.(request), output.(result)) {
				next = append(next, n)
			}
		}
		return next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// step returns what may become of a name when a call is answered so, or nothing when it can't be.
func step(c cell, in request, r result) []cell {
	here := c.uid != ""
	if r.code == unheard {
		return append(effect(c, in), c)
	}
	same := here && (c.uid == r.uid || c.uid == anonymous)
	seen := cell{r.uid, c.deleting, c.size}
	switch {
	case in.do == doCreate && r.code == "" && !here && r.size == in.size:
		return []cell{{uid: r.uid, size: in.size}}
	case in.do == doCreate && r.code == "cluster_exists" && here:
		return []cell{c}
	case in.do == doDelete && r.code == "" && same && r.deleting && r.size == c.size:
		return []cell{{r.uid, true, c.size}}
	case in.do == doScale && r.code == "" && same && !c.deleting: // the answer shows the cluster as it is then, scaled again perhaps
		return []cell{{r.uid, false, in.size}}
	case in.do == doScale && r.code != "" && r.code != "cluster_not_found" && here:
		return []cell{c} // it may not be scaled now, or there is no room: nothing is changed
	case in.do == doGet && r.code == "" && same && r.deleting == c.deleting && r.size == c.size:
		return []cell{seen}
	case in.do != doCreate && r.code == "cluster_not_found" && !here:
		return []cell{c}
	default:
		return nil
	}
}

// effect is what a call makes of a name if it has an effect.
func effect(c cell, in request) []cell {
	here := c.uid != ""
	switch {
	case in.do == doCreate && !here:
		return []cell{{uid: anonymous, size: in.size}}
	case in.do == doDelete && here:
		return []cell{{c.uid, true, c.size}}
	case in.do == doScale && here && !c.deleting:
		return []cell{{c.uid, false, in.size}}
	default:
		return nil
	}
}

func TestConcurrentCreatesScalesAndDeletesAreLinearizable(t *testing.T) {
	program(t, ordinary)
	for _, test := range []struct {
		name  string
		crash bool
	}{{"in peace", false}, {"while the server is killed", true}} {
		for range faultRounds(1) {
			passed := t.Run(test.name, func(t *testing.T) { concurrently(t, test.crash) })
			if !passed {
				return
			}
		}
	}
}

// concurrently lets clients make calls by chance, and checks the answers. One more client repeats the kinds of calls that the
// check needs until each was answered, because chance alone may leave one out.
func concurrently(t *testing.T, crash bool) {
	nothingLeft(t)
	s := startSite(t, 1, "--node-cores", "4")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const clients, calls = 6, 60
	history := &history{begin: time.Now(), counts: map[string]int{}}
	var all sync.WaitGroup
	for i := range clients {
		api, random := s.api(), rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for range calls {
				history.call(t.Context(), api, i, byChance(random))
			}
		})
	}
	if crash {
		for _, n := range []int{clients * calls / 4, clients * calls / 2} {
			s.eventually(2*time.Minute, "calls to be answered", func() bool { return history.length() >= n })
			s.kill()
			s.start()
		}
	}
	api, turn := s.api(), 0
	s.eventually(2*time.Minute, "each kind of call to be answered", func() bool {
		name := called[turn%len(called)]
		for _, in := range []request{{doCreate, name, 2}, {doCreate, name, 2}, {doScale, name, 1}, {doGet, name, 1}, {doDelete, name, 1}} {
			history.call(t.Context(), api, clients, in)
		}
		turn++
		return len(history.missing()) == 0
	})
	all.Wait()
	history.check(t)
}

// history is what happened, as the clients saw it.
type history struct {
	begin time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
	// counts are of calls by what they did and the code they were answered with.
	counts map[string]int
}

// called are the names that all clients share. The client that goes through them in turn deletes each, so there is room for
// the next one: each kind of call is answered in time.
var called = [...]string{"a", "b", "c"}

// missing returns the kinds of calls that the check needs and that were not answered yet.
func (h *history) missing() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc([]string{"create ", "create cluster_exists", "delete ", "scale ", "get "}, func(kind string) bool {
		return h.counts[kind] > 0
	})
}

func (h *history) length() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// byChance returns one call. Some sizes are too large to be placed.
func byChance(random *rand.Rand) request {
	return request{
		do:   []string{doCreate, doCreate, doDelete, doDelete, doScale, doScale, doGet}[random.IntN(7)],
		name: called[random.IntN(len(called))], size: []int{1, 2, 1, 2, 1000}[random.IntN(5)],
	}
}

// call makes one call and notes it.
func (h *history) call(ctx context.Context, c *client.Client, id int, in request) {
	began := time.Since(h.begin)
	var cl api.Cluster
	var err error
	switch in.do {
	case doCreate:
		cl, err = c.CreateCluster(ctx, api.ClusterRequest{Name: in.name, Size: in.size, Cores: 1, Memory: 64 << 20})
	case doDelete:
		cl, err = c.DeleteCluster(ctx, in.name)
	case doScale:
		cl, err = c.ScaleCluster(ctx, in.name, api.ScaleRequest{Size: in.size})
	default:
		cl, err = c.Cluster(ctx, in.name)
	}
	h.note(in, id, began, time.Since(h.begin), cl, err)
	if err != nil {
		awaitServer(ctx, c)
	}
}

// awaitServer waits until the server serves, for a minute.
func awaitServer(ctx context.Context, c *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for c.Ready(ctx) != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// note adds a call to the history.
func (h *history) note(in request, id int, called, answered time.Duration, cl api.Cluster, err error) {
	returned := answered.Nanoseconds()
	out := result{uid: cl.UID, deleting: cl.Status.DeletedAt != nil}
	for _, g := range cl.Spec.Groups {
		out.size += g.Size
	}
	var problem *client.Error
	switch {
	case errors.As(err, &problem) && problem.Code != "unavailable":
		out = result{code: problem.Code}
	case err != nil: // what was asked for may happen at any later time
		out, returned = result{code: unheard}, math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[in.do+" "+out.code]++
	h.ops = append(h.ops, porcupine.Operation{ClientId: id, Input: in, Call: called.Nanoseconds(), Output: out, Return: returned})
}

// check asks the model. A client whose call was not answered goes on as another one: that call never returned.
func (h *history) check(t *testing.T) {
	t.Helper()
	next := 1000
	for i := range h.ops {
		if h.ops[i].Output.(result).code == unheard {
			next++
			h.ops[i].ClientId = next
		}
	}
	t.Logf("%d calls: %v", len(h.ops), h.counts)
	model := names.ToModel()
	verdict, info := porcupine.CheckOperationsVerbose(model, h.ops, time.Minute)
	if verdict == porcupine.Ok {
		return
	}
	t.Errorf("the history is %s, want %s", verdict, porcupine.Ok)
	if file := t.ArtifactDir() + "/history.html"; porcupine.VisualizePath(model, info, file) == nil {
		t.Logf("drawn in %s (go test -artifacts keeps it)", file)
	}
	for _, op := range h.ops {
		t.Logf("%3d %12d %12d %+v -> %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
	}
}

func TestOfTwoCreatesOfOneNameOneWins(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 1)
	for range 5 {
		var tries [2]*command
		for i := range tries {
			tries[i] = s.background(t.Context(), "cluster", "create", "c1", "--size", "1", "--memory", "64MiB")
		}
		won, lost := tries[0].wait(), tries[1].wait()
		if won.code != 0 {
			won, lost = lost, won
		}
		if won.code != 0 || lost.code != exitConflict {
			t.Fatalf("exit codes %d and %d, want 0 and %d\n%s%s", won.code, lost.code, exitConflict, won.err, lost.err)
		}
		wantMessage(t, lost.err, `"c1"`, "exists")
		s.must("cluster", "delete", "c1", "--yes")
	}
}

func TestTheModelOfNamesRefusesWhatMayNotHappen(t *testing.T) {
	type call struct {
		do     string
		answer result
		size   int // asked for; 0: 1
	}
	for _, test := range []struct {
		name  string
		calls []call // one after the other
		want  porcupine.CheckResult
	}{
		{"create, delete, gone, create", []call{
			{doCreate, result{uid: "u"}, 0},
			{doDelete, result{uid: "u", deleting: true}, 0},
			{doGet, result{uid: "u", deleting: true}, 0},
			{doGet, result{code: "cluster_not_found"}, 0},
			{doCreate, result{uid: "v"}, 0},
		}, porcupine.Ok},
		{"create, scale, get", []call{
			{doCreate, result{uid: "u"}, 0},
			{doScale, result{uid: "u", size: 2}, 2},
			{doGet, result{uid: "u", size: 2}, 0},
		}, porcupine.Ok},
		{"a scale that is refused", []call{
			{doCreate, result{uid: "u"}, 0},
			{doScale, result{code: "no_room"}, 1000},
			{doGet, result{uid: "u"}, 0},
		}, porcupine.Ok},
		{"a scale lost", []call{
			{doCreate, result{uid: "u"}, 0},
			{doScale, result{uid: "u", size: 2}, 2},
			{doGet, result{uid: "u"}, 0},
		}, porcupine.Illegal},
		{"a scale refused that took effect", []call{
			{doCreate, result{uid: "u"}, 0},
			{doScale, result{code: "no_room"}, 2},
			{doGet, result{uid: "u", size: 2}, 0},
		}, porcupine.Illegal},
		{"a scale of what is being deleted", []call{
			{doCreate, result{uid: "u"}, 0},
			{doDelete, result{uid: "u", deleting: true}, 0},
			{doScale, result{uid: "u", size: 2}, 2},
		}, porcupine.Illegal},
		{"a scale of nothing", []call{{doScale, result{uid: "u", size: 2}, 2}}, porcupine.Illegal},
		{"a scale unheard that took effect", []call{
			{doCreate, result{uid: "u"}, 0},
			{doScale, result{code: unheard}, 2},
			{doGet, result{uid: "u", size: 2}, 0},
		}, porcupine.Ok},
		{"a create unheard that took effect", []call{{doCreate, result{code: unheard}, 0}, {doGet, result{uid: "u"}, 0}}, porcupine.Ok},
		{"two winners", []call{{doCreate, result{uid: "u"}, 0}, {doCreate, result{uid: "v"}, 0}}, porcupine.Illegal},
		{"a cluster lost", []call{{doCreate, result{uid: "u"}, 0}, {doGet, result{code: "cluster_not_found"}, 0}}, porcupine.Illegal},
		{"a delete forgotten", []call{
			{doCreate, result{uid: "u"}, 0},
			{doDelete, result{uid: "u", deleting: true}, 0},
			{doGet, result{uid: "u"}, 0},
		}, porcupine.Illegal},
		{"a cluster from nowhere", []call{{doGet, result{uid: "u"}, 0}}, porcupine.Illegal},
		{"a conflict with nothing", []call{{doCreate, result{code: "cluster_exists"}, 0}}, porcupine.Illegal},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ops []porcupine.Operation
			for i, c := range test.calls {
				c.size = max(c.size, 1)
				if c.answer.code == "" {
					c.answer.size = max(c.answer.size, 1)
				}
				op := porcupine.Operation{Input: request{c.do, "a", c.size}, Call: int64(2 * i), Output: c.answer, Return: int64(2*i + 1)}
				if c.answer.code == unheard {
					op.ClientId, op.Return = 1, math.MaxInt64
				}
				ops = append(ops, op)
			}
			if got := porcupine.CheckOperationsTimeout(names.ToModel(), ops, time.Minute); got != test.want {
				t.Errorf("the model says %s, want %s", got, test.want)
			}
		})
	}
}
