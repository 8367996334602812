package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/netns"
)

const (
	// acrossRounds is how often each exchange is measured on every side, in turn; acrossLimit how long that may take for one exchange on a
	// machine that is busy.
	acrossRounds = 100
	acrossLimit  = time.Minute
	// acrossGoal is the efficiency that members on two nodes are to reach.
	acrossGoal = 0.97
	// oneExchange is how long one may take.
	oneExchange = 20 * time.Second
)

// The sides. Bare processes use the link that the nodes of the site have; those of a lab made by hand show what each piece of a network
// between nodes costs.
const (
	acrossBare    = "bare"
	acrossMembers = "members"
	acrossVeth    = "one veth"
	acrossUnder   = "lab: underlay"
	acrossTunnel  = "lab: + VXLAN"
	acrossBridge  = "lab: + bridge and veth"
	acrossMacvlan = "lab: macvlan, no tunnel"
)

// memberProgram is where members find this program.
const memberProgram = "/home/hpc/bench"

// acrossExchanges are what is measured, each about 20 ms.
var acrossExchanges = []struct {
	title string
	exchange
}{
	{"ping-pong of 8 B", exchange{Bytes: 8, Count: 30, Batches: 25}},
	{"ping-pong of 64 KiB", exchange{Bytes: 64 << 10, Count: 10, Batches: 25}},
	{"ping-pong of 1 MiB", exchange{Bytes: 1 << 20, Count: 1, Batches: 20}},
	{"one way, 16 messages of 1 MiB at a time", exchange{Bytes: 1 << 20, Count: 16, Batches: 3, OneWay: true}},
}

// across compares TCP between members on two nodes with TCP between bare processes over the same link.
func across(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (err error) {
	a := &acrossRun{o: o, dir: filepath.Join(work, "across"), sides: map[string]*messengers{}, said: map[string]*bytes.Buffer{}}
	defer func() { err = errors.Join(err, a.close()) }()
	if a.self, err = os.Executable(); err != nil {
		return err
	}
	dev, err := startSite(ctx, o.nearmetal, filepath.Join(a.dir, "state"), 2, 1, memory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.stop()) }()
	if err := dev.Create(ctx, 2); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close(), dev.Delete(context.WithoutCancel(ctx))) }()
	mtu, err := a.startAll(ctx, dev)
	if err != nil {
		return err
	}
	fmt.Fprintf(text, "TCP between two nodes, %d rounds in turn on %s at load %s, both ends polling, pinned to %s and in the members' CPU control groups; the members' MTU is %d\n"+
		"  goal for members against bare processes over the same link: %.2f\n", acrossRounds, coresOf(), load(), a.pinned, mtu, acrossGoal)
	names := []string{acrossBare, acrossMembers, acrossVeth, acrossUnder, acrossTunnel, acrossBridge, acrossMacvlan}
	for _, e := range acrossExchanges {
		times, err := a.measure(ctx, e.exchange, names)
		if err != nil {
			return fmt.Errorf("%s: %w; until then:\n%s%s", e.title, err, text, a.memberWords(ctx))
		}
		log.Info("measured across nodes", "exchange", e.title, "rounds", len(times[acrossBare]))
		text.WriteString(acrossTable(e.title, e.exchange, names, times))
	}
	text.WriteString("\n")
	return nil
}

// acrossRun is everything that is started for it.
type acrossRun struct {
	o         options
	self, dir string
	// pinned says which CPUs the messengers use.
	pinned string
	cpus   [2]string
	// groups are the files by which a process joins the CPU control group of each member.
	groups    [2]string
	sides     map[string]*messengers
	said      map[string]*bytes.Buffer
	processes []*exec.Cmd
	spaces    []netns.Handle
	// jobLog reads what the members' messengers have printed, to its end if they are followed.
	jobLog func(ctx context.Context, follow bool) string
}

// startAll starts messengers on all sides, and returns the MTU of the members.
func (a *acrossRun) startAll(ctx context.Context, dev *site) (int, error) {
	cluster, err := dev.client.Cluster(ctx, clusterName)
	if err != nil {
		return 0, err
	}
	members := cluster.Status.Members
	if len(members) != 2 || members[0].Node == members[1].Node {
		return 0, fmt.Errorf("the members are not on two nodes: %v", members)
	}
	var nodes [2]netns.Handle
	for _, m := range members {
		pid, err := dev.agentOf(m.Node)
		if err != nil {
			return 0, err
		}
		if nodes[m.Rank], err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
			return 0, err
		}
		a.spaces = append(a.spaces, nodes[m.Rank])
		a.cpus[m.Rank] = "-"
		if len(m.CPUs) == 1 {
			a.cpus[m.Rank] = strconv.Itoa(m.CPUs[0])
		}
	}
	a.pinned = fmt.Sprintf("CPUs %s and %s", a.cpus[0], a.cpus[1])
	if a.cpus[0] == a.cpus[1] {
		a.pinned += " (OVERSUBSCRIBED: both ends share what they have)"
	}
	mtu, err := a.startMembers(ctx, dev, cluster)
	if err != nil {
		return 0, err
	}
	if err := a.findGroups(ctx); err != nil {
		return 0, err
	}
	address, err := inside(ctx, nodes[0], "ip", "-4", "-o", "address", "show", "dev", "underlay")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(field(address, 3), "/")
	if err := a.start(ctx, acrossBare, first, nodes[0], nodes[1]); err != nil {
		return 0, err
	}
	return mtu, a.startLabs(ctx, mtu)
}

// startMembers starts a job of two messengers on the cluster.
func (a *acrossRun) startMembers(ctx context.Context, dev *site, cluster api.Cluster) (mtu int, err error) {
	home := filepath.Join(a.dir, "state", "home", cluster.UID, "hpc")
	program, err := os.ReadFile(a.self)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(home, "bench"), program, 0o755); err != nil {
		return 0, err
	}
	if a.sides[acrossMembers], err = newMessengers(filepath.Join(home, "across")); err != nil {
		return 0, err
	}
	mtus, err := dev.printed(ctx, api.JobRequest{Command: []string{"cat", "/sys/class/net/eth0/mtu"}, Ranks: 1})
	if err != nil {
		return 0, err
	}
	if mtu, err = strconv.Atoi(strings.TrimSpace(mtus)); err != nil {
		return 0, fmt.Errorf("the MTU of a member's eth0 is %q: %w", mtus, err)
	}
	job, err := dev.client.CreateJob(ctx, clusterName, api.JobRequest{
		Command: []string{memberProgram, messengerCommand, "/home/hpc/across", "mpi", "eth0", "-"}, Ranks: 2,
	})
	if err != nil {
		return 0, err
	}
	a.jobLog = func(ctx context.Context, follow bool) string {
		var out bytes.Buffer
		_, _ = dev.client.JobLog(ctx, job.ID, 0, follow, &out)
		return out.String()
	}
	return mtu, nil
}

// memberWords is what the messengers in members have printed.
func (a *acrossRun) memberWords(ctx context.Context) string {
	if a.jobLog == nil {
		return ""
	}
	return "the members' messengers said: " + a.jobLog(ctx, false)
}

// printed runs a job and returns what it printed.
func (s *site) printed(ctx context.Context, request api.JobRequest) (string, error) {
	return s.printedBy(ctx, clusterName, request)
}

// printedBy runs a job on a cluster and returns what it printed.
func (s *site) printedBy(ctx context.Context, cluster string, request api.JobRequest) (string, error) {
	job, err := s.client.CreateJob(ctx, cluster, request)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	_, err = s.client.JobLog(ctx, job.ID, 0, true, &out)
	return out.String(), err
}

// start starts messengers as bare processes in two network namespaces, pinned as the members are.
func (a *acrossRun) start(ctx context.Context, name, address string, first, second netns.Handle) error {
	m, err := newMessengers(filepath.Join(a.dir, strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, strings.ToLower(name))))
	if err != nil {
		return err
	}
	a.sides[name], a.said[name] = m, &bytes.Buffer{}
	for rank, space := range []netns.Handle{first, second} {
		cmd := exec.CommandContext(ctx, a.self, messengerCommand, m.dir, strconv.Itoa(rank), address, a.cpus[rank])
		cmd.Stderr = a.said[name]
		if err := space.Do(cmd.Start); err != nil {
			return err
		}
		a.processes = append(a.processes, cmd)
		if err := os.WriteFile(a.groups[rank], []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
			return fmt.Errorf("giving a bare process the CPU shares of a member: %w", err)
		}
	}
	return nil
}

// findGroups waits for the members' messengers, and finds their CPU control groups. Bare processes join them: whatever else runs on the
// machine then takes as much from all sides, and what differs is the network.
func (a *acrossRun) findGroups(ctx context.Context) error {
	for deadline := time.Now().Add(oneExchange); ; {
		for rank := range a.groups {
			a.groups[rank] = ""
		}
		// The pattern is well formed.
		processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, process := range processes {
			line, _ := os.ReadFile(process)
			if !strings.HasPrefix(string(line), memberProgram+"\x00"+messengerCommand+"\x00") {
				continue
			}
			environment, _ := os.ReadFile(filepath.Join(filepath.Dir(process), "environ"))
			groups, _ := os.ReadFile(filepath.Join(filepath.Dir(process), "cgroup"))
			for rank := range a.groups {
				if strings.Contains("\x00"+string(environment), fmt.Sprintf("\x00OMPI_COMM_WORLD_RANK=%d\x00", rank)) {
					a.groups[rank] = cpuGroup(string(groups))
				}
			}
		}
		if a.groups[0] != "" && a.groups[1] != "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no messengers run in the members; %s", a.memberWords(ctx))
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// cpuGroup is the file by which a process joins the CPU control group that /proc/PID/cgroup names: of cgroup v1 if it has one for CPUs, or
// else of v2 (cgroups(7)).
func cpuGroup(groups string) string {
	unified := ""
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if slices.Contains(strings.Split(parts[1], ","), "cpu") {
			return filepath.Join("/sys/fs/cgroup/cpu", parts[2], "cgroup.procs")
		}
		if parts[0] == "0" {
			unified = filepath.Join("/sys/fs/cgroup", parts[2], "cgroup.procs")
		}
	}
	return unified
}

// startLabs makes networks by hand, of namespaces that go with this process: one veth pair; two nodes at a switch as `nearmetal dev` has
// them, bare, with a VXLAN tunnel, with a bridge and a veth pair behind it, and with a link of
// the members' own on the underlay instead, which no tenant could be given like this, since nothing keeps him from it.
func (a *acrossRun) startLabs(ctx context.Context, mtu int) error {
	var spaces [9]netns.Handle
	for i := range spaces {
		made, err := netns.New()
		if err != nil {
			return err
		}
		a.spaces, spaces[i] = append(a.spaces, made), made
		// As nodespace sets up a node's: no second round through the rules for bridged packets.
		const quiet = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; ip link set lo up\n" +
			"for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 > $f; done"
		if _, err := inside(ctx, made, "sh", "-ec", quiet); err != nil {
			return err
		}
	}
	one, two, sw, node1, node2, member1, member2 := spaces[0], spaces[1], spaces[2], spaces[3], spaces[4], spaces[5], spaces[6]
	const under = 65535 // as underlay.go of nodespace has it
	type command struct {
		where netns.Handle
		text  string
	}
	commands := []command{
		{one, fmt.Sprintf("ip link add eth0 mtu %d type veth peer name eth0 mtu %d netns %s; ip address add 10.1.0.1/24 dev eth0; ip link set eth0 up", mtu, mtu, two.Path())},
		{two, "ip address add 10.1.0.2/24 dev eth0; ip link set eth0 up"},
		{sw, fmt.Sprintf("ip link add underlay mtu %d type bridge mcast_snooping 0; ip link set underlay up", under)},
	}
	for i, node := range []netns.Handle{node1, node2} {
		n, other, member, direct := i+1, 2-i, []netns.Handle{member1, member2}[i], spaces[7+i]
		commands = append(commands,
			command{sw, fmt.Sprintf("ip link add node%d mtu %d type veth peer name underlay mtu %d netns %s; ip link set node%d master underlay up", n, under, under, node.Path(), n)},
			command{node, fmt.Sprintf(`ip address add 10.2.0.%d/24 dev underlay; ip link set underlay up
				ip link add tunnel mtu %d type vxlan id 1 local 10.2.0.%d remote 10.2.0.%d dstport 4789; ip address add 10.3.0.%d/24 dev tunnel; ip link set tunnel up
				ip link add bridged mtu %d type vxlan id 2 local 10.2.0.%d remote 10.2.0.%d dstport 4789
				ip link add bridge mtu %d type bridge mcast_snooping 0; ip link set bridge up; ip link set bridged master bridge up
				ip link add port mtu %d type veth peer name eth0 mtu %d netns %s; ip link set port master bridge up
				ip link add link underlay name direct mtu %d type macvlan mode bridge; ip link set direct netns %s name eth0`,
				n, mtu, n, other, n, mtu, n, other, mtu, mtu, mtu, member.Path(), mtu, direct.Path())},
			command{direct, fmt.Sprintf("ip address add 10.5.0.%d/24 dev eth0; ip link set eth0 up", n)},
			command{member, fmt.Sprintf("ip address add 10.4.0.%d/24 dev eth0; ip link set eth0 up", n)})
	}
	for _, c := range commands {
		if _, err := inside(ctx, c.where, "sh", "-ec", c.text); err != nil {
			return err
		}
	}
	return errors.Join(a.start(ctx, acrossVeth, "10.1.0.1", one, two), a.start(ctx, acrossUnder, "10.2.0.1", node1, node2),
		a.start(ctx, acrossTunnel, "10.3.0.1", node1, node2), a.start(ctx, acrossBridge, "10.4.0.1", member1, member2),
		a.start(ctx, acrossMacvlan, "10.5.0.1", spaces[7], spaces[8]))
}

// measure has an exchange done by all sides in turn, again and again, and returns what each took, in seconds.
func (a *acrossRun) measure(ctx context.Context, e exchange, names []string) (map[string][]float64, error) {
	warm := e
	warm.Batches = max(1, e.Batches/5)
	times, begun := map[string][]float64{}, time.Now()
	for round := range acrossRounds + 1 {
		if round > 1 && time.Since(begun) > acrossLimit {
			break
		}
		for i := range names {
			name := names[(i+round)%len(names)] // each is first, and after each, as often as the others
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if _, err := a.sides[name].measure(warm, oneExchange); err != nil {
				return nil, fmt.Errorf("%s: %w; they said: %s", name, err, a.said[name])
			}
			seconds, err := a.sides[name].measure(e, oneExchange)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if round > 0 { // the first is for connections to find their pace
				times[name] = append(times[name], seconds)
			}
		}
	}
	return times, nil
}

// acrossTable tells what an exchange took on each side, and how that compares with the first.
func acrossTable(title string, e exchange, names []string, times map[string][]float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s, %d rounds: median of one way, and efficiency against %s\n", title, len(times[names[0]]), names[0])
	for _, name := range names {
		seconds := measure.Median(times[name])
		fmt.Fprintf(&b, "    %-24s %10.2f µs", name, seconds*1e6)
		if e.OneWay {
			fmt.Fprintf(&b, " %7.2f GB/s", float64(e.Bytes)/seconds/1e9)
		}
		if name != names[0] {
			ratios := ratiosOf(times[names[0]], times[name])
			of := measure.MedianInterval(ratios, measure.DefaultLevel)
			fmt.Fprintf(&b, "  %.3f [%.3f, %.3f]", of.Value, of.Low, of.High)
			if name == acrossMembers {
				b.WriteString("  " + measure.GoalText(ratios, acrossGoal))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// ratiosOf divides pair by pair.
func ratiosOf(numerators, divisors []float64) []float64 {
	ratios := make([]float64, min(len(numerators), len(divisors)))
	for i := range ratios {
		ratios[i] = numerators[i] / divisors[i]
	}
	return ratios
}

// close ends all messengers and waits for them.
func (a *acrossRun) close() error {
	var err error
	for _, m := range a.sides {
		err = errors.Join(err, m.close())
	}
	if a.jobLog != nil { // until the job has ended
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		_ = a.jobLog(ctx, true)
		cancel()
	}
	for _, p := range a.processes {
		_ = p.Wait() // its words are shown where it was missed
	}
	for _, s := range a.spaces {
		err = errors.Join(err, s.Close())
	}
	a.sides, a.jobLog, a.processes, a.spaces = nil, nil, nil, nil
	return err
}

// inside runs a program in a network namespace and returns what it printed.
func inside(ctx context.Context, where netns.Handle, name string, args ...string) (string, error) {
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := where.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, problems.String())
	}
	return out.String(), nil
}

// field is the n-th field of a text, counting from 0; "" if it has fewer.
func field(text string, n int) string {
	fields := strings.Fields(text)
	if n >= len(fields) {
		return ""
	}
	return fields[n]
}
