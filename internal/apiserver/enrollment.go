package apiserver

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/enrollment"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Nodes gives nodes their certificates, and finds the node of a certificate. *enrollment.Registrar implements it.
type Nodes interface {
	Enroll(ctx context.Context, in api.NodeEnrollment, by string) (api.NodeCertificate, error)
	Renew(ctx context.Context, shown *x509.Certificate, in api.NodeRenewal) (api.NodeCertificate, error)
	// Identify returns the node that shows a certificate. Admit does so if the node may come in now; then the rights of its former key have ended.
	Identify(shown *x509.Certificate) (tenancy.Principal, error)
	Admit(ctx context.Context, shown *x509.Certificate) (tenancy.Principal, error)
}

// admit is the session of a node that shows a certificate.
func (s *Server) admit(ctx context.Context, shown *x509.Certificate) (session, *failure) {
	principal, err := s.cfg.Nodes.Admit(ctx, shown)
	if err != nil {
		return session{}, s.nodeFailure(ctx, err)
	}
	return session{principal, func() bool {
		now, err := s.cfg.Nodes.Identify(shown)
		return err == nil && now.Equal(principal)
	}}, nil
}

// maxEnrollment bounds the body of a node that asks for a certificate.
const maxEnrollment = 16 << 10

// enrollNodeAgent gives a node its first certificate.
func (s *Server) enrollNodeAgent(w http.ResponseWriter, r *http.Request) {
	by := ""
	if isAdmin(r.Context()) {
		by = userOf(r.Context())
	}
	answerNode(s, w, r, func(in api.NodeEnrollment) (api.NodeCertificate, error) {
		if s.cfg.Room != nil {
			if err := s.cfg.Room(); err != nil {
				return api.NodeCertificate{}, fail(codeNoSpace, "%v", err)
			}
		}
		out, err := s.cfg.Nodes.Enroll(r.Context(), in, by)
		if err == nil && by == "" {
			entryOf(r.Context()).is(tenancy.Principal{Role: api.RoleAgent, Node: in.Name})
		}
		return out, err
	})
}

// renewNodeAgent gives a node its next certificate, which takes no room: what is stored of it replaces what was.
func (s *Server) renewNodeAgent(w http.ResponseWriter, r *http.Request) {
	shown := certificateOf(r)
	if shown == nil {
		fail(codeNodeUnknown, "the connection shows no certificate of a node; enroll the node first").write(w)
		return
	}
	answerNode(s, w, r, func(in api.NodeRenewal) (api.NodeCertificate, error) {
		return s.cfg.Nodes.Renew(r.Context(), shown, in)
	})
}

// answerNode reads what a node asks for, and answers.
func answerNode[T any](s *Server, w http.ResponseWriter, r *http.Request, do func(T) (api.NodeCertificate, error)) {
	var in T
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxEnrollment))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&in)
	if err == nil {
		_, err = decoder.Token()
	}
	if !errors.Is(err, io.EOF) {
		fail(codeMalformed, "the request's body: is not one JSON object of a node that asks for a certificate").write(w)
		return
	}
	out, err := do(in)
	if err != nil {
		s.nodeFailure(r.Context(), err).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(out) // a node that does not take the answer asks again
}

// nodeFailure is why a node gets no certificate, or is not let in by the one it has.
func (s *Server) nodeFailure(ctx context.Context, err error) *failure {
	switch {
	case errors.Is(err, enrollment.ErrRequest):
		return fail(codeInvalidRequest, "%v", err)
	case errors.Is(err, enrollment.ErrToken):
		return fail(codeForbidden, "%v", err)
	case errors.Is(err, state.ErrOtherMachine):
		return fail(codeNodeTaken, "%v", err)
	case errors.Is(err, enrollment.ErrPending):
		return fail(codeNodePending, "%v", err)
	case errors.Is(err, trust.ErrEnded):
		return fail(codeCertificateEnded, "%v; renew it", err)
	case errors.Is(err, enrollment.ErrUnknown), errors.Is(err, state.ErrKeyReplaced), errors.Is(err, trust.ErrForeign):
		return fail(codeNodeUnknown, "%v", err)
	default:
		return s.asFailure(ctx, err)
	}
}

// certificateOf is the certificate that a request's connection shows, or nil.
func certificateOf(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// approveNode lets a node in that has enrolled.
func (s *Server) approveNode(ctx context.Context, in *byName) (*body[api.Node], error) {
	_, revision, err := s.cfg.Writer.ApproveNode(ctx, in.Name, userOf(ctx), s.cfg.Now().UTC())
	return s.nodeAfter(ctx, in.Name, revision, err)
}

// revokeNode takes a node's identity away.
func (s *Server) revokeNode(ctx context.Context, in *byName) (*struct{}, error) {
	revision, err := s.cfg.Writer.RevokeNode(ctx, in.Name)
	if errors.Is(err, state.ErrNotFound) {
		if s.cfg.Reader.View().Node(in.Name) == nil {
			return nil, noNode(in.Name)
		}
		return nil, nil // it has none
	}
	if err != nil {
		return nil, err
	}
	s.readOwnWrite(ctx, revision)
	return nil, nil
}

// nodeStreams are the open streams of nodes, which end with their identities.
type nodeStreams struct {
	mu   sync.Mutex
	open map[string]map[*nodeStream]bool // by node
}

// nodeStream is one of them.
type nodeStream struct {
	valid func() bool
	end   func()
}

// add returns what takes the stream out again.
func (n *nodeStreams) add(node string, s *nodeStream) func() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open == nil {
		n.open = map[string]map[*nodeStream]bool{}
	}
	if n.open[node] == nil {
		n.open[node] = map[*nodeStream]bool{}
	}
	n.open[node][s] = true
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.open[node], s)
		if len(n.open[node]) == 0 {
			delete(n.open, node)
		}
	}
}

// look ends the streams of a node that are no longer those of its identity.
func (n *nodeStreams) look(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.open[node] {
		if !s.valid() {
			s.end()
		}
	}
}

// watchIdentities ends streams as the identities of their nodes do, at once and not when somebody next looks, until ctx ends.
func (s *Server) watchIdentities(ctx context.Context) {
	before := s.cfg.Reader.View()
	for {
		if _, err := s.cfg.Reader.WaitRevision(ctx, before.Revision+1); err != nil {
			return
		}
		view := s.cfg.Reader.View()
		changed, gone := state.Diff(before.Nodes, view.Nodes, func(n *state.Node) string { return n.Name })
		for _, n := range changed {
			if was := before.Node(n.Name); was != nil && was.Identity != n.Identity {
				s.agents.look(n.Name)
			}
		}
		for _, n := range gone {
			s.agents.look(n.Name)
		}
		before = view
	}
}
