package metal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/boot"
	"github.com/nearmetal/nearmetal/internal/bootapi"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/netboot"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/power"
	"github.com/nearmetal/nearmetal/internal/provisioner"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

var (
	secret  = []byte(strings.Repeat("s", 32))
	network = netboot.Network{
		Address:  netip.MustParsePrefix("10.9.0.1/16"),
		Machines: netboot.Range{From: netip.MustParseAddr("10.9.1.1"), To: netip.MustParseAddr("10.9.1.250")},
	}
)

// site is one run of the server: all it remembers goes with it.
type site struct {
	w       *world
	ctx     context.Context
	end     context.CancelFunc
	parts   sync.WaitGroup
	repo    *state.Repo
	cache   *state.Cache
	heard   *bootapi.Heard
	handler http.Handler
	agents  *agents

	mu    sync.Mutex
	table *netboot.Table
}

// start starts the server, if it is down.
func (w *world) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.site != nil {
		return
	}
	// Each run of the server finds another time on the wall.
	skew := time.Duration(0)
	if !w.calm {
		skew = span(w.clocks, -20*time.Minute, 20*time.Minute)
	}
	wall := func() time.Time { return time.Now().Add(skew) }
	s := &site{w: w, repo: state.New(w.store), agents: newAgents(wall)}
	s.ctx, s.end = context.WithCancel(w.ctx)
	var err error
	if s.cache, err = s.repo.OpenCache(s.ctx); err != nil {
		w.t.Fatal(err)
	}
	clock := controller.NewSiteClock(wall, s.cache.View().NewestTime())
	now := func() time.Time { return clock.At(wall()) }
	s.heard = bootapi.NewHeard(now)
	api, err := bootapi.New(bootapi.Config{
		Reader: s.cache, Writer: s.repo, Images: built{}, Heard: s.heard, Secret: secret, Pin: trust.Pin{1},
		At:    s.at,
		Peers: func(image.Digest) []string { return nil }, AgentServer: "10.9.0.1:7443", SiteTime: now, Log: slog.New(slog.DiscardHandler),
		StrangerImage: func() image.Digest { return "" },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	s.handler = api.Handler()
	gate := power.NewGate(power.GateOptions{})
	s.parts.Go(func() {
		err := controller.Run(s.ctx, controller.Config{
			Candidate: "server", Repo: s.repo, Cache: s.cache, Agents: s.agents, SiteSecret: secret, Pool: placement.DefaultPool,
			Deadlines: lifecycle.DefaultDeadlines(), Images: built{}, Now: wall, Clock: clock, Log: slog.New(slog.DiscardHandler),
			Provisioning: &controller.Provisioning{
				New: func() controller.Provisioner {
					return provisioner.New(provisioner.Options{Open: w.bmcs.Open, Gate: gate, Now: wall})
				},
				SetTable: s.setTable, Heard: s.heard, Network: network, Deadlines: lifecycle.DefaultMachineDeadlines(),
			},
		})
		if err != nil && s.ctx.Err() == nil {
			w.t.Errorf("the controller ended: %v", err)
		}
	})
	w.site, w.risen = s, time.Now()
}

// kill ends the server, and returns when nothing of it goes on.
func (w *world) kill() {
	w.mu.Lock()
	s := w.site
	w.site = nil
	w.mu.Unlock()
	if s != nil {
		s.end()
		s.parts.Wait()
	}
}

// up is the server, nil while it is down.
func (w *world) up() *site {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.site
}

// servers kills the server now and then, and lets it lose its leadership.
func (w *world) servers(ctx context.Context, r *rand.Rand) {
	for pause(ctx, span(r, 5*time.Second, 12*time.Minute)) {
		away := span(r, time.Second, 30*time.Second)
		if r.IntN(5) == 0 {
			away = span(r, time.Minute, 8*time.Minute)
		}
		if r.IntN(3) == 0 {
			w.trace("the leadership is lost")
			w.seen.add("leadership lost")
			w.store.Depose()
			continue
		}
		w.trace("the server is killed, for %s", away)
		w.seen.add("server killed")
		w.kill()
		if !pause(ctx, away) {
			return
		}
		w.start()
		w.trace("the server is back")
	}
}

func (s *site) setTable(t netboot.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil || t.Term > s.table.Term || t.Term == s.table.Term && t.Revision >= s.table.Revision {
		s.table = &t
	}
}

// dhcp is what network boot answers a machine, as far as it is asked to by a leader.
func (s *site) dhcp(mac string) (*netboot.Machine, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil || s.ctx.Err() != nil {
		return nil, false
	}
	return s.table.Machines[mac], true
}

// asks is firmware that asks what to boot though nothing is decided.
func (s *site) asks(mac string) {
	if m := s.cache.View().MachineByMAC(mac); m != nil {
		s.heard.Event(m.UID(), netboot.Event{Stage: api.StageFirmware})
	}
}

// port is where all machines are.
const port = "boot0"

// at tells who has an address.
func (s *site) at(address netip.Addr) (mac, at string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return "", "", false
	}
	for mac, m := range s.table.Machines {
		if m.Address == address {
			return mac, port, true
		}
	}
	return "", "", false
}

// errAway: there was no answer.
var errAway = errors.New("the server does not answer")

// refused is an answer that says no.
type refused struct{ boot.Problem }

func (r *refused) Error() string { return r.Detail }

// post asks the boot API.
func (s *site) post(path, session string, from netip.Addr, in, out any) error {
	if s == nil || s.ctx.Err() != nil {
		return errAway
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r := httptest.NewRequestWithContext(s.ctx, http.MethodPost, path, bytes.NewReader(body))
	r.RemoteAddr = netip.AddrPortFrom(from, 40000).String()
	if session != "" {
		r.Header.Set("Authorization", "Bearer "+session)
	}
	answer := httptest.NewRecorder()
	s.handler.ServeHTTP(answer, r)
	switch {
	case s.ctx.Err() != nil:
		return errAway // what it did may be so; the answer is lost
	case answer.Code != http.StatusOK:
		no := &refused{}
		if err := json.NewDecoder(answer.Body).Decode(&no.Problem); err != nil {
			s.w.t.Errorf("%s answers %d, %v", path, answer.Code, err)
		}
		return no
	}
	return json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(out)
}

// built are the images of the site.
type built struct{}

var _ controller.Images = built{}

// environments are the names that images are built for.
var environments = []string{lifecycle.InspectEnvironment, "debian-mpi", "debian-slurm"}

func manifestOf(environment string) (image.Manifest, []byte, image.Digest) {
	m := image.Manifest{
		Environment: environment, Architecture: "x86_64", Stacks: []api.Stack{api.StackMetal},
		Metal: &image.Metal{Kernel: image.Blob{Digest: image.DigestOf([]byte("kernel"))}, Initrd: image.Blob{Digest: image.DigestOf([]byte("initrd"))}},
	}
	data, digest, err := m.Encode()
	if err != nil {
		panic(err)
	}
	return m, data, digest
}

func environmentOf(digest string) string {
	for _, name := range environments {
		if _, _, d := manifestOf(name); string(d) == digest {
			return name
		}
	}
	return ""
}

func (built) Load(digest image.Digest) (*image.Manifest, error) {
	m, _, _ := manifestOf(environmentOf(string(digest)))
	return &m, nil
}

func (built) Manifest(digest image.Digest) (manifest, signature []byte, err error) {
	name := environmentOf(string(digest))
	if name == "" {
		return nil, nil, fs.ErrNotExist
	}
	_, data, _ := manifestOf(name)
	return data, []byte("signed"), nil
}

func (built) Signature(image.Digest) ([]byte, error) { return []byte("signed"), nil }

func (built) PublicKey() []byte { return []byte("key") }

func (built) Complete(image.Digest) error { return nil }

func (built) Collect([]image.Digest, time.Duration) (int64, error) { return 0, nil }

// images makes the environments known.
func (w *world) images() {
	s := w.up()
	for _, name := range environments {
		_, _, digest := manifestOf(name)
		if _, err := s.repo.PutImage(s.ctx, api.Image{
			Digest: string(digest), Environment: name, Architecture: "x86_64", Stacks: []api.Stack{api.StackMetal}, RootBytes: 1 << 20, MetalBytes: 1 << 20,
			KernelVersion: "6.1", BuiltAt: time.Now(),
		}); err != nil {
			w.t.Fatal(err)
		}
		if _, err := s.repo.SetEnvironment(s.ctx, api.EnvironmentRecord{Name: name, Digest: string(digest), UpdatedAt: time.Now()}); err != nil {
			w.t.Fatal(err)
		}
	}
}
