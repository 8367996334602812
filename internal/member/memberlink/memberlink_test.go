package memberlink_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
	"github.com/nearmetal/nearmetal/internal/member/memberlink/memberlinktest"
)

const member, node = memberlinktest.Member, memberlinktest.Node

func TestUnixConformance(t *testing.T) {
	memberlinktest.Run(t, func(t *testing.T) memberlinktest.Harness {
		t.Helper()
		path := filepath.Join(t.TempDir(), "agent.sock")
		return memberlinktest.Harness{
			Listen: func(t *testing.T) memberlink.Endpoint {
				t.Helper()
				endpoint, err := memberlink.ListenUnix(path, member, uint32(os.Geteuid()))
				if err != nil {
					t.Fatal(err)
				}
				return endpoint
			},
			Dialer: func(t *testing.T) memberlink.Dialer {
				t.Helper()
				return open(t, &memberconfig.Link{Kind: memberconfig.LinkUnix, Address: path})
			},
		}
	})
}

// issued is what the authority of the suite's cluster issues for its member now, with that authority.
func issued(t *testing.T) (membercert.Identity, *x509.Certificate) {
	t.Helper()
	authority, err := membercert.New(bytes.Repeat([]byte{7}, membercert.MinSecretBytes), memberlinktest.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := authority.Member(member, authority.Period(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(authority.Certificate())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return identity, cert
}

func TestTLSConformance(t *testing.T) {
	memberlinktest.Run(t, func(t *testing.T) memberlinktest.Harness {
		t.Helper()
		nodes := memberlinktest.NewAuthority(t)
		identity, members := issued(t)
		address := "127.0.0.1:0"
		return memberlinktest.Harness{
			Listen: func(t *testing.T) memberlink.Endpoint {
				t.Helper()
				endpoint := nodes.Listen(t, address, nodeCertificate(), memberlinktest.Members(members))
				address = endpoint.Addr().String()
				return endpoint
			},
			Dialer: func(t *testing.T) memberlink.Dialer { t.Helper(); return late{t, nodes, identity, &address} },
		}
	})
}

// late is a member's end whose address is known once its node agent has listened.
type late struct {
	t        *testing.T
	nodes    *memberlinktest.Authority
	identity membercert.Identity
	address  *string
}

func (l late) Dial(ctx context.Context) (net.Conn, error) {
	return open(l.t, l.nodes.Trusted(l.t, *l.address, l.identity)).Dial(ctx)
}

func open(t *testing.T, link *memberconfig.Link) memberlink.Dialer {
	t.Helper()
	dialer, err := memberlink.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	return dialer
}

func nodeCertificate() *x509.Certificate {
	return memberlinktest.Template(false, memberlinktest.NodeURI(node))
}

func memberCertificate(id string) *x509.Certificate {
	return memberlinktest.Template(true, memberlinktest.MemberURI(id))
}

// change changes a certificate before it is signed.
func change(cert *x509.Certificate, f func(c *x509.Certificate)) *x509.Certificate {
	f(cert)
	return cert
}

func named(text string) *url.URL {
	u, _ := url.Parse(text)
	return u
}

func expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

func TestAMemberIsWhoItsCertificateSays(t *testing.T) {
	authority, other := memberlinktest.NewAuthority(t), memberlinktest.NewAuthority(t)
	members := authority.Members()
	members.Holds = func(id string) bool { return id != "u1.c1-0.0" }
	endpoint := authority.Listen(t, "127.0.0.1:0", nodeCertificate(), members)
	t.Cleanup(func() { _ = endpoint.Close() })
	for _, tt := range []struct {
		name string
		by   *memberlinktest.Authority
		cert *x509.Certificate
		want string // the member, or part of the error
	}{
		{"a member's own certificate", authority, memberCertificate(member), member},
		{"another member's certificate", authority, memberCertificate("u1.c1-1.1"), "u1.c1-1.1"},
		{"a certificate of a member that was replaced", authority, memberCertificate("u1.c1-0.0"), "released or replaced"},
		{"a certificate of another cluster", authority, memberlinktest.Template(true, named("nearmetal://member/u2/u2.c1-0.1")), "cluster u2 is not served"},
		{"the certificate of the member's user", authority, memberlinktest.Template(true, named("nearmetal://workload/u1/"+member)), `of kind "workload"`},
		{"a certificate of another authority", other, memberCertificate(member), "unknown authority"},
		{"a certificate that has expired", authority, change(memberCertificate(member), expired), "has ended"},
		{"a certificate for servers", authority, memberlinktest.Template(false, memberlinktest.MemberURI(member)), "incompatible key usage"},
		{"a node's certificate", authority, memberlinktest.Template(true, memberlinktest.NodeURI(member)), `of kind "node"`},
		{"a certificate of two members", authority, memberlinktest.Template(true, memberlinktest.MemberURI(member), memberlinktest.MemberURI("u1.c1-1.1")), "has 2 URIs"},
		{"a certificate of nobody", authority, memberlinktest.Template(true), "has 0 URIs"},
		{"a certificate with an empty name", authority, memberlinktest.Template(true, memberlinktest.MemberURI("")), "names nobody"},
		{"a certificate with a URI of something else", authority, memberlinktest.Template(true, named("https://member/u1/"+member)), "names nobody"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dialer := open(t, tt.by.Link(t, endpoint.Addr().String(), tt.cert, authority))
			go func() {
				if conn, err := dialer.Dial(t.Context()); err == nil {
					_, _ = conn.Read(make([]byte, 1)) // until the node agent has judged
					_ = conn.Close()
				}
			}()
			conn, name, err := memberlinktest.Accept(t.Context(), endpoint)
			if conn != nil {
				defer func() { _ = conn.Close() }()
			}
			if name != tt.want && (err == nil || !strings.Contains(err.Error(), tt.want)) || err != nil && name != "" {
				t.Errorf("got %q, %v; want %q", name, err, tt.want)
			}
		})
	}
}

func TestAMemberSpeaksToItsOwnNodeOnly(t *testing.T) {
	authority, other := memberlinktest.NewAuthority(t), memberlinktest.NewAuthority(t)
	for _, tt := range []struct {
		name string
		by   *memberlinktest.Authority
		cert *x509.Certificate
		want string // part of the error, "" for none
	}{
		{"its own node", authority, nodeCertificate(), ""},
		{"another node", authority, memberlinktest.Template(false, memberlinktest.NodeURI("n2")), `of nearmetal://node/n2/identity-of-n2, not of node "n1"`},
		{"a node of another authority", other, nodeCertificate(), "unknown authority"},
		{"a certificate that has expired", authority, change(nodeCertificate(), expired), "expired"},
		{"a member that plays node agent", authority, memberCertificate(node), "incompatible key usage"},
		{"a certificate for clients with a node's name", authority, memberlinktest.Template(true, memberlinktest.NodeURI(node)), "incompatible key usage"},
		{"a certificate for servers of a member whose cluster has the node's name", authority, memberlinktest.Template(false, named("nearmetal://member/"+node+"/"+member)), `not of node "n1"`},
		{"a certificate for servers with a member's name", authority, memberlinktest.Template(false, memberlinktest.MemberURI(node)), `not of node "n1"`},
		{"a certificate without a name", authority, memberlinktest.Template(false), "has 0 URIs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			endpoint := tt.by.Listen(t, "127.0.0.1:0", tt.cert, authority.Members())
			defer func() { _ = endpoint.Close() }()
			go func() {
				if conn, _, _ := memberlinktest.Accept(t.Context(), endpoint); conn != nil {
					_ = conn.Close()
				}
			}()
			conn, err := open(t, tt.by.Link(t, endpoint.Addr().String(), memberCertificate(member), authority)).Dial(t.Context())
			if err == nil {
				_ = conn.Close()
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestAStrangerThatSaysNothingIsGivenUp(t *testing.T) {
	authority := memberlinktest.NewAuthority(t)
	endpoint := authority.Listen(t, "127.0.0.1:0", nodeCertificate(), authority.Members())
	defer func() { _ = endpoint.Close() }()
	stranger, err := net.Dial("tcp", endpoint.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close() }()
	conn, err := endpoint.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if name, err := endpoint.Member(ctx, conn); !errors.Is(err, context.Canceled) {
		t.Errorf("got %q, %v", name, err)
	}
}

func TestALinkIsOpenedAsItIsDescribed(t *testing.T) {
	tls := memberconfig.Link{Kind: memberconfig.LinkTLS, Address: "192.0.2.1:7071", Node: "n1", Certificate: "/c", Key: "/k", Authority: "/a"}
	without := func(f func(l *memberconfig.Link)) *memberconfig.Link {
		l := tls
		f(&l)
		return &l
	}
	for _, tt := range []struct {
		link *memberconfig.Link
		want memberlink.Dialer
		err  string
	}{
		{nil, memberlink.Unix{Path: "/run/nearmetal/agent.sock"}, ""},
		{&memberconfig.Link{Kind: memberconfig.LinkUnix, Address: "/x"}, memberlink.Unix{Path: "/x"}, ""},
		{&memberconfig.Link{Kind: memberconfig.LinkVsock, Address: "2:7070"}, memberlink.Vsock{To: memberlink.VsockAddr{CID: 2, Port: 7070}}, ""},
		{&memberconfig.Link{Kind: memberconfig.LinkSerial, Address: "nearmetal.agent"}, memberlink.Serial{Port: "nearmetal.agent"}, ""},
		{&memberconfig.Link{Kind: memberconfig.LinkSerial}, nil, "must be the name of a virtio-serial port"},
		{&tls, memberlink.TLS{Address: "192.0.2.1:7071", Node: "n1", Certificate: "/c", Key: "/k", Authority: "/a"}, ""},
		{&memberconfig.Link{}, nil, "no kind of link"},
		{&memberconfig.Link{Kind: "smoke"}, nil, "no kind of link"},
		{&memberconfig.Link{Kind: memberconfig.LinkVsock, Address: "2"}, nil, "must be CID:PORT"},
		{&memberconfig.Link{Kind: memberconfig.LinkVsock, Address: "host:7070"}, nil, "must be CID:PORT"},
		{&memberconfig.Link{Kind: memberconfig.LinkVsock, Address: "2:-1"}, nil, "must be CID:PORT"},
		{without(func(l *memberconfig.Link) { l.Address = "192.0.2.1" }), nil, "must be HOST:PORT"},
		{without(func(l *memberconfig.Link) { l.Node = "" }), nil, `needs the field "node"`},
		{without(func(l *memberconfig.Link) { l.Key = "" }), nil, `needs the field "key"`},
		{without(func(l *memberconfig.Link) { l.Certificate = "" }), nil, `needs the field "certificate"`},
		{without(func(l *memberconfig.Link) { l.Authority = "" }), nil, `needs the field "authority"`},
	} {
		got, err := memberlink.Open(tt.link)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%+v: got %#v, %v; want %#v, %q", tt.link, got, err, tt.want, tt.err)
		}
	}
}

func TestAMemberWithoutItsCertificateSaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	link := memberlinktest.NewAuthority(t).Link(t, "127.0.0.1:1", memberCertificate(member), memberlinktest.NewAuthority(t))
	broken := *link
	broken.Key = filepath.Join(dir, "missing.key")
	if _, err := open(t, &broken).Dial(t.Context()); err == nil || !strings.Contains(err.Error(), "missing.key") {
		t.Errorf("without its key: got %v", err)
	}
	broken = *link
	broken.Authority = link.Key
	if _, err := open(t, &broken).Dial(t.Context()); err == nil || !strings.Contains(err.Error(), "no certificate of an authority") {
		t.Errorf("with a file that holds no authority: got %v", err)
	}
}
