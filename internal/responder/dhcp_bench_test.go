package responder

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// What an exchange takes from DISCOVER to ACK, in ms: on a node with one network, on one with 32, and by dnsmasq on a bridge made by hand, in turn
// within each round:
//
//	go test -run '^$' -bench DHCP -benchtime 101x -exec $PWD/setup/asroot.sh ./internal/responder
func BenchmarkDHCP(b *testing.B) {
	needs.Root(b, "makes network namespaces")
	needs.Program(b, "dnsmasq")
	names := []string{"dnsmasq", "1-network", "32-networks"}
	clients := []dhcpClient{newClientByHand(b), newDHCPClient(b, 1), newDHCPClient(b, 32)}
	took := make([][]float64, len(clients))
	pace := rate.NewLimiter(portsPerSecond/3, 1) // an exchange is two questions; a port that asks faster is not answered
	for round := range b.N {
		if err := pace.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		for i := range clients {
			at := (i + round/2) % len(clients)
			if round%2 == 1 {
				at = len(clients) - 1 - at // none always follows the same other
			}
			took[at] = append(took[at], clients[at].exchange(b))
		}
	}
	for i, name := range names {
		b.ReportMetric(measure.Median(took[i]), name+"-ms")
		b.ReportMetric(measure.Quantile(took[i], 0.25), name+"-ms-q1")
		b.ReportMetric(measure.Quantile(took[i], 0.75), name+"-ms-q3")
	}
	for _, pair := range [][2]int{{1, 0}, {2, 1}} {
		ratios := make([]float64, len(took[0]))
		for i := range ratios {
			ratios[i] = took[pair[0]][i] / took[pair[1]][i]
		}
		e, name := measure.MedianInterval(ratios, 0.95), names[pair[0]]+"/"+names[pair[1]]
		b.ReportMetric(e.Value, name)
		b.ReportMetric(e.Low, name+"-low")
		b.ReportMetric(e.High, name+"-high")
	}
	b.ReportMetric(0, "ns/op")
}

// dhcpClient is a socket in a member's namespace, whose link has no address.
type dhcpClient struct {
	fd  int
	mac string
}

// newDHCPClient is a member of the first of this many networks of a node.
func newDHCPClient(b *testing.B, networks int) dhcpClient {
	b.Helper()
	l := newLab(b)
	all := []Network{labNetwork()}
	for index := 2; index <= networks; index++ {
		base := netip.AddrFrom4([4]byte{10, byte(64 + index>>4), byte(index << 4), 0})
		n := Network{}
		n.Index, n.Prefix, n.Gateway = index, netip.PrefixFrom(base, 20), base.Next()
		n.Ports = []fabric.Port{{ID: fmt.Sprint("port", index), Address: n.Gateway.Next(), MAC: fmt.Sprintf("02:6e:00:%02x:00:02", index), Interface: "eth0"}}
		all = append(all, n)
	}
	l.serve(b, all...)
	return newClient(b, l.attach(b, all[0], 0), macOfOne)
}

// newClientByHand is a member of a bridge made by hand, on which dnsmasq answers.
func newClientByHand(b *testing.B) dhcpClient {
	b.Helper()
	host, member := newSpace(b), newSpace(b)
	host.run(b, "ip link add br0 type bridge; ip address add 10.64.16.1/20 dev br0; ip link set br0 up; "+
		"ip link add p0 type veth peer name eth0 address "+macOfOne+" netns "+member.Path()+"; ip link set p0 master br0 up")
	member.run(b, "ip link set eth0 up")
	ctx, end := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "dnsmasq", "-k", "--conf-file=/dev/null", "--port=0", "--interface=br0", "--bind-interfaces", "--no-ping", "--leasefile-ro",
		"--dhcp-authoritative", "--user=root", "--pid-file=", "--dhcp-range=10.64.16.2,static,255.255.240.0", "--dhcp-host="+macOfOne+",10.64.16.2")
	if err := host.Do(cmd.Start); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		end()
		_ = cmd.Wait()
	})
	return newClient(b, member, macOfOne)
}

func newClient(b *testing.B, member space, mac string) dhcpClient {
	b.Helper()
	member.run(b, "ip address flush dev eth0; ip link set eth0 up")
	c := dhcpClient{mac: mac}
	err := member.Do(func() (err error) {
		c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Close(c.fd) })
	for _, set := range []func() error{
		func() error { return unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1) },
		func() error { return unix.SetsockoptString(c.fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0") },
		func() error {
			return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 500_000})
		},
		func() error { return unix.Bind(c.fd, &unix.SockaddrInet4{Port: 68}) },
	} {
		if err := set(); err != nil {
			b.Fatal(err)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, err := c.ask(dhcpv4.MessageTypeDiscover); err == nil {
			return c
		} else if time.Now().After(deadline) {
			b.Fatal("no server answers: ", err)
		}
	}
}

// exchange returns how long it takes to get an address, in ms.
func (c dhcpClient) exchange(b *testing.B) float64 {
	b.Helper()
	begun := time.Now()
	offer, err := c.ask(dhcpv4.MessageTypeDiscover)
	if err != nil {
		b.Fatal(err)
	}
	ack, err := c.ask(dhcpv4.MessageTypeRequest, requested(offer.YourIPAddr.String()), server(offer.ServerIdentifier().String()))
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(begun).Seconds() * 1e3
	if ack.MessageType() != dhcpv4.MessageTypeAck {
		b.Fatalf("got %v", ack)
	}
	return took
}

// ask sends a message to all and returns the answer to it.
func (c dhcpClient) ask(kind dhcpv4.MessageType, change ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	request := message(c.mac, kind, append(change, dhcpv4.WithBroadcast(true))...)
	asked, err := dhcpv4.FromBytes(request)
	if err != nil {
		return nil, err
	}
	if err := unix.Sendto(c.fd, request, 0, &unix.SockaddrInet4{Port: 67, Addr: [4]byte(net.IPv4bcast.To4())}); err != nil {
		return nil, err
	}
	buffer := make([]byte, 1500)
	for {
		n, _, err := unix.Recvfrom(c.fd, buffer, 0)
		if err != nil {
			return nil, fmt.Errorf("no answer to %v: %w", kind, err)
		}
		if answer, err := dhcpv4.FromBytes(buffer[:n]); err == nil && answer.TransactionID == asked.TransactionID {
			return answer, nil
		}
	}
}
