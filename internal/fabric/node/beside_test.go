package node

import (
	"net"
	"strings"
	"testing"
	"time"
)

// dockersRules are what Docker's policy comes to for others, as iptables-nft writes it.
const dockersRules = `nft 'table ip filter {
		chain DOCKER-USER { }
		chain FORWARD { type filter hook forward priority filter; policy drop; counter jump DOCKER-USER; }
	}'`

func TestDockersPolicyDoesNotKeepMembersFromTheOutside(t *testing.T) {
	lab := newEgressLab(t)
	lab.node.run(t, dockersRules)
	mustNotReach(t, lab.members[0].namespace, "the outside, which Docker's policy closes,", internet)
	drifts, err := lab.node.fabric.Audit(t.Context())
	if err != nil || len(drifts) == 0 {
		t.Fatalf("the audit does not see it: %v, %v", drifts, err)
	}
	apply(t, lab.node.fabric, lab.networks...)
	mustReach(t, lab.members[0].namespace, "the outside", internet)
	mustNotReach(t, lab.members[2].namespace, "the outside, from a network without egress,", internet)
	apply(t, lab.node.fabric, lab.networks[2])
	if rules := lab.node.run(t, "nft list chain ip filter DOCKER-USER"); strings.Contains(rules, "nearmetal") {
		t.Errorf("left in Docker's chain:\n%s", rules)
	}
}

func TestForwardingForEgressLeavesOthersTheirAnswers(t *testing.T) {
	lab := newEgressLab(t)
	// The management machine goes out by the node's uplink, as a container does behind Docker's bridge.
	lab.node.run(t, `echo 1 > /proc/sys/net/ipv4/conf/o3/forwarding
		nft 'table ip nat { chain postrouting { type nat hook postrouting priority srcnat; policy accept; ip saddr 198.51.100.0/24 masquerade; }; }'`)
	mustReach(t, lab.management, "the outside, from a machine of somebody else's,", internet)
}

func TestANodeThatIsMadeARouterRoutesAndGoesOnRouting(t *testing.T) {
	lab := newEgressLab(t)
	lab.outside.run(t, "ip route add 198.51.100.0/24 via 192.0.2.1")
	lab.node.run(t, "echo 1 > /proc/sys/net/ipv4/ip_forward")
	apply(t, lab.node.fabric, lab.networks...)
	mustReach(t, lab.outside, "a machine that the node routes to", "198.51.100.2")
	apply(t, lab.node.fabric)
	mustReach(t, lab.outside, "a machine that the node routes to, without networks,", "198.51.100.2")
}

func TestForwardingThatAnotherSiteNeedsStaysOn(t *testing.T) {
	lab := newEgressLab(t)
	lab.node.run(t, `nft 'table inet nearmetal_0123abcd { set switched { type ifname; elements = { "up0" }; }; }'`)
	apply(t, lab.node.fabric)
	if got := lab.node.run(t, "cat /proc/sys/net/ipv4/conf/up0/forwarding"); got != "1\n" {
		t.Errorf("another site needs it, and forwarding is %q", got)
	}
}

func TestSomebodyElsesTunnelGoesOutThroughTheNode(t *testing.T) {
	lab := newEgressLab(t)
	lab.node.run(t, `echo 1 > /proc/sys/net/ipv4/conf/o3/forwarding
		nft 'table ip nat { chain postrouting { type nat hook postrouting priority srcnat; policy accept; ip saddr 198.51.100.0/24 masquerade; }; }'`)
	var outside net.PacketConn
	if err := lab.outside.Do(func() (err error) {
		outside, err = net.ListenPacket("udp4", internet+":4789")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	if err := lab.management.Do(func() error {
		conn, err := net.Dial("udp4", internet+":4789")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte{8, 0, 0, 0, 1, 2, 3, 0}) // a VXLAN header with an identifier that no network of ours has
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := outside.SetReadDeadline(time.Now().Add(markerTimeout)); err != nil {
		t.Fatal(err)
	}
	_, sender, err := outside.ReadFrom(make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	if from := sender.(*net.UDPAddr).IP.String(); from != "192.0.2.1" {
		t.Errorf("it came from %s: it was not masqueraded as the node", from)
	}
}

func TestANetworkWithoutEgressIsMadeOnAMachineThatRoutes(t *testing.T) {
	needRoot(t)
	node := newNode(t, Config{})
	node.run(t, "echo 1 > /proc/sys/net/ipv4/ip_forward") // new links forward, too
	apply(t, node.fabric, testNetwork(1, 2))
	if got := node.run(t, "cat /proc/sys/net/ipv4/conf/nmbr1/forwarding"); got != "0\n" {
		t.Errorf("the bridge's forwarding is %q", got)
	}
}
