package membercert

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// Errors of Verifier.Verify. Each comes with the reason.
var (
	// ErrForeign: the certificate is not one that the authority of its cluster issued for this use, or of a cluster that is not served here.
	ErrForeign = errors.New("the certificate is not one of a member that is served here")
	// ErrEnded reports that the certificate's validity is over, or has not begun.
	ErrEnded = errors.New("the member's certificate has ended")
	// ErrReleased reports that the certificate is genuine, but its assignment is no longer held.
	ErrReleased = errors.New("the member was released or replaced")
)

// Verifier is what someone who is shown members' certificates knows of clusters. Both functions say what the leader last said: a certificate
// outlives its assignment by days, so who does not know which assignments are held must not decide anything by one.
//
// A verdict holds for the moment. Whoever keeps a connection open ends it when its assignment is released.
type Verifier struct {
	// Kind is whose certificates are accepted: subject.Member or subject.Workload.
	Kind string
	// Authority returns the authority of a cluster, or nil for a cluster that is not served.
	Authority func(clusterUID string) *x509.Certificate
	// Holds reports whether an assignment is held by its cluster: neither released nor replaced.
	Holds func(assignmentID string) bool
}

// Verify returns the ID of the assignment that shows this certificate in a handshake at this time. Errors are ErrForeign, ErrEnded and
// ErrReleased.
func (v Verifier) Verify(cert *x509.Certificate, now time.Time) (string, error) {
	s, err := subject.Of(cert)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if s.Kind != v.Kind {
		return "", fmt.Errorf("%w: it is of kind %q, not %q", ErrForeign, s.Kind, v.Kind)
	}
	authority := v.Authority(s.Name)
	if authority == nil {
		return "", fmt.Errorf("%w: cluster %s is not served here", ErrForeign, s.Name)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	// At a time within its life, so that the library's one error for all reasons tells the end of its life from a forgery.
	if _, err := cert.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: cert.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return "", fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if now.After(cert.NotAfter) || now.Before(cert.NotBefore) {
		return "", fmt.Errorf("%w: it is valid from %s to %s", ErrEnded, cert.NotBefore.UTC().Format(time.DateTime), cert.NotAfter.UTC().Format(time.DateTime))
	}
	if !v.Holds(s.ID) {
		return "", fmt.Errorf("%w: its cluster does not hold assignment %s any more", ErrReleased, s.ID)
	}
	return s.ID, nil
}
