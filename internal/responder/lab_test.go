package responder

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// space is a network namespace that lasts as long as the test.
type space struct{ netns.Handle }

func newSpace(t testing.TB) space {
	t.Helper()
	s, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return space{s}
}

// try runs a shell script inside.
func (s space) try(script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := s.Do(cmd.Start); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

func (s space) run(t testing.TB, script string) string {
	t.Helper()
	out, err := s.try(script)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// lab is a node with the fabric and a responder.
type lab struct {
	space
	fabric *node.Fabric
	*Responder
	stop func()
}

func newLab(t testing.TB) *lab {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	needs.Program(t, "nft")
	l := &lab{space: newSpace(t)}
	l.run(t, "echo 0 > /proc/sys/net/ipv4/ip_forward; ip link set lo up")
	if err := l.Do(func() (err error) {
		l.fabric, err = node.New(node.Config{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.fabric.Close() })
	l.start(t)
	t.Cleanup(func() { l.stop() })
	return l
}

// start starts a responder, as an agent does.
func (l *lab) start(t testing.TB) {
	t.Helper()
	if err := l.Do(func() (err error) {
		l.Responder, err = New(slog.New(slog.NewTextHandler(t.Output(), nil)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r := l.Responder
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	l.stop = func() {
		cancel()
		<-done
		_ = r.Close()
		l.stop = func() {}
	}
}

// serve applies networks and has the responder answer on them.
func (l *lab) serve(t testing.TB, networks ...Network) {
	t.Helper()
	var applied []fabric.Network
	for _, n := range networks {
		applied = append(applied, n.Network)
	}
	if err := l.fabric.Apply(t.Context(), applied); err != nil {
		t.Fatal(err)
	}
	l.Serve(networks)
}

// attach makes a namespace for port i of a network.
func (l *lab) attach(t testing.TB, n Network, i int) space {
	t.Helper()
	member := newSpace(t)
	port := n.Ports[i]
	port.Interface = "eth0"
	if err := l.fabric.Attach(t.Context(), port, fabric.Namespace(member.Path())); err != nil {
		t.Fatal(err)
	}
	return member
}

func labNetwork() Network {
	n := testNetwork()
	for i := range n.Ports {
		n.Ports[i].Interface = "eth0"
	}
	return n
}

// forget takes the address off a member's interface, as a guest that nobody has set up lacks one.
const forget = "ip address flush dev eth0; "

// udhcpc runs busybox' DHCP client and returns the environment of its script.
func (s space) udhcpc(t testing.TB, args string) (map[string]string, error) {
	t.Helper()
	needs.Program(t, "busybox")
	dir := t.TempDir()
	script, told := filepath.Join(dir, "script"), filepath.Join(dir, "told")
	text := "#!/bin/sh\n[ $1 = bound ] || exit 0\nenv > " + told + "\nip addr flush dev $interface\nip addr add $ip/$mask dev $interface\n" +
		"[ -z \"$router\" ] || ip route add default via $router\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := s.try("busybox udhcpc -i eth0 -f -n -q -t 10 -T 1 -O mtu -O search -O hostname -s " + script + " " + args)
	if err != nil {
		return nil, errors.New(out)
	}
	content, err := os.ReadFile(told)
	values := map[string]string{}
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = value
	}
	return values, err
}

func TestRealClientsGetTheAddressOfTheirPort(t *testing.T) {
	l := newLab(t)
	n := labNetwork()
	l.serve(t, n)
	one, two := l.attach(t, n, 0), l.attach(t, n, 1)
	one.run(t, forget)
	told, err := one.udhcpc(t, "")
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"ip": "10.64.16.2", "mask": "20", "serverid": "10.64.16.1", "dns": "10.64.16.1", "domain": "one.nearmetal.internal", "router": "",
		"search": "one.nearmetal.internal nearmetal.internal", "hostname": "one-0", "lease": "86400", "mtu": "65521",
	} {
		if told[key] != want {
			t.Errorf("udhcpc hears %s=%q, want %q", key, told[key], want)
		}
	}
	if told, err := one.udhcpc(t, "-r 10.64.16.9"); err != nil || told["ip"] != "10.64.16.2" {
		t.Errorf("a client that requests another address gets %q (%v)", told["ip"], err)
	}
	needs.Program(t, "dhclient")
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/script", []byte("#!/bin/sh\nenv >> "+dir+"/told\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := " -sf " + dir + "/script -lf " + dir + "/leases -pf " + dir + "/pid eth0"
	two.run(t, forget+"dhclient -4 -1"+files)
	defer two.run(t, "dhclient -4 -x"+files)
	if got, _ := os.ReadFile(dir + "/told"); !strings.Contains(string(got), "new_ip_address=10.64.16.3\n") {
		t.Errorf("dhclient hears\n%s", got)
	}
}

func TestRealResolversGetNames(t *testing.T) {
	l := newLab(t)
	n := labNetwork()
	l.serve(t, n)
	one := l.attach(t, n, 0)
	needs.Program(t, "dig")
	for question, want := range map[string]string{
		"one-1.one.nearmetal.internal":                 "10.64.16.3",
		"two-0.two.nearmetal.internal":                 "10.64.128.4",
		"+search +domain=nearmetal.internal two-0.two": "10.64.128.4",
		"-x 10.64.16.3":                                "one-1.one.nearmetal.internal.",
		"one.nearmetal.internal":                       "10.64.16.2 10.64.16.3",
	} {
		out := one.run(t, "dig +short +tries=10 +time=1 @10.64.16.1 "+question+" | sort")
		if got := strings.Join(strings.Fields(out), " "); got != want {
			t.Errorf("dig %s: got %s, want %s", question, got, want)
		}
	}
	for question, want := range map[string]string{"nobody.one.nearmetal.internal": "NXDOMAIN", "example.com": "REFUSED", "one-0.one.nearmetal.internal AAAA": "NOERROR"} {
		if out := one.run(t, "dig +tries=10 +time=1 @10.64.16.1 "+question); !strings.Contains(out, "status: "+want) {
			t.Errorf("dig %s: want %s in\n%s", question, want, out)
		}
	}
}

func TestAnAgentThatRestartsAnswersAgainAndLeavesNothing(t *testing.T) {
	l := newLab(t)
	n := labNetwork()
	before := l.run(t, "ip -o link; ip -o address; ip route show table all; nft list ruleset; cat /proc/net/packet | wc -l")
	l.serve(t, n)
	one := l.attach(t, n, 0)
	if _, err := one.udhcpc(t, ""); err != nil {
		t.Fatal(err)
	}
	l.stop()
	if out := l.run(t, "wc -l < /proc/net/packet"); strings.TrimSpace(out) != "1" {
		t.Errorf("after the responder's end there are still packet sockets: %s", l.run(t, "cat /proc/net/packet"))
	}
	l.start(t)
	l.Serve([]Network{n})
	if told, err := one.udhcpc(t, ""); err != nil || told["ip"] != "10.64.16.2" {
		t.Errorf("after a restart the client gets %q (%v)", told["ip"], err)
	}
	if err := l.fabric.Detach(t.Context(), n.Ports[0].ID); err != nil {
		t.Fatal(err)
	}
	l.serve(t)
	l.stop()
	if after := l.run(t, "ip -o link; ip -o address; ip route show table all; nft list ruleset; cat /proc/net/packet | wc -l"); after != before {
		t.Errorf("the node had\n%s\nand has\n%s", before, after)
	}
}

func TestABridgeThatWasReplacedIsListenedOnAgain(t *testing.T) {
	l := newLab(t)
	n := labNetwork()
	l.serve(t, n)
	one := l.attach(t, n, 0)
	if _, err := one.udhcpc(t, ""); err != nil {
		t.Fatal(err)
	}
	l.run(t, "ip link delete nmbr1")
	l.serve(t, n) // as the agent does after its audit
	if told, err := one.udhcpc(t, ""); err != nil || told["ip"] != "10.64.16.2" {
		t.Errorf("over a new bridge the client gets %q (%v)", told["ip"], err)
	}
}

func TestNamesOfTheOutsideAreAskedOfTheSitesServers(t *testing.T) {
	l := newLab(t)
	needs.Program(t, "dnsmasq")
	needs.Program(t, "dig")
	outside := newSpace(t)
	l.run(t, "ip link add up0 type veth peer name up1; ip link set up1 netns "+outside.Path()+"; ip address add 198.18.0.1/24 dev up0; ip link set up0 up")
	outside.run(t, "ip link set lo up; ip address add 198.18.0.53/24 dev up1; ip link set up1 up")
	pid := filepath.Join(t.TempDir(), "pid")
	outside.run(t, "dnsmasq --user=root --no-resolv --no-hosts --conf-file=/dev/null --listen-address=198.18.0.53 --bind-interfaces --pid-file="+pid+
		" --address=/example.com/192.0.2.80 --address=/nearmetal.internal/192.0.2.66 --log-facility=/dev/null")
	t.Cleanup(func() { _, _ = outside.try("kill $(cat " + pid + ")") })
	n := labNetwork()
	n.Members["a"] = Member{Name: "one-0", Names: NewNames("one", []byte(testHosts), []byte("nameserver 198.18.0.99\nnameserver 198.18.0.53\n"))}
	l.serve(t, n)
	one, two := l.attach(t, n, 0), l.attach(t, n, 1)
	if out := one.run(t, "dig +short +tries=3 +time=9 @10.64.16.1 www.example.com"); strings.TrimSpace(out) != "192.0.2.80" {
		t.Errorf("a name of the outside is answered with %q", out)
	}
	if out := one.run(t, "dig +tries=3 @10.64.16.1 nobody.nearmetal.internal"); !strings.Contains(out, "status: NXDOMAIN") {
		t.Errorf("a name of the domain is asked outside:\n%s", out)
	}
	if out := two.run(t, "dig +tries=3 @10.64.16.1 www.example.com"); !strings.Contains(out, "status: REFUSED") {
		t.Errorf("a member without a way out gets\n%s", out)
	}
}

func TestAMemberThatPlaysDHCPServerHearsAndReachesNoClient(t *testing.T) {
	needs.Program(t, "dnsmasq")
	for _, guarded := range []bool{true, false} {
		l := newLab(t)
		n := labNetwork()
		l.serve(t, n)
		rogue, client := l.attach(t, n, 0), l.attach(t, n, 1)
		if !guarded { // the bridge alone, and nobody who answers on the node
			l.stop()
			l.run(t, "nft delete table bridge nm")
		}
		pid := filepath.Join(t.TempDir(), "pid")
		rogue.run(t, "dnsmasq --user=root --port=0 --conf-file=/dev/null --interface=eth0 --bind-interfaces --pid-file="+pid+
			" --dhcp-range=10.64.16.200,10.64.16.220 --dhcp-authoritative --dhcp-leasefile="+pid+".leases --log-facility=/dev/null")
		t.Cleanup(func() { _, _ = rogue.try("kill $(cat " + pid + ")") })
		client.run(t, forget)
		told, err := client.udhcpc(t, "")
		if err != nil {
			t.Fatalf("guarded %t: the client gets no address: %v", guarded, err)
		}
		server := told["serverid"]
		leases, _ := os.ReadFile(pid + ".leases")
		switch {
		case guarded && (server != "10.64.16.1" || told["ip"] != "10.64.16.3" || len(leases) > 0):
			t.Errorf("the client has %s of %s, and the rogue server leases %q; want the node's answer alone", told["ip"], server, leases)
		case !guarded && server != "10.64.16.2":
			t.Errorf("with the guard off, the client has %s of %s: the rogue server does not work, so the test proves nothing", told["ip"], server)
		}
	}
}

func TestMembersWithASecurityGroupGetAnAddressAndNames(t *testing.T) {
	l := newLab(t)
	needs.Program(t, "dig")
	n := labNetwork()
	n.Groups = []fabric.Group{{ID: "closed", Ports: []string{"a"}, Rules: onlyOut(t)}}
	l.serve(t, n)
	one := l.attach(t, n, 0)
	one.run(t, forget)
	if told, err := one.udhcpc(t, ""); err != nil || told["ip"] != "10.64.16.2" {
		t.Errorf("the client gets %q (%v)", told["ip"], err)
	}
	if out := one.run(t, "dig +short +tries=5 +time=1 @10.64.16.1 one-1.one.nearmetal.internal"); strings.TrimSpace(out) != "10.64.16.3" {
		t.Errorf("dig gets %q", out)
	}
}

func TestDHCPMessagesReachNeitherOtherMembersNorTheNodesOwnStack(t *testing.T) {
	const count = "nft add table ip seen; nft 'add chain ip seen arrived { type filter hook input priority -400; }'; nft add rule ip seen arrived udp dport 67 counter"
	for _, egress := range []bool{false, true} {
		l := newLab(t)
		n := labNetwork()
		n.Egress = egress
		if egress {
			n.Members["a"] = Member{Name: "one-0", Names: n.Members["a"].Names, Routes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
		}
		l.serve(t, n)
		one, two := l.attach(t, n, 0), l.attach(t, n, 1)
		l.run(t, count)
		two.run(t, count)
		one.run(t, forget)
		told, err := one.udhcpc(t, "-B")
		if err != nil || told["ip"] != "10.64.16.2" || (told["router"] == "10.64.16.1") != egress {
			t.Errorf("egress %t: the client gets %q of %q by %q (%v)", egress, told["ip"], told["serverid"], told["router"], err)
		}
		for where, s := range map[string]space{"another member": two, "the node's own stack": l.space} {
			if heard := s.run(t, "nft list chain ip seen arrived"); !strings.Contains(heard, "counter packets 0 ") {
				t.Errorf("egress %t: %s heard the client:\n%s", egress, where, heard)
			}
		}
	}
}

func TestNamesAreAnsweredWhereTheNodeHasTheGatewaysAddress(t *testing.T) {
	l := newLab(t)
	needs.Program(t, "dig")
	n := labNetwork()
	n.Egress = true
	l.serve(t, n)
	one := l.attach(t, n, 0)
	if out := one.run(t, "dig +short +tries=5 +time=1 @10.64.16.1 one-1.one.nearmetal.internal"); strings.TrimSpace(out) != "10.64.16.3" {
		t.Errorf("dig gets %q", out)
	}
}

// onlyOut is the rules of a group that lets nothing in, and out only what it has to be able to name.
func onlyOut(t testing.TB) []securitygroup.Rule {
	t.Helper()
	rule, err := securitygroup.Parse("out tcp 80 to 192.0.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	return []securitygroup.Rule{rule}
}
