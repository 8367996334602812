package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestACacheThatIsTooSmallIsAnEventOfEachClusterOnce(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 4)
	for _, name := range []string{"events", "copied"} {
		l.view(l.repo.CreateDataset(t.Context(), api.Dataset{
			Name: name, UID: "d" + name, Project: api.DefaultProject, Files: []api.DatasetFile{{Path: "f", URLs: []string{"root://far//" + name}, SizeBytes: 5}},
		}))
	}
	for name, datasets := range map[string][]string{"a": {"events:cached"}, "b": {"copied"}} {
		l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
			Name: name, UID: "u" + name, CreatedAt: l.now, Spec: api.ClusterSpec{Groups: []api.Group{{
				Name: name, Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local", Datasets: datasets,
			}}},
		}))
	}
	for range 3 {
		l.mustPass()
		l.report(api.MemberReady)
	}
	figures := dataset.CacheFigures{MissBytes: 300 << 20}
	told := func(cluster string) (count int, last string) {
		t.Helper()
		log, err := l.repo.Events(t.Context(), cluster, 0, state.EventsKept)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range log {
			if e.Reason == api.ReasonCacheTooSmall {
				count, last = count+1, e.Message
			}
		}
		return count, last
	}
	say := func() {
		l.agents.datasets = []plan.Node{{Name: "n1", Caches: []dataset.CacheState{
			{UID: "devents", Running: true, SizeBytes: 64 << 20, CacheFigures: figures}, {UID: "dcopied", SizeBytes: 64 << 20, CacheFigures: figures},
		}}}
		l.now = l.now.Add(time.Second)
		l.mustPass()
	}
	say()
	if n, _ := told("a"); n != 0 {
		t.Errorf("%d events of a cache that fetched nothing again", n)
	}
	figures.AgainBytes = 100 << 20
	say()
	n, message := told("a")
	if n != 1 || !strings.Contains(message, `dataset "events"`) || !strings.Contains(message, "64") || !strings.Contains(message, "300") || !strings.Contains(message, "100") || !strings.Contains(message, "--xcache") {
		t.Errorf("%d events, %q; want one with the sizes and what to do", n, message)
	}
	// Not again: neither in the next pass, nor after the figures began anew, nor by the next leader.
	say()
	figures.AgainBytes = 0
	say()
	figures.AgainBytes = 200 << 20
	say()
	l.campaign()
	say()
	if n, _ := told("a"); n != 1 {
		t.Errorf("%d events of one cache", n)
	}
	if n, _ := told("b"); n != 0 {
		t.Error("a cluster has an event about a cache through which it does not read")
	}
}
