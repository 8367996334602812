package apiserver_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// withMember starts a site with a ready cluster whose members are served by member.
func withMember(t *testing.T, member func(*net.TCPConn), change func(*apiserver.Config)) *apiservertest.Site {
	t.Helper()
	s := apiservertest.New(t, memory.New(), change)
	s.Tunnels.Member = member
	s.AddNode("n1", 4)
	create(t, s.LocalClient(), "c1")
	s.Place("c1")
	s.MakeReady("c1")
	return s
}

func TestATunnelPassesBytesAndTheirEndBothWays(t *testing.T) {
	s := withMember(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "SSH-2.0-test\r\n") // comes before the client has said anything
		all, err := io.ReadAll(conn)
		if err == nil {
			_, _ = conn.Write(append([]byte("got: "), all...))
		}
	}, nil)
	for what, c := range map[string]*client.Client{"tcp": s.Client(), "unix": s.LocalClient()} {
		tunnel, err := c.ConnectMember(t.Context(), "c1", "c1-1", 22)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		big := strings.Repeat("0123456789abcdef", 64<<10)
		if _, err := io.WriteString(tunnel, big); err != nil {
			t.Fatal(err)
		}
		if err := tunnel.CloseWrite(); err != nil {
			t.Fatalf("%s: half-close: %v", what, err)
		}
		got, err := io.ReadAll(tunnel)
		if want := "SSH-2.0-test\r\ngot: " + big; err != nil || string(got) != want {
			t.Errorf("%s: read %d bytes, %v; want %d", what, len(got), err, len(want))
		}
		tunnel.Close()
	}
	if opened := s.Tunnels.Opened(); len(opened) != 2 || !strings.HasPrefix(opened[0], "n1/") || !strings.HasSuffix(opened[0], ".c1-1.1") {
		t.Errorf("opened %v, want assignment c1-1 on n1 twice", opened)
	}
}

func TestATunnelEndsWithItsTokenAndItsServer(t *testing.T) {
	gone := make(chan error, 2)
	s := withMember(t, func(conn *net.TCPConn) {
		_, err := io.Copy(io.Discard, conn)
		gone <- err
	}, func(c *apiserver.Config) { c.KeepAlive = 5 * time.Millisecond })
	line := s.Token("ann", "default", api.RoleMember)
	token, err := trust.ParseToken(line)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := s.ClientOf(line).ConnectMember(t.Context(), "c1", "c1-0", 22)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Client().RevokeToken(t.Context(), token.ID()); err != nil {
		t.Fatal(err)
	}
	goesOn := time.AfterFunc(30*time.Second, func() {
		t.Error("the tunnel of a revoked token goes on")
		_ = tunnel.Close()
	})
	if _, err := io.ReadAll(tunnel); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "reset") {
		t.Logf("the tunnel of a revoked token ended by %v", err)
	}
	<-gone
	goesOn.Stop()
	tunnel, err = s.LocalClient().ConnectMember(t.Context(), "c1", "c1-0", 22)
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	<-gone
	_, _ = io.ReadAll(tunnel)
}

func TestTunnelsToWhatIsNotThereAreRefused(t *testing.T) {
	s := withMember(t, nil, nil)
	c := s.Client()
	ctx := t.Context()
	connect := func(name, member string, port int) error {
		tunnel, err := c.ConnectMember(ctx, name, member, port)
		if err == nil {
			tunnel.Close()
		}
		return err
	}
	if err := connect("c2", "c1-0", 22); !client.HasCode(err, "cluster_not_found") {
		t.Errorf("no cluster: %v", err)
	}
	if err := connect("c1", "c1-7", 22); !client.HasCode(err, "member_not_found") || !strings.Contains(err.Error(), "c1-0, c1-1") {
		t.Errorf("no member: %v, want those there are", err)
	}
	if _, err := c.CreateCluster(ctx, api.ClusterRequest{Name: "spared", Spares: 1}); err != nil {
		t.Fatal(err)
	}
	s.Place("spared")
	if err := connect("spared", "spared-spare-0", 22); !client.HasCode(err, "member_not_found") {
		t.Errorf("a spare, where nothing runs: %v", err)
	}
	if err := connect("c1", "c1-0", 80); !client.HasCode(err, "invalid_parameter") || !strings.Contains(err.Error(), "22") {
		t.Errorf("another port: %v", err)
	}
	s.Tunnels.SetBroken(errors.New("node n1: its agent is disconnected"))
	if err := connect("c1", "c1-0", 22); !client.HasCode(err, "member_unreachable") || !strings.Contains(err.Error(), "disconnected") {
		t.Errorf("no agent: %v", err)
	}
	if p := problemOf(t, sendTCP(t, s, trust.RoleAdmin, request{method: "GET", path: "/v1/clusters/c1/members/c1-0/connect"})); p.Code != "upgrade_required" {
		t.Errorf("by HTTP/2: %s", p.Code)
	}
	if opened := s.Tunnels.Opened(); len(opened) != 0 {
		t.Errorf("opened %v", opened)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.ConnectMember(cancelled, "c1", "c1-0", 22); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	s.Stop()
	var unreachable *client.UnreachableError
	if err := connect("c1", "c1-0", 22); !errors.As(err, &unreachable) {
		t.Errorf("no server: %v", err)
	}
}

func TestTheAgentsTunnelIsFullDuplexForAgents(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		line, _ := bufio.NewReader(r.Body).ReadString('\n')
		_, _ = io.WriteString(w, r.URL.Path+" "+line)
	})
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.AgentTunnel = echo })
	resp := sendTCP(t, s, trust.RoleAgent, request{method: "POST", path: "/agent/v1/tunnel/t1", body: "hello\n"})
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "/agent/v1/tunnel/t1 hello\n" {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestACertificateIsForMembersThatAreThere(t *testing.T) {
	s := withMember(t, nil, nil)
	c := s.ClientAs("ann", "default", api.RoleMember)
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Ggs0cnHcT4k8LOq3bLcWwk6JrA0Gm7YMyV1sTfIiB me@laptop"
	cert, err := c.Certificate(t.Context(), "c1", key)
	if err != nil || cert.User != "hpc" || !strings.HasSuffix(cert.Certificate, " and ann") {
		t.Errorf("certificate %+v, %v", cert, err)
	}
	for _, bad := range []struct{ key, text string }{
		{"", "is missing"},
		{"hello", "is not a public key"},
		{"ssh-ed25519 AAAA", "is not a public key"},
		{key + "\n" + key, "more than one line"},
		{"command=\"x\" " + key, "has options"},
		{"-----BEGIN OPENSSH PRIVATE KEY-----\nx", "is a private key"},
		{"ssh-rsa " + strings.Repeat("A", 20<<10), "is too long"},
	} {
		_, err := c.Certificate(t.Context(), "c1", bad.key)
		if !client.HasCode(err, "invalid_request") || !strings.Contains(err.Error(), "public_key: ") || !strings.Contains(err.Error(), bad.text) {
			t.Errorf("key %.30q: %v, want %q", bad.key, err, bad.text)
		}
	}
	create(t, c, "c2")
	if _, err := c.Certificate(t.Context(), "c2", key); !client.HasCode(err, "wrong_phase") || !strings.Contains(err.Error(), "no members") {
		t.Errorf("a cluster without members: %v", err)
	}
	if _, err := c.DeleteCluster(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Certificate(t.Context(), "c1", key); !client.HasCode(err, "wrong_phase") || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("a cluster being deleted: %v", err)
	}
}
