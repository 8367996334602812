package ufm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/ufm/ufmtest"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// lab is a stand-in of UFM with the ports of its fabric.
type lab struct {
	*ufmtest.Server
	t     *testing.T
	cfg   Config
	blind map[string]string
	// deaf are keys that ports have past UFM, or lack although UFM says so.
	extra map[string]int
	lacks map[string]bool
	// later is what the clock is ahead.
	later time.Duration
}

func newLab(t *testing.T) *lab {
	t.Helper()
	server := ufmtest.New()
	t.Cleanup(server.HTTP.Close)
	dir := t.TempDir()
	ca := filepath.Join(dir, "ufm.pem")
	if err := os.WriteFile(ca, server.Certificate(), 0o600); err != nil {
		t.Fatal(err)
	}
	l := &lab{Server: server, t: t, blind: map[string]string{}, extra: map[string]int{}, lacks: map[string]bool{}}
	l.cfg = Config{
		Dir: filepath.Join(dir, "executor"), URL: server.HTTP.URL, CA: ca, First: 1, Last: 0xff, Timeout: 20 * time.Second,
		Credentials: Credentials{User: ufmtest.User, Password: ufmtest.Password}, Tables: l,
		Now: func() time.Time { return time.Now().Add(l.later) },
	}
	return l
}

// ReadKeys reads the ports of the lab, which have what UFM has but for what the lab says.
func (l *lab) ReadKeys(_ context.Context, places []string) (map[string]map[int]bool, map[string]string, error) {
	keys, unknown := map[string]map[int]bool{}, map[string]string{}
	for _, at := range places {
		if why := l.blind[at]; why != "" {
			unknown[at] = why
			continue
		}
		keys[at] = map[int]bool{}
		for key := 1; key <= 0x200; key++ {
			if p := l.Partition(key); p != nil && !l.lacks[at] {
				if limited, is := p.Members[at]; is {
					keys[at][key] = limited
				}
			}
		}
		if key := l.extra[at]; key != 0 {
			keys[at][key] = false
		}
	}
	return keys, unknown, nil
}

func (l *lab) executor() *Site {
	l.t.Helper()
	s, err := New(l.cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

// fabricOf is a lab as the suite wants it.
type fabricOf struct{ *lab }

const guidPrefix = "0002c9030000000"

func at(name string) string {
	if name == "" {
		return ""
	}
	return guidPrefix + name
}

func nameOf(at string) string { return strings.TrimPrefix(at, guidPrefix) }

func (f fabricOf) Executor() site.Site            { return named{f.executor()} }
func (f fabricOf) Plant(network int, name string) { f.lab.Plant(network, at(name)) }
func (f fabricOf) Settle()                        { f.lab.Settle(); f.later += 2 * time.Minute }
func (f fabricOf) Stick(name string, on bool)     { f.lab.Stick(at(name), on) }
func (f fabricOf) Blind(name, why string)         { f.blind[at(name)] = why }

// named is an executor for which places have the suite's names.
type named struct{ *Site }

func (n named) Apply(ctx context.Context, epoch lifecycle.Epoch, networks []site.Network) error {
	return n.Site.Apply(ctx, epoch, rename(networks, at))
}

func (n named) Observe(ctx context.Context) (site.Observation, error) {
	seen, err := n.Site.Observe(ctx)
	seen.Networks = rename(seen.Networks, nameOf)
	unknown := map[string]string{}
	for at, why := range seen.Unknown {
		unknown[nameOf(at)] = why
	}
	seen.Unknown = unknown
	return seen, err
}

func rename(networks []site.Network, name func(string) string) []site.Network {
	var all []site.Network
	for _, n := range networks {
		ports := make([]site.Port, len(n.Ports))
		for i, p := range n.Ports {
			ports[i] = site.Port{At: name(p.At), Limited: p.Limited}
		}
		n.Ports = ports
		all = append(all, n)
	}
	return all
}

func TestSiteConformance(t *testing.T) {
	fabrictest.RunSite(t, fabrictest.SiteHarness{
		New: func(t *testing.T) fabrictest.SiteFabric { return fabricOf{newLab(t)} },
	})
}
