package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// aboutSites tells whether the way to a mark is the start or the end of a site, not a cluster.
func aboutSites(mark string) bool { return strings.HasPrefix(mark, "nodespace.") }

// aboutPools tells whether a mark is on the way of a pool of volumes, whose own tests kill a process at each of them (packages imagepool and lvmthin).
func aboutPools(mark string) bool {
	return strings.HasPrefix(mark, "imagepool.") || strings.HasPrefix(mark, "reflink.") ||
		strings.HasPrefix(mark, "lvmthin.") || strings.HasPrefix(mark, "diskserver.") || strings.HasPrefix(mark, "archive.")
}

// lanes is how many sites live through crashes side by side.
const lanes = 4

// ofRequests are the marks that only a request comes by. Its second try does not: the leader, which goes to work at once, must not
// die elsewhere before the request gets there.
var ofRequests = []string{
	"state.after-intent", "state.after-intent-change", "state.after-job", "state.after-delete-request", "state.after-network-intent", "state.after-network-records", "state.after-network-delete-request",
	"state.after-security-group", "state.after-security-group-change", "state.after-security-group-delete",
	"state.after-address", "state.after-address-change", "state.after-address-release",
	"state.after-volume-intent", "state.after-volume-change", "state.after-volume-delete-request", "state.after-volume-undelete",
	"state.after-import-given-up",
}

// ofStarts are the marks after which a member runs. Who dies at one of them keeps others of its site from the rest: the next agent finds the member
// running. So each is in a lane of its own.
var ofStarts = []string{"container.after-start", "container.after-running", "agent.after-start"}

// deal deals marks out to lanes, those of requests to the first and the others of the server to the rest.
func deal(marks []string) [lanes][]string {
	var dealt [lanes][]string
	for i, mark := range marks {
		lane := i % lanes
		switch {
		case slices.Contains(ofRequests, mark):
			lane = 0
		case strings.HasPrefix(mark, "state.") || strings.HasPrefix(mark, "controller."):
			lane = 1 + i%(lanes-1)
		case slices.Contains(ofStarts, mark):
			lane = slices.Index(ofStarts, mark)
		}
		dealt[lane] = append(dealt[lane], mark)
	}
	return dealt
}

// TestACrashAtAnyMarkInTheLifeOfAClusterIsOutlived kills the server or a node's agent at every failpoint that the acts of a
// cluster's life come by. The marks are dealt out to a few sites. In a short run all marks of a site are armed in each act, so that
// it dies again and again until it has died at each; with NEARMETAL_FAULT_ROUNDS above 1 each mark is armed by itself, too.
func TestACrashAtAnyMarkInTheLifeOfAClusterIsOutlived(t *testing.T) {
	program(t, failpoints)
	marks := slices.DeleteFunc(marksInSource(t), func(mark string) bool { return aboutSites(mark) || aboutPools(mark) })
	nothingLeft(t)
	var mu sync.Mutex
	died := map[string][]string{} // act to marks
	t.Run("lanes", func(t *testing.T) {
		for lane, mine := range deal(marks) {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, failpoints, "--nodes", "3", "--node-cores", "2")
				arms := armory{t, t.TempDir()}
				s.start(arms.environment())
				s.waitForNodes(3)
				rounds := [][]string{mine}
				if faultRounds(1) > 1 {
					for _, mark := range mine {
						rounds = append(rounds, []string{mark})
					}
				}
				for i, volley := range rounds {
					l := life{site: s, arms: arms, volley: volley, cluster: fmt.Sprintf("crash-%d", i), died: map[string][]string{}}
					l.live()
					if t.Failed() {
						return // what follows would only tell the same
					}
					mu.Lock()
					for act, at := range l.died {
						died[act] = append(died[act], at...)
					}
					mu.Unlock()
				}
			})
		}
	})
	if !t.Failed() {
		checkReached(t, marks, died)
	}
}

// checkReached checks that every mark was hit, and in each act those that it can't do without.
func checkReached(t *testing.T, marks []string, died map[string][]string) {
	t.Helper()
	reached := map[string]bool{}
	crashes := 0
	for act, at := range died {
		crashes += len(at)
		slices.Sort(at)
		t.Logf("%s: %s", act, strings.Join(slices.Compact(slices.Clone(at)), " "))
		for _, mark := range at {
			reached[mark] = true
		}
	}
	t.Logf("%d crashes", crashes)
	for _, mark := range marks {
		if reason, listed := unreached[mark]; listed == reached[mark] {
			t.Errorf("somebody died at %s: %v; listed as unreached: %v (%s). List it with a reason if nothing can come by it",
				mark, reached[mark], listed, reason)
		}
	}
	for act, least := range acts {
		for _, mark := range least {
			if !slices.Contains(died[act], mark) {
				t.Errorf("nobody died at %s in the act %q, which can't do without coming by it", mark, act)
			}
		}
	}
}

// Marks that acts have in common.
var (
	committing = []string{"state.after-chunks", "state.before-header", "state.after-header"}
	beginning  = slices.Concat(committing, []string{
		"controller.before-place", "agent.before-start", "agent.after-start", "container.after-write", "container.after-create",
		"container.after-attach", "container.after-start", "container.after-running", "node.after-veth", "node.after-rules",
	})
	ending = []string{
		"agent.before-clean", "agent.after-clean", "container.after-remove-dir", "container.after-remove-cgroups", "state.after-record",
	}
)

// acts are the acts of a life, each with marks that it can't do without: were it to come by none, it would show nothing.
var acts = map[string][]string{
	"group":       {"state.after-security-group"},
	"rules":       {"state.after-security-group-change"},
	"group end":   {"state.after-security-group-delete"},
	"address":     {"state.after-address"},
	"assign":      {"state.after-address-change", "node.after-floating"},
	"unassign":    {"state.after-address-change", "node.after-floating-off", "node.after-connections"},
	"release":     {"state.after-address-release"},
	"volume":      {"state.after-volume-intent"},
	"volume set":  {"state.after-volume-change"},
	"volume end":  {"state.after-volume-delete-request"},
	"volume back": {"state.after-volume-undelete"},
	"purge":       {"state.after-volume-delete-request", "state.before-volume-forgotten", "state.after-volume-forgotten"},
	"import":      {"state.after-volume-intent", "agent.before-import", "agent.after-import"},
	"import end":  {"state.after-import-given-up"},
	"dataset":     {"state.after-dataset"},
	"replica":     {"replica.before-place", "replica.before-whole"},
	"dataset end": {"state.after-dataset-delete"},
	"network":     {"state.after-network-intent", "controller.before-network", "state.after-network"},
	"records":     {"state.after-network-records"},
	"create":      append([]string{"state.after-intent", "container.after-sandbox-group", "container.after-sandbox"}, beginning...),
	"job":         {"state.after-job", "controller.after-job"},
	"scale up":    append([]string{"state.after-intent-change", "node.after-peer"}, beginning...),
	"scale down":  append([]string{"state.after-intent-change", "agent.before-stop", "container.after-kill", "node.after-forget"}, ending...),
	"pause":       {"state.after-intent-change", "state.after-record", "agent.before-freeze", "container.after-freeze"},
	"resume":      {"state.after-intent-change", "state.after-record", "agent.before-freeze"},
	"heal":        slices.Concat(beginning, ending),
	"requeue":     append([]string{"controller.after-job"}, beginning...),
	"drain":       beginning,
	"extend":      {"state.after-intent-change"},
	"delete":      append([]string{"state.after-delete-request", "state.before-forget", "state.after-forget", "agent.before-stop", "container.after-end-sandbox"}, ending...),
	"network end": {"state.after-network-delete-request", "state.after-network-forgotten"},
}

// life is one cluster's life with crashes in it.
type life struct {
	*site
	arms    armory
	volley  []string // marks that are armed together
	cluster string
	died    map[string][]string
}

// live makes a cluster live through every act, with the volley armed anew for each.
func (l life) live() {
	l.t.Helper()
	before := l.lookAtNodes()
	l.revive(true)
	three, five := first(3, l.cluster), first(5, l.cluster)
	network := api.ProjectNetwork("lab-" + l.cluster)
	l.act("network", func() {
		l.retry("network", "create", network, "--routed", "--no-wait")
		l.waitNetwork(network, func(n api.NetworkStatus, err error) bool { return err == nil && n.Phase == api.NetworkReady })
	})
	l.act("records", func() { l.retry("network", "set", network, "--add-record", "licence=10.20.0.5") })
	group := "guard-" + l.cluster
	l.act("group", func() { l.retry("security-group", "create", group) })
	l.act("create", func() {
		l.retry("cluster", "create", l.cluster, "--network", network, "--security-group", network+"="+group, "--size", "3", "--cores", "1", "--memory", "64MiB", "--egress", "--time-limit", "1h")
		l.waitMembers(l.cluster, three)
	})
	l.act("rules", func() { l.retry("security-group", "set", group, "--rule", "in any from group "+group) })
	l.act("job", func() { l.checkJob(l.submit(l.cluster, "-n", "3", "--", "hostname"), three) })
	l.act("scale up", func() {
		l.retry("cluster", "scale", l.cluster, "--size", "5")
		l.waitMembers(l.cluster, five)
		l.checkJob(l.submit(l.cluster, "-n", "5", "--", "hostname"), five) // every node hears of every other
	})
	l.act("scale down", func() {
		l.retry("cluster", "scale", l.cluster, "--size", "3")
		l.waitMembers(l.cluster, three)
	})
	l.act("pause", func() {
		l.retry("cluster", "pause", l.cluster)
		l.waitPhase(api.ClusterPaused)
	})
	l.act("resume", func() {
		l.retry("cluster", "resume", l.cluster)
		l.waitMembers(l.cluster, three)
	})
	l.act("heal", func() { l.waitReplaced(l.killMembers(l.cluster, three[2]), three) })
	l.act("requeue", func() { l.requeue(three) })
	l.act("drain", func() {
		l.retry("node", "drain", "n3", "--reason", "crashes")
		l.retry("cluster", "scale", l.cluster, "--size", "4")
		for name, m := range placed(l.waitMembers(l.cluster, first(4, l.cluster))) {
			if m.Node == "n3" && name == l.cluster+"-3" {
				l.t.Errorf("member %s was placed on the drained node", name)
			}
		}
		l.retry("node", "undrain", "n3")
	})
	l.act("extend", func() {
		l.retry("cluster", "extend", l.cluster, "--to", "2h")
		c := l.waitMembers(l.cluster, first(4, l.cluster))
		if limit := time.Duration(c.Spec.TimeLimit); limit != 2*time.Hour {
			l.t.Errorf("the time limit is %v, want 2h", limit)
		}
	})
	l.float()
	l.keep()
	l.data()
	c := l.waitMembers(l.cluster, first(4, l.cluster))
	l.checkUsable(c)
	l.checkSound()
	l.act("delete", func() {
		l.retry("cluster", "delete", l.cluster, "--yes")
		l.waitGone(l.cluster)
	})
	l.act("group end", func() { l.retry("security-group", "delete", group) })
	l.act("network end", func() {
		l.retry("network", "delete", network, "--no-wait")
		l.waitNetwork(network, func(_ api.NetworkStatus, err error) bool { return client.HasCode(err, "network_not_found") })
	})
	l.waitForNodes(3)
	l.revive(false)
	l.wantNothingOf(c.UID, before)
}

// float gives a member a floating address and takes it away.
func (l life) float() {
	l.t.Helper()
	var addresses []string
	l.act("address", func() {
		l.retry("address", "allocate")
		l.eventually(time.Minute, "the addresses", func() bool {
			all, err := l.api().Addresses(l.t.Context())
			for i := range all { // a lost answer may have been to another allocation
				addresses = append(addresses, all[i].Address.String())
			}
			return err == nil
		})
	})
	l.act("assign", func() {
		l.retry("address", "assign", addresses[0], l.cluster+"/"+l.cluster+"-1")
		l.wantSSH("at the floating address", addresses[0]+":22")
	})
	l.act("unassign", func() {
		l.retry("address", "unassign", addresses[0])
		l.wantNoSSH("at the address that leads nowhere", addresses[0]+":22")
	})
	l.act("release", func() { l.retry(append([]string{"address", "release"}, addresses...)...) })
}

// keep makes a volume, and deletes it twice: it comes back the first time.
func (l life) keep() {
	l.t.Helper()
	name := "data-" + l.cluster
	l.act("volume", func() { l.retry("volume", "create", name, "--size", "64MiB", "--no-wait") })
	l.act("volume set", func() { l.retry("volume", "resize", name, "--size", "128MiB", "--no-wait") })
	l.act("volume end", func() { l.retry("volume", "delete", name) })
	l.act("volume back", func() { l.retry("volume", "undelete", name) })
	l.act("purge", func() {
		l.retry("volume", "delete", name, "--now", "--yes", "--no-wait")
		l.eventually(time.Minute, "volume "+name, func() bool {
			_, err := l.api().Volume(l.t.Context(), name)
			return client.HasCode(err, "volume_not_found")
		})
	})
	l.imports(name)
}

// data adds a dataset, has a node keep a replica of it, and deletes it.
func (l life) data() {
	l.t.Helper()
	far, name := startNginx(l.t), "set-"+l.cluster
	sha, _ := far.add(name, 1<<20)
	url := "http://" + l.hostAddress() + ":" + far.port + "/" + name
	l.act("dataset", func() { l.retry("dataset", "add", name, "--file", url+",sha256="+sha) })
	l.act("replica", func() {
		l.retry("dataset", "replicate", name, "--node", "n1", "--no-wait")
		l.eventually(2*time.Minute, "a replica of "+name, func() bool {
			d, err := l.api().Dataset(l.t.Context(), name)
			return err == nil && len(d.Replicas) == 1 && d.Replicas[0].Phase == api.ReplicaWhole
		})
	})
	l.act("dataset end", func() { l.retry("dataset", "delete", name) })
}

// imports makes a volume of a backup, which is sent until it has arrived, and none of a damaged one.
func (l life) imports(name string) {
	l.t.Helper()
	backup := filepath.Join(l.t.TempDir(), name)
	l.must("volume", "create", name+"-a", "--size", "64MiB")
	l.must("volume", "backup", name+"-a", backup)
	l.must("volume", "delete", name+"-a", "--now", "--yes")
	ready := func() bool {
		v, err := l.api().Volume(l.t.Context(), name+"-b")
		return err == nil && v.Phase == api.VolumeReady
	}
	l.act("import", func() {
		l.eventually(2*time.Minute, "a volume of a backup", func() bool {
			return l.cli("volume", "create", name+"-b", "--from-backup", backup, "--timeout", "20s").code == 0 || ready()
		})
	})
	l.retry("volume", "delete", name+"-b", "--now", "--yes")
	whole, err := os.ReadFile(backup)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(backup+".cut", slices.Concat(whole[:20], whole[len(whole)-1024:]), 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.act("import end", func() {
		l.eventually(2*time.Minute, "the volume of a damaged backup to be gone", func() bool {
			if a := l.cli("volume", "create", name+"-c", "--from-backup", backup+".cut", "--timeout", "20s"); a.code == 0 {
				l.t.Fatalf("a volume was made of a damaged backup:\n%s", a.out)
			}
			_, err := l.api().Volume(l.t.Context(), name+"-c")
			return client.HasCode(err, "volume_not_found")
		})
	})
}

// waitNetwork waits until a network is as wanted, also while the server is away.
func (l life) waitNetwork(name string, done func(api.NetworkStatus, error) bool) {
	l.t.Helper()
	l.eventually(time.Minute, "network "+name, func() bool { return done(l.api().Network(l.t.Context(), name)) })
}

// act does something while the volley is armed, and notes who died of it.
func (l life) act(name string, do func()) {
	l.t.Helper()
	if l.t.Failed() {
		l.t.FailNow()
	}
	for _, mark := range l.volley {
		l.arms.arm(mark)
	}
	do()
	l.waitForMarks(name)
	for _, mark := range l.volley {
		if pid, hit := l.arms.disarm(mark); hit {
			l.died[name] = append(l.died[name], mark)
			l.eventually(time.Minute, fmt.Sprintf("process %d, which came by %s, to be dead", pid, mark), func() bool { return !alive(pid) })
		}
	}
	l.waitForNodes(3)
}

// waitForMarks waits until somebody has died at each armed mark that the act can't do without. What the act waits for may be seen before its last
// step is done: a floating address is off its link before the connections through it are forgotten. A mark that nobody comes by is told in the end.
func (l life) waitForMarks(act string) {
	l.t.Helper()
	end := time.Now().Add(30 * time.Second)
	for _, mark := range acts[act] {
		if slices.Contains(l.volley, mark) {
			l.eventually(time.Minute, "somebody to come by "+mark, func() bool { return !l.arms.armed(mark) || time.Now().After(end) })
		}
	}
}

// retry runs a command again while the server is away. Its second try may find what the first, unheard, has done.
func (l life) retry(args ...string) {
	l.t.Helper()
	unheard := map[string]int{
		"create": exitConflict, "delete": exitNotFound, "extend": exitConflict, "pause": exitConflict, "resume": exitConflict,
		"allocate": exitConflict, "release": exitNotFound, "add": exitConflict,
	}[args[1]]
	tries := 0
	l.eventually(2*time.Minute, strings.Join(args, " "), func() bool {
		a := l.cli(args...)
		tries++
		if a.code != 0 && (a.code != unheard || tries == 1) && a.code != exitUnreachable {
			l.t.Fatalf("nearmetal %s: exit code %d\n%s%s", strings.Join(args, " "), a.code, a.out, a.err)
		}
		return a.code != exitUnreachable
	})
}

// waitPhase waits until the cluster is in a phase.
func (l life) waitPhase(want api.ClusterPhase) {
	l.t.Helper()
	l.waitCluster(l.cluster, string(want), func(c api.Cluster) bool { return c.Status.Phase == want })
}

// checkJob waits until a job has ended, however crashes hit it, and checks that it ran on all members, each once.
func (l life) checkJob(id string, members []string) {
	l.t.Helper()
	job := l.waitJob(id, "end", func(j api.Job) bool { return j.Phase.Ended() })
	if job.Phase != api.JobSucceeded {
		l.t.Fatalf("want a job that succeeded, got %+v", job)
	}
	out := strings.Fields(openMPIWarning.ReplaceAllString(l.logOf(id), ""))
	if slices.Sort(out); !slices.Equal(out, members) {
		l.t.Errorf("hostname on %d ranks printed %q, want %q", len(members), out, members)
	}
}

// requeue kills a member under a job that asked to be run again then, and checks that it was, from its start and to its end.
func (l life) requeue(members []string) {
	l.t.Helper()
	c, err := l.api().Cluster(l.t.Context(), l.cluster)
	if err != nil {
		l.t.Fatal(err)
	}
	id := l.submit(l.cluster, "--requeue", "--", "sh", "-c", "echo begin; until [ -e go ]; do sleep 0.02; done; echo end")
	running := l.waitJob(id, "run", func(j api.Job) bool { return j.Phase == api.JobRunning })
	killed := l.killMembers(l.cluster, members[1])
	l.waitJob(id, "run again", func(j api.Job) bool { return j.Attempt > running.Attempt && j.Phase == api.JobRunning })
	l.waitReplaced(killed, members)
	if err := os.WriteFile(filepath.Join(l.sharedHome(c), "go"), nil, 0o644); err != nil {
		l.t.Fatal(err)
	}
	job := l.waitJob(id, "end", func(j api.Job) bool { return j.Phase.Ended() })
	if out := l.logOf(id); job.Phase != api.JobSucceeded || out != "begin\nend\n" {
		l.t.Errorf("the last attempt of the job printed %q, want %q; %+v", out, "begin\nend\n", job)
	}
	l.waitMembers(l.cluster, members)
}

// TestACrashAtAnyMarkInTheLifeOfASiteIsOutlived kills dev at every failpoint that making and removing the nodes' namespaces
// comes by.
func TestACrashAtAnyMarkInTheLifeOfASiteIsOutlived(t *testing.T) {
	program(t, failpoints)
	marks := slices.DeleteFunc(marksInSource(t), func(mark string) bool { return !aboutSites(mark) })
	nothingLeft(t)
	for _, mark := range marks {
		t.Run(mark, func(t *testing.T) {
			s := newSite(t, failpoints, "--nodes", "2", "--node-cores", "1")
			arms := armory{t, t.TempDir()}
			arms.arm(mark)
			s.start(arms.environment())
			s.revive(true)
			s.waitForNodes(2)
			first := s.pid()
			if how, _ := s.signal(syscall.SIGTERM); how.Signal() == syscall.SIGKILL {
				s.start(arms.environment())
				s.waitForNodes(2)
				s.stop()
			}
			pid, died := arms.disarm(mark)
			if reason, listed := unreached[mark]; listed == died {
				t.Errorf("process %d died: %v (the last was %d); listed as unreached: %v (%s)", pid, died, first, listed, reason)
			}
		})
	}
}

// alive tells whether a process runs; a zombie does not.
func alive(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !strings.Contains(string(status), "\nState:\tZ") && syscall.Kill(pid, 0) == nil
}
