package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// clusterName is the name of every cluster the bench makes.
const clusterName = "bench"

// site is a running `nearmetal dev` and the side measured through its API.
type site struct {
	process *exec.Cmd
	log     *os.File
	client  *client.Client
	memory  api.Bytes
}

// startSite starts `nearmetal dev` with nodes of so many slots each, and waits until they are ready.
func startSite(ctx context.Context, program, dir string, nodes, slots int, memory api.Bytes) (*site, error) {
	listen, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	program, err = filepath.Abs(program)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "..", "dev.log"))
	if err != nil {
		return nil, err
	}
	s := &site{log: log, memory: memory}
	// Not CommandContext: the site is stopped in order, after its clusters.
	s.process = exec.Command(program, "dev", "--state", dir, "--listen", listen, "--nodes", strconv.Itoa(nodes), "--node-cores", strconv.Itoa(slots))
	s.process.Stdout, s.process.Stderr = log, log
	// Ctrl-C reaches all of a process group. The site must outlive it, for its clusters to be deleted.
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.process.Start(); err != nil {
		return nil, fmt.Errorf("nearmetal dev can't be started (build it first: make build): %w", err)
	}
	if s.client, err = client.New(client.Options{Addr: "unix:" + filepath.Join(dir, "server.sock")}); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if err := s.nodesReady(ctx, nodes); err != nil {
		said, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("nearmetal dev: %w; its log: %s", err, said), s.stop())
	}
	return s, nil
}

func (s *site) nodesReady(ctx context.Context, wanted int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // on a busy machine
	defer cancel()
	for {
		nodes, err := s.client.Nodes(ctx)
		ready := 0
		for _, n := range nodes {
			if n.Phase == api.NodeReady {
				ready++
			}
		}
		if err == nil && ready >= wanted {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the site and waits for it.
func (s *site) stop() error {
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := s.process.Wait()
	return errors.Join(err, s.log.Close())
}

func (s *site) Create(ctx context.Context, members int) error {
	request := api.ClusterRequest{Name: clusterName, Size: members, Cores: 1, Memory: s.memory}
	if _, err := s.client.CreateCluster(ctx, request); err != nil {
		return err
	}
	return s.reach(ctx, api.ClusterReady)
}

// reach waits until the bench's cluster is in a phase.
func (s *site) reach(ctx context.Context, phase api.ClusterPhase) error {
	return s.reachOf(ctx, clusterName, phase)
}

// reachOf waits until a cluster is in a phase.
func (s *site) reachOf(ctx context.Context, cluster string, phase api.ClusterPhase) error {
	for change, err := range s.client.WatchCluster(ctx, cluster) {
		if err != nil {
			return err
		}
		switch status := change.Cluster.Status; status.Phase {
		case phase:
			return nil
		case api.ClusterRefused, api.ClusterFailed:
			return fmt.Errorf("the cluster is %s: %s", status.Phase, status.Message)
		default:
		}
	}
	return fmt.Errorf("the watch ended before the cluster was %s", phase)
}

func (s *site) Delete(ctx context.Context) error {
	if _, err := s.client.DeleteCluster(ctx, clusterName); err != nil {
		return err
	}
	for change, err := range s.client.WatchCluster(ctx, clusterName) {
		if change.Deleted || gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errors.New("the watch ended before the cluster was gone")
}

func gone(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound
}

func (s *site) Check(ctx context.Context, members int) error {
	job, err := s.client.CreateJob(ctx, clusterName, api.JobRequest{Command: []string{"hostname"}, Ranks: members})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if _, err := s.client.JobLog(ctx, job.ID, 0, true, &out); err != nil {
		return err
	}
	if job, err = s.client.Job(ctx, job.ID); err != nil {
		return err
	}
	if job.Phase != api.JobSucceeded {
		return fmt.Errorf("job %s is %s (%s); it printed %q", job.ID, job.Phase, job.Message, out.String())
	}
	return checkHosts(out.String(), members)
}

// idleMemory returns the resident sets, in bytes, of the server and of its agents.
func (s *site) idleMemory() (server, agents int64, err error) {
	server, err = residentBytes(s.process.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	for _, pid := range s.children() {
		if bytes, err := residentBytes(pid); err == nil {
			agents += bytes
		}
	}
	return server, agents, nil
}

// children are the processes that the site's own has started: the agents.
func (s *site) children() []int {
	// A child is listed with the thread that started it. The pattern is well formed.
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.process.Process.Pid))
	var pids []int
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(children)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// agentOf is the process of a node's agent.
func (s *site) agentOf(node string) (int, error) {
	for _, pid := range s.children() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(line), "--name\x00"+node+"\x00") {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("the agent of node %s was not found", node)
}

// residentBytes reads VmRSS of proc(5).
func residentBytes(pid int) (int64, error) { return statusBytes(pid, "VmRSS:") }

// statusBytes reads an amount of memory of /proc/PID/status by its name.
func statusBytes(pid int, name string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, name)
}

func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
