package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/netns"
)

const (
	// deathTimer is after how much silence a node is given up (docs/decisions/015).
	deathTimer = 5 * time.Second
	// aLittle is what a replacement may take beyond it, on a machine that does other things, too.
	aLittle = 10 * time.Second
)

// silences are the ways an agent can fall silent while its members run on.
var silences = []struct {
	name  string
	begin func(s *site, node string)
	end   func(s *site, node string)
}{
	{"its agent is stopped", (*site).stopAgent, (*site).wakeAgent},
	{"nothing of its reaches the server", (*site).cutUp, (*site).mendNetwork},
	{"nothing of the server reaches it", (*site).cutDown, (*site).mendNetwork},
	{"it is cut off both ways", (*site).cutBoth, (*site).mendNetwork},
}

func (s *site) cutUp(node string)   { s.cut(node, "output", "daddr") }
func (s *site) cutDown(node string) { s.cut(node, "input", "saddr") }
func (s *site) cutBoth(node string) { s.cut(node, "output", "daddr", "input", "saddr") }

func TestASilentNode(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	t.Run("group", func(t *testing.T) {
		t.Run("long: its members are replaced and fenced", func(t *testing.T) {
			t.Parallel()
			longSilence(t)
		})
		t.Run("short: nothing changes", func(t *testing.T) {
			t.Parallel()
			shortSilence(t)
		})
	})
}

// longSilence makes nodes fall silent for longer than the death timer while their members run on. Another takes such a member's name
// and rank, and from then on nobody reaches the old one and it reaches nobody. When the node is heard again, nothing is
// left of it.
func longSilence(t *testing.T) {
	s := startSite(t, 8, "--nodes", "8", "--node-cores", "1", "--log-level", "debug") // which tells of every request that ends
	for range 1 + faultRounds(1)/10 {
		if silenceEach(t, s); t.Failed() {
			return
		}
		s.must("cluster", "delete", "c", "quiet", "--yes")
	}
}

// silenceEach makes a node fall silent in each way, one after the other.
func silenceEach(t *testing.T, s *site) {
	members := first(5, "c")
	s.cluster("c", 5)
	c := s.waitMembers("c", members)
	if err := os.Mkdir(filepath.Join(s.sharedHome(c), "stolen"), 0o755); err != nil {
		t.Fatal(err)
	}
	defer s.quietJob()()
	for i, silence := range silences {
		t.Run(silence.name, func(t *testing.T) {
			s := s.as(t)
			name := members[[]int{3, 4, 2, 1}[i]] // another each time: what dies again and again is replaced ever later
			before := s.waitMembers("c", members)
			old := s.oldMember(before, name)
			key := s.steal(before, old, fmt.Sprintf("stolen/%d", i))
			other := "c-1"
			if name == other {
				other = "c-2"
			}
			if a := s.loginWith("c", key, other); a.code != 0 {
				t.Fatalf("the key of a member that lives is refused: %s%s", a.out, a.err)
			}
			told := s.submit("c", "--failure-signal", "USR1", "--", "sh", "-c",
				`exec 2>/dev/null; trap 'echo told' USR1; echo begin; until [ -e told-over ]; do sleep 0.02; done; rm told-over; echo end`)
			s.waitJob(told, "run", func(j api.Job) bool { return j.Phase == api.JobRunning && s.logOf(told) == "begin\n" })

			mended := false
			silence.begin(s, old.Node)
			defer func() {
				if !mended {
					silence.end(s, old.Node)
				}
			}()
			began := time.Now()
			after := s.waitClusterFor(deathTimer+aLittle, "c", "ready with another "+name, func(c api.Cluster) bool {
				m := placed(c)[name]
				return c.Status.Phase == api.ClusterReady && m.Address != old.Address && m.Phase == api.MemberReady
			})
			t.Logf("replaced after %v", time.Since(began).Round(10*time.Millisecond))
			if took := time.Since(began); took < deathTimer-time.Second {
				t.Errorf("replaced after %v, before the death timer of %v had run out", took, deathTimer)
			}
			s.checkFenced(after, old, key, other)

			mended = true
			silence.end(s, old.Node)
			s.eventually(time.Minute, "the old member to be ended", func() bool { return !alive(old.pid) })
			now := s.waitMembers("c", members)
			if m := placed(now)[name]; m.Address != placed(after)[name].Address {
				t.Errorf("when its node was heard again, %s was replaced once more: it was at %s and is at %s", name, placed(after)[name].Address, m.Address)
			}
			s.waitForNodes(8)
			s.checkSound()
			if a := s.loginWith("c", key, other); a.code == 0 {
				t.Error("the key of the old member is accepted again")
			}
			if err := os.WriteFile(filepath.Join(s.sharedHome(c), "told-over"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			s.waitJob(told, "succeed", func(j api.Job) bool { return j.Phase == api.JobSucceeded })
			if out := s.logOf(told); out != "begin\ntold\nend\n" {
				t.Errorf("a job that runs on under the loss of one member printed %q, want that it was told once", out)
			}
			s.checkUsable(now)
		})
	}
}

// quietJob runs a job that says nothing for longer than any stream may stand still, and returns what waits for it and checks that
// it was waited for to its end.
func (s *site) quietJob() (check func()) {
	quiet := s.cluster("quiet", 1)
	job := s.background(context.WithoutCancel(s.t.Context()), "run", "quiet", "--", "sh", "-c", "until [ -e over ]; do sleep 0.1; done; echo over")
	began := time.Now()
	return func() {
		if s.t.Failed() {
			return // it may end before its time
		}
		s.eventually(time.Minute, "a long silence", func() bool { return time.Since(began) > 25*time.Second })
		if request := "path=/v1/jobs/" + s.runningJob("quiet") + "/log"; strings.Contains(s.log.String(), request) {
			s.t.Errorf("the stream of a job's output ended though the job goes on: the server's log has %q", request)
		}
		if err := os.WriteFile(filepath.Join(s.sharedHome(quiet), "over"), nil, 0o644); err != nil {
			s.t.Fatal(err)
		}
		if a := job.wait(); a.code != 0 || a.out != "over\n" {
			s.t.Errorf("a job that says nothing for long: exit code %d and %q, want 0 and that it is over\n%s", a.code, a.out, a.err)
		}
	}
}

// shortSilence makes a node fall silent for less than the death timer.
func shortSilence(t *testing.T) {
	s := startSite(t, 3, "--nodes", "3", "--node-cores", "1")
	s.cluster("c", 3)
	for _, silence := range silences {
		t.Run(silence.name, func(t *testing.T) {
			s := s.as(t)
			before := s.waitMembers("c", first(3, "c"))
			node := placed(before)["c-0"].Node // the one that runs the job
			job := s.background(t.Context(), "run", "c", "--", "sh", "-c", counting)
			s.eventually(time.Minute, "the job's output", func() bool { return strings.Contains(job.out.String(), "20\n") })
			mended := false
			began := time.Now()
			silence.begin(s, node)
			defer func() {
				if !mended {
					silence.end(s, node)
				}
			}()
			s.eventually(deathTimer, "the node to be missed", func() bool {
				n, err := s.api().Node(t.Context(), node)
				return err == nil && n.Agent != nil && n.Agent.LastSeenAt != nil && time.Since(*n.Agent.LastSeenAt) > deathTimer/2
			})
			mended = true
			silence.end(s, node)
			lasted := time.Since(began)
			s.waitForNodes(3)
			s.must("run", "c", "--", "touch", "go")
			if a := job.wait(); a.code != 7 {
				t.Errorf("the job's exit code is %d, want 7\n%s", a.code, a.err)
			}
			checkCounted(t, job.out.String())
			after := s.waitMembers("c", first(3, "c"))
			if lasted < deathTimer-time.Second && after.Status.Generation != before.Status.Generation {
				t.Errorf("after %v of silence the cluster is in generation %d and was in %d: nothing was to be decided anew",
					lasted, after.Status.Generation, before.Status.Generation)
			}
		})
	}
}

// oldMember is a member that is about to be given up.
type oldMember struct {
	api.MemberStatus
	pid int // of its first process
}

func (s *site) oldMember(c api.Cluster, name string) oldMember {
	s.t.Helper()
	m := placed(c)[name]
	return oldMember{m, s.processAt(c, m)}
}

// steal copies a member's key and certificate to where other members can read them, as their owner's.
func (s *site) steal(c api.Cluster, m oldMember, to string) string {
	s.t.Helper()
	home := s.sharedHome(c)
	var owner unix.Stat_t
	if err := unix.Stat(home, &owner); err != nil {
		s.t.Fatal(err)
	}
	for from, file := range map[string]string{"id_ed25519": to, "id_ed25519-cert.pub": to + "-cert.pub"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/nearmetal/ssh/%s", m.pid, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(home, file), text, 0o600)
		}
		if err == nil {
			err = os.Chown(filepath.Join(home, file), int(owner.Uid), int(owner.Gid))
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return to
}

// loginWith logs in to a member from rank 0 with a stolen key only.
func (s *site) loginWith(cluster, key, member string) answer {
	s.t.Helper()
	return s.cli("run", cluster, "--", "ssh", "-F", "none", "-i", key, "-o", "CertificateFile="+key+"-cert.pub", "-o", "IdentitiesOnly=yes",
		"-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "hpc@"+member, "true")
}

// checkFenced checks that an old member, whose process runs on, reaches nobody and is reached by nobody, and that its name is the new
// one's alone.
func (s *site) checkFenced(c api.Cluster, old oldMember, key, other string) {
	s.t.Helper()
	if !alive(old.pid) {
		s.t.Error("the old member's process has ended: what is checked here shows nothing")
	}
	members := placed(c)
	fresh := members[old.Name]
	script := "getent hosts " + old.Name + "; ssh " + old.Name + " hostname -I"
	if got := s.must("run", c.Name, "-n", fmt.Sprint(len(members)), "--", "sh", "-c", script); strings.Contains(got, old.Address+" ") ||
		strings.Count(got, fresh.Address+" ") != 2*len(members) {
		s.t.Errorf("%s, seen and reached from each member, is %q, want %s", old.Name, got, fresh.Address)
	}
	if got := s.must("cluster", "ssh", c.Name, old.Name, "--", "hostname", "-I"); strings.TrimSpace(got) != fresh.Address {
		s.t.Errorf("people reach %s at %q, want %s", old.Name, got, fresh.Address)
	}
	asker := s.processAt(c, members["c-0"])
	var questions []*question
	ask := func(pid int, address, who string, want ...string) {
		questions = append(questions, &question{pid: pid, address: address, who: who, want: want})
	}
	for name, m := range members {
		ask(s.processAt(c, m), old.Address, name+" the old "+old.Name)
		ask(old.pid, m.Address, "the old "+old.Name+" "+name)
		if name != "c-0" { // else what is checked here would show nothing
			ask(asker, m.Address, "c-0 "+name, "TCP", "ping")
		}
	}
	var all sync.WaitGroup
	for _, q := range questions {
		all.Go(q.ask)
	}
	all.Wait()
	for _, q := range questions {
		if !slices.Equal(q.answer, q.want) || q.err != nil {
			s.t.Errorf("asked whether %s reaches %s: by %v, want %v (%v)", q.who, q.address, q.answer, q.want, q.err)
		}
	}
	if a := s.loginWith(c.Name, key, other); a.code == 0 || !strings.Contains(a.out, "Permission denied") {
		s.t.Errorf("a login with the old member's key: exit code %d, want it to be denied\n%s%s", a.code, a.out, a.err)
	}
	if !alive(old.pid) {
		s.t.Error("the old member's process ended meanwhile: what was checked here shows nothing")
	}
}

// question asks by what an address answers within a second, from the network of a process: SSH's port, and ping.
type question struct {
	pid          int
	address, who string
	want         []string
	answer       []string
	err          error
}

func (q *question) ask() {
	q.err = inNetworkOf(q.pid, func() error {
		conn, err := (&net.Dialer{Timeout: time.Second}).Dial("tcp4", q.address+":22")
		if err == nil {
			q.answer = append(q.answer, "TCP")
			_ = conn.Close()
		}
		answers, err := echoes(q.address)
		if answers {
			q.answer = append(q.answer, "ping")
		}
		return err
	})
}

// processAt is the first process of the member that has a member's name and its address: an old one has the name, too.
func (s *site) processAt(c api.Cluster, m api.MemberStatus) int {
	s.t.Helper()
	for id, pid := range memberProcesses(s.t, c.UID) {
		if nameIn(id) == m.Name && slices.Contains(addressesOf(s.t, pid), m.Address) {
			return pid
		}
	}
	s.t.Fatalf("no process of %s has the address %s", m.Name, m.Address)
	return 0
}

// addressesOf lists the addresses in the network namespace of a process.
func addressesOf(t *testing.T, pid int) (found []string) {
	t.Helper()
	err := inNetworkOf(pid, func() error {
		all, err := net.InterfaceAddrs()
		for _, a := range all {
			found = append(found, strings.Split(a.String(), "/")[0])
		}
		return err
	})
	if err != nil && alive(pid) {
		t.Fatal(err)
	}
	return found
}

func inNetworkOf(pid int, do func() error) error {
	space, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	return errors.Join(space.Do(do), space.Close())
}

// echoes sends an ICMP echo request (RFC 792) and waits a second for the answer.
func echoes(address string) (bool, error) {
	conn, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return false, err
	}
	defer conn.Close()
	id := uint16(time.Now().UnixNano())
	request := []byte{8, 0, 0, 0, 0, 0, 0, 1}
	binary.BigEndian.PutUint16(request[4:], id)
	sum := uint32(8<<8) + uint32(id) + 1
	binary.BigEndian.PutUint16(request[2:], ^uint16(sum+sum>>16))
	to := netip.MustParseAddr(address)
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false, err
	}
	if _, err := conn.WriteTo(request, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return false, nil // no route, or kept back
	}
	for buf := make([]byte, 1500); ; {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return false, nil
		}
		if n >= 6 && buf[0] == 0 && binary.BigEndian.Uint16(buf[4:]) == id && from.String() == address {
			return true, nil
		}
	}
}

// agentOf is the process ID of a node's agent, which it writes into the file that it locks.
func (s *site) agentOf(node string) (pid int) {
	s.t.Helper()
	s.eventually(time.Minute, "an agent of node "+node, func() bool {
		text, err := os.ReadFile(filepath.Join(s.dir, "nodes", node, "lock"))
		_, scanned := fmt.Sscan(string(text), &pid)
		return err == nil && scanned == nil
	})
	return pid
}

func (s *site) stopAgent(node string) { s.signalAgent(node, syscall.SIGSTOP) }
func (s *site) wakeAgent(node string) { s.signalAgent(node, syscall.SIGCONT) }

func (s *site) signalAgent(node string, signal syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(s.agentOf(node), signal); err != nil {
		s.t.Fatalf("%v to the agent of node %s: %v", signal, node, err)
	}
}

// cut drops what a node sends to the server (output, daddr), what it is sent by it (input, saddr), or both. The members' network is
// as it was.
func (s *site) cut(node string, ways ...string) {
	s.t.Helper()
	rules := "table inet cut {\n"
	for i := 0; i < len(ways); i += 2 {
		rules += fmt.Sprintf("chain %s { type filter hook %[1]s priority -300; ip %s %s drop; }\n", ways[i], ways[i+1], s.serverFor(node))
	}
	s.nft(node, rules+"}\n")
}

func (s *site) mendNetwork(node string) { s.nft(node, "delete table inet cut\n") }

// nft feeds rules to a node's network namespace.
func (s *site) nft(node, rules string) {
	s.t.Helper()
	cmd := exec.Command("nsenter", "--net="+filepath.Join(s.dir, "spaces", node, "net"), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("nft on node %s: %v\n%s%s", node, err, out, rules)
	}
}

// serverFor is the server's address as a node's agent has it.
func (s *site) serverFor(node string) string {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.agentOf(node)))
	words := strings.Split(string(text), "\x00")
	if i := slices.Index(words, "--server"); err == nil && i >= 0 && i+1 < len(words) {
		host, _, err := net.SplitHostPort(words[i+1])
		if err == nil {
			return host
		}
	}
	s.t.Fatalf("the server's address is not in %q (%v)", words, err)
	return ""
}
