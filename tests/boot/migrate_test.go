package boot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// twoNodes makes a site have two nodes, each with room for two members.
var twoNodes = []string{"--nodes", "2", "--node-cores", "2"}

// counting counts in memory and in a file of the shared home, which stays open, until there is a file named stop. In the end both say the same.
const counting = `i=0; exec 3>>lines-$(hostname)
until [ -e stop ]; do i=$((i+1)); echo $i >&3; sleep 0.1; done
echo $(hostname) counted $i of $(wc -l <lines-$(hostname))`

// A cluster of two machines goes from node to node, in each way that there is, and neither its kernels nor its MPI job, whose ranks are connected all
// along, begin anew.
func TestVirtualMachinesMoveBetweenNodesWhileTheirProgramsRun(t *testing.T) {
	s := newNodes(t, twoNodes...)
	s.awaitNode("n2")
	t.Cleanup(func() { // a test that failed leaves no machines, either
		if _, err := s.try("cluster", "show", "v1"); err == nil {
			s.run("cluster", "delete", "v1", "--yes")
		}
	})
	s.run("cluster", "create", "v1", "--stack", "vm", "--size", "2", "--memory", "512MiB", "--env", "debian-mpi")
	boots := s.wantOwnKernels("v1")
	job := strings.TrimSpace(s.run("run", "v1", "-n", "2", "--detach", "--", "sh", "-c", counting))
	s.until(virtualDeadline, "both ranks to count", func() bool {
		_, err := s.try("cluster", "ssh", "v1", "--", "test", "-s", "lines-v1-0", "-a", "-s", "lines-v1-1")
		return err == nil
	})

	t.Log("both are brought to n1; then one moves while it runs, and back as a state on disk")
	s.gather("v1", "n1")
	s.wantMoved("v1", "v1-0", "n2", "--bandwidth", "64MiB/s")
	s.wantMoved("v1", "v1-0", "n1", "--offline")
	s.wantSameKernels("v1", boots)

	t.Log("what can't be done is refused, and changes nothing")
	s.refused(`the site has no node "n9"`, "cluster", "migrate", "v1", "--to", "n9")
	s.refused(`is on node "n1" already`, "cluster", "migrate", "v1", "v1-0", "--to", "n1")
	s.run("cluster", "create", "c1", "--cores", "2")
	s.refused("nothing was changed", "cluster", "migrate", "v1")
	s.refused(`runs on stack "container"`, "cluster", "migrate", "c1")
	s.run("cluster", "delete", "c1", "--yes")

	t.Log("the sender's agent, the receiver's, and the server die amid a move")
	for _, kill := range []func(){
		func() { s.killAgent("n1", "v1") },
		func() { s.killAgent("n2", "v1") },
		func() { s.kill(); adoptMachines(t, "v1"); s.start() },
	} {
		s.beginMove("v1", "v1-0", "n2")
		kill()
		s.until(virtualDeadline, "the move to have ended and the cluster to be whole", func() bool {
			out, err := s.try("cluster", "show", "v1", "-o", "json")
			return err == nil && whole(parse[api.Cluster](s, out))
		})
		s.wantSameKernels("v1", boots)
		s.gather("v1", "n1")
	}

	t.Log("saved on a node that is drained, it resumes on the other; running members leave a drained node")
	s.run("cluster", "save", "v1", "--memory")
	s.run("node", "drain", "n1")
	s.run("cluster", "restore", "v1")
	s.wantAllOn("v1", "n2")
	s.run("node", "undrain", "n1")
	s.run("node", "drain", "n2", "--wait")
	s.until(virtualDeadline, "the members to be ready on n1", func() bool { return whole(s.cluster("v1")) })
	s.wantAllOn("v1", "n1")
	s.wantSameKernels("v1", boots)

	s.run("cluster", "ssh", "v1", "--", "touch", "stop")
	s.until(time.Minute, "the job to end", func() bool { return read[api.Job](s, "job", "show", job).Phase.Ended() })
	s.wantCounted(s.run("job", "logs", job))
	s.run("cluster", "delete", "v1", "--yes")
	if left := machinesOf(t, "v1"); len(left) > 0 {
		t.Errorf("processes %v of the cluster's machines are left", left)
	}
}

func (s *site) awaitNode(name string) {
	s.t.Helper()
	s.until(time.Minute, "node "+name+" to be ready", func() bool {
		out, err := s.try("node", "show", name, "-o", "json")
		return err == nil && parse[api.Node](s, out).Phase == api.NodeReady
	})
}

func (s *site) cluster(name string) api.Cluster {
	s.t.Helper()
	return read[api.Cluster](s, "cluster", "show", name)
}

// whole reports whether a cluster's move has ended, and its two members are ready, each once.
func whole(c api.Cluster) bool {
	st := c.Status
	return st.Phase == api.ClusterReady && len(st.Members) == 2 && st.ReadyMembers == 2 && (st.Move == nil || st.Move.Ended) &&
		!slices.ContainsFunc(st.Members, func(m api.MemberStatus) bool { return m.Moving != nil })
}

// gather moves what is elsewhere to a node.
func (s *site) gather(cluster, node string) {
	s.t.Helper()
	if slices.ContainsFunc(s.cluster(cluster).Status.Members, func(m api.MemberStatus) bool { return m.Node != node }) {
		s.run("cluster", "migrate", cluster, "--to", node)
	}
	s.until(virtualDeadline, "the members to be ready, each once", func() bool { return whole(s.cluster(cluster)) })
	s.wantAllOn(cluster, node)
}

func (s *site) wantAllOn(cluster, node string) {
	s.t.Helper()
	for _, m := range s.cluster(cluster).Status.Members {
		if m.Node != node && m.Phase != api.MemberReleasing {
			s.t.Errorf("member %s is on node %s, want all on %s", m.Name, m.Node, node)
		}
	}
}

// wantMoved moves a member, and looks at what is reported of it.
func (s *site) wantMoved(cluster, member, to string, more ...string) {
	s.t.Helper()
	c := read[api.Cluster](s, append([]string{"cluster", "migrate", cluster, member, "--to", to}, more...)...)
	m := c.Status.Move.Members[0]
	if m.Member != member || m.Phase != api.MoveMoved || m.To != to || m.Report == nil || m.Report.Bytes < 1<<20 || m.Report.TotalSeconds <= 0 ||
		m.Report.DowntimeSeconds <= 0 {
		s.t.Errorf("the move of %s to %s ended as %+v with the report %+v", member, to, m, m.Report)
	}
	if m.Report != nil {
		s.t.Logf("measured: %s moved in %.1f s and stood still for %.2f s of it (%v)", member, m.Report.TotalSeconds, m.Report.DowntimeSeconds, more)
	}
	if out := s.run("cluster", "ssh", cluster, member, "--", "hostname"); strings.TrimSpace(out) != member {
		s.t.Errorf("%s says %q, just after it has moved", member, out)
	}
}

// beginMove begins a slow move of a member that runs, and returns when it is under way.
func (s *site) beginMove(cluster, member, to string) {
	s.t.Helper()
	s.run("cluster", "migrate", cluster, member, "--to", to, "--bandwidth", "16MiB/s", "--no-wait")
	s.until(virtualDeadline, "the state of "+member+" to be on its way", func() bool {
		move := s.cluster(cluster).Status.Move
		return len(move.Members) == 1 && move.Members[0].SentBytes > 0
	})
}

// wantSameKernels checks that the members of a cluster run as they did, each once.
func (s *site) wantSameKernels(cluster string, boots map[string]bool) {
	s.t.Helper()
	for id := range s.wantOwnKernels(cluster) {
		if !boots[id] {
			s.t.Fatalf("a member of %s began anew, in boot %s; those before were %v; events:\n%s", cluster, id, boots, s.run("cluster", "events", cluster))
		}
	}
}

// wantCounted checks that both ranks of the counting job counted all that they wrote.
func (s *site) wantCounted(said string) {
	s.t.Helper()
	said = openMPIWarning.ReplaceAllString(said, "")
	for rank := range 2 {
		var counted, lines int
		name := "v1-" + strconv.Itoa(rank)
		at := strings.Index(said, name+" counted")
		if at < 0 {
			s.t.Errorf("the rank on %s does not say what it counted: %q", name, said)
			continue
		}
		if _, err := fmt.Sscanf(said[at:], name+" counted %d of %d", &counted, &lines); err != nil || counted < 10 || counted != lines {
			s.t.Errorf("the rank on %s counted %d and wrote %d lines (%v)", name, counted, lines, err)
		}
	}
}
