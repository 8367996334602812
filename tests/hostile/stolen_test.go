package hostile

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/trust"
)

const (
	enrollmentPath = "/agent/v1/enrollment"
	renewalPath    = "/agent/v1/renewal"
	streamPath     = "/agent/v5/stream"
)

// refused wants an answer of that status that says why.
func (s *attacked) refused(what string, by *http.Client, path, bearer string, body any, status int, why string) {
	s.t.Helper()
	if got, text := s.send(by, http.MethodPost, path, bearer, body); got != status || !strings.Contains(string(text), why) {
		s.t.Errorf("%s: %d %s, want %d and %q", what, got, text, status, why)
	}
}

func identityOf(t *testing.T, name string) trust.Identity {
	t.Helper()
	identity, err := trust.NewIdentity(name)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func TestAStolenEnrollmentTokenEnrollsWhatIsLeftOfItAndNothingElse(t *testing.T) {
	s := newAttacked(t)
	secret, _ := s.token("n", 1)
	thief := s.over(s.pin(secret), nil)
	s.refused("a name that the token is not for", thief, enrollmentPath, "", s.enrollment(identityOf(t, "db1"), secret), http.StatusForbidden, `names that begin with \"n\"`)
	first := identityOf(t, "n1")
	request := s.enrollment(first, secret)
	if status, text := s.send(thief, http.MethodPost, enrollmentPath, "", request); status != http.StatusOK {
		t.Fatalf("the enrollment that the token is for: %d %s", status, text)
	}
	s.refused("a second use", thief, enrollmentPath, "", s.enrollment(identityOf(t, "n2"), secret), http.StatusForbidden, "the enrollment token was refused")
	s.refused("the same name with another key", thief, enrollmentPath, "", s.enrollment(identityOf(t, "n1"), secret), http.StatusConflict, "n1")
	if err := s.admin.RevokeNode(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	s.refused("the request of a node that was revoked, again", thief, enrollmentPath, "", request, http.StatusForbidden, "the enrollment token was refused")

	left, id := s.token("n", 5)
	if err := s.admin.DeleteEnrollToken(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.refused("a token that was deleted", thief, enrollmentPath, "", s.enrollment(identityOf(t, "n3"), left), http.StatusForbidden, "the enrollment token was refused")
	forged := trust.NewToken(s.pin(secret))
	s.refused("a token that this site did not make", thief, enrollmentPath, "", s.enrollment(identityOf(t, "n4"), forged.Line()), http.StatusForbidden, "the enrollment token was refused")
	if nodes, err := s.admin.Nodes(t.Context()); err != nil || len(nodes) != 0 {
		t.Errorf("the site has nodes %+v (%v), want none", nodes, err)
	}
}

func TestAStolenUserTokenOpensNothingOfNodesAndANodesKeyNothingOfPeople(t *testing.T) {
	s := newAttacked(t)
	n := s.honest(1)
	secret, _ := s.token("n", 1)
	thief := s.over(s.pin(secret), nil)
	for _, role := range []api.Role{api.RoleAdmin, api.RoleMember, api.RoleViewer} {
		project := api.DefaultProject
		if role == api.RoleAdmin {
			project = ""
		}
		made, err := s.admin.CreateToken(t.Context(), api.TokenRequest{User: "eve", Role: role, Project: project})
		if err != nil {
			t.Fatal(err)
		}
		token, err := trust.ParseToken(made.Token)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{streamPath, "/agent/v1/tunnel/t1"} {
			s.refused(fmt.Sprint(path, " with a token of role ", role), thief, path, token.Bearer(), nil, http.StatusForbidden, "for node agents")
		}
		s.refused(fmt.Sprint("a renewal with a token of role ", role), thief, renewalPath, token.Bearer(), api.NodeRenewal{}, http.StatusUnauthorized, "shows no certificate")
	}
	s.refused("the stream without anything", thief, streamPath, "", nil, http.StatusUnauthorized, "bearer token")
	for _, path := range []string{"/v1/clusters", "/v1/nodes/n1/revoke", "/v1/tokens", "/v1/enroll-tokens"} {
		if status, text := s.send(n.http, http.MethodPost, path, "", map[string]string{}); status != http.StatusForbidden && status != http.StatusNotFound {
			t.Errorf("POST %s with a node's certificate: %d %s, want it refused", path, status, text)
		}
	}
	if status, text := s.send(n.http, http.MethodGet, "/v1/nodes", "", nil); status != http.StatusForbidden {
		t.Errorf("GET /v1/nodes with a node's certificate: %d %s, want it refused", status, text)
	}
}

// renewed renews an identity and returns the next with a client that shows it.
func (s *attacked) renewed(identity trust.Identity, by *http.Client) (trust.Identity, *http.Client, api.NodeRenewal) {
	s.t.Helper()
	next, err := identity.Renewed()
	if err != nil {
		s.t.Fatal(err)
	}
	request, err := next.Request()
	if err != nil {
		s.t.Fatal(err)
	}
	renewal := api.NodeRenewal{Request: request}
	status, text := s.send(by, http.MethodPost, renewalPath, "", renewal)
	if status != http.StatusOK {
		s.t.Fatalf("renew: %d %s", status, text)
	}
	next, client := s.certified(next, text)
	return next, client, renewal
}

func TestAStolenKeyIsVoidOnceTheNodeUsesItsNext(t *testing.T) {
	s := newAttacked(t)
	victim := s.enrolled(1)
	stolen, thief := victim.identity, victim.http
	var renewal api.NodeRenewal
	victim.identity, victim.http, renewal = s.renewed(stolen, thief)
	victim.greets(victim.record)
	victim.isReady()
	const void = "the key of the node was replaced"
	s.refused("a stream by the stolen key", thief, streamPath, "", nil, http.StatusUnauthorized, void)
	s.refused("the renewal that was overheard, by the stolen key", thief, renewalPath, "", renewal, http.StatusUnauthorized, void)
	s.refused("a tunnel by the stolen key", thief, "/agent/v1/tunnel/t1", "", nil, http.StatusUnauthorized, void)
	rogue := s.enrolled(2)
	secret, _ := s.token("n", 1)
	s.refused("the overheard request without a certificate", s.over(s.pin(secret), nil), renewalPath, "", renewal, http.StatusUnauthorized, "shows no certificate")
	// Over another node's connection it makes a certificate in that node's name, for a key that nobody there has.
	status, text := s.send(rogue.http, http.MethodPost, renewalPath, "", renewal)
	var made api.NodeCertificate
	if err := json.Unmarshal(text, &made); err != nil || status != http.StatusOK {
		t.Fatalf("the overheard request over another node's connection: %d %s", status, text)
	}
	block, _ := pem.Decode([]byte(made.Certificate))
	named, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if name := named.URIs[0].String(); !strings.HasPrefix(name, "nearmetal://node/n2/") {
		t.Errorf("the overheard request over the connection of node n2 is answered with a certificate of %s", name)
	}
	if n, err := s.admin.Node(t.Context(), "n1"); err != nil || n.Phase != api.NodeReady {
		t.Errorf("the node whose key was stolen is %s (%v), want it ready", n.Phase, err)
	}
}

func TestARevokedNodeIsCutOffAmidItsStream(t *testing.T) {
	s := newAttacked(t)
	rogue := s.honest(1)
	pinged := func() int {
		rogue.mu.Lock()
		defer rogue.mu.Unlock()
		return rogue.pings
	}
	if err := s.admin.RevokeNode(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	before := pinged()
	if why := <-rogue.refused; !strings.Contains(why, "the stream ended") {
		t.Errorf("the stream of a revoked node: %s", why)
	}
	// Streams are also looked at every 15 pings, in which a rogue node could go on.
	if went := pinged() - before; went > 5 {
		t.Errorf("the server pinged a revoked node %d times before it ended the stream", went)
	}
	s.refused("a stream of the revoked node", rogue.http, streamPath, "", nil, http.StatusUnauthorized, "unknown or was revoked")
	s.refused("a renewal of the revoked node", rogue.http, renewalPath, "", api.NodeRenewal{Request: requestOf(t, identityOf(t, "n1"))}, http.StatusUnauthorized, "unknown or was revoked")
}

func requestOf(t *testing.T, identity trust.Identity) string {
	t.Helper()
	request, err := identity.Request()
	if err != nil {
		t.Fatal(err)
	}
	return request
}
