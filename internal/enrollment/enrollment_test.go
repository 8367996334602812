package enrollment_test

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/enrollment"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// site is a registrar on a clock that the test moves on.
type site struct {
	*enrollment.Registrar
	t     *testing.T
	repo  *state.Repo
	cache *state.Cache
	now   time.Time
}

func newSite(t *testing.T) *site {
	s := &site{t: t, repo: state.New(memory.New()), now: time.Now()}
	var err error
	if s.cache, err = s.repo.OpenCache(t.Context()); err != nil {
		t.Fatal(err)
	}
	authority, err := trust.Open(t.TempDir(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	s.Registrar = &enrollment.Registrar{Authority: authority, Writer: s.repo, Reader: s.cache, Now: func() time.Time { return s.now }}
	return s
}

// reach waits until the view holds a revision.
func (s *site) reach(revision int64, err error) {
	s.t.Helper()
	if err == nil {
		_, err = s.cache.WaitRevision(s.t.Context(), revision)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// token makes an enrollment token and returns its line.
func (s *site) token(change func(*api.EnrollmentToken)) string {
	s.t.Helper()
	token := trust.NewToken(s.Authority.Pin())
	hash, err := hex.DecodeString(token.SHA256())
	if err != nil {
		s.t.Fatal(err)
	}
	in := api.EnrollmentToken{ID: token.ID(), Hash: hash, Prefix: "n", Uses: 1, By: "ann", ExpiresAt: s.now.Add(time.Hour)}
	change(&in)
	s.reach(s.repo.CreateEnrollToken(s.t.Context(), in))
	return token.Line()
}

// node is a node's end.
type node struct {
	s *site
	trust.Identity
}

func (s *site) node(name string) *node {
	s.t.Helper()
	identity, err := trust.NewIdentity(name)
	if err != nil {
		s.t.Fatal(err)
	}
	return &node{s, identity}
}

func (n *node) request() string {
	n.s.t.Helper()
	request, err := n.Request()
	if err != nil {
		n.s.t.Fatal(err)
	}
	return request
}

func (n *node) enroll(token, by string) error {
	n.s.t.Helper()
	c, err := n.s.Enroll(n.s.t.Context(), api.NodeEnrollment{Name: n.Node, Request: n.request(), Token: token}, by)
	if err == nil {
		n.Identity = n.Certified(n.Node, c)
	}
	return err
}

// next is the node after a renewal; the former stays as it is.
func (n *node) next() (*node, error) {
	n.s.t.Helper()
	renewed, err := n.Renewed()
	if err != nil {
		n.s.t.Fatal(err)
	}
	next := &node{n.s, renewed}
	c, err := n.s.Renew(n.s.t.Context(), n.certificate(), api.NodeRenewal{Request: next.request()})
	if err == nil {
		next.Identity = next.Certified(n.Node, c)
	}
	return next, err
}

func (n *node) certificate() *x509.Certificate {
	n.s.t.Helper()
	block, _ := pem.Decode([]byte(n.Certificate))
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		n.s.t.Fatal(err)
	}
	return cert
}

// comesIn tells why the node is not let in, or nil.
func (n *node) comesIn() error {
	n.s.t.Helper()
	p, err := n.s.Admit(n.s.t.Context(), n.certificate())
	if err == nil && (p.Role != trust.RoleAgent || p.Node != n.Node || p.TokenID == "") {
		n.s.t.Errorf("node %s comes in as %+v", n.Node, p)
	}
	if _, again := n.s.Identify(n.certificate()); (again == nil) != (err == nil) {
		n.s.t.Errorf("node %s: let in with %v, then known with %v", n.Node, err, again)
	}
	return err
}

func (s *site) want(what string, got, want error) {
	s.t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		s.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestANodeComesInOnceItIsApproved(t *testing.T) {
	s := newSite(t)
	n1 := s.node("n1")
	s.want("enroll", n1.enroll(s.token(func(*api.EnrollmentToken) {}), ""), nil)
	s.want("before it is approved", n1.comesIn(), enrollment.ErrPending)
	_, revision, err := s.repo.ApproveNode(t.Context(), "n1", "ann", s.now)
	s.reach(revision, err)
	s.want("once it is approved", n1.comesIn(), nil)

	n2 := s.node("n2")
	s.want("by a token that approves", n2.enroll(s.token(func(e *api.EnrollmentToken) { e.Approve = true }), ""), nil)
	s.want("it", n2.comesIn(), nil)
	n3 := s.node("n3")
	s.want("by the administrator", n3.enroll("", "admin"), nil)
	s.want("it", n3.comesIn(), nil)
}

func TestWhoMayNotEnrollIsToldWhy(t *testing.T) {
	s := newSite(t)
	spent := s.token(func(*api.EnrollmentToken) {})
	first := s.node("n1")
	s.want("the first", first.enroll(spent, ""), nil)
	s.want("the same again, after a lost answer", first.enroll(spent, ""), nil)
	ended := s.token(func(e *api.EnrollmentToken) { e.ExpiresAt = s.now })
	many := s.token(func(e *api.EnrollmentToken) { e.Uses = 9 })
	unknown := trust.NewToken(s.Authority.Pin()).Line()
	for what, tc := range map[string]struct {
		name, token string
		want        error
	}{
		"no token":                  {"n2", "", enrollment.ErrToken},
		"no token at all":           {"n2", "hello", enrollment.ErrToken},
		"an unknown token":          {"n2", unknown, enrollment.ErrToken},
		"a token that is used up":   {"n2", spent, enrollment.ErrToken},
		"a token that has ended":    {"n2", ended, enrollment.ErrToken},
		"a token for other names":   {"login", many, enrollment.ErrToken},
		"a second node of the name": {"n1", many, state.ErrOtherMachine},
		"a name that is none":       {"N_1", many, enrollment.ErrRequest},
		"no name":                   {"", many, enrollment.ErrRequest},
	} {
		s.want(what, s.node(tc.name).enroll(tc.token, ""), tc.want)
	}
	s.want("the right one", s.node("n2").enroll(many, ""), nil)
	if _, err := s.Enroll(t.Context(), api.NodeEnrollment{Name: "n3", Request: "none", Token: many}, ""); !errors.Is(err, enrollment.ErrRequest) {
		t.Errorf("no request: %v", err)
	}
}

func TestARevokedNodeIsOutAtOnceAndEnrollsAgain(t *testing.T) {
	s := newSite(t)
	n1 := s.node("n1")
	s.want("enroll", n1.enroll("", "admin"), nil)
	s.reach(s.repo.RevokeNode(t.Context(), "n1"))
	s.want("revoked", n1.comesIn(), enrollment.ErrUnknown)
	_, err := n1.next()
	s.want("a revoked node renews", err, enrollment.ErrUnknown)
	again := s.node("n1")
	s.want("enrolled again", again.enroll("", "admin"), nil)
	s.want("the new one", again.comesIn(), nil)
	s.want("the old one", n1.comesIn(), enrollment.ErrUnknown)
	_, err = n1.next()
	s.want("the old one renews", err, enrollment.ErrUnknown)
}

func TestAFormerKeyIsVoidOnceTheNextIsUsed(t *testing.T) {
	s := newSite(t)
	n1 := s.node("n1")
	s.want("enroll", n1.enroll("", "admin"), nil)
	lost, err := n1.next()
	s.want("renew", err, nil)
	second, err := n1.next() // the first answer was lost
	s.want("renew again", err, nil)
	s.want("the former, while the next was not used", n1.comesIn(), nil)
	s.want("one whose answer was lost", lost.comesIn(), state.ErrKeyReplaced)
	s.want("the next", second.comesIn(), nil)
	s.want("the former", n1.comesIn(), state.ErrKeyReplaced)
	// A copy of the disk from before: its key is good for nothing, and keeps nobody out.
	_, err = n1.next()
	s.want("a copy renews", err, state.ErrKeyReplaced)
	s.want("the node itself", second.comesIn(), nil)
}

func TestACertificateThatHasEndedIsGoodForTheNextOnly(t *testing.T) {
	s := newSite(t)
	n1 := s.node("n1")
	s.want("enroll", n1.enroll("", "admin"), nil)
	s.now = s.now.Add(enrollment.Life + time.Minute)
	s.want("after its end", n1.comesIn(), trust.ErrEnded)
	s.now = s.now.Add(300 * 24 * time.Hour) // the server was away, or the node
	second, err := n1.next()
	s.want("renew", err, nil)
	s.want("the next", second.comesIn(), nil)
	s.want("the former", n1.comesIn(), trust.ErrEnded)
	s.now = s.now.Add(-12 * time.Hour) // another server, whose clock is behind
	s.want("the next, by a clock that is behind", second.comesIn(), nil)
}

func TestACertificateOfNoNodeOfThisSiteLetsNobodyIn(t *testing.T) {
	s, other := newSite(t), newSite(t)
	foreign := other.node("n1")
	other.want("enroll", foreign.enroll("", "admin"), nil)
	s.want("enroll", s.node("n1").enroll("", "admin"), nil)
	stranger := &node{s, foreign.Identity}
	s.want("another site's", stranger.comesIn(), trust.ErrForeign)
	_, err := stranger.next()
	s.want("another site's renews", err, trust.ErrForeign)

	key, err := trust.ParseRequest(stranger.request())
	if err != nil {
		t.Fatal(err)
	}
	der, err := s.Authority.Certify(key, subject.Subject{Kind: subject.Member, Name: "n1", ID: s.cache.View().Node("n1").Identity.ID}, s.now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	member := &node{s, stranger.Identity}
	member.Certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	s.want("of another kind", member.comesIn(), trust.ErrForeign)
	_, err = member.next()
	s.want("of another kind renews", err, trust.ErrForeign)
}

func TestTheIdentityOfABootIsThatOfItsKey(t *testing.T) {
	s := newSite(t)
	m1 := s.node("m1")
	in, certificate, err := s.ForBoot("m1", m1.request())
	if err != nil {
		t.Fatal(err)
	}
	m1.Identity = m1.Certified("m1", certificate)
	s.want("before it is stored", m1.comesIn(), enrollment.ErrUnknown)
	if id, err := m1.KeyID(); err != nil || in.Key != id || in.Node != "m1" || !in.EndsAt.Equal(in.EnrolledAt.Add(enrollment.Life)) {
		t.Errorf("%+v, %v", in, err)
	}
	if _, _, err := s.ForBoot("m1", ""); !errors.Is(err, enrollment.ErrRequest) {
		t.Errorf("no request: %v", err)
	}
}
