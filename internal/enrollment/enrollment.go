// Package enrollment gives nodes their identities and tells whose certificate is shown.
//
// A node makes its own key. It gets a short-lived certificate for it once, by an enrollment token or from the administrator on the server's
// machine; from then on each key is replaced by the next well before its certificate ends. A certificate alone proves nothing: the
// identity must be stored, approved, and of that very key, so that what is revoked or replaced is refused at once, and a copy of a key is of
// no use after the next renewal. Machines that boot from this site get theirs with their boot (bootapi).
// Start with Registrar.
package enrollment

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// How long a certificate of a node lives, and when the node asks for the next one. A node that was away for longer is not locked out: it renews by
// the certificate that has ended.
const (
	Life       = 24 * time.Hour
	RenewAfter = Life / 3
)

// Authority issues and reads certificates. *trust.Authority is one.
type Authority interface {
	Certify(key *ecdsa.PublicKey, s subject.Subject, now time.Time, life time.Duration) ([]byte, error)
	Identify(cert *x509.Certificate, now time.Time) (subject.Subject, error)
	Pin() trust.Pin
	Site() string
}

// Writer stores identities. *state.Repo is one.
type Writer interface {
	EnrollNode(ctx context.Context, in api.NodeIdentity, secret func(hash []byte) bool) (api.NodeIdentity, int64, error)
	RenewNode(ctx context.Context, node, id, shown, next string, at, ends time.Time) (api.NodeIdentity, int64, error)
	UseKey(ctx context.Context, node, id, shown string) (int64, error)
}

// Reader is the stored state in memory. *state.Cache is one.
type Reader interface {
	View() *state.View
	WaitRevision(ctx context.Context, revision int64) (int64, error)
}

// Registrar is the one place where nodes get certificates. It may be used from many goroutines.
type Registrar struct {
	Authority Authority
	Writer    Writer
	Reader    Reader
	// Now is the site's time.
	Now func() time.Time
}

// Errors for nodes, beside those of package state and trust. Each is worded for the operator who reads the agent's log.
var (
	// ErrRequest: what the node sent is no request for an identity.
	ErrRequest = errors.New("bad enrollment request")
	// ErrToken: the enrollment token does not let this node in.
	ErrToken = errors.New("the enrollment token was refused")
	// ErrUnknown: the certificate's identity is not, or no longer, one of this site.
	ErrUnknown = errors.New("this node's identity is unknown or was revoked")
	// ErrPending: nobody has approved the node yet.
	ErrPending = errors.New("this node waits for approval")
)

// Enroll gives a node its first certificate. by names the administrator who asks on the server's machine, and approves by that; empty: the
// request's token decides.
func (r *Registrar) Enroll(ctx context.Context, in api.NodeEnrollment, by string) (api.NodeCertificate, error) {
	key, err := trust.ParseRequest(in.Request)
	if err != nil {
		return api.NodeCertificate{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if problem := manifest.LabelProblem(in.Name, manifest.MaxLabel); problem != "" {
		return api.NodeCertificate{}, fmt.Errorf("%w: the name %q %s", ErrRequest, in.Name, problem)
	}
	now := r.Now().UTC()
	identity, err := newIdentity(in.Name, key, now)
	if err != nil {
		return api.NodeCertificate{}, err
	}
	if by != "" {
		identity.EnrolledBy, identity.ApprovedBy, identity.ApprovedAt = by, by, &now
	}
	token, err := tokenOf(in.Token, by)
	if err != nil {
		return api.NodeCertificate{}, err
	}
	identity.Token = token.id
	stored, revision, err := r.Writer.EnrollNode(ctx, identity, token.is)
	switch {
	case errors.Is(err, state.ErrNotFound), errors.Is(err, state.ErrTokenSpent), errors.Is(err, state.ErrTokenName):
		return api.NodeCertificate{}, fmt.Errorf("%w: %w", ErrToken, err)
	case err != nil:
		return api.NodeCertificate{}, err
	}
	return r.issue(ctx, key, stored, revision)
}

// shownToken is an enrollment token as a node shows it. Whether it is one is found by the commit that uses it.
type shownToken struct {
	id string
	is func(hash []byte) bool
}

// tokenOf reads the secret of a token. An administrator needs none.
func tokenOf(secret, by string) (shownToken, error) {
	if by != "" {
		return shownToken{}, nil
	}
	if secret == "" {
		return shownToken{}, fmt.Errorf("%w: the request carries none; make one: nearmetal node enroll-token create", ErrToken)
	}
	token, err := trust.ParseSecret(secret)
	if err != nil {
		return shownToken{}, fmt.Errorf("%w: it %w", ErrToken, err)
	}
	return shownToken{id: token.ID(), is: func(hash []byte) bool { return token.Is(hex.EncodeToString(hash)) }}, nil
}

// newIdentity is the identity of a key, without who let it in.
func newIdentity(node string, key *ecdsa.PublicKey, now time.Time) (api.NodeIdentity, error) {
	id, err := trust.KeyID(key)
	if err != nil {
		return api.NodeIdentity{}, err
	}
	return api.NodeIdentity{Node: node, ID: uuid.NewString(), Key: id, EnrolledAt: now, RenewedAt: now, EndsAt: now.Add(Life)}, nil
}

// Renew gives a node the certificate of its next key. shown is the one on its connection, which may have ended.
func (r *Registrar) Renew(ctx context.Context, shown *x509.Certificate, in api.NodeRenewal) (api.NodeCertificate, error) {
	key, err := trust.ParseRequest(in.Request)
	if err != nil {
		return api.NodeCertificate{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	next, err := trust.KeyID(key)
	if err != nil {
		return api.NodeCertificate{}, err
	}
	now := r.Now().UTC()
	named, err := r.Authority.Identify(shown, now)
	if err != nil && !errors.Is(err, trust.ErrEnded) {
		return api.NodeCertificate{}, err
	}
	if named.Kind != subject.Node {
		return api.NodeCertificate{}, fmt.Errorf("%w: it is of a %s", trust.ErrForeign, named.Kind)
	}
	stored, revision, err := r.Writer.RenewNode(ctx, named.Name, named.ID, trust.CertificateKeyID(shown), next, now, now.Add(Life))
	if errors.Is(err, state.ErrNotFound) {
		return api.NodeCertificate{}, unknown(named.Name)
	}
	if err != nil {
		return api.NodeCertificate{}, err
	}
	return r.issue(ctx, key, stored, revision)
}

// issue makes the certificate, and returns once connections by it are let in here.
func (r *Registrar) issue(ctx context.Context, key *ecdsa.PublicKey, in api.NodeIdentity, revision int64) (api.NodeCertificate, error) {
	out, err := r.certify(key, in)
	if err != nil {
		return api.NodeCertificate{}, err
	}
	_, err = r.Reader.WaitRevision(ctx, revision)
	return out, err
}

func (r *Registrar) certify(key *ecdsa.PublicKey, in api.NodeIdentity) (api.NodeCertificate, error) {
	der, err := r.Authority.Certify(key, subject.Subject{Kind: subject.Node, Name: in.Node, ID: in.ID}, r.Now(), Life)
	if err != nil {
		return api.NodeCertificate{}, err
	}
	return api.NodeCertificate{
		Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), Pin: r.Authority.Pin().String(), Site: r.Authority.Site(),
		RenewInSeconds: RenewAfter.Seconds(), Approved: in.ApprovedAt != nil,
	}, nil
}

// ForBoot makes the identity of the agent of a machine that boots, which the exchange of its boot token stores, and its certificate.
func (r *Registrar) ForBoot(node, request string) (api.NodeIdentity, api.NodeCertificate, error) {
	key, err := trust.ParseRequest(request)
	if err != nil {
		return api.NodeIdentity{}, api.NodeCertificate{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	identity, err := newIdentity(node, key, r.Now().UTC())
	if err != nil {
		return api.NodeIdentity{}, api.NodeCertificate{}, err
	}
	certificate, err := r.certify(key, identity)
	return identity, certificate, err
}

// Identify tells which node shows a certificate. It returns ErrUnknown, ErrPending, state.ErrKeyReplaced and the errors of trust.Authority.
func (r *Registrar) Identify(shown *x509.Certificate) (trust.Principal, error) {
	named, err := r.Authority.Identify(shown, r.Now())
	if err != nil {
		return trust.Principal{}, err
	}
	if named.Kind != subject.Node {
		return trust.Principal{}, fmt.Errorf("%w: it is of a %s", trust.ErrForeign, named.Kind)
	}
	stored := r.Reader.View().Node(named.Name)
	if stored == nil || stored.Identity == nil || stored.Identity.ID != named.ID {
		return trust.Principal{}, unknown(named.Name)
	}
	in := stored.Identity
	switch key := trust.CertificateKeyID(shown); {
	case key != in.Key && key != in.Next:
		return trust.Principal{}, fmt.Errorf("node %q: %w on %s; this machine was restored from a backup, or another has a copy of its identity: "+
			"run nearmetal node revoke %s, and enroll it again", in.Node, state.ErrKeyReplaced, in.RenewedAt.UTC().Format(time.DateTime), in.Node)
	case in.ApprovedAt == nil:
		return trust.Principal{}, fmt.Errorf("%w; run: nearmetal node approve %s", ErrPending, in.Node)
	}
	return trust.Principal{Role: trust.RoleAgent, Node: in.Node, TokenID: in.ID}, nil
}

// Admit is Identify for a node that comes in. From its first connection by a new key on, the former is void.
func (r *Registrar) Admit(ctx context.Context, shown *x509.Certificate) (trust.Principal, error) {
	p, err := r.Identify(shown)
	if err != nil {
		return trust.Principal{}, err
	}
	key := trust.CertificateKeyID(shown)
	if in := r.Reader.View().Node(p.Node); in == nil || in.Identity == nil || in.Identity.Next != key {
		return p, nil
	}
	revision, err := r.Writer.UseKey(ctx, p.Node, p.TokenID, key)
	if errors.Is(err, state.ErrNotFound) {
		return trust.Principal{}, unknown(p.Node)
	}
	if err != nil {
		return trust.Principal{}, err
	}
	_, err = r.Reader.WaitRevision(ctx, revision)
	return p, err
}

func unknown(node string) error {
	return fmt.Errorf("%w; to let node %q in again, start its agent with a new enrollment token (nearmetal node enroll-token create)", ErrUnknown, node)
}
