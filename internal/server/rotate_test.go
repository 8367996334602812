package server_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// TestASiteGetsNewKeysWithoutStoppingItsClusters replaces CA and secret twice while a cluster lives on nodes whose certificates are of the first CA.
func TestASiteGetsNewKeysWithoutStoppingItsClusters(t *testing.T) {
	s := newMetalSite(t)
	for number := range 3 {
		s.node(number+1, number == 2)
		s.eventually([]string{"node", "show", fmt.Sprint("n", number+1)}, "ready")
	}
	s.command(0, "cluster", "create", "-f", s.manifest("before", 2, false))
	user, err := trust.ReadToken(filepath.Join(s.dir, config.TokenName))
	if err != nil {
		t.Fatal(err)
	}
	hosts := knownHosts(t, s, user, "before")
	calls := s.callsOf("n1")
	if said := s.command(1, "site", "rotate"); !strings.Contains(said, "stop the server") {
		t.Errorf("while the server runs: %s", said)
	}
	for range 2 {
		s.stop()
		s.command(0, "site", "rotate")
		s.serve()
		s.eventually([]string{"cluster", "show", "before"}, "2 of 2 ready")
	}
	if now := s.callsOf("n1"); now != calls {
		t.Errorf("members were touched: %s, then %s", calls, now)
	}
	if now := knownHosts(t, s, user, "before"); !bytes.Equal(now, hosts) {
		t.Errorf("the cluster's SSH keys changed:\n%s\n%s", hosts, now)
	}
	if said := s.command(0, "audit", "verify"); !strings.Contains(said, "ok") && !strings.Contains(said, "records") {
		t.Errorf("audit verify: %s", said)
	}
	if said := s.command(0, "site", "show"); strings.Count(said, "ca ") != 3 || strings.Count(said, "secret") != 3 {
		t.Errorf("site show:\n%s", said)
	}
	s.command(0, "cluster", "delete", "before")
	s.command(0, "cluster", "create", "-f", s.manifest("after", 2, false))
	if now := knownHosts(t, s, user, "after"); len(now) == 0 {
		t.Error("a cluster made with the new secret has no SSH keys")
	}

	// Who knows the first CA only is let in until it is retired; the administrator's own file has the newest pin.
	s.stop()
	s.command(0, "site", "retire")
	s.serve()
	c, err := client.New(client.Options{Addr: s.address, Bearer: user.Bearer(), TLS: trust.ClientTLS(user.Pin, "127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Whoami(t.Context()); err == nil || !strings.Contains(err.Error(), trust.ErrWrongServer.Error()) {
		t.Errorf("by the pin of a retired CA: %v", err)
	}
	newest, err := trust.ReadToken(filepath.Join(s.dir, config.TokenName))
	if err != nil {
		t.Fatal(err)
	}
	if newest.Bearer() != user.Bearer() {
		t.Error("the administrator's token is another one")
	}
	if len(knownHosts(t, s, newest, "after")) == 0 {
		t.Error("the newest pin does not connect")
	}
}

// callsOf is what was done to the members of a node, but for looking at them.
func (s *metalSite) callsOf(node string) string {
	var done []string
	for _, call := range s.hosts[node].Calls() {
		if name, _, _ := strings.Cut(call, " "); name != "List" && name != "Look" && name != "Clean" {
			done = append(done, call)
		}
	}
	return strings.Join(done, ", ")
}

// knownHosts is what users get to know a cluster's members by, over the network with a token.
func knownHosts(t *testing.T, s *metalSite, token trust.Token, cluster string) []byte {
	t.Helper()
	c, err := client.New(client.Options{Addr: s.address, Bearer: token.Bearer(), TLS: trust.ClientTLS(token.Pin, "127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := c.Certificate(t.Context(), cluster, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Ggs0cnHcT4k8LOq3bLcWwk6JrA0Gm7YMyV1sTfIiB me@laptop")
	if err != nil {
		t.Fatal(err)
	}
	return []byte(certificate.KnownHosts)
}
