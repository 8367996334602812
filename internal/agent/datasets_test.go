package agent_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
)

// replicas are what a node holds of datasets, as a test says.
type replicas struct {
	mu      sync.Mutex
	wanted  []dataset.Wanted
	used    map[string]bool
	whole   bool
	unused  bool // something was wanted before what is in use was named
	changed chan struct{}
}

func (r *replicas) Run(ctx context.Context) { <-ctx.Done() }

func (r *replicas) Want(all []dataset.Wanted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = all
	r.unused = r.unused || len(all) > 0 && !r.used["d1"]
}

func (r *replicas) Use(uids map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = maps.Clone(uids)
}

func (r *replicas) States() []dataset.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []dataset.State
	for _, w := range r.wanted {
		list = append(list, dataset.State{UID: w.UID, Whole: r.whole, InUse: r.used[w.UID]})
	}
	return list
}

func (r *replicas) Place(uid string) string { return "/replicas/" + uid + "/files" }

func (r *replicas) Paths() []dataset.Passage { return nil }

func (r *replicas) Probe(context.Context, []string) {}

func (r *replicas) Ready(string) (bool, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.whole, "is being fetched: 1 MiB of 2 MiB"
}

func TestAMemberWaitsForItsDatasetsAndHasThemReadOnly(t *testing.T) {
	l := newLeader(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	data := &replicas{changed: make(chan struct{}, 1)}
	l.run(shortDir(t), func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
		c.Datasets, c.DatasetsChanged = data, data.changed
	})
	l.want(func(d *agentstream.Desired) {
		d.Datasets = []dataset.Wanted{{UID: "d1", Name: "events", Keep: true}}
		m := aMember("")
		m.Datasets = []dataset.Claim{{UID: "d1", Name: "events"}}
		withMember(d, m)
	})
	l.until("it says what it waits for", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && o.Members[0].Message == `dataset "events" is being fetched: 1 MiB of 2 MiB` && len(o.Datasets) == 1 && o.Datasets[0].InUse
	})
	if calls := host.Calls(); slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "Start") }) {
		t.Errorf("it was started without its dataset: %q", calls)
	}
	data.mu.Lock()
	data.whole = true
	data.mu.Unlock()
	data.changed <- struct{}{}
	l.until("it starts", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && o.Members[0].FilesDigest != "" && o.Members[0].Message == ""
	})
	want := driver.Mount{Source: "/replicas/d1/files", Path: "/datasets/events", ReadOnly: true}
	if m, there := host.Member("u1.a.1"); !there || !slices.Contains(m.Mounts, want) {
		t.Errorf("the member has the mounts %+v, want %+v", m.Mounts, want)
	}
	l.want(func(d *agentstream.Desired) {
		d.Members = slices.Clone(d.Members)
		d.Members[0].Release = true
	})
	l.until("the released member needs it no more", func(o agentstream.Observed) bool {
		return len(o.Clean) == 1 && len(o.Datasets) == 1 && !o.Datasets[0].InUse
	})
	if data.unused {
		t.Error("the store was told what is wanted before what is in use")
	}
}

func TestAMemberWithDatasetsDoesNotStartOnANodeThatKeepsNone(t *testing.T) {
	l := newLeader(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	l.run(shortDir(t), func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
	})
	l.want(func(d *agentstream.Desired) {
		m := aMember("")
		m.Datasets = []dataset.Claim{{UID: "d1", Name: "events"}}
		withMember(d, m)
	})
	l.until("it says so", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && strings.Contains(o.Members[0].Message, "keeps no datasets")
	})
}
