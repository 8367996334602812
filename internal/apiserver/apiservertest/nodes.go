package apiservertest

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// NodeTLS enrolls a node, approved, the first time, and returns what its agent connects with.
func (s *Site) NodeTLS(name string) *tls.Config {
	s.t.Helper()
	if config := s.nodes[name]; config != nil {
		return config
	}
	s.nodes[name] = s.enroll(api.NodeEnrollment{Name: name}, "admin")
	return s.nodes[name]
}

// PendingTLS enrolls a node that waits for approval, and returns what its agent connects with.
func (s *Site) PendingTLS(name string) *tls.Config {
	s.t.Helper()
	token := trust.NewToken(s.pin)
	hash, err := hex.DecodeString(token.SHA256())
	must(s.t, err)
	rev, err := s.Repo.CreateEnrollToken(context.Background(), api.EnrollmentToken{ID: token.ID(), Hash: hash, Prefix: name, Uses: 1, ExpiresAt: s.now().Add(time.Hour)})
	must(s.t, err)
	s.reach(rev)
	return s.enroll(api.NodeEnrollment{Name: name, Token: token.Bearer()}, "")
}

func (s *Site) enroll(in api.NodeEnrollment, by string) *tls.Config {
	s.t.Helper()
	identity, err := trust.NewIdentity(in.Name)
	must(s.t, err)
	in.Request, err = identity.Request()
	must(s.t, err)
	certificate, err := s.Nodes.Enroll(context.Background(), in, by)
	must(s.t, err)
	shown, err := identity.Certified(in.Name, certificate).TLS()
	must(s.t, err)
	return trust.NodeTLS(s.pin, "127.0.0.1", func() (*tls.Certificate, error) { return shown, nil })
}

// AddTrunk stores a node of which only the trunk is known.
func (s *Site) AddTrunk(name string, trunk api.Trunk) {
	s.t.Helper()
	s.putNode(api.NodeRecord{Name: name, Trunk: &trunk})
}

// AddAdapter stores a node of which only an adapter that members may have is known.
func (s *Site) AddAdapter(name string, adapter api.Adapter) {
	s.t.Helper()
	s.putNode(api.NodeRecord{Name: name, Adapters: []api.Adapter{adapter}})
}

func (s *Site) putNode(record api.NodeRecord) {
	s.t.Helper()
	record.FirstSeenAt = s.now().UTC()
	rev, err := s.Repo.PutNode(context.Background(), record)
	must(s.t, err)
	s.reach(rev)
}
