package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	// healRounds is how many members are killed, jobRounds how many jobs lose one, nodeRounds how many nodes fall silent.
	healRounds = 20
	jobRounds  = 8
	nodeRounds = 6
	// grown is how many members a cluster of as many grows by, against a fresh one of as many.
	grown = 4
	// waitingClusters wait in the queue while lists and watches are measured; listed is how often all are listed, watched how many
	// changes are watched for.
	waitingClusters = 1000
	listed          = 60
	watched         = 400
)

// life measures what happens to clusters between create and delete, on the site given.
func life(ctx context.Context, dev *site, log *slog.Logger, text *bytes.Buffer) error {
	for _, part := range []struct {
		name string
		do   func(context.Context, *site, *bytes.Buffer) error
	}{
		{"scale-up against fresh create", scaleUp}, {"a killed member", heal}, {"a job that lost a member", restartJob}, {"lists and watches", lists},
	} {
		log.Info("measuring", "what", part.name)
		if err := part.do(ctx, dev, text); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// loseNode stops the agents of nodes with SIGSTOP, so that they fall silent as a machine does that has died, and measures until the cluster
// is whole again on another node: the death timer, and what comes after.
func loseNode(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (err error) {
	log.Info("measuring", "what", "a silent node")
	s, err := startSite(ctx, o.nearmetal, filepath.Join(work, "nodes", "state"), 3, 2, memory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	var times []float64
	for range nodeRounds {
		took, err := s.loseOne(ctx)
		if err != nil {
			return err
		}
		times = append(times, took.Seconds())
	}
	text.WriteString(summary("Node silent, to members replaced and ready", times))
	fmt.Fprintf(text, "  of which the death timer: 5000.0 ms\n\n")
	return nil
}

// loseOne makes a cluster of a member on each of two nodes, stops the agent of one and waits for the replacement on the third.
func (s *site) loseOne(ctx context.Context) (took time.Duration, err error) {
	if _, err := s.client.CreateCluster(ctx, api.ClusterRequest{Name: clusterName, Size: 2, Cores: 2, Memory: s.memory}); err != nil {
		return 0, err
	}
	if err := s.await(ctx, func(c api.Cluster) bool { return c.Status.ReadyMembers == 2 }); err != nil {
		return 0, err
	}
	c, err := s.client.Cluster(ctx, clusterName)
	if err != nil {
		return 0, err
	}
	silent := c.Status.Members[1].Node
	pid, err := s.agentOf(silent)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return 0, err
	}
	err = s.await(ctx, func(c api.Cluster) bool {
		return c.Status.ReadyMembers == 2 && !slices.ContainsFunc(c.Status.Members, func(m api.MemberStatus) bool {
			return m.Node == silent && m.Phase != api.MemberReleasing
		})
	})
	took = time.Since(start)
	if err := errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); err != nil {
		return 0, err
	}
	if err := s.nodesReady(ctx, 3); err != nil {
		return 0, err
	}
	return took, s.Delete(ctx)
}

// summary is the spread of times on one line.
func summary(what string, seconds []float64) string {
	return fmt.Sprintf("%-46s median %8.1f ms  p99 %8.1f ms  [%.1f to %.1f ms]  n=%d\n", what, 1e3*measure.Median(seconds),
		1e3*measure.Quantile(seconds, 0.99), 1e3*measure.Quantile(seconds, 0), 1e3*measure.Quantile(seconds, 1), len(seconds))
}

// scaleUp compares growing by some members with making a cluster of as many.
func scaleUp(ctx context.Context, s *site, text *bytes.Buffer) error {
	var fresh, grew, ratios []float64
	for round := range 11 {
		start := time.Now()
		if err := s.Create(ctx, grown); err != nil {
			return err
		}
		created := time.Since(start).Seconds()
		start = time.Now()
		if _, err := s.client.ScaleCluster(ctx, clusterName, api.ScaleRequest{Size: 2 * grown}); err != nil {
			return err
		}
		if err := s.await(ctx, func(c api.Cluster) bool { return c.Status.ReadyMembers == 2*grown }); err != nil {
			return err
		}
		scaled := time.Since(start).Seconds()
		if err := s.Delete(ctx); err != nil {
			return err
		}
		if round > 0 { // the first warms up
			fresh, grew, ratios = append(fresh, created), append(grew, scaled), append(ratios, created/scaled)
		}
	}
	interval := measure.MedianInterval(ratios, 0.95)
	text.WriteString(summary(fmt.Sprintf("Fresh cluster of %d, request to ready", grown), fresh))
	text.WriteString(summary(fmt.Sprintf("Scale from %d to %d, request to ready", grown, 2*grown), grew))
	fmt.Fprintf(text, "  fresh create over scale-up: %.2f [%.2f, %.2f]\n\n", interval.Value, interval.Low, interval.High)
	return nil
}

// await waits until the watched cluster is ready and as wanted.
func (s *site) await(ctx context.Context, wanted func(api.Cluster) bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for change, err := range s.client.WatchCluster(ctx, clusterName) {
		switch c := change.Cluster; {
		case err != nil:
			return err
		case change.Synced:
		case c.Status.Phase == api.ClusterFailed || c.Status.Phase == api.ClusterRefused:
			return fmt.Errorf("the cluster is %s: %s", c.Status.Phase, c.Status.Message)
		case c.Status.Phase == api.ClusterReady && wanted(c):
			return nil
		}
	}
	return errors.New("the watch ended early")
}

// heal kills the first process of a member, each time of a fresh cluster: what dies again and again is replaced ever later.
func heal(ctx context.Context, s *site, text *bytes.Buffer) error {
	var times []float64
	for range healRounds {
		if err := s.Create(ctx, grown); err != nil {
			return err
		}
		took, err := s.killOne(ctx)
		if err != nil {
			return err
		}
		times = append(times, took.Seconds())
		if err := s.Delete(ctx); err != nil {
			return err
		}
	}
	text.WriteString(summary("Member killed, to replaced and cluster ready", times))
	return nil
}

// killOne kills a member other than rank 0 and waits until the cluster is whole again.
func (s *site) killOne(ctx context.Context) (time.Duration, error) {
	c, err := s.client.Cluster(ctx, clusterName)
	if err != nil {
		return 0, err
	}
	victim := c.Status.Members[1+rand.IntN(len(c.Status.Members)-1)].Name
	pid, err := firstProcess(c.UID + "." + victim + ".")
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return 0, err
	}
	generation := c.Status.Generation
	err = s.await(ctx, func(c api.Cluster) bool {
		// The loss and the replacement are a generation each.
		return c.Status.Generation >= generation+2 && c.Status.ReadyMembers == c.Status.TotalMembers
	})
	return time.Since(start), err
}

// firstProcess finds the first process of the member whose assignment's ID begins so: its parent is in another control group.
func firstProcess(assignment string) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !inGroup(pid, assignment) {
			continue
		}
		status, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			parent, ok := strings.CutPrefix(line, "PPid:")
			if !ok {
				continue
			}
			if ppid, err := strconv.Atoi(strings.TrimSpace(parent)); err == nil && !inGroup(ppid, assignment) {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("no process of the member %s* was found", assignment)
}

func inGroup(pid int, assignment string) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(groups), assignment)
}

// restartJob kills a member under a job that asks to run again, and waits until its second attempt prints something.
func restartJob(ctx context.Context, s *site, text *bytes.Buffer) error {
	var times []float64
	for range jobRounds {
		took, err := s.restartOne(ctx)
		if err != nil {
			return err
		}
		times = append(times, took.Seconds())
	}
	text.WriteString(summary("Member killed, to its job running again", times) + "\n")
	return nil
}

func (s *site) restartOne(ctx context.Context) (time.Duration, error) {
	if err := s.Create(ctx, grown); err != nil {
		return 0, err
	}
	job, err := s.client.CreateJob(ctx, clusterName, api.JobRequest{Command: []string{"sh", "-c", "echo started; exec sleep 600"}, Requeue: true})
	if err != nil {
		return 0, err
	}
	if err := s.output(ctx, job.ID, 0); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := s.killOne(ctx); err != nil {
		return 0, err
	}
	if err := s.output(ctx, job.ID, 1); err != nil {
		return 0, err
	}
	return time.Since(start), s.Delete(ctx)
}

// output waits until an attempt of a job has printed something.
func (s *site) output(ctx context.Context, id string, attempt int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		job, err := s.client.Job(ctx, id)
		if err != nil {
			return err
		}
		if job.Phase.Ended() {
			return fmt.Errorf("job %s is %s: %s", id, job.Phase, job.Message)
		}
		if job.Attempt == attempt {
			var out bytes.Buffer
			if _, err := s.client.JobAttemptLog(ctx, id, attempt, 0, false, &out); err == nil && out.Len() > 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("job %s, attempt %d: %w", id, attempt, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// lists fills the queue, and measures how long all clusters take to be listed and how late watches are.
func lists(ctx context.Context, s *site, text *bytes.Buffer) error {
	nodes, err := s.client.Nodes(ctx)
	if err != nil {
		return err
	}
	cores := len(nodes[0].Offer.Capacity.Cores)
	if err := s.Create(ctx, cores); err != nil { // all the room there is
		return err
	}
	for i := range waitingClusters {
		request := api.ClusterRequest{Name: fmt.Sprintf("w%04d", i), Cores: 1, Memory: s.memory, Queue: true}
		if _, err := s.client.CreateCluster(ctx, request); err != nil {
			return err
		}
	}
	var times []float64
	for range listed {
		start := time.Now()
		all, err := s.client.Clusters(ctx)
		if err != nil {
			return err
		}
		if len(all) != waitingClusters+1 {
			return fmt.Errorf("%d clusters are listed, want %d", len(all), waitingClusters+1)
		}
		times = append(times, time.Since(start).Seconds())
	}
	text.WriteString(summary(fmt.Sprintf("%d clusters listed over HTTP", waitingClusters+1), times))
	times, err = s.watchLatency(ctx)
	if err != nil {
		return err
	}
	text.WriteString(summary(fmt.Sprintf("Change of 1 of %d clusters, to seen by a watch", waitingClusters+1), times) + "\n")
	for i := range waitingClusters {
		if _, err := s.client.DeleteCluster(ctx, fmt.Sprintf("w%04d", i)); err != nil {
			return err
		}
	}
	return s.Delete(ctx)
}

// watchLatency changes labels and measures from the request to the watch of all clusters that shows it.
func (s *site) watchLatency(ctx context.Context) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	synced, seen, failed := make(chan struct{}), make(chan string, 1), make(chan error, 1)
	go func() {
		for change, err := range s.client.WatchClusters(ctx) {
			if err != nil {
				failed <- err
				return
			}
			if change.Synced {
				close(synced)
			}
			if stamp := change.Cluster.Labels["stamp"]; stamp != "" {
				select {
				case seen <- change.Cluster.Name + " " + stamp:
				case <-ctx.Done():
					return
				}
			}
		}
		failed <- io.EOF
	}()
	select {
	case <-synced:
	case err := <-failed:
		return nil, err
	}
	var times []float64
	for i := range watched {
		name, stamp := fmt.Sprintf("w%04d", rand.IntN(waitingClusters)), strconv.Itoa(i)
		start := time.Now()
		if _, err := s.client.LabelCluster(ctx, name, map[string]string{"stamp": stamp}); err != nil {
			return nil, err
		}
		for got := ""; got != name+" "+stamp; {
			select {
			case got = <-seen:
			case err := <-failed:
				return nil, err
			}
		}
		times = append(times, time.Since(start).Seconds())
	}
	return times, nil
}

// coresOf says what a figure was measured on.
func coresOf() string { return fmt.Sprintf("%d cores", runtime.NumCPU()) }
