package study

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// service answers as a site does whose jobs take no time. tests/e2e has a real one.
type service struct {
	Service
	cluster  api.Cluster
	datasets map[string]api.DatasetStatus
	energy   []api.ClusterEnergy
	// set is the condition; strayed: packets don't take it.
	set     *api.NetworkCondition
	strayed bool
	asked   asked
	jobs    int
	kept    int
	read    map[string]bool // lines of files that caches have
}

func (s *service) Cluster(context.Context, string) (api.Cluster, error) {
	c := s.cluster
	if c.Status.Condition = nil; s.set != nil {
		c.Status.Condition = &api.NetworkConditionStatus{NetworkCondition: *s.set, State: api.ConditionInForce}
	}
	return c, nil
}

func (s *service) SetCondition(_ context.Context, _ string, c api.NetworkCondition) (api.Cluster, error) {
	s.set = &c
	return s.cluster, nil
}

func (s *service) ClearCondition(context.Context, string) (api.Cluster, error) {
	s.set = nil
	return s.cluster, nil
}

func (s *service) CreateJob(_ context.Context, _ string, req api.JobRequest) (api.Job, error) {
	s.asked = asked{}
	err := json.Unmarshal([]byte(req.Command[len(req.Command)-1]), &s.asked)
	s.jobs++
	if d, ok := s.datasets["cached"]; ok && strings.Contains(s.asked.URL, "cached.urls") {
		c := &d.Caches[0]
		if s.read[s.asked.URL] {
			c.HitBytes += 5e6
		} else {
			c.MissBytes += 5e6
		}
		s.read[s.asked.URL] = true
	}
	return api.Job{ID: fmt.Sprint("job", s.jobs)}, err
}

func (s *service) Job(_ context.Context, id string) (api.Job, error) {
	return api.Job{ID: id, Phase: api.JobSucceeded}, nil
}

func (s *service) JobLog(_ context.Context, _ string, _ int64, _ bool, w io.Writer) (int64, error) {
	trip := 0.0001
	if s.set != nil && !s.strayed {
		trip += 2 * time.Duration(s.set.Delay).Seconds()
	}
	var jobs []string
	for range s.asked.Jobs {
		jobs = append(jobs, fmt.Sprintf(`{"copying": 0.5, "seconds": 0.25, "kept": %d, "sum_pt": 12.5}`, s.kept))
	}
	_, err := fmt.Fprintf(w, "some warning\n{\"jobs\": [%s], \"received\": 33000000, \"before\": %v, \"trips\": [%[2]v]}\n", strings.Join(jobs, ","), trip)
	return 0, err
}

func (s *service) Dataset(_ context.Context, name string) (api.DatasetStatus, error) {
	d, ok := s.datasets[name]
	if !ok {
		return d, fmt.Errorf("no dataset %s", name)
	}
	return d, nil
}

func (s *service) Energy(context.Context, int) (api.EnergyReport, error) {
	return api.EnergyReport{Clusters: s.energy}, nil
}

// filesOf is a dataset that has one file under several names.
func filesOf(name string, files int) api.DatasetStatus {
	d := api.DatasetStatus{Name: name, Caches: []api.DatasetCache{{Node: "n1"}}}
	for i := range files {
		d.Files = append(d.Files, api.DatasetFile{
			Path: fmt.Sprintf("%d.root", i), URLs: []string{fmt.Sprintf("root://192.0.2.1//%d.root", i)}, SizeBytes: 33e6, Adler32: "0badcafe",
		})
	}
	return d
}

func newService() *service {
	s := &service{kept: 5, read: map[string]bool{}, datasets: map[string]api.DatasetStatus{"far": filesOf("far", 1), "copy": filesOf("copy", 1), "cached": filesOf("cached", 6)}}
	s.cluster = api.Cluster{Name: "c1", UID: "uid1"}
	s.cluster.Spec.Groups = []api.Group{{Datasets: []string{"copy", "far:stream", "cached:cached"}}}
	s.cluster.Status.Phase = api.ClusterReady
	s.cluster.Status.Members = []api.MemberStatus{{Name: "c1-0", Node: "n1"}, {Name: "c1-1", Node: "n2"}}
	return s
}

func inService(t *testing.T, s *service) Remote {
	r := remote(t)
	r.Delays = []time.Duration{0, 40 * time.Millisecond}
	r.Cluster = &Cluster{Service: s, Name: "c1", Out: r.Out, Settled: time.Millisecond}
	return r
}

func TestAStudyInAClusterReadsInTheWaysOfItsDatasets(t *testing.T) {
	s := newService()
	s.energy = []api.ClusterEnergy{{UID: "uid1", Job: "job1", EnergyAmount: api.EnergyAmount{MeasuredMicrojoules: 7e6}}, {UID: "other", Job: "job2", EnergyAmount: api.EnergyAmount{ModelledMicrojoules: 1}}}
	r := inService(t, s)
	report, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.set != nil {
		t.Errorf("the study left the condition %+v", *s.set)
	}
	sides := map[string]int{}
	joulesSeen := 0.0
	for _, run := range report.Experiment.Runs {
		sides[run.Side]++
		for _, p := range run.Points {
			if p.X == 40 && p.Values[roundTrip] < 40 || p.Values[seconds] != 0.75 || p.Job == "" {
				t.Errorf("%s: %+v", run.Side, p)
			}
			want := map[string]float64{copied: 33, stream: 33, cold: 5}[run.Side]
			if p.Values[wireBytes] != want {
				t.Errorf("%s: %v MB came over the network, want %v", run.Side, p.Values[wireBytes], want)
			}
			joulesSeen += p.Values[joules]
		}
	}
	if want := map[string]int{near: 2, copied: 2, stream: 2, cold: 2, warm: 2}; !maps.Equal(sides, want) {
		t.Errorf("runs of %v, want %v", sides, want)
	}
	if joulesSeen != 7 {
		t.Errorf("the points have %v J, and the site knows 7 J of one of the jobs", joulesSeen)
	}
	// All cold files but the one that is warm have been read: another study needs more.
	other := inService(t, s)
	if _, err := other.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "more names") {
		t.Errorf("a study whose cold files were all read: %v", err)
	}
}

func TestARunWithoutItsDelayDoesNotCount(t *testing.T) {
	s := newService()
	s.strayed = true
	if _, err := inService(t, s).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "is the server reached by") {
		t.Errorf("packets that take no detour: %v", err)
	}
}

func TestJobsInMembersMustFindTheSame(t *testing.T) {
	s := newService()
	w := &inCluster{Cluster: &Cluster{Service: s}}
	job := api.Job{ID: "j", Phase: api.JobSucceeded}
	const good = `{"jobs": [{"kept": 5, "sum_pt": 2.5, "seconds": 0.1}]}`
	if _, err := w.read(job, "a warning\n"+good); err != nil {
		t.Fatal(err)
	}
	for said, want := range map[string]string{
		`{"jobs": [{"kept": 5, "sum_pt": 2.5, "seconds": 0.1}, {"kept": 4, "sum_pt": 2.5, "seconds": 0.1}]}`: "4 events",
		`{"jobs": [{"kept": 5, "sum_pt": 2.5, "seconds": 0}]}`:                                               "printed",
		`{"jobs": []}`: "printed",
		`Traceback`:    "printed",
	} {
		if _, err := w.read(job, said); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", said, err)
		}
	}
	if _, err := w.read(api.Job{ID: "j", Phase: api.JobFailed}, good); err == nil {
		t.Error("a job that failed counts")
	}
}

func TestClustersThatCannotBeComparedAreRefused(t *testing.T) {
	for want, change := range map[string]func(*service, *Remote){
		"is starting": func(s *service, _ *Remote) { s.cluster.Status.Phase = api.ClusterStarting },
		"no dataset by stream": func(s *service, _ *Remote) {
			s.cluster.Spec.Groups[0].Datasets = []string{"copy"}
		},
		"one for each way":            func(s *service, _ *Remote) { s.cluster.Spec.Groups[0].Datasets = []string{"copy", "far"} },
		"has a file other than":       func(s *service, _ *Remote) { s.datasets["copy"].Files[0].Adler32 = "0" },
		"has one file":                func(s *service, _ *Remote) { s.datasets["cached"] = filesOf("cached", 1) },
		"read by root://":             func(s *service, _ *Remote) { s.datasets["far"].Files[0].URLs[0] = "http://192.0.2.1/0.root" },
		`cluster "c1" has 2 members`:  func(_ *service, r *Remote) { r.Jobs, r.Members, r.Delays = []int{3}, []int{1, 3}, nil },
		"load a URL":                  func(_ *service, r *Remote) { r.Loaders, r.Rates = []int{1}, []api.Rate{1e6} },
		"delays each direction by 1s": func(_ *service, r *Remote) { r.Delays = []time.Duration{3 * time.Second} },
		"1 jobs in 2 members":         func(_ *service, r *Remote) { r.Members = []int{2} },
		"the study needs one, whose":  func(s *service, _ *Remote) { s.cluster.Spec.Groups = append(s.cluster.Spec.Groups, api.Group{}) },
	} {
		s := newService()
		r := inService(t, s)
		change(s, &r)
		if _, err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that says %q: %v", want, err)
		}
	}
}

func TestRunsOfAnotherClusterDoNotCount(t *testing.T) {
	s := newService()
	r := inService(t, s)
	if err := r.Cluster.find(t.Context(), "python3"); err != nil {
		t.Fatal(err)
	}
	if err := open(t, r).add(measure.Run{Side: stream}); err != nil {
		t.Fatal(err)
	}
	s.cluster.UID = "uid2"
	if _, err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another study") {
		t.Errorf("runs of a cluster of the same name that was deleted: %v", err)
	}
}

func TestAColdRunSkipsFilesThatAnotherStudyHasRead(t *testing.T) {
	s := newService()
	s.datasets["cached"] = filesOf("cached", 8)
	for _, n := range []string{"1", "3"} {
		s.read["/etc/nearmetal/datasets/cached.urls:"+n] = true
	}
	report, err := inService(t, s).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range report.Experiment.Runs {
		for _, p := range run.Points {
			if run.Side == cold && p.Values[wireBytes] != 5 {
				t.Errorf("a cold run fetched %v MB, want 5", p.Values[wireBytes])
			}
		}
	}
}
