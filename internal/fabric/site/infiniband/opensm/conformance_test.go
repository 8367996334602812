package opensm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/ibsim"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// lab is a simulated fabric whose subnet manager is on host n1.
type lab struct {
	t       testing.TB
	fabric  *ibsim.Fabric
	cfg     Config
	manager *ibsim.Manager

	stuck map[string]bool
	plant []string // definitions that somebody else adds to the file
	deaf  bool     // no signal reaches OpenSM
}

// newLab makes a lab for a test that runs beside others.
func newLab(t *testing.T, topology ibsim.Topology) *lab {
	t.Helper()
	t.Parallel()
	return startLab(t, topology)
}

func startLab(t testing.TB, topology ibsim.Topology) *lab {
	t.Helper()
	for _, program := range []string{"ibsim", "opensm", "ibnetdiscover"} {
		needs.Program(t, program)
	}
	f, err := ibsim.Start(t.Context(), t.TempDir(), topology)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	l := &lab{t: t, fabric: f, stuck: map[string]bool{}}
	l.cfg = Config{
		Dir: filepath.Join(dir, "executor"), Partitions: filepath.Join(dir, "partitions.conf"), Reload: l.reload, Log: slog.New(slog.DiscardHandler),
		Run: func(ctx context.Context, program string, args ...string) *exec.Cmd {
			return f.Command(ctx, "n1", program, args...)
		},
	}
	t.Cleanup(func() {
		if l.manager != nil {
			l.manager.Stop()
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	l.manage()
	return l
}

// runOn has the executor see the fabric from a host.
func (l *lab) runOn(host string) {
	l.cfg.Run = func(ctx context.Context, program string, args ...string) *exec.Cmd {
		return l.fabric.Command(ctx, host, program, args...)
	}
}

func (l *lab) manage() {
	l.t.Helper()
	m, err := l.fabric.Manage(l.t.Context(), "n1", 3, l.cfg.Partitions)
	if err != nil {
		l.t.Fatal(err)
	}
	l.manager = m
}

// guid is the place of the nth host.
func (l *lab) guid(n int) string { return l.fabric.Hosts[n-1].PortGUID() }

func (l *lab) executor() *Site {
	l.t.Helper()
	s, err := New(l.cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

// reload adds to the file what others put there, and has OpenSM read it.
func (l *lab) reload(ctx context.Context, path string) error {
	if l.deaf {
		return nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	for guid := range l.stuck {
		_, _ = fmt.Fprintf(file, "stuck=0x5: 0x%s=full;\n", guid)
	}
	for _, definition := range l.plant {
		_, _ = fmt.Fprintln(file, definition)
	}
	if err := file.Close(); err != nil {
		return err
	}
	return Reload(ctx, path)
}

// swept waits until OpenSM has read its file once more.
func (l *lab) swept() {
	l.t.Helper()
	before := l.manager.Sweeps()
	if err := Reload(l.t.Context(), l.cfg.Partitions); err != nil {
		l.t.Fatal(err)
	}
	l.await("a sweep", func() bool { return l.manager.Sweeps() > before })
}

// patience is long, for computers that have much else to do: OpenSM sweeps by its own clock, and each look at the fabric is several processes.
const patience = 3 * time.Minute

func (l *lab) await(what string, done func() bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			l.t.Fatalf("%s: it did not come about within %v", what, patience)
		case <-tick.C:
		}
	}
}

// fabricOf is a lab as the suite wants it: its places a, b and c are the ports of n2, n3 and n4.
type fabricOf struct{ *lab }

func (f fabricOf) at(name string) string {
	if name == "" {
		return ""
	}
	return f.guid(int(name[0]-'a') + 2)
}

func (f fabricOf) name(at string) string {
	for _, name := range []string{"a", "b", "c"} {
		if f.at(name) == at {
			return name
		}
	}
	return at
}

func (f fabricOf) Executor() site.Site { return named{f, f.executor()} }
func (f fabricOf) Settle()             {}

func (f fabricOf) Plant(network int, at string) {
	f.plant = append(f.plant, fmt.Sprintf("planted=0x%x: 0x%s=full;", network, f.at(at)))
	if err := f.reload(f.t.Context(), f.cfg.Partitions); err != nil {
		f.t.Fatal(err)
	}
	f.plant = nil
	f.swept()
}

func (f fabricOf) Blind(at, why string) {
	host := f.fabric.Hosts[int(at[0]-'a')+1].Name
	do := f.fabric.Unlink
	if why == "" {
		do = f.fabric.Relink
	}
	if err := do(f.t.Context(), host); err != nil {
		f.t.Fatal(err)
	}
	f.swept()
}

func (f fabricOf) Stick(at string, on bool) {
	f.stuck[f.at(at)] = on
	if !on {
		delete(f.stuck, f.at(at))
	}
}

// named is an executor for which places have the suite's names.
type named struct {
	f fabricOf
	*Site
}

func (n named) Apply(ctx context.Context, epoch lifecycle.Epoch, networks []site.Network) error {
	return n.Site.Apply(ctx, epoch, rename(networks, n.f.at))
}

func (n named) Observe(ctx context.Context) (site.Observation, error) {
	seen, err := n.Site.Observe(ctx)
	seen.Networks = rename(seen.Networks, n.f.name)
	unknown := map[string]string{}
	for at, why := range seen.Unknown {
		unknown[n.f.name(at)] = why
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
		New: func(t *testing.T) fabrictest.SiteFabric { return fabricOf{newLab(t, ibsim.OneSwitch(4))} },
	})
}
