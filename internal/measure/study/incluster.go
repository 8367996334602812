package study

import (
	"bytes"
	"cmp"
	"context"
	_ "embed" // the programs
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

var (
	//go:embed member.py
	memberProgram string
	//go:embed work.py
	workProgram string
)

// The pauses between questions to the server, and how long a condition, a job's end and a cache's counters are waited for.
const (
	askEvery         = 200 * time.Millisecond
	conditionTimeout = time.Minute
	jobTimeout       = 10 * time.Minute
	countersTimeout  = time.Minute
	settled          = 2 * time.Second
)

// inCluster is the place of a study in a cluster.
type inCluster struct {
	*Cluster
	// cold is a file with the number of the next file that no cache has.
	cold string
	// now is the condition in force, set whether there is one.
	now    api.NetworkCondition
	set    bool
	result string
}

// asked is what member.py runs.
type asked struct {
	Origin  [2]any   `json:"origin"` // host and port
	Python  string   `json:"python"`
	Program string   `json:"program"`
	URL     string   `json:"url"`
	Way     string   `json:"way"`
	Jobs    int      `json:"jobs"`
	Members []string `json:"members"`
	Loaders []string `json:"loaders"`
	Load    string   `json:"load"`
}

// ran is what member.py prints: seconds, and bytes.
type ran struct {
	Jobs []struct {
		Copying float64 `json:"copying"`
		Seconds float64 `json:"seconds"`
		Kept    int     `json:"kept"`
		SumPt   float64 `json:"sum_pt"`
	} `json:"jobs"`
	Received int64     `json:"received"`
	Before   float64   `json:"before"`
	Trips    []float64 `json:"trips"`
	id       string
}

// close takes the condition away.
func (w *inCluster) close() {
	if w.set {
		ctx, cancel := context.WithTimeout(context.Background(), conditionTimeout) // the study's own may have ended
		defer cancel()
		_, _ = w.Service.ClearCondition(ctx, w.Far)
	}
}

func (w *inCluster) measure(ctx context.Context, side string, at setting, round int) (measure.Point, error) {
	if err := w.condition(ctx, at.network(round)); err != nil {
		return measure.Point{}, err
	}
	if side == warm {
		if err := w.warm(ctx, at); err != nil {
			return measure.Point{}, fmt.Errorf("warming the cache: %w", err)
		}
	}
	for {
		point, was, err := w.once(ctx, side, at)
		if err != nil || !was {
			return point, err
		}
	}
}

// warm reads the file by the caches of all members that have jobs, and returns once that is counted: what is counted later belongs to the run.
func (w *inCluster) warm(ctx context.Context, at setting) error {
	each := at // one job on each member: they may be on several nodes, each with a cache of its own
	each.jobs, each.loaders = max(1, at.members), 0
	before, err := w.counters(ctx, warm, nil)
	if err == nil {
		_, err = w.run(ctx, warm, w.url(warm, 0), each)
	}
	if err == nil {
		_, err = w.counters(ctx, warm, before)
	}
	return err
}

// once runs the jobs, and tells whether a file that had to be cold was in the cache before: another study of the cluster read it.
func (w *inCluster) once(ctx context.Context, side string, at setting) (point measure.Point, was bool, err error) {
	file := 0
	if side == cold {
		if file, err = w.nextCold(); err != nil {
			return measure.Point{}, false, err
		}
	}
	before, err := w.counters(ctx, side, nil)
	if err != nil {
		return measure.Point{}, false, err
	}
	out, err := w.run(ctx, side, w.url(side, file), at)
	if err != nil {
		return measure.Point{}, false, err
	}
	if least := at.delay.Seconds() * 0.9; out.Before < least {
		return measure.Point{}, false, fmt.Errorf("a round trip to %s took %.1f ms before the run, and the condition of cluster %q asks for %.1f ms: is the server reached by that cluster's network?",
			w.origin, 1e3*out.Before, w.Far, milliseconds(at.delay))
	}
	fetched := float64(out.Received)
	if before != nil {
		after, err := w.counters(ctx, side, before)
		if err != nil {
			return measure.Point{}, false, err
		}
		fetched = float64(after.fetched - before.fetched)
	}
	return out.point(at, side, fetched), side == cold && fetched == 0, nil
}

// point is what a run measured.
func (r ran) point(at setting, side string, fetched float64) measure.Point {
	var took []float64
	for _, j := range r.Jobs {
		took = append(took, j.Copying+j.Seconds)
	}
	values := map[string]float64{seconds: mean(took)}
	if at.jobs > 1 {
		values[slowest] = slices.Max(took)
	}
	if fetched > 0 && side != near && (at.loaders == 0 || side == cold || side == warm) {
		values[wireBytes] = fetched / 1e6
	}
	if len(r.Trips) > 0 {
		slices.Sort(r.Trips)
		values[roundTrip] = 1e3 * r.Trips[len(r.Trips)/2]
		values[tailTrip] = 1e3 * r.Trips[len(r.Trips)*95/100]
	}
	return measure.Point{X: at.x, Values: values, Job: r.id}
}

// network is the condition of the far cluster: what its members exchange with others has it in both directions.
func (s setting) network(round int) api.NetworkCondition {
	return api.NetworkCondition{Delay: api.Duration(s.delay / 2), Loss: 100 * s.loss, Duplicate: 100 * s.duplicate, Rate: s.rate, Seed: int64(round) + 1}
}

// condition brings a condition about, and returns once all members have it.
func (w *inCluster) condition(ctx context.Context, want api.NetworkCondition) error {
	if want == (api.NetworkCondition{Seed: want.Seed}) {
		return w.without(ctx)
	}
	if w.set && w.now == want {
		return nil
	}
	if _, err := w.Service.SetCondition(ctx, w.Far, want); err != nil {
		return err
	}
	w.set, w.now = true, want
	return w.await(ctx, "the condition of cluster "+w.Far+" to be in force", conditionTimeout, func() (bool, error) {
		cl, err := w.Service.Cluster(ctx, w.Far)
		if err != nil {
			return false, err
		}
		s := cl.Status.Condition
		if s == nil || s.NetworkCondition != want {
			return false, fmt.Errorf("the condition of cluster %q was changed by somebody else", w.Far)
		}
		return s.State == api.ConditionInForce, nil
	})
}

// without takes a condition away, and returns once no member has one.
func (w *inCluster) without(ctx context.Context) error {
	cl, err := w.Service.Cluster(ctx, w.Far)
	if err != nil || cl.Status.Condition == nil {
		return err
	}
	if _, err := w.Service.ClearCondition(ctx, w.Far); err != nil {
		return err
	}
	w.set = false
	return w.await(ctx, "cluster "+w.Far+" to have no condition", conditionTimeout, func() (bool, error) {
		cl, err := w.Service.Cluster(ctx, w.Far)
		return cl.Status.Condition == nil, err
	})
}

// await asks until something has happened.
func (w *inCluster) await(ctx context.Context, what string, patience time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for %s", patience, what))
	defer cancel()
	ask := time.NewTicker(askEvery)
	defer ask.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ask.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// url is what a job of a side reads. Members have the URLs of a dataset in a file; so URL is what a shell makes of it.
func (w *inCluster) url(side string, file int) string {
	switch side {
	case near:
		d := w.ways[api.DatasetCopy]
		return api.DatasetsPath + "/" + d.Name + "/" + d.Files[0].Path
	case cold, warm:
		return w.line(api.DatasetCached, file)
	case loaded:
		return w.line(api.DatasetPreloaded, 0)
	}
	return w.line(api.DatasetStream, 0)
}

// line names a line of the file in which members find the URLs of a dataset.
func (w *inCluster) line(way api.DatasetWay, n int) string {
	return fmt.Sprintf("%s/%s.urls:%d", api.DatasetURLs, w.ways[way].Name, n)
}

// nextCold is the number of a file that no run has read. File 0 is the one that is warm.
func (w *inCluster) nextCold() (int, error) {
	text, err := os.ReadFile(w.cold)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	n := 1
	if err == nil {
		if n, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return 0, fmt.Errorf("%s: %w", w.cold, err)
		}
	}
	if d := w.ways[api.DatasetCached]; n >= len(d.Files) {
		return 0, fmt.Errorf("dataset %s has %d files, and runs with a cold cache have read all of them: list the same file under more names, in another dataset", d.Name, len(d.Files))
	}
	return n, os.WriteFile(w.cold, []byte(strconv.Itoa(n+1)+"\n"), 0o644)
}

// counts are what the caches of a dataset have counted.
type counts struct{ read, fetched int64 }

// counters reads the counters of the caches that a side reads by, nil if it reads by none. If there is a count from before, it waits for what was read
// since.
func (w *inCluster) counters(ctx context.Context, side string, before *counts) (*counts, error) {
	way := api.DatasetCached
	switch side {
	case cold, warm:
	case loaded:
		way = api.DatasetPreloaded
	default:
		return nil, nil
	}
	var now, last counts
	same := time.Now()
	err := w.await(ctx, "the cache of dataset "+w.ways[way].Name+" to count what was read", countersTimeout, func() (bool, error) {
		d, err := w.Service.Dataset(ctx, w.ways[way].Name)
		if err != nil {
			return false, err
		}
		last, now = now, counts{}
		for _, c := range d.Caches {
			now.read += c.HitBytes + c.MissBytes
			now.fetched += c.MissBytes + c.AheadBytes
		}
		if now != last {
			same = time.Now()
		}
		return before == nil || now.read > before.read && time.Since(same) >= cmp.Or(w.Settled, settled), nil
	})
	return &now, err
}

// run runs jobs as one job of the cluster, and returns what it printed.
func (w *inCluster) run(ctx context.Context, side, url string, at setting) (ran, error) {
	host, port, err := net.SplitHostPort(w.origin)
	if err != nil {
		return ran{}, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return ran{}, err
	}
	var names []string
	with := max(1, at.members)
	for _, m := range w.cluster.Status.Members {
		names = append(names, m.Name)
	}
	ask, err := json.Marshal(asked{
		Origin: [2]any{host, number}, Python: w.python, Program: workProgram + "\n" + skimProgram, URL: url, Way: side, Jobs: at.jobs, Load: w.Load,
		Members: names[:with], Loaders: append([]string{}, names[with:with+at.loaders]...),
	})
	if err != nil {
		return ran{}, err
	}
	job, err := w.Service.CreateJob(ctx, w.Name, api.JobRequest{Command: []string{"python3", "-c", memberProgram, string(ask)}})
	if err != nil {
		return ran{}, err
	}
	if err := w.await(ctx, "job "+job.ID, jobTimeout, func() (bool, error) {
		job, err = w.Service.Job(ctx, job.ID)
		return err == nil && job.Phase.Ended(), err
	}); err != nil {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), conditionTimeout)
		defer cancel()
		_, stopped := w.Service.CancelJob(stopping, job.ID)
		return ran{}, errors.Join(err, stopped)
	}
	var said bytes.Buffer
	if _, err := w.Service.JobLog(ctx, job.ID, 0, false, &said); err != nil {
		return ran{}, err
	}
	return w.read(job, said.String())
}

// read understands what a job printed. Each must find the same.
func (w *inCluster) read(job api.Job, said string) (ran, error) {
	out := ran{id: job.ID}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if job.Phase != api.JobSucceeded {
		return ran{}, fmt.Errorf("job %s is %s: %s %s", job.ID, job.Phase, job.Message, lastLines(said))
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &out); err != nil || len(out.Jobs) == 0 {
		return ran{}, fmt.Errorf("job %s printed %q", job.ID, lastLines(said))
	}
	for _, j := range out.Jobs {
		result := fmt.Sprintf("%d events with %.1f GeV", j.Kept, j.SumPt)
		if j.Kept == 0 || j.Seconds <= 0 {
			return ran{}, fmt.Errorf("job %s printed %q", job.ID, lastLines(said))
		}
		if w.result == "" {
			w.result = result
		}
		if result != w.result {
			return ran{}, fmt.Errorf("the analysis of job %s found %s, and %s before", job.ID, result, w.result)
		}
	}
	return out, nil
}
