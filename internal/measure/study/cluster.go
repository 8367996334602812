package study

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// Service is what a study asks of the server of a cluster. The API's client has it.
type Service interface {
	Cluster(ctx context.Context, name string) (api.Cluster, error)
	SetCondition(ctx context.Context, name string, condition api.NetworkCondition) (api.Cluster, error)
	ClearCondition(ctx context.Context, name string) (api.Cluster, error)
	CreateJob(ctx context.Context, name string, req api.JobRequest) (api.Job, error)
	Job(ctx context.Context, id string) (api.Job, error)
	CancelJob(ctx context.Context, id string) (api.Job, error)
	JobLog(ctx context.Context, id string, offset int64, follow bool, w io.Writer) (int64, error)
	Dataset(ctx context.Context, name string) (api.DatasetStatus, error)
	Energy(ctx context.Context, hours int) (api.EnergyReport, error)
}

// Cluster is where the jobs of a study run as jobs of a cluster. The cluster's datasets say in which ways they read.
type Cluster struct {
	Service Service
	// Name is the cluster. Far is the one whose network gets the conditions; it may be the same.
	Name, Far string
	// Load is what loaders load: a URL that members reach under the conditions.
	Load string
	// Out is the directory of the study's results.
	Out string
	// Settled is how long counters of caches must not change; 0: 2 s. Jobs close their files one after the other.
	Settled time.Duration

	python  string
	cluster api.Cluster
	// ways has a dataset of the cluster for each way of reading.
	ways   map[api.DatasetWay]api.DatasetStatus
	origin string // HOST:PORT
}

// find reads the cluster and its datasets.
func (c *Cluster) find(ctx context.Context, python string) error {
	c.python = python
	var err error
	if c.cluster, err = c.Service.Cluster(ctx, c.Name); err != nil {
		return err
	}
	if c.Far == "" {
		c.Far = c.Name
	}
	if c.cluster.Status.Phase != api.ClusterReady {
		return fmt.Errorf("cluster %q is %s: its jobs can be measured when it is ready", c.Name, c.cluster.Status.Phase)
	}
	if len(c.cluster.Spec.Groups) != 1 {
		return fmt.Errorf("cluster %q has %d groups: the study needs one, whose members are alike", c.Name, len(c.cluster.Spec.Groups))
	}
	c.ways = map[api.DatasetWay]api.DatasetStatus{}
	for _, text := range c.cluster.Spec.Groups[0].Datasets {
		use := api.ParseDatasetUse(text)
		d, err := c.Service.Dataset(ctx, use.Name)
		if err != nil {
			return err
		}
		if other, twice := c.ways[use.Way]; twice {
			return fmt.Errorf("cluster %q reads both dataset %s and dataset %s by %s: the study needs one for each way", c.Name, other.Name, d.Name, use.Way)
		}
		c.ways[use.Way] = d
	}
	return c.checkFiles()
}

// checkFiles returns why the datasets don't suit: all files must be the same one, which jobs read from the same server.
func (c *Cluster) checkFiles() error {
	streamed, ok := c.ways[api.DatasetStream]
	if !ok {
		return fmt.Errorf("cluster %q has no dataset by stream, with which the others are compared: create it with --dataset NAME:stream", c.Name)
	}
	first := streamed.Files[0]
	source, err := url.Parse(first.URLs[0])
	if err != nil || source.Scheme != "root" {
		return fmt.Errorf("dataset %s comes from %s: the jobs of the study read by root://", streamed.Name, first.URLs[0])
	}
	if c.origin = source.Host; source.Port() == "" {
		c.origin = net.JoinHostPort(source.Hostname(), "1094")
	}
	for way, d := range c.ways {
		for _, f := range d.Files {
			if f.Adler32 != first.Adler32 || f.SHA256 != first.SHA256 {
				return fmt.Errorf("dataset %s, by %s, has a file other than dataset %s (%s): give all of them the same checksum, or results can't be compared", d.Name, way, streamed.Name, f.Path)
			}
		}
	}
	if d, ok := c.ways[api.DatasetCached]; ok && len(d.Files) < 2 {
		return fmt.Errorf("dataset %s, by cached, has one file: a cache is cold for a file only once, so list the same file under several names", d.Name)
	}
	return nil
}

func (c *Cluster) identity() string {
	return "cluster " + c.Name + " " + c.cluster.UID + ", conditions of " + c.Far
}

func (c *Cluster) validate(m Matrix) error {
	var errs []error
	most, loaders := slices.Max(append([]int{1}, m.Members...)), slices.Max(append([]int{0}, m.Loaders...))
	if have := len(c.cluster.Status.Members); have < most+loaders {
		errs = append(errs, fmt.Errorf("%d members with jobs and %d beside that load: cluster %q has %d members", most, loaders, c.Name, have))
	}
	if loaders > 0 && c.Load == "" {
		errs = append(errs, errors.New("loaders in a cluster load a URL: name one"))
	}
	for _, d := range m.Delays {
		if api.Duration(d/2) > api.MaxConditionDelay {
			errs = append(errs, fmt.Errorf("a round trip of %v: the condition of a cluster delays each direction by %v at most", d, api.MaxConditionDelay))
		}
	}
	return errors.Join(errs...)
}

func (c *Cluster) sides() []measure.Side {
	sides := []measure.Side{{Name: copied, Description: "xrdcp copies the whole file into the member, then the job reads the copy"}}
	for _, s := range []struct {
		way  api.DatasetWay
		side measure.Side
	}{
		{api.DatasetCopy, measure.Side{Name: near, Description: "the node had a verified copy before the member started", Reference: true}},
		{api.DatasetStream, measure.Side{Name: stream, Description: "the job reads from the server by uproot, with the cluster's egress"}},
		{api.DatasetCached, measure.Side{Name: cold, Description: "the job reads by the XCache of its node, which has nothing of the file yet"}},
		{api.DatasetCached, measure.Side{Name: warm, Description: "the job reads by the XCache of its node, which has read the same before"}},
		{api.DatasetPreloaded, measure.Side{Name: loaded, Description: "the XCache of the node had all of the file before the member started"}},
	} {
		if _, ok := c.ways[s.way]; ok {
			sides = append(sides, s.side)
		}
	}
	return sides
}

func (c *Cluster) summary() string {
	return fmt.Sprintf("Jobs in members of cluster %q read some branches of a file of events, by the ways of its datasets. The server of the file is reached by the network of cluster %q, "+
		"whose condition each point sets. Times are from opening the file to the result, the copy included where there is one; starting Python is not. Of jobs at once it is the mean.",
		c.Name, c.Far)
}

func (c *Cluster) conditions() []measure.Condition {
	var names, nodes []string
	for _, m := range c.cluster.Status.Members {
		names = append(names, m.Name)
		if !slices.Contains(nodes, m.Node) {
			nodes = append(nodes, m.Node)
		}
	}
	group := c.cluster.Spec.Groups[0]
	all := []measure.Condition{
		{Name: "file", Value: fmt.Sprintf("%.1f MB", float64(c.ways[api.DatasetStream].Files[0].SizeBytes)/1e6)},
		{Name: "members", Value: fmt.Sprintf("%s on %s, %d cores and %s each", strings.Join(names, ", "), strings.Join(nodes, ", "), group.Cores, group.Memory)},
		{Name: "link", Value: "the condition of cluster " + c.Far + ", which was in force and measured before each run"},
	}
	if c.cluster.Status.Oversubscribed {
		all = append(all, measure.Condition{Name: "oversubscribed", Value: "members share physical cores"})
	}
	return all
}

func (c *Cluster) open(_ context.Context, say func(string, ...any)) (place, error) {
	say("jobs run in cluster %s, the conditions are those of cluster %s", c.Name, c.Far)
	return &inCluster{Cluster: c, cold: filepath.Join(c.Out, "cold-files")}, nil
}

// energy is that of the jobs, as the site accounts for it.
func (c *Cluster) energy(ctx context.Context, runs []measure.Run) (string, error) {
	report, err := c.Service.Energy(ctx, 7*24)
	if err != nil {
		return "", fmt.Errorf("the energy of the jobs: %w", err)
	}
	of := map[string]float64{}
	measured, modelled := false, false
	for _, e := range report.Clusters {
		if sum := e.MeasuredMicrojoules + e.ModelledMicrojoules; e.UID == c.cluster.UID && e.Job != "" && sum > 0 {
			of[e.Job] = float64(sum) / 1e6
			measured, modelled = measured || e.MeasuredMicrojoules > 0, modelled || e.ModelledMicrojoules > 0
		}
	}
	points, known := 0, 0
	for _, r := range runs {
		for _, p := range r.Points {
			points++
			if j, ok := of[p.Job]; ok {
				p.Values[joules] = j
				known++
			}
		}
	}
	if known == 0 {
		return "unavailable: the site knows none of the jobs (see nearmetal energy)", nil
	}
	tag := "measured"
	if modelled {
		tag = "modelled"
		if measured {
			tag = "measured and modelled"
		}
	}
	return fmt.Sprintf("%s, known of %d of %d points. A job's includes the start of Python, and that of the jobs before it within the same five seconds is divided", tag, known, points), nil
}
