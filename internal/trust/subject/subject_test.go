package subject

import (
	"crypto/x509"
	"net/url"
	"testing"
)

func parsed(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestASubjectHasOneSpelling(t *testing.T) {
	for _, text := range []string{
		"nearmetal://node/n1/id", "nearmetal://node/n1/id/more", "nearmetal://node/n1", "nearmetal://node//id", "nearmetal:///n1/id", "other://node/n1/id",
		"nearmetal://node/n1/id?x=1", "nearmetal://node/n1/id#x", "nearmetal://me@node/n1/id", "nearmetal://node/n%31/id", "nearmetal:node/n1/id", "",
	} {
		s, err := Parse(parsed(t, text))
		if ok := text == "nearmetal://node/n1/id"; ok != (err == nil) || ok && s != (Subject{Node, "n1", "id"}) {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
	for _, s := range []Subject{{"node", "a/b", "id"}, {"node", "", "id"}, {"", "n1", "id"}, {"node", "n1", ""}} {
		if u, err := s.URI(); err == nil {
			t.Errorf("%+v is named by %s", s, u)
		}
	}
	if u, err := (Subject{Member, "u1", "u1.c1-0.1"}).URI(); err != nil || u.String() != "nearmetal://member/u1/u1.c1-0.1" {
		t.Errorf("got %v, %v", u, err)
	}
}

func TestACertificateIsOfOneSubject(t *testing.T) {
	node, member := parsed(t, "nearmetal://node/n1/id"), parsed(t, "nearmetal://member/u1/u1.c1-0.1")
	for _, tt := range []struct {
		name string
		cert *x509.Certificate
		ok   bool
	}{
		{"one name", &x509.Certificate{URIs: []*url.URL{node}}, true},
		{"two names", &x509.Certificate{URIs: []*url.URL{node, member}}, false},
		{"no name", &x509.Certificate{}, false},
		{"another site's name", &x509.Certificate{URIs: []*url.URL{parsed(t, "spiffe://node/n1/id")}}, false},
		{"an authority's", &x509.Certificate{URIs: []*url.URL{node}, IsCA: true}, false},
	} {
		s, err := Of(tt.cert)
		if (err == nil) != tt.ok || tt.ok && s != (Subject{Node, "n1", "id"}) {
			t.Errorf("%s: got %+v, %v", tt.name, s, err)
		}
	}
}
