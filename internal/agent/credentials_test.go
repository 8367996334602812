package agent

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// gate is a real server, whose streams say nothing.
type gate struct {
	*apiservertest.Site
	t *testing.T
	// ahead is how far its clock is, in nanoseconds.
	ahead atomic.Int64
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{t: t}
	streams := agentstream.Handler(func(ctx context.Context, _ *agentstream.ServerConn) { <-ctx.Done() })
	g.Site = apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.AgentStream, c.Now = streams, func() time.Time { return time.Now().Add(time.Duration(g.ahead.Load())) }
	})
	return g
}

// token writes an enrollment token to a file and returns its path.
func (g *gate) token(change func(*api.EnrollmentToken)) string {
	g.t.Helper()
	admin, err := trust.ReadToken(g.TokenFile())
	if err != nil {
		g.t.Fatal(err)
	}
	token := trust.NewToken(admin.Pin)
	hash, err := hex.DecodeString(token.SHA256())
	if err != nil {
		g.t.Fatal(err)
	}
	in := api.EnrollmentToken{ID: token.ID(), Hash: hash, Prefix: "n", Uses: 1, Approve: true, ExpiresAt: time.Now().Add(time.Hour)}
	change(&in)
	revision, err := g.Repo.CreateEnrollToken(g.t.Context(), in)
	if err == nil {
		_, err = g.Cache.WaitRevision(g.t.Context(), revision)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	path := filepath.Join(g.t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token.Line()+"\n"), 0o600); err != nil {
		g.t.Fatal(err)
	}
	return path
}

// open is the start of n1's agent on a machine of its own.
func (g *gate) open(dir, token string) (*Credentials, error) {
	g.t.Helper()
	return OpenCredentials(g.t.Context(), config.Agent{StateDir: dir, Server: g.Addr, Name: "n1", EnrollTokenFile: token}, dir, slog.New(slog.DiscardHandler))
}

func (g *gate) mustOpen(dir, token string) *Credentials {
	g.t.Helper()
	c, err := g.open(dir, token)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// code is why a stream is refused; empty when it is taken.
func (g *gate) code(client *http.Client) string {
	g.t.Helper()
	stream, err := agentstream.Dial(g.t.Context(), client, "https://"+g.Addr)
	refused := new(agentstream.Refusal)
	switch {
	case err == nil:
		stream.Close()
		return ""
	case errors.As(err, &refused):
		return refused.Code
	}
	g.t.Fatal(err)
	return ""
}

func (g *gate) want(what, got, want string) {
	g.t.Helper()
	if got != want {
		g.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestANodeIsLetInByItsTokenAndKeepsItsIdentity(t *testing.T) {
	g, dir := newGate(t), t.TempDir()
	token := g.token(func(e *api.EnrollmentToken) { e.Approve = false })
	c := g.mustOpen(dir, token)
	g.want("before it is approved", g.code(c.Client()), "node_pending")
	if _, err := g.Site.Client().ApproveNode(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	g.want("once it is approved", g.code(c.Client()), "")
	again := g.mustOpen(dir, "") // needs no token any more
	g.want("after a restart", g.code(again.Client()), "")
	if again.identity().Key != c.identity().Key {
		t.Error("it has another key after a restart")
	}
}

func TestANodeThatCannotEnrollSaysWhatToDo(t *testing.T) {
	g := newGate(t)
	if _, err := g.open(t.TempDir(), ""); !errors.Is(err, errNotEnrolled) {
		t.Errorf("without a token: %v", err)
	}
	spent := g.token(func(e *api.EnrollmentToken) { e.Prefix = "login" })
	if _, err := g.open(t.TempDir(), spent); err == nil || !strings.Contains(err.Error(), `names that begin with "login"`) {
		t.Errorf("by a token for others: %v", err)
	}
}

func TestAKeyIsStoredBeforeItIsSent(t *testing.T) {
	g, dir := newGate(t), t.TempDir()
	if _, err := g.open(dir, g.token(func(e *api.EnrollmentToken) { e.Prefix = "login" })); err == nil {
		t.Fatal("enrolled by a token for others")
	}
	identity, err := trust.ReadIdentity(filepath.Join(dir, trust.IdentityName))
	if err != nil || identity.Key == "" || identity.Certificate != "" {
		t.Errorf("stored is %+v, %v; want the key", identity, err)
	}
}

func TestAnEnrollmentWhoseAnswerWasLostGoesOn(t *testing.T) {
	g, dir := newGate(t), t.TempDir()
	token := g.token(func(*api.EnrollmentToken) {})
	g.mustOpen(dir, token)
	path := filepath.Join(dir, trust.IdentityName)
	identity, err := trust.ReadIdentity(path)
	if err != nil {
		t.Fatal(err)
	}
	identity.Certificate = "" // as it was stored before the request
	if err := identity.Write(path); err != nil {
		t.Fatal(err)
	}
	g.want("after it", g.code(g.mustOpen(dir, token).Client()), "")
}

func TestARenewedNodeComesInByItsNewKeyOnly(t *testing.T) {
	g, dir := newGate(t), t.TempDir()
	c := g.mustOpen(dir, g.token(func(*api.EnrollmentToken) {}))
	copied := t.TempDir()
	former := c.identity()
	if err := former.Write(filepath.Join(copied, trust.IdentityName)); err != nil {
		t.Fatal(err)
	}
	client := c.Client()
	g.want("at first", g.code(client), "")
	if err := c.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.renewed:
	default:
		t.Error("the renewal asks for no new connections")
	}
	g.want("renewed, by the same client", g.code(client), "")
	if c.identity().Key == former.Key || !c.identity().RenewAt.After(time.Now()) {
		t.Errorf("the identity is %+v", c.identity())
	}
	backup := g.mustOpen(copied, "")
	g.want("a copy from before", g.code(backup.Client()), "node_unknown")
	if err := backup.renew(t.Context()); err == nil {
		t.Error("a copy from before was renewed")
	}
	g.want("the node itself", g.code(client), "")
}

func TestACertificateThatHasEndedIsRenewedByTheAgent(t *testing.T) {
	g := newGate(t)
	c := g.mustOpen(t.TempDir(), g.token(func(*api.EnrollmentToken) {}))
	g.ahead.Store(int64(48 * time.Hour)) // the server's clock; the node's is what it was
	g.want("after its end", g.code(c.Client()), "certificate_ended")
	if err := c.answer(t.Context(), &agentstream.Refusal{Code: "certificate_ended"}); err != nil {
		t.Fatal(err)
	}
	g.want("renewed", g.code(c.Client()), "")
}

func TestARevokedNodeComesBackByAnotherTokenOnly(t *testing.T) {
	g, dir := newGate(t), t.TempDir()
	first := g.token(func(e *api.EnrollmentToken) { e.Uses = 9 })
	c := g.mustOpen(dir, first)
	if err := g.Site.Client().RevokeNode(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	unknown := &agentstream.Refusal{Code: "node_unknown"}
	g.want("revoked", g.code(c.Client()), "node_unknown")
	if err := c.answer(t.Context(), unknown); err != nil {
		t.Fatal(err)
	}
	g.want("by the token that it was enrolled by", g.code(c.Client()), "node_unknown")
	c = g.mustOpen(dir, g.token(func(*api.EnrollmentToken) {}))
	g.want("before it asks", g.code(c.Client()), "node_unknown")
	if err := c.answer(t.Context(), unknown); err != nil {
		t.Fatal(err)
	}
	g.want("by another token", g.code(c.Client()), "")
	g.want("after a restart", g.code(g.mustOpen(dir, "").Client()), "")
}

func TestANodeWhoseCAWasRetiredComesInByANewTokenWithItsOldKey(t *testing.T) {
	g, dir := newGate(t), t.TempDir()
	first := g.token(func(*api.EnrollmentToken) {})
	key := g.mustOpen(dir, first).identity().Key
	path := filepath.Join(dir, trust.IdentityName)
	identity, err := trust.ReadIdentity(path)
	if err != nil {
		t.Fatal(err)
	}
	identity.Pin = trust.Pin{1}.String()
	if err := identity.Write(path); err != nil {
		t.Fatal(err)
	}
	// The token it was enrolled by may be as old as the CA: it says nothing of the site now.
	if c := g.mustOpen(dir, first); c.identity().Pin != identity.Pin {
		t.Error("the token of its enrollment changed the pin")
	}
	g.want("with a new token", g.code(g.mustOpen(dir, g.token(func(*api.EnrollmentToken) {})).Client()), "")
	if now, err := trust.ReadIdentity(path); err != nil || now.Key != key {
		t.Errorf("it has another key: %v", err)
	}
	if left := g.Cache.View().EnrollTokens; len(left) != 1 || left[0].Uses != 1 {
		t.Errorf("tokens left: %+v; want the new one unused", left)
	}
}

func TestOnTheServersMachineNoTokenIsNeeded(t *testing.T) {
	g := newGate(t)
	dir := filepath.Join(g.Dir, "nodes", "n1")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	open := func() *Credentials {
		t.Helper()
		c, err := OpenCredentials(t.Context(), config.Agent{StateDir: g.Dir, Server: g.Addr, Name: "n1"}, dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	g.want("at first", g.code(open().Client()), "")
	if err := g.Site.Client().RevokeNode(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	g.want("started again by the administrator", g.code(open().Client()), "")
}
