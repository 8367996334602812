package ufm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/ufm/ufmtest"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

func epoch(revision int64) lifecycle.Epoch { return lifecycle.Epoch{Term: 1, Revision: revision} }

func network(key int, names ...string) site.Network {
	n := site.Network{Number: key}
	for _, name := range names {
		n.Ports = append(n.Ports, site.Port{At: at(name)})
	}
	return n
}

func mustApply(t *testing.T, s *Site, e lifecycle.Epoch, networks ...site.Network) {
	t.Helper()
	if err := s.Apply(t.Context(), e, networks); err != nil {
		t.Fatal(err)
	}
}

// clean is why a port of partition 5 is not clean since an epoch; nil if it is.
func clean(t *testing.T, s *Site, e lifecycle.Epoch, name string) error {
	t.Helper()
	seen, err := s.Observe(t.Context())
	if err != nil {
		return err
	}
	return seen.Clean(e, 5, at(name))
}

// Whatever a request meets, a port is clean when it is, and no sooner.
func TestAPortIsNotCleanBeforeUFMHasRemovedIt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault ufmtest.Fault
		// want is in the error of Apply; "": Apply reports none.
		want string
		// gone: the member is gone when Apply returns; late: it counts as so only when nothing can come any more.
		gone, late bool
	}{
		"UFM refuses":                            {ufmtest.Refuse, "400 Bad Request: Operation is not permitted now", false, false},
		"UFM fails after the change":             {ufmtest.Break, "UFM failed: 500 Internal Server Error: <html> <body>", true, true},
		"UFM answers 200 and changes nothing":    {ufmtest.Lie, "", false, true},
		"UFM makes half of the change":           {ufmtest.Half, "", false, true},
		"UFM restarts after the change":          {ufmtest.Vanish, "EOF", true, true},
		"UFM carries out what it did not answer": {ufmtest.Late, "EOF", false, true},
		"UFM accepts, and carries it out later":  {ufmtest.Accept, "", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			now := time.Now()
			l.cfg.Now = func() time.Time { return now }
			s := l.executor()
			mustApply(t, s, epoch(1), network(5, "a", "b", "c"))
			if err := clean(t, s, epoch(1), "a"); err == nil {
				t.Fatal("a member counts as clean")
			}
			l.Next(tt.fault)
			err := s.Apply(t.Context(), epoch(2), []site.Network{network(5, "c")})
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			if member, is := l.Partition(5).Members[at("b")]; is == tt.gone {
				t.Fatalf("the stand-in has member b: %t %t", is, member)
			}
			if clean(t, s, epoch(2), "b") == nil {
				t.Error("after the fault: counts as clean")
			}
			// The keeper tries again.
			mustApply(t, s, epoch(2), network(5, "c"))
			if late := clean(t, s, epoch(2), "b") != nil; late != tt.late {
				t.Errorf("after the next try: waits for a late request: %t, want %t", late, tt.late)
			}
			l.Settle()
			now = now.Add(2 * time.Minute)
			if err := clean(t, s, epoch(2), "b"); err != nil {
				t.Errorf("in the end: %v", err)
			}
		})
	}
}

// An addition that UFM carries out after its port was removed again is not missed.
func TestALateAdditionIsNotForgotten(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	now := time.Now()
	l.cfg.Now = func() time.Time { return now }
	s := l.executor()
	mustApply(t, s, epoch(1), network(5, "c"))
	l.Next(ufmtest.Late)
	if err := s.Apply(t.Context(), epoch(2), []site.Network{network(5, "a", "c")}); err == nil {
		t.Fatal("want an error of the lost answer")
	}
	// Another server takes over: it has to know of the request.
	s = l.executor()
	mustApply(t, s, epoch(3), network(5, "c"))
	if clean(t, s, epoch(3), "a") == nil {
		t.Error("counts as clean, although an addition may yet come")
	}
	l.Settle()
	now = now.Add(2 * time.Minute)
	if clean(t, s, epoch(3), "a") == nil {
		t.Error("counts as clean, although the addition came")
	}
	mustApply(t, s, epoch(3), network(5, "c"))
	if err := clean(t, s, epoch(3), "a"); err != nil {
		t.Errorf("in the end: %v", err)
	}
}

// An addition that UFM accepted, and carries out after its port was removed again, is not missed either.
func TestWhatUFMAcceptedAndDoesNotShowMayComeLater(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.executor()
	mustApply(t, s, epoch(1), network(5, "c"))
	l.Next(ufmtest.Accept)
	mustApply(t, s, epoch(2), network(5, "a", "c"))
	l.later = 2 * time.Minute
	if seen, err := s.Observe(t.Context()); err != nil || seen.Epoch == epoch(2) {
		t.Errorf("a state that UFM does not show is in force: %+v, %v", seen, err)
	}
	l.later = 0
	mustApply(t, s, epoch(3), network(5, "c"))
	if clean(t, s, epoch(3), "a") == nil {
		t.Error("counts as clean, although an addition may yet come")
	}
}

func TestPartitionsOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.Plant(0x100, at("a")) // the first key past the range
	s := l.executor()
	mustApply(t, s, epoch(1), network(5, "b"))
	mustApply(t, s, epoch(2))
	if p := l.Partition(0x100); p == nil || len(p.Members) != 1 {
		t.Errorf("another's partition is %+v", p)
	}
	if l.Partition(0x7fff) == nil || l.Partition(5) != nil {
		t.Error("the management partition is to stay, and the site's own is to go")
	}
	for what, n := range map[string]site.Network{
		"a key of others": network(0x100, "a"), "the management key": network(0x7fff, "a"), "no GUID": {Number: 5, Ports: []site.Port{{At: "n1"}}},
		"an MTU that UFM does not make": {Number: 5, Partition: api.Partition{MTUBytes: 1024}},
	} {
		before := l.Changes()
		if err := s.Apply(t.Context(), epoch(3), []site.Network{n}); err == nil || !slices.Equal(before, l.Changes()) {
			t.Errorf("%s: got %v and %v", what, err, l.Changes())
		}
	}
}

func TestAPartitionIsMadeAsItsNetworkSays(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.executor()
	n := network(5, "a", "b")
	n.Ports[1].Limited = true
	n.Partition = api.Partition{IPoIB: false, MTUBytes: 4096, RateGbps: 100, ServiceLevel: 3}
	mustApply(t, s, epoch(1), n)
	p := l.Partition(5)
	if p.IPOverIB || p.MTULimit != 4 || p.RateLimit != 100 || p.ServiceLevel != 3 || p.Members[at("a")] || !p.Members[at("b")] {
		t.Errorf("got %+v", p)
	}
	before := len(l.Changes())
	mustApply(t, s, epoch(2), n)
	if got := l.Changes(); len(got) != before {
		t.Errorf("the same again: requests %v", got[before:])
	}
	// One member more is one request, however many there are.
	n.Ports = append(n.Ports, site.Port{At: at("c")})
	mustApply(t, s, epoch(3), n)
	if got := l.Changes(); len(got) != before+1 {
		t.Errorf("a member more: requests %v", got[before:])
	}
}

func TestWhatAPortsTableSaysOtherwiseIsUnknown(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.executor()
	mustApply(t, s, epoch(1), network(5, "a", "b"))
	l.lacks[at("a")] = true
	seen, err := s.Observe(t.Context())
	if err != nil || !strings.Contains(seen.Unknown[at("a")], "lacks partition 0x0005") || seen.Unknown[at("b")] != "" {
		t.Errorf("a port that lacks its partition: %+v, %v", seen.Unknown, err)
	}
	mustApply(t, s, epoch(2))
	l.extra[at("b")] = 5
	if seen, err = s.Observe(t.Context()); err != nil || seen.Clean(epoch(2), 5, at("b")) == nil || len(seen.Networks) != 1 || seen.Networks[0].Number != 5 {
		t.Errorf("a port that kept its partition: %+v, %v", seen, err)
	}
	delete(l.extra, at("b"))
	if err := clean(t, s, epoch(2), "b"); err != nil {
		t.Error(err)
	}
}

func TestAnAnswerThatIsNotWholeProvesNothing(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"of a UFM that is starting":     `{}`,
		"null":                          `null`,
		"a list":                        `["0x7fff"]`,
		"without members":               `{"0x7fff":{"guids":[]},"0x5":{"partition":"x"}}`,
		"with an unknown membership":    `{"0x7fff":{"guids":[{"guid":"0002c90300000001","membership":"both"}]}}`,
		"with a member that is no GUID": `{"0x7fff":{"guids":[{"guid":"n1","membership":"full"}]}}`,
		"with a key that is none":       `{"0x7fff":{"guids":[]},"five":{"guids":[]}}`,
		"with a key twice":              `{"0x7fff":{"guids":[]},"0x5":{"guids":[]},"0x8005":{"guids":[]}}`,
		"with a member twice":           `{"0x7fff":{"guids":[{"guid":"0002c90300000001","membership":"full"},{"guid":"0x0002C90300000001","membership":"limited"}]}}`,
		"followed by another":           `{"0x7fff":{"guids":[]}} {"0x5":{"guids":[]}}`,
		"cut off":                       `{"0x7fff":{"guids":[]}`,
		"a page for people":             `<html>UFM is loading</html>`,
	} {
		l := newLab(t)
		s := l.executor()
		mustApply(t, s, epoch(1), network(5, "a"))
		l.Answer(answer)
		_, err := s.Observe(t.Context())
		before := l.Changes()
		if apply := s.Apply(t.Context(), epoch(2), nil); err == nil || apply == nil || !slices.Equal(before, l.Changes()) {
			t.Errorf("%s: Observe %v, Apply %v, requests %v", name, err, apply, l.Changes())
		}
	}
}

func TestUFMIsTrustedByItsCertificateOnly(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.cfg.CA = "" // the system's authorities don't know it
	err := l.executor().Apply(t.Context(), epoch(1), []site.Network{network(5, "a")})
	if err == nil || !strings.Contains(err.Error(), "certificate is not trusted") || len(l.Changes()) > 0 {
		t.Errorf("an unknown authority: %v", err)
	}
	l = newLab(t)
	l.cfg.ServerName = "ufm.example.org"
	if err := l.executor().Apply(t.Context(), epoch(1), nil); err == nil || !strings.Contains(err.Error(), "certificate is not trusted") {
		t.Errorf("another name: %v", err)
	}
	for what, change := range map[string]func(*Config){
		"plain HTTP":                  func(c *Config) { c.URL = "http://127.0.0.1" },
		"credentials in the URL":      func(c *Config) { c.URL = "https://u:p@ufm" },
		"no credentials":              func(c *Config) { c.Credentials = Credentials{} },
		"a token and a user":          func(c *Config) { c.Credentials.Token = "x" },
		"an authority that is absent": func(c *Config) { c.CA = filepath.Join(t.TempDir(), "none") },
		"a range that is none":        func(c *Config) { c.First, c.Last = 9, 8 },
		"a range with 0x7fff":         func(c *Config) { c.Last = 0x7fff },
	} {
		cfg := newLab(t).cfg
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: want an error", what)
		}
	}
}

func TestCredentialsAreATokenOrAUser(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.cfg.Credentials = Credentials{Token: ufmtest.Token}
	mustApply(t, l.executor(), epoch(1), network(5, "a"))
	l.cfg.Credentials = Credentials{User: ufmtest.User, Password: "wrong"}
	err := l.executor().Apply(t.Context(), epoch(2), nil)
	if err == nil || !strings.Contains(err.Error(), "refused the credentials") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("a wrong password: %v", err)
	}
	for text, want := range map[string]Credentials{"admin:a:b\n": {User: "admin", Password: "a:b"}, "dG9rZW4=\n": {Token: "dG9rZW4="}} {
		if got, err := ParseCredentials(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "\n", "admin:", ":x", "a\nb"} {
		if _, err := ParseCredentials(text); err == nil {
			t.Errorf("%q: want an error", text)
		}
	}
}

func TestASlowUFMIsGivenUp(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	release := make(chan struct{})
	handler := l.HTTP.Config.Handler
	l.HTTP.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
			handler.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
	l.cfg.Timeout = 50 * time.Millisecond
	s := l.executor()
	if err := s.Apply(t.Context(), epoch(1), nil); err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
	close(release)
}

func TestAProcessThatEndsAmidRequestsLeavesWordOfThem(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.executor()
	// The folder as a process leaves it that ends between the record and the answer.
	during := record{Epoch: epoch(1), Late: time.Now().Add(time.Hour)}
	if err := during.store(l.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	mustApply(t, s, epoch(2))
	if clean(t, s, epoch(2), "a") == nil {
		t.Error("counts as clean, although a request of a former process may be on its way")
	}
	if err := os.WriteFile(filepath.Join(l.cfg.Dir, recordName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), epoch(3), nil); err == nil || !strings.Contains(err.Error(), "newest epoch can't be read") {
		t.Errorf("a damaged record: %v", err)
	}
}

func TestManyMembersGoInRequestsOfBoundedSize(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.cfg.Tables = nil
	s := l.executor()
	n := site.Network{Number: 5}
	for i := range 600 {
		n.Ports = append(n.Ports, site.Port{At: fmt.Sprintf("0002c903%08x", i+1)})
	}
	mustApply(t, s, epoch(1), n)
	if got := len(l.Changes()); got != 4 {
		t.Errorf("%d requests, want one for the partition and three for its members", got)
	}
	n.Ports = n.Ports[:400]
	mustApply(t, s, epoch(2), n)
	seen, err := s.Observe(t.Context())
	if err != nil || seen.Epoch != epoch(2) || len(seen.Networks[0].Ports) != 400 {
		t.Errorf("got epoch %v, %v", seen.Epoch, err)
	}
	for _, c := range l.Changes() {
		if len(c) > 2000 {
			t.Errorf("a request's path has %d characters", len(c))
		}
	}
}

func FuzzParsePartitions(f *testing.F) {
	f.Add(`{"0x7fff":{"guids":[]},"0x12":{"partition":"a","ip_over_ib":true,"guids":[{"guid":"0002c903000e0b72","membership":"full","index0":true}]}}`)
	f.Add(`{"0x7fff":{"guids":null}}`)
	f.Add(`{"0xffff":{"guids":[{"guid":"0X0002C903000E0B72","membership":"limited"}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parsePartitions([]byte(text))
		if err != nil {
			return
		}
		if _, is := all[0x7fff]; !is {
			t.Fatalf("%q: accepted without the management key", text)
		}
		for key, p := range all {
			for at := range p.members {
				if key < 0 || key > 0x7fff || len(at) != 16 || at != strings.ToLower(at) {
					t.Fatalf("%q: key %d, member %q", text, key, at)
				}
			}
		}
	})
}
