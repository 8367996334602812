// Package subject is how certificates name whom they are for: nodes, members, and what runs in members.
//
// A name stands in a certificate as its only URI, in one spelling. The package issues nothing and believes nothing: whether a certificate
// is genuine is for its callers. Start with Of.
package subject

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
)

// Kinds of subjects.
const (
	// Node is a node agent: its node's name, and the ID of its identity.
	Node = "node"
	// Member is the root of a member, its member agent among it: the UID of its cluster, and the ID of its assignment.
	Member = "member"
	// Workload is what runs in a member as its unprivileged user; named as the member is.
	Workload = "workload"
)

// Subject is whom a certificate names. It is the certificate's only URI (RFC 5280, section 4.2.1.6): nearmetal://KIND/NAME/ID.
type Subject struct {
	Kind string
	// Name is unique within its kind at one time, or is that of a group of subjects. ID belongs to one subject and is never used again.
	Name, ID string
}

const scheme = "nearmetal"

func (s Subject) url() *url.URL {
	return &url.URL{Scheme: scheme, Host: s.Kind, Path: "/" + s.Name + "/" + s.ID}
}

func (s Subject) String() string { return s.url().String() }

// URI returns the URI that stands in the subject's certificates, or an error for a subject that no URI can name.
func (s Subject) URI() (*url.URL, error) {
	u, err := url.Parse(s.String())
	if err == nil {
		var back Subject
		if back, err = Parse(u); err == nil && back == s {
			return u, nil
		}
	}
	return nil, fmt.Errorf("the name %s can't stand in a certificate", s)
}

// Parse reads what String wrote, in that spelling only.
func Parse(u *url.URL) (Subject, error) {
	parts := strings.Split(strings.TrimPrefix(u.Path, "/"), "/")
	if len(parts) != 2 {
		return Subject{}, fmt.Errorf("%q names nobody", u)
	}
	s := Subject{Kind: u.Host, Name: parts[0], ID: parts[1]}
	if s.Kind == "" || s.Name == "" || s.ID == "" || s.String() != u.String() {
		return Subject{}, fmt.Errorf("%q names nobody", u)
	}
	return s, nil
}

// Of returns whom a certificate claims to be of. A certificate of an authority is refused, and one with several names: which of them is meant
// would be a guess.
func Of(cert *x509.Certificate) (Subject, error) {
	if cert.IsCA {
		return Subject{}, fmt.Errorf("the certificate is one of an authority")
	}
	if len(cert.URIs) != 1 {
		return Subject{}, fmt.Errorf("the certificate has %d URIs; it must have one, %s://KIND/NAME/ID", len(cert.URIs), scheme)
	}
	return Parse(cert.URIs[0])
}
