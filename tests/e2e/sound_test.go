package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// first are the first n members of a group that none was removed from by name.
func first(n int, group string) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", group, i))
	}
	return all
}

// placed are the members of a cluster that have a place and keep it, by name: not those being let go, lost or waiting, and no spares.
func placed(c api.Cluster) map[string]api.MemberStatus {
	held := map[string]api.MemberStatus{}
	for _, m := range c.Status.Members {
		switch m.Phase {
		case api.MemberReleasing, api.MemberLost, api.MemberWaiting, api.MemberSpare:
		default:
			held[m.Name] = m
		}
	}
	return held
}

// waitMembers waits until a cluster is ready with exactly these members and holds nothing else.
func (s *site) waitMembers(name string, want []string) api.Cluster {
	s.t.Helper()
	return s.waitCluster(name, "ready with the members "+strings.Join(want, " ")+" and no other", func(c api.Cluster) bool {
		held := placed(c)
		return c.Status.Phase == api.ClusterReady && len(c.Status.Members) == len(want) && len(held) == len(want) &&
			!slices.ContainsFunc(want, func(m string) bool { return held[m].Phase != api.MemberReady })
	})
}

// waitCluster waits for a minute until a cluster is as it should be, while the server may be away, and returns it.
func (s *site) waitCluster(name, what string, ok func(api.Cluster) bool) api.Cluster {
	s.t.Helper()
	return s.waitClusterFor(time.Minute, name, what, ok)
}

func (s *site) waitClusterFor(deadline time.Duration, name, what string, ok func(api.Cluster) bool) api.Cluster {
	s.t.Helper()
	var c api.Cluster
	var err error
	defer func() {
		if s.t.Failed() {
			s.t.Logf("cluster %s was last seen so (%v): %s, %s; %+v", name, err, c.Status.Phase, c.Status.Message, c.Status.Members)
		}
	}()
	s.eventually(deadline, "cluster "+name+" to be "+what, func() bool {
		c, err = s.api().Cluster(s.t.Context(), name)
		return err == nil && ok(c)
	})
	return c
}

// checkSound checks what has to hold of a site at rest: clusters that are settled, nothing being released.
//   - no two members of a cluster have a name, a rank or an address in common, no two members at all a CPU, unless it is oversubscribed;
//   - nodes count as used what members hold, and nothing is quarantined;
//   - what runs on the machine is what the API tells: as many members, each once;
//   - of the capacity, all was allocated, cleaning, idle or down, and clusters are charged for all that was allocated.
func (s *site) checkSound() {
	s.t.Helper()
	c := s.api()
	clusters, err := c.Clusters(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	cores := map[string]int{}
	taken := map[string]string{}
	for _, cl := range clusters {
		one, err := c.Cluster(s.t.Context(), cl.Name) // a list may leave members away
		if err != nil {
			s.t.Fatal(err)
		}
		s.checkMembers(one, cores, taken)
	}
	nodes, err := c.Nodes(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, n := range nodes {
		if n.AllocatedCores != cores[n.Name] || n.QuarantinedCores != 0 {
			s.t.Errorf("node %s counts %d cores as used and %d as quarantined, want %d and 0", n.Name, n.AllocatedCores, n.QuarantinedCores, cores[n.Name])
		}
	}
	s.checkUsage()
}

// checkMembers checks one cluster, and adds what it holds to what all do.
func (s *site) checkMembers(c api.Cluster, cores map[string]int, taken map[string]string) {
	s.t.Helper()
	unique := map[string]string{}
	once := func(what, who string) {
		s.t.Helper()
		if other := unique[what]; other != "" {
			s.t.Errorf("cluster %s: %s and %s both have %s", c.Name, other, who, what)
		}
		unique[what] = who
	}
	want := map[string]bool{}
	for _, m := range c.Status.Members {
		cores[m.Node] += len(m.CPUs)
		if m.Phase == api.MemberSpare {
			continue
		}
		who := m.Name + " at " + m.Address
		once("the name "+m.Name, who)
		once(fmt.Sprintf("rank %d", m.Rank), who)
		once("the address "+m.Address, who)
		want[m.Name] = true
		for _, cpu := range m.CPUs {
			// Nodes of "dev" that share CPUs say so; those that don't have their own.
			if other := taken[fmt.Sprint(cpu)]; other != "" && !m.Oversubscribed {
				s.t.Errorf("%s and %s both have CPU %d", other, who, cpu)
			}
			taken[fmt.Sprint(cpu)] = who
		}
	}
	running := map[string]int{}
	for id := range memberProcesses(s.t, c.UID) {
		running[nameIn(id)]++
	}
	for name, n := range running {
		if n != 1 || !want[name] {
			s.t.Errorf("member %s of cluster %s runs %d times, want %v", name, c.Name, n, want[name])
		}
	}
	if len(running) != len(want) {
		s.t.Errorf("of cluster %s the members %v run, want %v", c.Name, slices.Sorted(maps.Keys(running)), slices.Sorted(maps.Keys(want)))
	}
}

// checkUsage checks that usage is conserved.
func (s *site) checkUsage() {
	s.t.Helper()
	report, err := s.api().Usage(s.t.Context(), client.UsageQuery{By: "cluster"})
	if err != nil {
		s.t.Fatal(err)
	}
	charged := 0.0
	for _, row := range report.Rows {
		charged += row.CoreSeconds
	}
	for _, u := range report.Site {
		used := u.Allocated.CoreSeconds + u.Cleaning.CoreSeconds + u.Idle.CoreSeconds + u.Down.CoreSeconds
		if math.Abs(used-u.Capacity.CoreSeconds) > 1e-3 {
			s.t.Errorf("of %v core-seconds, %v are accounted for: %+v", u.Capacity.CoreSeconds, used, u)
		}
		for what, amount := range map[string]float64{
			"allocated": u.Allocated.CoreSeconds, "cleaning": u.Cleaning.CoreSeconds, "idle": u.Idle.CoreSeconds, "down": u.Down.CoreSeconds,
		} {
			if amount < 0 {
				s.t.Errorf("%s: %v core-seconds", what, amount)
			}
		}
		if math.Abs(charged-u.Allocated.CoreSeconds) > 1e-3 {
			s.t.Errorf("clusters are charged for %v core-seconds, %v were allocated", charged, u.Allocated.CoreSeconds)
		}
	}
}

// openMPIWarning is what mpirun prints when a child was quicker to start than its parent to give it a process group (setpgid(2), EACCES).
var openMPIWarning = regexp.MustCompile(`(?m)^.*plm:rsh.*setpgid.*\n`)

// checkUsable checks that all members of a cluster can be used together: MPI starts a rank on each, and each knows all by name.
func (s *site) checkUsable(c api.Cluster) {
	s.t.Helper()
	all := slices.Sorted(maps.Keys(placed(c)))
	script := "getent hosts " + strings.Join(all, " ") + " | wc -l; hostname"
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	a := s.run(ctx, "run", c.Name, "-n", fmt.Sprint(len(all)), "--", "sh", "-c", script)
	if a.code != 0 {
		s.t.Errorf("a rank on each of %v: exit code %d\n%s%s", all, a.code, a.out, a.err)
		s.showMembers(c)
		return
	}
	out := strings.Fields(openMPIWarning.ReplaceAllString(a.out, ""))
	counts := map[string]int{}
	for _, word := range out {
		counts[word]++
	}
	want := map[string]int{fmt.Sprint(len(all)): len(all)}
	for _, m := range all {
		want[m]++
	}
	if !maps.Equal(counts, want) {
		s.t.Errorf("on cluster %s, a rank on each member prints how many of %v it knows, and its name; got %v, want %v", c.Name, all, counts, want)
	}
}

// showMembers shows what runs in members, and who they know.
func (s *site) showMembers(c api.Cluster) {
	s.t.Helper()
	for id, pid := range memberProcesses(s.t, c.UID) {
		look := "ip -br addr; ip neigh; ss -tn; ps -eo pid,stat,etimes,args"
		out, _ := exec.Command("nsenter", "-t", fmt.Sprint(pid), "--net", "--pid", "--mount", "sh", "-c", look).CombinedOutput()
		s.t.Logf("member %s, process %d:\n%s", id, pid, out)
	}
	for _, dir := range below(filepath.Join(s.dir, "spaces")) {
		out, _ := exec.Command("nsenter", "--net="+filepath.Join(dir, "net"), "bridge", "fdb").CombinedOutput()
		s.t.Logf("%s:\n%s", filepath.Base(dir), out)
	}
}

// victims are members that were killed, by the IDs they had.
type victims struct {
	cluster api.Cluster // as it was
	ids     map[string]bool
}

// killMembers kills the first processes of members, as a crash would.
func (s *site) killMembers(cluster string, members ...string) victims {
	s.t.Helper()
	c, err := s.api().Cluster(s.t.Context(), cluster)
	if err != nil {
		s.t.Fatal(err)
	}
	killed := victims{c, map[string]bool{}}
	for id, pid := range memberProcesses(s.t, c.UID) {
		if slices.Contains(members, nameIn(id)) {
			killed.ids[id] = true
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				s.t.Fatalf("member %s, process %d: %v", id, pid, err)
			}
		}
	}
	if len(killed.ids) != len(members) {
		s.t.Fatalf("to be killed were %v, there are only %v", members, killed.ids)
	}
	return killed
}

// nameIn is the member's name in an assignment's ID.
func nameIn(id string) string { return strings.Split(id, ".")[1] }

// waitReplaced waits until a cluster is ready with these members, none of which was killed, and all have their ranks.
func (s *site) waitReplaced(killed victims, want []string) api.Cluster {
	s.t.Helper()
	s.eventually(time.Minute, "other members in place of those killed", func() bool {
		running := map[string]bool{}
		for id := range memberProcesses(s.t, killed.cluster.UID) {
			if killed.ids[id] {
				return false
			}
			running[nameIn(id)] = true
		}
		return !slices.ContainsFunc(want, func(name string) bool { return !running[name] })
	})
	after := s.waitMembers(killed.cluster.Name, want)
	was := placed(killed.cluster)
	for name, m := range placed(after) {
		if old, ok := was[name]; ok && old.Rank != m.Rank {
			s.t.Errorf("member %s had rank %d and has %d", name, old.Rank, m.Rank)
		}
	}
	return after
}

// jobsOf lists the jobs of a cluster while the server may be away.
func (s *site) jobsOf(cluster string) ([]api.Job, bool) {
	s.t.Helper()
	jobs, err := s.api().Jobs(s.t.Context(), cluster)
	return jobs, err == nil
}

// submit runs a job in the background and returns its ID, however often the server dies meanwhile: a job whose submission was not
// answered may have been stored, and then it is taken for this one.
func (s *site) submit(cluster string, args ...string) string {
	s.t.Helper()
	var known []string
	s.eventually(time.Minute, "the list of jobs", func() bool {
		jobs, ok := s.jobsOf(cluster)
		for _, j := range jobs {
			known = append(known, j.ID)
		}
		return ok
	})
	id := ""
	s.eventually(time.Minute, "a job to be taken", func() bool {
		a := s.cli(append([]string{"run", cluster, "--detach"}, args...)...)
		id = strings.TrimSpace(a.out)
		if a.code == 0 || a.code != exitUnreachable && a.code != exitFailed {
			return true
		}
		jobs, _ := s.jobsOf(cluster)
		for _, j := range jobs {
			if !slices.Contains(known, j.ID) {
				id = j.ID
				return true
			}
		}
		return false
	})
	if id == "" {
		s.t.Fatalf("no job was taken on cluster %s", cluster)
	}
	return id
}

// waitJob waits until a job is as it should be.
func (s *site) waitJob(id, what string, ok func(api.Job) bool) api.Job {
	s.t.Helper()
	var job api.Job
	defer func() {
		if s.t.Failed() {
			text, _ := json.Marshal(job)
			s.t.Logf("the job was last seen so: %s", text)
		}
	}()
	s.eventually(time.Minute, "job "+id+" to "+what, func() bool {
		j, err := s.api().Job(s.t.Context(), id)
		if err == nil {
			job = j
		}
		return err == nil && ok(j)
	})
	return job
}

// sharedHome is where a cluster's home lies on this machine.
func (s *site) sharedHome(c api.Cluster) string { return filepath.Join(s.dir, "home", c.UID, "hpc") }

// logOf is the output of a job's last attempt.
func (s *site) logOf(id string) string {
	s.t.Helper()
	var out strings.Builder
	s.eventually(time.Minute, "the output of job "+id, func() bool {
		out.Reset()
		_, err := s.api().JobLog(context.WithoutCancel(s.t.Context()), id, 0, false, &out)
		return err == nil
	})
	return out.String()
}
